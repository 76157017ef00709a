"""What holds of every policy, host and address, as hypothesis finds them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_egress import floors
from agent_egress.names import NameRefused, canonical_name, canonical_pattern, literal_address
from agent_egress.paths import match_path, path_is_plain
from agent_egress.policy import decide_address, decide_lookup, decide_name, decide_request, deny_all
from agent_egress.rules import Policy, PolicyError

Json = dict[str, object]
EMPTY = Policy()
BROKEN = deny_all("the policy is broken")


def rule(action: str, pattern: str, **more: object) -> Json:
    return {"action": action, "pattern": pattern, **more}


def policy(*rules: Json, **more: object) -> Policy:
    return Policy.parse(json.dumps({"version": 1, "rules": list(rules), **more}).encode())


PLAIN = policy(
    *(rule("allow", host) for host in ("ok.test", "*.wild.test")),
    *(rule("inspect", "seen.test", ports=[443, 8443]), rule("allow", "git.test", ports=[22])),
    *(rule("deny", "ads.wild.test"), rule("kill", "trap.wild.test"), rule("allow", "203.0.113.0/24")),
)
LISTED = ("ok.test", "OK.Test.", "a.wild.test", "trap.wild.test", "203.0.113.7", "::ffff:203.0.113.7", "127.1", "0x7f")
# Few names and rules, drawn from a pool: they meet often, and drawing them costs little.
NAMES = ("a.test", "b.a.test")
HOST_NAMES = st.sampled_from(NAMES)
WEIRD = st.one_of(st.text(max_size=300), HOST_NAMES, st.ip_addresses().map(str), st.sampled_from(LISTED))
PORTS = st.sampled_from([443, 80, 22, 8443, 0, -1, 70000])
CLOSING = st.sampled_from(["deny", "kill"])
PATTERNS = (*NAMES, *(f"*.{name}" for name in NAMES[:1]), "203.0.113.0/24", "203.0.113.7")
POOL = [
    *(rule(action, pattern) for action in ("deny", "kill") for pattern in PATTERNS),
    *(rule(action, pattern, ports=ports) for action in ("allow", "inspect") for pattern in PATTERNS
      for ports in ([443], [80, 443], [8443, 80])),
    *(rule("allow", pattern, tls=tls) for pattern in PATTERNS for tls in ("splice", "inspect")),
    *(rule("allow", name, addresses=["10.20.0.0/16"]) for name in NAMES),
]  # fmt: skip
RULES = st.lists(st.sampled_from(POOL), min_size=2, max_size=9)
TLS = st.sampled_from(["splice", "inspect"])
HOSTS = st.one_of(HOST_NAMES, st.sampled_from(["203.0.113.7", "203.0.113.8"]))
quickly = settings(max_examples=40, deadline=None)


@quickly
@given(WEIRD, PORTS, st.text(max_size=60))
def test_no_input_raises_and_an_unlisted_host_is_never_allowed(host: str, port: int, other: str) -> None:
    for policy_ in (EMPTY, BROKEN):
        assert not decide_name(policy_, host, port).allowed
        assert not decide_lookup(policy_, host, other).allowed
        assert not decide_address(policy_, host, other, port).allowed
        assert not decide_request(
            policy_, host=host, port=port, method=other, raw_path=other, scheme=other, tunnelled=True
        ).allowed
    decision = decide_name(PLAIN, host, port)
    if decision.allowed:
        address = literal_address(host)
        name = str(address) if address else canonical_name(host)
        assert name in {"ok.test", "seen.test", "git.test"} or name.endswith(".wild.test") or name[:10] == "203.0.113."
    path_is_plain(other)
    match_path("/a/**", other)


@quickly
@given(RULES, HOSTS, st.sampled_from([443, 80]))
def test_what_is_allowed_some_allowing_rule_names(rules: list[Json], host: str, port: int) -> None:
    decision = decide_name(policy(*rules), host, port)
    covers = [
        row
        for row in rules
        if row["action"] in {"allow", "inspect"}
        and port in row.get("ports", [443, 80])  # type: ignore[operator]
        and (
            row["pattern"] in {host, "203.0.113.0/24" if host[0].isdigit() else ""}
            or (str(row["pattern"]).startswith("*.") and host.endswith(str(row["pattern"])[1:]))
        )
    ]
    assert decision.allowed <= bool(covers)
    if decision.allowed:
        assert decision.rule in {f"{row['action']} {row['pattern']}" for row in covers}
        assert decision.scanned == any("inspect" in (row["action"], row.get("tls")) for row in covers)


@quickly
@given(RULES, HOSTS, st.sampled_from([443, 80]), TLS)
def test_order_never_matters(rules: list[Json], host: str, port: int, tls: str) -> None:
    before = policy(*rules, tls=tls)
    for shuffled in (rules[::-1], sorted(rules, key=str)):
        after = policy(*shuffled, tls=tls)
        assert decide_name(after, host, port) == decide_name(before, host, port)
        assert decide_lookup(after, host, "10.20.0.9") == decide_lookup(before, host, "10.20.0.9")
        assert (after.digest, after.encode()) == (before.digest, before.encode())


@quickly
@given(RULES, HOST_NAMES, CLOSING, st.booleans())
def test_what_closes_always_wins_and_kill_is_the_stronger(
    rules: list[Json], host: str, action: str, wildcard: bool
) -> None:
    sub = f"x.{host}" if wildcard else host
    pattern = f"*.{host}" if wildcard else host
    both = policy(*rules, rule("allow", sub), rule("inspect", sub), rule("deny", pattern), rule(action, pattern))
    killed = action == "kill" or any(row["action"] == "kill" and _over(str(row["pattern"]), sub) for row in rules)
    for spelling in (sub, sub.upper(), sub + "."):
        for decision in (decide_name(both, spelling, 443), decide_lookup(both, spelling)):
            assert (decision.allowed, decision.action) == (False, "kill" if killed else "deny")


def _over(pattern: str, host: str) -> bool:
    return pattern == host or (pattern.startswith("*.") and host.endswith(pattern[1:]))


@quickly
@given(RULES, RULES, HOSTS, PORTS)
def test_more_refusals_never_allow_more_and_more_allows_never_deny(
    rules: list[Json], more: list[Json], host: str, port: int
) -> None:
    before = decide_name(policy(*rules), host, port).allowed
    added = [row for row in more if (row["action"] in {"allow", "inspect"}) == before]
    assert decide_name(policy(*rules, *added), host, port).allowed == before


@quickly
@given(RULES, HOSTS, PORTS)
def test_a_policy_that_opens_tls_decides_nothing_else(rules: list[Json], host: str, port: int) -> None:
    spliced, opened = (decide_name(policy(*rules, tls=tls), host, port) for tls in ("splice", "inspect"))
    assert replace(spliced, action="", scanned=False) == replace(opened, action="", scanned=False)
    assert spliced.scanned <= opened.scanned
    assert (opened.action == "bump") == opened.scanned


@quickly
@given(RULES, TLS, st.sampled_from(["deny", "kill"]))
def test_a_policy_reads_back_as_it_was_written(rules: list[Json], tls: str, tripwire: str) -> None:
    made = policy(*rules, tls=tls, tripwire=tripwire)
    again = Policy.parse(made.encode())
    assert (again.encode(), again.digest, again.tls, again.tripwire) == (made.encode(), made.digest, tls, tripwire)
    assert set(again.rules) == {
        replace(row, ports=tuple(sorted(set(row.ports))), addresses=tuple(sorted(set(row.addresses))))
        for row in made.rules
    }


def test_a_policy_from_before_the_new_words_keeps_its_digest() -> None:
    old = (
        b'{"allow_metadata":false,"credentials":[],"host_addresses":[],"rules":[{"action":"allow","addresses":[],'
        b'"origin":"spec egress.allow[0]","pattern":"ok.test","ports":[80,443]}],"version":1}'
    )
    assert Policy.parse(old).encode() == old
    assert Policy.parse(old).short_digest == hashlib.sha256(old).hexdigest()[:16]


@quickly
@given(RULES, st.lists(st.tuples(st.one_of(HOSTS, WEIRD), PORTS), max_size=8))
def test_the_memo_never_changes_an_answer(rules: list[Json], asked: list[tuple[str, int]]) -> None:
    remembers = policy(*rules)
    first = [decide_name(remembers, host, port) for host, port in asked]
    assert [decide_name(remembers, host, port) for host, port in asked] == first
    assert [decide_name(policy(*rules), host, port) for host, port in asked] == first


@quickly
@given(st.ip_addresses())
def test_no_address_of_the_floor_is_reached_by_a_name_without_addresses(address: object) -> None:
    decision = decide_address(PLAIN, "ok.test", str(address), 443)
    found = literal_address(str(address))
    assert decision.allowed == (found is not None and not floors.in_floor(found))


@quickly
@given(st.text(max_size=80))
def test_a_canonical_pattern_is_its_own_canonical_form_and_one_plain_word(text: str) -> None:
    try:
        pattern = canonical_pattern(text)
    except NameRefused:
        return
    assert canonical_pattern(pattern) == pattern
    assert pattern.isascii() and pattern.isprintable() and not set(pattern) & set(" \t\n\"'#;\\$(){}<>")


@quickly
@given(st.binary(max_size=200))
def test_parsing_raises_policy_errors_alone(data: bytes) -> None:
    with pytest.raises(PolicyError):
        Policy.parse(b"\0" + data)


JUNK: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 1, "", "allow", "kill", "*.a.test", "\ud800", [443], ["10.0.0.0/8"], [[]], {}, 1e9]
)
DOCUMENTS: st.SearchStrategy[Json] = st.builds(
    dict,
    version=st.just(1),
    rules=st.lists(
        st.dictionaries(st.sampled_from(["action", "pattern", "tls", "ports", "addresses", "origin"]), JUNK), max_size=2
    ),
    tls=JUNK,
)


@quickly
@given(DOCUMENTS)
def test_no_document_raises_anything_else_either(document: dict[str, object]) -> None:
    try:
        made = Policy.parse(json.dumps({key: value for key, value in document.items() if value is not None}).encode())
    except PolicyError:
        return
    assert Policy.parse(made.encode()).digest == made.digest
