"""Approval: what counts as wider, what the digest covers, and that what is shown can be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_container.errors import ApprovalNeeded, UsageError
from agent_container.spec import load_spec
from agent_container.trust import MEASURES, MIN_ACCEPT, RED, Grants, check, diff, grants_of, parse_grants

BASE = """\
image: {packages: [ripgrep], setup: [make]}
workspace: {mode: clone, protect: [ci], hide: [.env]}
env: {A: b}
egress: {allow: [a.test], deny: [ads.test], inspect: [seen.test], kill: [trap.test], tripwire: kill}
credentials: [github]
resources: {memory: 4g}
limits: {time: 2h}
"""


def asked(text: str, **more: object) -> Grants:
    spec = load_spec(text.encode(), path=Path("agent-container.yaml"), default_name="acme")
    return grants_of(spec, **more)  # type: ignore[arg-type]


# (what is replaced, by what, the line that shows it)
WIDENS = {
    "another host": ("[a.test]", "[a.test, b.test]", "+ egress allow b.test port 443"),
    "another port": ("[a.test]", "[{host: a.test, ports: [443, 80, 22]}]", "+ egress allow a.test port 22"),
    "a star": ("[a.test]", "['*.a.test', a.test]", "+ egress allow *.a.test port 443"),
    "a private range behind a host": (
        "[a.test]",
        "[{host: a.test, addresses: [10.0.0.0/8]}]",
        "+ egress allow a.test to resolve into 10.0.0.0/8",
    ),
    "a deny less": ("deny: [ads.test]", "deny: []", "- egress deny ads.test"),
    "another inspected host": ("[seen.test]", "[seen.test, b.test]", "+ egress allow b.test port 443"),
    "a host that is opened no more": (
        "allow: [a.test], deny: [ads.test], inspect: [seen.test]",
        "allow: [a.test, seen.test], deny: [ads.test]",
        "- egress inspect seen.test port 443: its TLS is opened",
    ),
    "a kill less": ("kill: [trap.test]", "kill: []", "- egress kill trap.test: contact ends the session"),
    "a kill that is only a deny": (
        "deny: [ads.test], inspect: [seen.test], kill: [trap.test]",
        "deny: [ads.test, trap.test], inspect: [seen.test]",
        "- egress kill trap.test: contact ends the session",
    ),
    "a placeholder elsewhere is only refused": ("tripwire: kill", "tripwire: deny", "- egress tripwire kill"),
    "keys that pass": ("tripwire: kill", "tripwire: kill, dlp: log", "+ egress dlp log: keys in bodies to inspected"),
    "keys that nobody looks for": ("tripwire: kill", 'tripwire: kill, dlp: "off"', "+ egress dlp off: keys in bodies"),
    "a protected path less": ("protect: [ci]", "protect: []", "- workspace protect ci"),
    "a hidden path less": ("hide: [.env]", "hide: []", "- workspace hide .env"),
    "a bound workspace": (
        "mode: clone",
        "mode: bind",
        "+ workspace bind in `run`: the agent writes to the directory itself",
    ),
    "a mode left open": ("mode: clone, ", "", "+ workspace bind in `up`: the agent writes to the directory itself"),
    "another package": ("[ripgrep]", "[ripgrep, curl]", "+ image package curl"),
    "another setup command": ("setup: [make]", "setup: [make all]", "+ image setup[0] (agent, no network): make all"),
    "setup as root": ("setup: [make]", "setup: [{run: make, root: true}]", "+ image setup[0] (root, no network): make"),
    "setup with a network": (
        "setup: [make]",
        "setup: [{run: make, network: true}]",
        f"+ {RED} image setup[0] (agent, HOST NETWORK): make",
    ),
    "another base": ("image: {", "image: {base: debian:sid, ", "+ image base debian:sid"),
    "another credential": ("[github]", "[github, jira]", "+ credential jira"),
    "another value in env": ("env: {A: b}", "env: {A: c}", "+ env A=c"),
    "more memory": ("memory: 4g", "memory: 8g", "~ resources memory 4g -> 8g"),
    "memory without a limit": ("{memory: 4g}", "{}", "~ resources memory 4g -> half of the host"),
    "more time": ("time: 2h", "time: 3h", "~ limits time 2h -> 3h"),
    "a mount": (
        "env: {A: b}",
        "env: {A: b}\nmounts: [{source: /, target: /host}]",
        '+ mount "/" at "/host", readable',
    ),
    "a writable mount": (
        "env: {A: b}",
        "env: {A: b}\nmounts: [{source: /srv, target: /d, read_only: false}]",
        f'+ {RED} mount "/srv" at "/d", WRITABLE',
    ),
    "metadata": ("deny: [ads.test]", "deny: [ads.test], allow_metadata: true", f"+ {RED} egress allow_metadata"),
    "another agent": ("env: {A: b}", "env: {A: b}\nagent: codex", "+ agent codex"),
    "a command of one's own": (
        "env: {A: b}",
        "env: {A: b}\nagent: {command: [sh, -c, '{task}']}",
        '+ agent command ["sh", "-c", "{task}"]',
    ),
    "another model": ("env: {A: b}", "env: {A: b}\nmodel: m-1", "+ model m-1"),
    "memory that stays": ("env: {A: b}", "env: {A: b}\nmemory: shared", "+ memory shared"),
}


@pytest.mark.parametrize(("old", "new", "line"), WIDENS.values(), ids=WIDENS)
def test_widening_asks_and_shows_the_line(old: str, new: str, line: str) -> None:
    assert old in BASE
    wider = asked(BASE.replace(old, new))
    with pytest.raises(ApprovalNeeded) as caught:
        check(asked(BASE), wider)
    assert any(shown.startswith(line) for shown in caught.value.diff), caught.value.diff
    assert caught.value.digest == wider.digest
    assert f"--accept {wider.digest[:MIN_ACCEPT]}" in (caught.value.hint or "")
    check(asked(BASE), wider, accept=wider.digest)


NARROWS = {
    "nothing": ("env", "env"),
    "a host less": ("[a.test]", "[]"),
    "a port less": ("[a.test]", "[{host: a.test, ports: [443]}]"),
    "another deny": ("[ads.test]", "[ads.test, b.test]"),
    "a host that is opened": ("[a.test]", "[{host: a.test, tls: inspect}]"),
    "all hosts that are opened": ("tripwire: kill", "tripwire: kill, tls: inspect"),
    "scanning said as it is": ("tripwire: kill", "tripwire: kill, dlp: enforce"),
    "another kill": ("kill: [trap.test]", "kill: [trap.test, b.test]"),
    "a deny that is a kill": (
        "deny: [ads.test], inspect: [seen.test], kill: [",
        "inspect: [seen.test], kill: [ads.test, ",
    ),
    "an inspected host less": ("inspect: [seen.test]", "inspect: []"),
    "the same said in another place": (
        "allow: [a.test], deny: [ads.test], inspect: [seen.test]",
        "allow: [a.test, {host: seen.test, tls: inspect}], deny: [ads.test]",
    ),
    "another hidden path": ("[.env]", "[.env, .env.local]"),
    "a package less": ("[ripgrep]", "[]"),
    "setup less": ("setup: [make]", "setup: []"),
    "a credential less": ("[github]", "[]"),
    "a credential narrowed": ("[github]", "[{name: github, methods: [GET]}]"),
    "less memory": ("memory: 4g", "memory: 1g"),
    "less time": ("time: 2h", "time: 1h"),
    "another name": ("env: {A: b}", "env: {A: b}\nname: other"),
    "comments and order": (BASE, "# x\n" + "\n".join(reversed(BASE.strip().splitlines()))),
}


@pytest.mark.parametrize(("old", "new"), NARROWS.values(), ids=NARROWS)
def test_narrowing_needs_no_approval(old: str, new: str) -> None:
    assert old in BASE
    check(asked(BASE), asked(BASE.replace(old, new)))


def test_undoing_a_narrowing_that_was_recorded_asks_again() -> None:
    narrower = asked(BASE.replace("[github]", "[{name: github, methods: [GET]}]"))
    with pytest.raises(ApprovalNeeded):
        check(narrower, asked(BASE))


def test_first_use_shows_everything_with_the_red_lines_first() -> None:
    grants = asked(BASE.replace("setup: [make]", "setup: [{run: make, network: true}]"))
    with pytest.raises(ApprovalNeeded, match="never approved") as caught:
        check(None, grants)
    assert len(caught.value.diff) == len(grants.grants)
    assert caught.value.diff[0].startswith(f"+ {RED} image setup[0]")
    assert "+ egress deny ads.test" in caught.value.diff


def test_the_difference_marks_what_is_narrower_and_puts_it_last() -> None:
    changes = diff(asked(BASE), asked(BASE.replace("[a.test]", "[b.test]")))
    assert [change.widens for change in changes] == [True, True, False, False]
    assert changes[-1].line == "- egress allow a.test port 80 (narrower)"


@pytest.mark.parametrize("accept", ["", "x" * 12, "ab12", "ABCDEF123456", "0" * 65])
def test_accept_wants_a_digest_of_twelve_digits_at_least(accept: str) -> None:
    with pytest.raises(UsageError, match="--accept"):
        check(None, asked(BASE), accept=accept)


def test_a_digest_of_something_else_is_not_spent_here() -> None:
    with pytest.raises(ApprovalNeeded, match="something else"):
        check(None, asked(BASE), accept=asked("").digest)


def test_a_prefix_of_the_digest_is_enough() -> None:
    grants = asked(BASE)
    check(None, grants, accept=grants.digest[:MIN_ACCEPT])


COVERED = {
    "a file's content": ({"files": {"a.env": b"A=1"}}, {"files": {"a.env": b"A=2"}}),
    "an image's digest": (
        {"image_digests": {"debian:trixie-slim": "sha256:" + "a" * 64}},
        {"image_digests": {"debian:trixie-slim": "sha256:" + "b" * 64}},
    ),
    "an agent's own hosts": ({"also": ["agent needs a.test"]}, {"also": ["agent needs b.test"]}),
}


@pytest.mark.parametrize(("before", "after"), COVERED.values(), ids=COVERED)
def test_the_digest_covers_what_the_spec_pulls_in(before: dict[str, object], after: dict[str, object]) -> None:
    assert asked(BASE, **before).digest != asked(BASE, **after).digest
    with pytest.raises(ApprovalNeeded):
        check(asked(BASE, **before), asked(BASE, **after))


def test_hostile_text_is_shown_safely_and_never_like_another() -> None:
    escaped = asked('image: {setup: ["echo \\e[2J\\u202e"]}')
    literal = asked("image: {setup: ['echo \\x1b[2J\\u202e']}")
    assert all(grant.line.isprintable() for grant in escaped.grants)
    assert escaped.digest != literal.digest
    imitation = next(grant.text for grant in escaped.grants if "setup" in grant.text).split("): ")[1]
    copied = asked(f"image: {{setup: ['{imitation}']}}")
    with pytest.raises(ApprovalNeeded):
        check(copied, escaped)


def test_two_mounts_cannot_be_read_as_one_another() -> None:
    one = asked("mounts: [{source: '/a at /b', target: /c}]")
    other = asked("mounts: [{source: /a, target: '/b at /c'}]")
    assert one.digest != other.digest


def test_an_approval_is_read_back_and_a_damaged_one_counts_as_none() -> None:
    grants = asked(BASE)
    assert parse_grants(grants.encode()) == grants
    assert parse_grants(grants.encode()).digest == grants.digest  # type: ignore[union-attr]
    for damaged in (b"", b"{}x", b"[]", b'{"grants":[{"kind":"all"}]}', b'{"version":2,"grants":[]}'):
        assert parse_grants(damaged) is None


@pytest.mark.parametrize(
    ("key", "written", "shown"),
    [
        ("resources", "memory: 1536m", "resources memory 1536m"),
        ("resources", "memory: 1.5g", "resources memory 1536m"),
        ("resources", "cpus: 0.5", "resources cpus 0.5"),
        ("limits", "time: 90m", "limits time 1h30m"),
        ("limits", "idle: 1d", "limits idle 24h"),
        ("limits", "idle: 45s", "limits idle 45s"),
        ("limits", "model_bytes: 200m", "limits model_bytes 200m"),
        ("limits", "model_requests: 500", "limits model_requests 500"),
        ("limits", "cost_usd: 2.5", "limits cost_usd 2.5"),
        ("limits", "turns: 9", "limits turns 9"),
    ],
)
def test_amounts_are_shown_as_the_spec_writes_them(key: str, written: str, shown: str) -> None:
    assert shown in [grant.line for grant in asked(f"{key}: {{{written}}}").grants]
    assert asked(f"{key}: {{{shown.split(' ', 1)[1].replace(' ', ': ')}}}") == asked(f"{key}: {{{written}}}")


def test_every_amount_has_a_measure() -> None:
    assert {grant.text for grant in asked(BASE).grants if grant.kind == "amount"} == set(MEASURES)


def test_where_tls_is_opened_by_default_a_host_that_stays_unopened_is_a_widening_that_says_so() -> None:
    opened = BASE.replace("tripwire: kill", "tripwire: kill, tls: inspect")
    changes = diff(asked(opened), asked(opened.replace("[a.test]", "[{host: a.test, tls: splice}]")))
    lines = {change.line: change.widens for change in changes}
    assert lines["+ egress splice a.test port 443: its TLS stays unopened"]
    assert lines["- egress inspect a.test port 443: its TLS is opened"]
    shown = [change.line for change in diff(asked(BASE), asked(opened))]
    assert "+ egress inspect a.test port 443: its TLS is opened (narrower)" in shown, "no yes is asked, and it is shown"
    assert any(line.startswith("+ egress tls inspect: ") for line in shown)
    with pytest.raises(ApprovalNeeded):
        check(asked(opened), asked(BASE))
