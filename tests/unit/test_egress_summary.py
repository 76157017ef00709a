from __future__ import annotations

import json
import tracemalloc

import pytest

from agent_container.egress_summary import (
    MAX_REFUSALS,
    MAX_TRACKED,
    OTHERS,
    TOP_HOSTS,
    egress_events,
    killed_by,
    summarise,
)
from agent_container.events import EgressDenied, EgressFinding, EgressTripwire
from agent_container.records import Basis, HostCount, Outcome, Refusal, ScanFinding
from agent_container.sandbox.recording import within_budget
from agent_container.sandbox.turn import TurnEnd, ended_by
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


def test_what_the_git_gateway_refused_stands_among_the_refusals_by_its_reason() -> None:
    git = {"kind": "git", "action": "deny", "host": "git.test", "port": 22, "rule": "git git.test a.git"}
    rows = [row(**git, why="ref", reason="refs/heads/main may not be pushed"), row(**git, reason="only fetched")]
    found = summarise([*rows, row(kind="git", action="exit", host="git.test", port=22)])
    assert {(refusal.layer, refusal.host, refusal.rule) for refusal in found.refusals} == {
        ("git", "git.test", "refs/heads/main may not be pushed"),
        ("git", "git.test", "only fetched"),
    }
    assert found.denied == 0  # decisions are squid's


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


def test_a_rule_for_other_ports_is_not_what_refused() -> None:
    fields = {"host": "api.test", "port": 8443, "action": "deny", "rule": "allow api.test", "reason": "not port 8443"}
    egress = summarise([row(kind="decision", **fields)])
    assert [refusal.rule for refusal in egress.refusals] == ["not port 8443"]


def refused(host: str, times: int = 1, **fields: object) -> bytes:
    return row(kind="decision", host=host, port=443, action="deny", rule="", count=times, **fields)


