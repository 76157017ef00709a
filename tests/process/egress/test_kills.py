"""What ends a session, as the daemons run: who notices it, what is written, and that the audit tells it at once."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from agent_egress import wire
from agent_egress.kills import KIND, Killed, packets
from agent_egress.replay import replay
from agent_egress.rules import Policy, Rule
from tests.process.egress.harness import DECOY, POLICY, Sidecar, end, free_ports, make, rows, until
from tests.process.egress.test_decider import Answers, line, operate, put_credentials, start_decider, wire_is_up
from tests.process.egress.test_dns import FakeUpstream, Running, query, start_dns

RULES = [
    *({"action": "kill", "pattern": pattern} for pattern in ("trap.test", "*.trap.test", "203.0.113.66")),
    {"action": "deny", "pattern": "both.test"},
    {"action": "kill", "pattern": "both.test"},
    {"action": "inspect", "pattern": "seen.test", "ports": [443, 8443, 80]},
]
TRAPS = {**POLICY, "rules": [*POLICY["rules"], *RULES], "tripwire": "kill"}  # type: ignore[misc]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    sidecar = make(tmp_path_factory.mktemp("kills"))
    sidecar.put_policy(TRAPS)
    sidecar.start_audit()
    start_decider(sidecar)
    put_credentials(sidecar)
    operate(sidecar, {"answers": [{"name": "seen.test", "addresses": ["198.51.100.9"]}]})
    until(lambda: wire_is_up(sidecar))
    yield sidecar
    end(sidecar)


@pytest.fixture
def squid(running: Sidecar) -> Iterator[Answers]:
    sidecar = Answers(running)
    yield sidecar
    sidecar.close()


@pytest.mark.parametrize(
    ("asked", "host", "rule", "where"),
    rows(
        ("a CONNECT", line("CONNECT", "trap.test"), "trap.test", "kill trap.test", "connect"),
        ("a CONNECT to any port", line("CONNECT", "trap.test", 22), "trap.test", "kill trap.test", "connect"),
        ("in capitals with a final dot", line("CONNECT", "A.TRAP.test."), "a.trap.test", "kill *.trap.test", "connect"),
        ("plain http", line("GET", "trap.test", 80, scheme="http"), "trap.test", "kill trap.test", "request"),
        ("a literal", line("CONNECT", "203.0.113.66"), "203.0.113.66", "kill 203.0.113.66", "connect"),
        ("deny and kill", line("CONNECT", "both.test"), "both.test", "kill both.test", "connect"),
        (
            "an SNI inside an allowed CONNECT",
            line("CONNECT", "ok.test", sni="trap.test", tag="ok.test/443/tls"),
            "trap.test",
            "kill trap.test",
            "sni",
        ),
        (
            "a Host inside an allowed tunnel",
            line("GET", "trap.test", tag="api.test/443/tls"),
            "trap.test",
            "kill trap.test",
            "request",
        ),
        (
            "an SNI that was dialled by address",
            line("CONNECT", "198.51.100.9", sni="a.trap.test", local="198.51.100.9"),
            "a.trap.test",
            "kill *.trap.test",
            "sni",
        ),
        (
            "an address that was dialled, whatever it is called",
            line("CONNECT", "203.0.113.66", sni="ok.test", local="203.0.113.66"),
            "203.0.113.66",
            "kill 203.0.113.66",
            "connect",
        ),
        (
            "a plain request to an address, whatever it is called",
            line("GET", "ok.test", 80, scheme="http", local="203.0.113.66"),
            "203.0.113.66",
            "kill 203.0.113.66",
            "address",
        ),
    ),
)
def test_contact_ends_the_session(
    running: Sidecar, squid: Answers, asked: bytes, host: str, rule: str, where: str
) -> None:
    before = len(running.receipts(KIND))
    answer = squid.ask(asked)
    assert " ERR " in answer and "contact with it ends the session" in answer and rule in answer
    (kill,) = running.receipts(KIND)[before:]
    assert (kill["host"], kill["rule"], kill["where"]) == (host, rule, where)
    decisions = [row for row in running.receipts("decision") if row["host"] == host and row["rule"] == rule]
    assert decisions and all(row["action"] == "deny" and "why" not in row for row in decisions), "it can be replayed"


@pytest.mark.parametrize(
    "asked",
    rows(
        ("another host", line("CONNECT", "no.test")),
        ("a look-alike", line("CONNECT", "atrap.test")),
        ("a denied host", line("CONNECT", "ads.wild.test")),
        ("a neighbour's address", line("CONNECT", "203.0.113.67")),
        ("a spelling that is no host", line("CONNECT", "3405803842")),
    ),
)
def test_nothing_else_does(running: Sidecar, squid: Answers, asked: bytes) -> None:
    before = len(running.receipts(KIND))
    squid.ask(asked)
    assert len(running.receipts(KIND)) == before


def test_a_decoy_elsewhere_ends_it_only_where_the_policy_says_so(running: Sidecar, squid: Answers) -> None:
    before = len(running.receipts(KIND))
    stray = line("GET", "ok.test", 80, scheme="http", path=f"/?key={DECOY}")
    try:
        running.put_policy({**TRAPS, "tripwire": "deny"})
        assert " ERR " in squid.ask(stray)
        assert running.receipts("tripwire")[-1]["host"] == "ok.test" and len(running.receipts(KIND)) == before
    finally:
        running.put_policy(TRAPS)
    assert " ERR " in squid.ask(stray)
    (kill,) = running.receipts(KIND)[before:]
    assert (kill["host"], kill["rule"], kill["credential"], kill["where"]) == (
        "ok.test",
        "tripwire kill",
        "demo",
        "the URL",
    )
    assert DECOY not in str(kill)


@pytest.mark.parametrize(
    ("asked", "scanned"),
    rows(
        ("a CONNECT to an inspected host", line("CONNECT", "seen.test"), True),
        ("on another of its ports", line("CONNECT", "seen.test", 8443), True),
        ("plain http to it", line("GET", "seen.test", 80, scheme="http"), True),
        ("a request inside", line("GET", "seen.test"), True),
        ("its SNI, dialled by address", line("CONNECT", "198.51.100.9", sni="seen.test", local="198.51.100.9"), True),
        ("a host with a credential", line("CONNECT"), True),
        ("a request with one", line(), True),
        ("another host", line("CONNECT", "ok.test"), False),
        ("plain http to another", line("GET", "ok.test", 80, scheme="http"), False),
        ("ssh", line("CONNECT", "git.test", 22), False),
    ),
)
def test_what_is_opened_is_marked_to_be_scanned(squid: Answers, asked: bytes, scanned: bool) -> None:
    answer = squid.ask(asked)
    assert " OK " in answer and ("scan_=yes" in answer) == scanned
    if asked.split()[2] == b"CONNECT":
        assert ("action_=bump" in answer) == scanned


def test_an_inspected_host_is_kept_to_the_addresses_that_its_name_was_resolved_to(squid: Answers) -> None:
    """Terminating TLS copies the certificate of whoever was dialled."""
    answer = squid.ask(line("CONNECT", "198.51.100.10", sni="seen.test", local="198.51.100.10"))
    assert " ERR " in answer and "not an address that this name was resolved to" in answer


def test_a_connect_inside_an_opened_tunnel_is_refused(squid: Answers) -> None:
    assert "another host than the tunnel" in squid.ask(line("CONNECT", "seen.test", tag="seen.test/443/tls"))


def test_the_audit_tells_a_kill_to_who_waits_and_counts_them(running: Sidecar, squid: Answers) -> None:
    known = running.audit({"id": 1, "op": "counters"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(60)
        sock.connect(running.path("audit.sock"))
        sock.sendall(wire.encode({"id": 5, "op": "killed", "after": known["kills"]}))
        sock.setblocking(False)
        with suppress(BlockingIOError):
            raise AssertionError(f"answered too early: {sock.recv(4096)!r}")
        sock.settimeout(60)
        squid.ask(line("CONNECT", "trap.test"))
        told = wire.decode(sock.makefile("rb").readline())
    assert told["id"] == 5 and told["killed"] == "trap.test:443 was contacted (connect) (rule: kill trap.test)"
    again = running.audit({"id": 6, "op": "killed", "after": known["kills"]})
    assert again["kills"] == told["kills"], "who missed it is told at once"
    killed = Killed()
    assert killed.learn(again) and killed.words == told["killed"]
    assert not killed.learn(again) and not killed.learn({}), "no kill is learnt twice"


def test_only_root_may_wait(sidecar: Sidecar) -> None:
    sidecar.start_audit(roles="policy")
    with pytest.raises(wire.WireError):
        sidecar.audit({"id": 1, "op": "killed", "after": 0})


def test_kills_are_never_collapsed_and_replay_agrees(running: Sidecar, squid: Answers) -> None:
    before = len(running.receipts(KIND))
    for _ in range(3):
        squid.ask(line("CONNECT", "trap.test"))
    assert len(running.receipts(KIND)) == before + 3
    # Both that were in force in this module: a supervisor would have written a receipt of each.
    policies = [Policy.parse(json.dumps(one).encode()) for one in (TRAPS, {**TRAPS, "tripwire": "deny"})]
    assert replay(running.receipts(), policies={policy.digest: policy for policy in policies}) == ()


def test_a_lookup_is_contact_and_goes_nowhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    sidecar = make(tmp_path_factory.mktemp("dns"))
    sidecar.put_policy(TRAPS)
    upstream = FakeUpstream(free_ports()[0])
    upstream.start()
    try:
        sidecar.start_audit()
        _, port = start_dns(sidecar, upstream.port)
        running = Running(sidecar, upstream, port)
        until(lambda: running.ask(query("warm.test")).rcode == 3)
        assert not sidecar.receipts(KIND)
        for name in ("trap.test", "x.Y.trap.test"):
            answer = running.ask(query(name))
            assert answer.rcode == 3 and answer.ede is not None and "ends the session" in answer.ede[1]
        upstream.records["ok.test"] = [(1, "203.0.113.66"), (1, "203.0.113.9")]
        assert running.ask(query("ok.test")).addresses == ["203.0.113.9"]
        found = [(kill["host"], kill["port"], kill["where"], kill["rule"]) for kill in sidecar.receipts(KIND)]
        assert found == [
            ("trap.test", 0, "lookup", "kill trap.test"),
            ("x.y.trap.test", 0, "lookup", "kill *.trap.test"),
        ], "an allowed name's answer ends nothing: whoever runs its DNS could otherwise"
        assert not any(b"trap" in sent for sent in upstream.queries)
        policy = sidecar.policy()
        assert replay(sidecar.receipts(), policies={policy.digest: policy}) == ()
    finally:
        end(sidecar)
        upstream.stop()


def test_a_dropped_packet_is_contact_too() -> None:
    policy = Policy(rules=(Rule("kill", "203.0.113.0/24"), Rule("deny", "198.51.100.7"), Rule("kill", "2001:db8::1")))
    dropped = [
        {"kind": "drop", "address": address, "proto": proto, "port": port, "count": 1}
        for address, proto, port in (
            ("203.0.113.9", "tcp", 9000),
            ("198.51.100.7", "udp", 53),
            ("2001:db8::1", "udp", 443),
            ("*", "*", 0),
        )
    ]
    found = packets(policy, [{"kind": "connection", "address": "203.0.113.9", "port": 443}, *dropped])
    assert [(kill["host"], kill["port"], kill["where"], kill["rule"]) for kill in found] == [
        ("203.0.113.9", 9000, "packet", "kill 203.0.113.0/24"),
        ("2001:db8::1", 443, "packet", "kill 2001:db8::1"),
    ]
    assert packets(Policy(rules=(Rule("deny", "203.0.113.0/24"),)), dropped) == []


def test_an_inspected_host_gets_no_websocket_and_a_credential_s_host_does(running: Sidecar, squid: Answers) -> None:
    refused = squid.ask(line("GET", "seen.test", upgrade="WebSocket"))
    assert refused.startswith("0 ERR")
    assert "frames are not scanned" in refused
    assert running.receipts("decision")[-1]["why"] == "upgrade"
    for asked in (line("GET", "seen.test"), line("GET", "api.test", upgrade="websocket")):
        answer = squid.ask(asked)
        assert answer.startswith("0 OK")
        assert " scan_=yes" in answer
