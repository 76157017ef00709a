"""The kernel's table as nft lists it, what it must hold, what follows from a policy, and what becomes of its counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_egress import kills, ruleset
from agent_egress.floors import FLOOR4, FLOOR6, NEVER4, NEVER6
from agent_egress.policy import Policy, Rule
from agent_egress.ruleset import Live, policy_statements, problems
from agent_egress.traffic import MAX_DROPS, Tally

SOURCE = (
    "  chain output {\n    type filter hook output priority 0; policy drop;\n    # why\n    accept\n    drop\n  }\n"
)


def prefixes(networks: Any) -> list[object]:
    return [{"prefix": {"addr": str(n.network_address), "len": n.prefixlen}} for n in networks]


def listing(**sets: list[object]) -> list[object]:
    hooks = [("pre", "nat", "output", "accept"), ("output", "filter", "output", "drop")]
    hooks += [("input", "filter", "input", "drop"), ("forward", "filter", "forward", "drop")]
    found: list[object] = [{"metainfo": {}}, {"table": {"family": "inet", "name": "egress"}}]
    found += [{"chain": {"name": n, "type": t, "hook": h, "prio": 0, "policy": p, "handle": 1}} for n, t, h, p in hooks]
    found += [{"rule": {"chain": "output", "handle": i, "expr": [{"accept": i}]}} for i in range(2)]
    floors = {"floor4": FLOOR4, "floor6": FLOOR6, "never4": NEVER4, "never6": NEVER6}
    content = {name: prefixes(networks) for name, networks in floors.items()} | sets
    found += [{"set": {"name": name, "elem": elements}} for name, elements in content.items()]
    return [*found, {"counter": {"name": "agent_drop", "packets": 5}}]


def live(**sets: list[object]) -> Live:
    return ruleset._parse(listing(**sets))


def test_the_table_as_rendered_has_no_problem() -> None:
    assert problems(live(), SOURCE) == []


def with_output(table: Live, **fields: object) -> Live:
    return replace(table, chains={**table.chains, "output": {**table.chains["output"], **fields}})


CHANGES = {
    "a chain accepts by default": lambda t: with_output(t, policy="accept"),
    "a chain is gone": lambda t: replace(t, chains={k: v for k, v in t.chains.items() if k != "input"}),
    "a hook is another": lambda t: with_output(t, hook="input"),
    "only IPv4": lambda t: replace(t, families=frozenset({"ip"})),
    "a rule is gone": lambda t: replace(t, rules={**t.rules, "output": t.rules["output"][:1]}),
    "a rule is new": lambda t: replace(t, rules={**t.rules, "output": (*t.rules["output"], "x")}),
    "the IPv4 floor has a hole": lambda t: replace(t, sets={**t.sets, "floor4": t.sets["floor4"][1:]}),
    "the IPv6 floor is empty": lambda t: replace(t, sets={**t.sets, "floor6": ()}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_found(change: str) -> None:
    assert problems(CHANGES[change](live()), SOURCE)


def test_the_digest_is_of_the_rules_and_not_of_the_traffic() -> None:
    seen = [{"elem": {"val": {"concat": ["198.51.100.9", "udp", 9000]}, "counter": {"packets": 3, "bytes": 1}}}]
    assert live(seen4=[]).digest == live(seen4=seen).digest
    assert live().digest != replace(live(), rules={"output": ("other",)}).digest
    assert live(except4=[]).policy_digest != live(except4=["10.0.0.1"]).policy_digest


def test_nft_s_ranges_and_prefixes_are_the_same_networks() -> None:
    listed: list[object] = [{"range": ["10.0.0.0", "10.255.255.255"]}, "192.0.2.1"]
    assert [str(n) for n in ruleset.networks(listed)] == ["10.0.0.0/8", "192.0.2.1/32"]


def statements(policy: Policy) -> list[str]:
    return [line for line in policy_statements(policy).splitlines() if line.startswith("add")]


def test_a_policy_without_ranges_only_holds_metadata() -> None:
    found = statements(Policy(rules=(Rule("allow", "ok.test"),)))
    assert [line.split()[4] for line in found] == ["metadata4", "metadata6"]
    assert len(policy_statements(Policy()).splitlines()) == 8 + 2  # every set is emptied first


def test_ranges_are_lifted_for_their_ports_alone() -> None:
    policy = Policy(
        rules=(
            Rule("allow", "llm.lan", ports=(1234,), addresses=("10.20.0.0/16", "fd00:20::/32")),
            Rule("allow", "10.30.0.0/16", ports=(443, 80)),
            Rule("allow", "198.51.100.0/24", ports=(443,)),
        )
    )
    found = statements(policy)
    assert "add element inet egress except4 { 10.30.0.0/16 . 80, 10.30.0.0/16 . 443, 10.20.0.0/16 . 1234 }" in found
    assert "add element inet egress except6 { fd00:20::/32 . 1234 }" in found


def test_overlapping_ranges_of_one_port_are_one() -> None:
    rules = (Rule("allow", "10.0.0.0/8", ports=(443,)), Rule("allow", "10.1.0.0/16", ports=(443,)))
    assert "add element inet egress except4 { 10.0.0.0/8 . 443 }" in statements(Policy(rules=rules))


def test_denied_ranges_and_the_host_s_own_addresses_are_blocked() -> None:
    policy = Policy(
        rules=(Rule("deny", "203.0.113.0/24"), Rule("allow", "198.51.100.1", ports=(22,))),
        host_addresses=("198.51.100.1", "198.51.100.2", "2001:db8::1"),
        allow_metadata=True,
    )
    found = statements(policy)
    assert "add element inet egress block4 { 203.0.113.0/24 }" in found
    assert "add element inet egress hosts4 { 198.51.100.2/32 }" in found  # the other is named exactly
    ways = "64:ff9b::c633:6401/128, 64:ff9b::c633:6402/128"  # named exactly, 198.51.100.1 is open, and this way is not
    assert f"add element inet egress hosts6 {{ {ways}, 2001:db8::1/128 }}" in found
    assert "add element inet egress block6 { 64:ff9b::cb00:7100/120 }" in found
    assert not [line for line in found if "metadata" in line]


def flow(address: str, packets: int, *rest: object) -> dict[str, object]:
    return {"elem": {"val": {"concat": [address, *rest]}, "counter": {"packets": packets, "bytes": 0}}}


def test_only_what_is_new_becomes_a_receipt() -> None:
    tally = Tally()
    first = live(dialled4=[flow("198.51.100.7", 1, 443)], seen4=[flow("198.51.100.9", 5, "udp", 9000)])
    assert tally.receipts(first) == [
        {"kind": "connection", "address": "198.51.100.7", "port": 443, "packets": 1},
        {"kind": "drop", "address": "198.51.100.9", "proto": "udp", "port": 9000, "count": 5},
    ]
    assert tally.receipts(first) == []
    again = live(dialled4=[flow("198.51.100.7", 3, 443)], seen4=[flow("198.51.100.9", 5, "udp", 9000)])
    assert tally.receipts(again) == [{"kind": "connection", "address": "198.51.100.7", "port": 443, "packets": 2}]


def test_an_element_that_timed_out_counts_from_nothing() -> None:
    tally = Tally()
    tally.receipts(live(dialled4=[flow("198.51.100.7", 9, 443)]))
    found = tally.receipts(live(dialled4=[flow("198.51.100.7", 2, 443)]))
    assert found[0]["packets"] == 2


def test_contact_with_a_killed_host_does_not_hide_in_a_scan() -> None:
    policy = Policy((Rule("kill", "203.0.113.0/28"),))
    packets: list[object] = [flow(f"198.51.100.{i}", 2, "tcp", 22) for i in range(200)]
    packets.append(flow("203.0.113.9", 1, "udp", 9))
    found = Tally().receipts(live(seen4=packets), first=lambda one: kills.ends(policy, one.address, one.port))
    told = kills.packets(policy, found)
    assert [(row["host"], row["rule"]) for row in told] == [("203.0.113.9", "kill 203.0.113.0/28")]
    assert len(found) <= MAX_DROPS + 1


def test_a_scan_is_counted_and_not_written_out() -> None:
    scan = [flow(f"198.51.100.{i}", 1, "tcp", 22) for i in range(200)]
    found = Tally().receipts(replace(live(seen4=scan), counters={"agent_drop": 250}))
    assert len(found) == MAX_DROPS + 1
    assert sum(int(str(receipt["count"])) for receipt in found) == 250
