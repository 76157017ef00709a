from __future__ import annotations

import json
import tracemalloc

import pytest

from agent_container.egress_summary import MAX_REFUSALS, OTHERS, egress_events, summarise
from agent_container.events import EgressDenied, EgressTripwire
from agent_container.records import HostCount, Refusal
from agent_egress.receipts import verify_chain
from tests.support.records import KEY, chain_of, decision


def row(**fields: object) -> bytes:
    return json.dumps({"seq": 1, "t": 1796000000000, **fields}).encode() + b"\n"


def test_a_chain_is_summed_up_with_its_verdict() -> None:
    lines = chain_of()
    egress = summarise(lines, report=verify_chain(lines, key=KEY))
    assert (egress.receipts, egress.decisions, egress.allowed, egress.denied) == (9, 2, 1, 1)
    assert (egress.lookups_denied, egress.packets_dropped, egress.chain_length) == (1, 3, 9)
    assert (egress.sealed, egress.verified) == (True, "verified")
    assert egress.top_hosts == (HostCount(host="api.test", allowed=1), HostCount(host="evil.test", denied=1))
    assert {(refusal.layer, refusal.host, refusal.port, refusal.count) for refusal in egress.refusals} == {
        ("decision", "evil.test", 443, 1),
        ("lookup", "evil.test", None, 1),
        ("drop", "203.0.113.9", 5432, 3),
    }
    assert [wire.host for wire in egress.tripwires] == ["api.test"]
    assert "where path" in egress.tripwires[0].detail


@pytest.mark.parametrize(
    ("lines", "verified"),
    [
        (chain_of(seal=False), "unverifiable"),
        (chain_of()[:-2], "unverifiable"),
        ([*chain_of()[:3], *chain_of()[4:]], "tampered"),
        ([], "unverifiable"),
    ],
    ids=["unsealed", "cut", "one missing", "none"],
)
def test_the_verdict_is_the_chains(lines: list[bytes], verified: str) -> None:
    assert summarise(lines, report=verify_chain(lines, key=KEY)).verified == verified


def test_without_a_verification_nothing_is_vouched_for() -> None:
    egress = summarise(chain_of())
    assert (egress.verified, egress.chain_head, egress.sealed) == ("not-checked", None, False)


def test_collapsed_refusals_count_for_all_that_they_stand_for() -> None:
    lines = chain_of([decision("evil.test", allow=False), decision("evil.test", allow=False, count=41)])
    egress = summarise(lines)
    assert egress.denied == 42
    assert egress.refusals == (Refusal(host="evil.test", port=443, rule="", layer="decision", count=42),)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 900,
        row(kind="decision"),
        row(kind="decision", host=5, port="x", action=[], count="many"),
        row(kind="drop", address=None, count=-5),
        row(kind="drop", count=True),
        row(kind="later.kind"),
        row(kind="tripwire", host={"a": 1}),
        row(kind="lookup", action="deny", t=10**30),
    ],
)
def test_what_is_no_receipt_stops_nothing(line: bytes) -> None:
    lines = [line, *chain_of()]
    assert summarise(lines).allowed == 1
    assert len(list(egress_events(lines))) >= 4


def test_events_name_each_refusal_and_tripwire_in_order() -> None:
    events = list(egress_events(chain_of()))
    assert [type(event) for event in events] == [EgressDenied, EgressDenied, EgressDenied, EgressTripwire]
    assert [event.layer for event in events if isinstance(event, EgressDenied)] == ["decision", "lookup", "drop"]
    assert all(event.at is not None for event in events)


def test_names_without_end_fill_neither_memory_nor_the_record() -> None:
    # Made beforehand: what is traced is slow, and these are not the summary's.
    lines = [row(kind="decision", host=f"{number}.test", port=443, action="deny", rule="") for number in range(30_000)]
    tracemalloc.start()
    egress = summarise(lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert egress.denied == 30_000
    assert len(egress.refusals) == MAX_REFUSALS
    assert egress.top_hosts[0].host == OTHERS
    assert peak < 20_000_000
