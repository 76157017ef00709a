"""What becomes of a policy that is changed while it is in force, as tables: entries as people paste them, edits, and
what `egress explain` says of a URL."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest

from agent_container.commands.egress_explain import explained, parse_target
from agent_container.commands.egress_log import Receipt, Wanted, newest
from agent_container.commands.egress_watch import MAX_ROWS, Board
from agent_container.errors import UsageError
from agent_container.live_rules import allow, carried_over, deny, live_rules, parse_entry, remove, what_to_type
from agent_egress.policy import Binding, Policy, Rule, decide_name

POLICY = Policy(
    rules=(
        Rule("allow", "api.test", origin="spec egress.allow[0] line 4"),
        Rule("allow", "db.test", (5432,), origin="spec egress.allow[1] line 5"),
        Rule("allow", "model.test", (443,), origin="agent claude"),
        Rule("deny", "*.ads.test", origin="spec egress.deny[0] line 7"),
    ),
    credentials=(Binding("key", "model.test", 443, ("POST",), ("/v1/messages",), "X-Api-Key", "{}"),),
)

PASTED: dict[str, tuple[str, tuple[int, ...]]] = {
    "api.test": ("api.test", (443, 80)),
    "API.Test.": ("api.test", (443, 80)),
    "  api.test ": ("api.test", (443, 80)),
    "https://api.test": ("api.test", (443, 80)),
    "https://user:pw@api.test/v1?x=1#y": ("api.test", (443, 80)),
    "http://api.test/": ("api.test", (443, 80)),
    "https://api.test:8443/v1": ("api.test", (8443,)),
    "wss://api.test/socket": ("api.test", (443, 80)),
    "ssh://git@api.test:22/x": ("api.test", (22,)),
    "api.test:443": ("api.test", (443, 80)),
    "api.test:8443": ("api.test", (8443,)),
    "*.api.test": ("*.api.test", (443, 80)),
    "bücher.test": ("xn--bcher-kva.test", (443, 80)),
    "10.30.0.0/16": ("10.30.0.0/16", (443, 80)),
    "203.0.113.7:8080": ("203.0.113.7", (8080,)),
    "2001:db8::7": ("2001:db8::7", (443, 80)),
    "[2001:db8::7]:8080": ("2001:db8::7", (8080,)),
    "[2001:db8::7]": ("2001:db8::7", (443, 80)),
}


@pytest.mark.parametrize("text", PASTED)
def test_what_people_paste_is_taken_for_what_it_means(text: str) -> None:
    entry = parse_entry(text)
    assert (entry.host, entry.ports) == PASTED[text]


@pytest.mark.parametrize(
    "text",
    ["", "*", "**", "*.*.test", "a b", "api.test,db.test", "api.test/v1", "ftp://api.test/", "https://", "api.test:0"]
    + ["api.test:99999", "2130706433", "127.1", "0x7f.1", "::ffff:203.0.113.7", "127.0.0.1", "x\nallow y", "-a.test"],
)
def test_what_no_rule_can_name_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match="not something that a rule can name"):
        parse_entry(text)


def test_an_allow_opens_and_asking_again_changes_nothing() -> None:
    once = allow(POLICY, parse_entry("new.test"))
    assert once.changed
    assert decide_name(once.policy, "new.test", 443).origin == "live"
    twice = allow(once.policy, parse_entry("https://new.test/"))
    assert (twice.changed, twice.policy) == (False, once.policy)
    assert "already, by spec egress.allow[0]" in allow(POLICY, parse_entry("api.test")).words
    assert [rule.pattern for rule in live_rules(once.policy)] == ["new.test"]


def test_other_ports_and_private_ranges_are_further_rules() -> None:
    more = allow(POLICY, parse_entry("db.test", ports=(443,)))
    assert decide_name(more.policy, "db.test", 443).allowed
    assert decide_name(more.policy, "db.test", 5432).allowed
    lifted = allow(POLICY, parse_entry("llm.test", ports=(1234,), addresses=("10.20.0.0/16",)))
    assert lifted.words == "allowed llm.test on port 1234 within 10.20.0.0/16"


def test_an_allow_that_another_rule_beats_is_refused_with_that_rule() -> None:
    with pytest.raises(UsageError) as refused:
        allow(POLICY, parse_entry("x.ads.test"))
    assert "deny *.ads.test" in refused.value.details[0]
    assert refused.value.hint == "agent-container egress rm *.ads.test"


def test_allow_takes_back_a_live_deny_but_not_the_specs() -> None:
    denied = deny(POLICY, parse_entry("api.test")).policy
    assert not decide_name(denied, "api.test", 443).allowed
    assert deny(denied, parse_entry("api.test")).changed is False
    opened = allow(denied, parse_entry("api.test"))
    assert opened.changed
    assert opened.policy.digest == POLICY.digest
    under = allow(POLICY, parse_entry("*.api.test")).policy
    assert "already, by live" in allow(under, parse_entry("x.api.test")).words


def test_what_the_agent_needs_is_denied_and_not_removed() -> None:
    with pytest.raises(UsageError, match="needs it") as refused:
        remove(POLICY, "model.test")
    assert refused.value.hint == "agent-container egress deny model.test"
    assert "already, by agent claude" in allow(POLICY, parse_entry("model.test")).words
    both = allow(POLICY, parse_entry("model.test", ports=(22,)))
    assert "stays allowed for agent claude" in remove(both.policy, "model.test").words


def test_removing_takes_every_rule_over_exactly_that_pattern() -> None:
    gone = remove(POLICY, "*.ads.test").policy
    assert decide_name(allow(gone, parse_entry("x.ads.test")).policy, "x.ads.test", 443).allowed
    with pytest.raises(UsageError, match="no rule is over exactly ads") as refused:
        remove(POLICY, "ads.test")
    assert refused.value.details == ("there is *.ads.test",)


def test_live_rules_survive_a_new_spec_unless_it_says_the_same() -> None:
    before = allow(allow(POLICY, parse_entry("one.test")).policy, parse_entry("two.test")).policy
    wanted = Policy(rules=(*POLICY.rules, Rule("allow", "two.test", origin="spec egress.allow[2]")))
    after = carried_over(before, wanted)
    assert [(rule.pattern, rule.origin) for rule in after.rules if rule.pattern in ("one.test", "two.test")] == [
        ("one.test", "live"),
        ("two.test", "spec egress.allow[2]"),
    ]


def test_a_rule_of_the_spec_that_was_taken_out_stays_out() -> None:
    before = remove(POLICY, "api.test").policy
    wanted = Policy(rules=(Rule("allow", "new.test", origin="spec egress.allow[0]"), *POLICY.rules))
    patterns = [rule.pattern for rule in carried_over(before, wanted, stood=POLICY).rules]
    assert "new.test" in patterns and "api.test" not in patterns
    assert "api.test" in [rule.pattern for rule in carried_over(POLICY, wanted, stood=POLICY).rules]
    back = allow(before, parse_entry("api.test")).policy
    assert [rule.origin for rule in carried_over(back, wanted, stood=POLICY).rules if rule.pattern == "api.test"] == [
        "spec egress.allow[0] line 4"
    ]


EXPLAINED: dict[str, tuple[bool, str, str]] = {
    # url: allowed, a part of what is said, what to type
    "https://api.test/x": (True, "passes unopened", ""),
    "api.test": (True, "passes unopened", ""),
    "http://api.test/": (True, "allow api.test", ""),
    "https://model.test/v1/messages": (True, "key replaces its placeholder in X-Api-Key", ""),
    "https://model.test/v1/other": (True, "none is given for POST /v1/other", ""),
    "https://model.test/v1/../x": (False, "dot segments", ""),
    "http://model.test/": (False, "allowed on ports 443, not 80", ""),
    "https://db.test/": (False, "allowed on ports 5432, not 443", "agent-container egress allow db.test --port 443"),
    "db.test:5432": (True, "allow db.test", ""),
    "db.test:22": (False, "not 22", "agent-container egress allow db.test --port 22"),
    "https://x.ads.test/": (False, "denied by a rule", "agent-container egress rm *.ads.test"),
    "https://new.test:8443/": (False, "no rule", "agent-container egress allow new.test --port 8443"),
    "https://10.1.2.3/": (False, "no rule", "agent-container egress allow 10.1.2.3"),
    "ssh://git@new.test/x": (False, "no rule", "agent-container egress allow new.test --port 22"),
}


@pytest.mark.parametrize("url", EXPLAINED)
def test_a_url_is_explained(url: str) -> None:
    allowed, part, command = EXPLAINED[url]
    found = explained(POLICY, parse_target(url), method="POST", session=None, cut=False)
    assert found.allowed is allowed
    assert part in " ".join((found.rule, found.reason, found.tls, found.credential)), found
    assert found.next_command == command
    if not allowed:
        assert not explained(POLICY, parse_target(url), method="POST", session=None, cut=True).allowed


@pytest.mark.parametrize("url", ["", "a b", "https://", "https://x:99999/", "gopher://x/", "https://[::1/"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_target(url)


def test_what_to_type_is_empty_where_no_command_helps() -> None:
    policy = Policy(rules=(Rule("allow", "own.test", origin="spec"),), host_addresses=("198.51.100.1",))
    assert what_to_type(decide_name(policy, "own.test", 443), "own.test", 443) == ""


def refusal(host: str, port: int | None = 443, **more: object) -> dict[str, object]:
    kind = "lookup" if port is None else "decision"
    about = {"name": host} if port is None else {"host": host, "port": port, "method": "CONNECT"}
    return {"kind": kind, "action": "deny", **about, **more}


def test_a_row_keeps_its_number_whatever_comes_after() -> None:
    board = Board()
    for host in ("a.test", "b.test", "a.test", "c.test"):
        board.add(refusal(host))
    board.add(refusal("b.test", count=40))
    assert [(row.number, row.host, row.count) for row in board.rows] == [
        (1, "a.test", 2),
        (2, "b.test", 41),
        (3, "c.test", 1),
    ]
    assert board.row(2) == board.rows[1]
    assert board.row(0) is board.row(4) is None


def test_a_lookup_and_the_connection_after_it_are_one_row() -> None:
    board = Board()
    board.add(refusal("a.test", None, type="A"))
    board.add(refusal("a.test", None, type="AAAA"))
    board.add(refusal("a.test", 443))
    board.add(refusal("a.test", None, type="A"))
    board.add(refusal("a.test", 22))
    assert [(row.port, row.count) for row in board.rows] == [(443, 4), (22, 1)]


def test_only_what_a_rule_could_open_can_be_chosen() -> None:
    board = Board()
    board.add(refusal("a.test"))
    board.add(refusal("b.test", rule="deny b.test"))
    board.add(refusal("c.test", why="path", reason="dot segments"))
    board.add({"kind": "drop", "address": "203.0.113.9", "port": 25, "proto": "tcp"})
    board.add({"kind": "decision", "action": "deny", "collapsed": True, "count": 7})
    board.add({"kind": "decision", "action": "allow", "host": "d.test", "port": 443})
    board.add(refusal("refused.agent-container.invalid"))
    assert [row.allowable for row in board.rows] == [True, False, False, False, False]


def test_what_the_tool_tried_before_an_agent_was_there_is_not_shown() -> None:
    board = Board()
    board.add({"kind": "drop", "address": "198.51.100.254", "port": 9, "proto": "tcp"})
    board.add({"kind": "canary", "action": "allow", "core": 15})
    board.add(refusal("a.test"))
    assert [(row.number, row.host) for row in board.rows] == [(1, "a.test")]


def test_names_without_end_are_counted_and_not_listed() -> None:
    board = Board()
    for number in range(MAX_ROWS + 50):
        board.add(refusal(f"host{number}.test"))
    assert (len(board.rows), board.unlisted) == (MAX_ROWS, 50)


# --- the log ---


class Counted(dict[str, object]):
    """A receipt of which it can be told when it is gone."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def test_of_a_log_without_end_only_what_is_shown_is_held() -> None:
    alive: weakref.WeakSet[Counted] = weakref.WeakSet()
    most = 0

    def receipts() -> Iterator[Receipt]:
        nonlocal most
        for seq in range(1, 2001):
            one = Counted(refusal(f"host{seq}.example"), seq=seq, action="deny" if seq % 3 else "allow")
            alive.add(one)
            most = max(most, len(alive))
            yield one

    kept, known = newest(receipts(), Wanted(denied=True), 10)
    assert [row["seq"] for row in kept] == [1986, 1987, 1988, 1990, 1991, 1993, 1994, 1996, 1997, 1999, 2000][-10:]
    assert known == 2000
    assert most < 20