SPENT = "limits.model_requests: all 5 requests are used"
NOISE = {
    "names without end": [refused(f"{number}.test", 9) for number in range(MAX_TRACKED + 10)],
    "fewer, more often": [refused(f"{number}.test", 10_000) for number in range(MAX_REFUSALS + 10)],
    "its model's host on other ports": [
        row(kind="decision", host="model.test", port=port, action="deny", rule="", count=99) for port in range(9_000)
    ],
    "paths of its model's host": [
        refused("model.test", 99, why="path", reason=f"/{number} is not bound") for number in range(MAX_TRACKED * 2)
    ],
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_noise_hides_neither_a_spent_budget_nor_the_models_host(noise: list[bytes]) -> None:
    own = [
        row(kind="decision", host="model.test", port=443, action="allow", rule="allow model.test"),
        row(kind="transfer", host="model.test", port=443, up=3, down=4),
        refused("model.test", why="budget", reason=SPENT),
    ]
    egress = summarise([*noise, *own], hosts=["model.test", "never.test"])
    assert [refusal.count for refusal in egress.refusals if refusal.rule == SPENT] == [1]
    assert len(egress.refusals) <= MAX_REFUSALS and len(egress.top_hosts) <= TOP_HOSTS
    [counts] = [host for host in egress.top_hosts if host.host == "model.test"]
    assert (counts.allowed, counts.bytes_up, counts.bytes_down) == (1, 3, 4)
    assert not [host for host in egress.top_hosts if host.host == "never.test"]
    shown = [refusal.count for refusal in egress.refusals]
    assert shown == sorted(shown, reverse=True)
    ended = within_budget(TurnEnd(Outcome.FAILED, "it gave up"), egress)
    assert (ended.outcome, ended.basis, ended.reason) == (Outcome.BUDGET, Basis.HOST, f"{SPENT}; it gave up")


def test_a_path_that_reads_like_a_budget_is_none() -> None:
    """Who may choose a text chooses no outcome."""
    egress = summarise([refused("limits.model_requests: all", why="path", reason=f"/{SPENT} is not bound")])
    end = TurnEnd(Outcome.FAILED, "it gave up")
    assert within_budget(end, egress) is end


def test_tripwires_without_end_fill_no_memory() -> None:
    wires = summarise(row(kind="tripwire", host=f"{number}.test") for number in range(1000)).tripwires
    assert [wire.host for wire in wires[:2]] == ["0.test", "1.test"] and len(wires) == MAX_REFUSALS


KILL = row(kind="kill", host="trap.test", port=443, rule="kill *.test", where="connect", client="4711")


def test_a_kill_is_told_with_host_and_rule_until_its_user_restores() -> None:
    words = "trap.test:443 was contacted (connect) (rule: kill *.test)"
    assert killed_by([row(kind="cut"), KILL, row(kind="cut", why="kill")]) == words
    assert killed_by([KILL, row(kind="restore")]) == ""
    assert killed_by(
        [KILL, row(kind="restore"), row(kind="kill", host="b.test", port=0, rule="kill b.test", where="lookup")]
    )
    assert killed_by([row(kind="decision", action="deny", host="x", reason='"kind":"kill"'), b'"kind":"kill"\n']) == ""


def test_a_kill_is_shown_among_the_tripwires_however_many_there_are() -> None:
    tripwires = [row(kind="tripwire", host="api.test", where="the URL") for _ in range(MAX_REFUSALS + 5)]
    wires = summarise([*tripwires, KILL]).tripwires
    assert len(wires) == MAX_REFUSALS + 1
    assert wires[-1].host == "trap.test" and wires[-1].detail.startswith("session ended: trap.test:443 was contacted")
    (event,) = egress_events([KILL])
    assert isinstance(event, EgressTripwire) and "rule: kill *.test" in event.detail


def test_the_sidecars_health_words_end_a_turn() -> None:
    assert ended_by("killed: trap.test was looked up (rule: kill *.test)\n") == TurnEnd(
        Outcome.KILLED, "trap.test was looked up (rule: kill *.test)"
    )
    assert ended_by("budget: limits.model_requests: all 5 requests are used") == TurnEnd(
        Outcome.BUDGET, "limits.model_requests: all 5 requests are used"
    )
    assert ended_by("") is None and ended_by("fine") is None


def test_findings_of_the_body_scanner_are_counted_and_told() -> None:
    place = {"kind": "dlp", "host": "seen.test", "port": 443, "what": "aws-access-key"}
    rows = [
        {**place, "action": "block", "direction": "request", "coding": "base64", "count": 2},
        {**place, "action": "block", "direction": "request", "coding": "base64", "count": 1},
        {**place, "action": "log", "direction": "response", "what": "credential demo", "count": 1},
    ]
    lines = chain_of(rows)
    assert summarise(lines).findings == (
        ScanFinding(host="seen.test", direction="request", what="aws-access-key in base64", action="block", count=3),
        ScanFinding(host="seen.test", direction="response", what="credential demo", action="log", count=1),
    )
    events = [event for event in egress_events(lines) if isinstance(event, EgressFinding)]
    assert [event.words for event in events] == [
        "aws-access-key in base64 in a request to seen.test, blocked (2 times)",
        "aws-access-key in base64 in a request to seen.test, blocked",
        "credential demo in the answer of seen.test, noted",
    ]


OWN_TRIES = [
    row(kind="open"),
    row(kind="drop", address="198.51.100.254", proto="tcp", port=9, count=1),
    row(kind="decision", action="deny", host="10.0.0.1", port=80),
    row(kind="canary", action="allow", core=15),
]


def test_what_the_tool_tried_before_an_agent_was_there_is_not_the_agents() -> None:
    agents = [row(kind="drop", address="203.0.113.9", proto="udp", port=53, count=2)]
    egress = summarise([*OWN_TRIES, *agents])
    assert (egress.receipts, egress.packets_dropped, egress.denied) == (5, 2, 0)
    assert [event.host for event in egress_events([*OWN_TRIES, *agents]) if isinstance(event, EgressDenied)] == [
        "203.0.113.9"
    ]
    without = [*OWN_TRIES[:3], *agents]
    assert summarise(without).packets_dropped == 3
    assert len(list(egress_events(without))) == 3


def test_a_session_without_a_core_loses_no_event() -> None:
    many = [row(kind="decision", action="deny", host=f"host{number}.test", port=443) for number in range(1200)]
    assert len(list(egress_events(many))) == 1200
