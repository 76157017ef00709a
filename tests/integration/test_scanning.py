"""Body scanning in the running sidecar: squid, the scanner beside it, an agent's twin, and the world that answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from agent_egress import identity
from agent_egress.fingerprints import fingerprint, new_key
from agent_egress.policy import Binding, Policy, Rule
from agent_egress.receipts import parse_receipt, verify_chain
from tests.redteam.judge import with_attempts
from tests.support.net import KEY, PYTHON, Agent, Sidecar, World, docker

SECRET, DECOY = "real-secret-of-api-0123456789", "decoy-of-api-0123456789"
STORED = b"stored-secret-of-jira-0123456789"
AWS = "AKIAIOSFODNN7EXAMPLE"
ADDRESS = "198.51.100.7"
HOSTS = ("api.test", "seen.test", "unseen.test")
POLICY = Policy(
    rules=(
        Rule("inspect", "seen.test", origin="spec egress.inspect[0]"),
        Rule("allow", "unseen.test", origin="spec egress.allow[0]"),
        Rule("allow", "api.test", origin="credential api"),
    ),
    credentials=(Binding("api", "api.test", 443, ("GET", "POST"), ("/v1/**",), "Authorization", "Bearer {}"),),
)
CREDENTIALS = [{"name": "api", "decoy": DECOY, "secret": SECRET}]
PATIENCE_S = 120
"""In a quiet time the watchdog looks every ten seconds, and twice before it ends what hangs."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.up(zone={host: {"A": [ADDRESS]} for host in HOSTS}, names=list(HOSTS)) as found:
        yield found


@pytest.fixture(scope="module")
def sidecar(world: World) -> Iterator[Sidecar]:
    with Sidecar.up(world, POLICY) as found:
        found.must_open()
        row = fingerprint(STORED, name="jira", role="stored", key=new_key())
        assert row is not None
        answer = found.control("credential.put", credentials=CREDENTIALS, stored=[row.row()])
        assert answer["ok"], answer
        yield found


@pytest.fixture(scope="module")
def agent(sidecar: Sidecar) -> Agent:
    return sidecar.agent()


def eventually(check: Callable[[], object], words: Callable[[], object] = str) -> None:
    for _ in range(PATIENCE_S * 5):
        if check():
            return
        time.sleep(0.2)
    raise AssertionError(words())


SEND = """
from attempts.tools import tunnel, over
host, head, body = {host!r}, {head!r}.encode("latin-1"), {body!r}.encode("latin-1")
with tunnel(host) as wrapped:
    wrapped.settimeout(60)
    print(over(wrapped, head + body).decode("latin-1"))
"""


def send(agent: Agent, host: str, body: str, *, path: str = "/v1/messages", headers: str = "") -> str:
    """What a client reads that posts a body over TLS."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return agent.run(with_attempts(SEND.format(host=host, head=head, body=body)))


def bearer() -> str:
    return f"Authorization: Bearer {DECOY}\r\n"


def findings(sidecar: Sidecar, kind: str = "dlp") -> list[dict[str, object]]:
    found = [receipt for line in sidecar.receipts() if (receipt := parse_receipt(line)) and receipt["kind"] == kind]
    return [{k: v for k, v in receipt.items() if k not in ("seq", "t", "mac", "kind")} for receipt in found]


def test_a_key_in_a_request_to_an_inspected_host_is_refused_in_words(
    world: World, sidecar: Sidecar, agent: Agent
) -> None:
    world.clear()
    answer = send(agent, "seen.test", json.dumps({"file": f"aws_key={AWS}\n"}))
    assert answer.startswith("HTTP/1.1 403 ")
    assert "blocked by body scanning: a request to seen.test:443: the body holds aws-access-key" in answer
    assert world.log().requests == []
    assert findings(sidecar)[-1] == {
        "action": "block", "direction": "request", "host": "seen.test", "port": 443, "what": "aws-access-key",
        "count": 1,
    }  # fmt: skip


def test_a_secret_of_the_store_that_the_session_never_had_is_refused(sidecar: Sidecar, agent: Agent) -> None:
    assert send(agent, "seen.test", STORED.hex()).startswith("HTTP/1.1 403 ")
    assert findings(sidecar)[-1]["what"] == "stored credential jira"


def test_a_key_in_a_request_to_the_model_is_only_noted(sidecar: Sidecar, agent: Agent) -> None:
    answer = send(agent, "api.test", f"k={AWS}", headers=bearer())
    assert answer.startswith("HTTP/1.1 200 ")
    assert findings(sidecar)[-1]["action"] == "log"


def test_the_placeholder_in_a_body_elsewhere_is_a_tripwire(world: World, sidecar: Sidecar, agent: Agent) -> None:
    world.clear()
    assert send(agent, "seen.test", f"k={DECOY}").startswith("HTTP/1.1 403 ")
    assert world.log().requests == []
    assert findings(sidecar, "tripwire")[-1] == {
        "credential": "api", "where": "the body", "host": "seen.test", "port": 443,
    }  # fmt: skip


def test_an_answer_that_shows_the_real_secret_is_cut(world: World, sidecar: Sidecar, agent: Agent) -> None:
    world.clear()
    answer = send(agent, "api.test", "{}", path="/v1/items/plain", headers=bearer())
    assert SECRET[:6] not in answer
    assert answer.startswith("HTTP/1.1 403 ")
    assert "the answer of api.test:443: the body holds credential api" in answer
    assert world.log().having(SECRET)  # it was asked, and said so
    assert findings(sidecar)[-1]["direction"] == "response"


def test_what_holds_nothing_passes_unchanged_with_the_credential(world: World, agent: Agent) -> None:
    world.clear()
    answer = send(agent, "api.test", "{}" * 50_000, headers=bearer() + "Accept-Encoding: br\r\n")
    assert answer.startswith("HTTP/1.1 200 ")
    (request,) = world.log().requests
    headers = {name.lower(): value for name, value in request["headers"]}
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert "accept-encoding" not in headers
    assert request["body"] == 100_000


def test_an_unopened_host_is_not_seen(agent: Agent) -> None:
    assert send(agent, "unseen.test", f"k={AWS}").startswith("HTTP/1.1 200 ")


EVENTS = """
import time
from attempts.tools import tunnel, request
with tunnel("api.test") as wrapped:
    wrapped.settimeout(60)
    wrapped.sendall(request("/sse"))
    received, found = b"", []
    for number in range(3):
        while b"data: %d\\n\\n" % number not in received:
            data = wrapped.recv(4096)
            assert data, received
            received += data
        found.append(b"data: %d" % (number + 1) not in received)
    print(all(found))
"""


def test_events_come_one_by_one(agent: Agent) -> None:
    assert agent.run(with_attempts(EVENTS)).strip() == "True"


def test_a_client_that_waits_to_be_told_to_go_on(agent: Agent) -> None:
    code = """
from attempts.tools import tunnel
with tunnel("seen.test") as wrapped:
    wrapped.settimeout(20)
    wrapped.sendall(b"POST / HTTP/1.1\\r\\nHost: seen.test\\r\\n"
        b"Expect: 100-continue\\r\\nContent-Length: 5\\r\\n\\r\\n")
    first = wrapped.recv(4096)
    wrapped.sendall(b"hello")
    received = first
    while b'"world": true' not in received:
        received += wrapped.recv(4096)
    print(first.split(b"\\r\\n")[0].decode(), b'"body": 5' in received)
"""
    assert agent.run(with_attempts(code)).strip() == "HTTP/1.1 100 Continue True"


def test_an_upgrade_at_an_inspected_host_is_refused_since_its_frames_are_not_seen(agent: Agent) -> None:
    code = """
from attempts.tools import tunnel, over
with tunnel({host!r}) as wrapped:
    wrapped.settimeout(20)
    wrapped.sendall(b"GET /v1/ws HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
        b"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\n\\r\\n")
    print(wrapped.recv(4096).decode("latin-1"))
"""
    refused = agent.run(with_attempts(code.format(host="seen.test")))
    assert refused.startswith("HTTP/1.1 426 "), refused
    assert agent.run(with_attempts(code.format(host="api.test"))).startswith("HTTP/1.1 101 ")


UPLOAD = """
from attempts.tools import tunnel, over
size = 300 << 20
with tunnel({host!r}) as wrapped:
    wrapped.settimeout(300)
    wrapped.sendall(b"POST /v1/messages HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n"
        b"Content-Length: %d\\r\\n\\r\\n" % size)
    block = (b"a line of text that holds nothing\\n" * 4000)[: 1 << 16]
    for _ in range(size // len(block)): wrapped.sendall(block)
    print(over(wrapped, b"")[-200:].decode("latin-1"))
"""
DOWNLOAD = """
from attempts.tools import tunnel
with tunnel("seen.test") as wrapped:
    wrapped.settimeout(300)
    wrapped.sendall(b"GET /bulk/%d HTTP/1.1\\r\\nHost: seen.test\\r\\nConnection: close\\r\\n\\r\\n" % (512 << 20))
    total = 0
    while data := wrapped.recv(1 << 20): total += len(data)
    print("moved", total >> 20, "MiB")
"""
PEAKS = """
import json, os
found = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
    except OSError:
        continue
    uid = status["Uid"].split()[0]
    found[uid] = max(found.get(uid, 0), int(status.get("VmHWM", "0 kB").split()[0]))
print(json.dumps(found))
"""


def test_large_bodies_pass_in_flat_memory(sidecar: Sidecar, agent: Agent) -> None:
    send(agent, "seen.test", "x y " * 500_000)
    before = json.loads(sidecar.execute(PEAKS))
    for code, words in ((UPLOAD.format(host="seen.test"), f'"body": {300 << 20}'), (DOWNLOAD, "moved 512 MiB")):
        assert words in docker("exec", "-i", agent.name, PYTHON, "-", stdin=with_attempts(code), timeout_s=600)
    after = json.loads(sidecar.execute(PEAKS))
    for uid in (identity.SQUID, identity.SCAN):
        assert after[str(uid)] - before[str(uid)] < 24 * 1024, (uid, before, after)


def signal_scanner(sidecar: Sidecar, name: str) -> None:
    code = (
        "import os, signal\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        f"        if os.stat('/proc/' + pid).st_uid == {identity.SCAN}: os.kill(int(pid), signal.{name})\n"
        "    except OSError: pass\n"
    )
    sidecar.execute(code)


def passes(agent: Agent) -> bool:
    return send(agent, "seen.test", "fine").startswith("HTTP/1.1 200 ")


def test_without_its_scanner_nothing_passes_and_it_comes_back_knowing_everything(
    world: World, sidecar: Sidecar, agent: Agent
) -> None:
    signal_scanner(sidecar, "SIGSTOP")
    world.clear()
    code = SEND.format(host="seen.test", head="", body="").replace("settimeout(60)", "settimeout(1)")
    code = code.replace("head + body", "b'POST / HTTP/1.1\\r\\nHost: seen.test\\r\\nContent-Length: 4\\r\\n\\r\\nfine'")
    assert "HTTP/1.1 200" not in agent.run(with_attempts(code))  # hangs
    assert world.log().requests == []
    eventually(lambda: sidecar.control("status")["restarts"]["scan"] >= 1, sidecar.logs)  # the watchdog's work
    eventually(lambda: passes(agent), sidecar.logs)
    restarts = sidecar.control("status")["restarts"]["scan"]
    for _ in range(3):
        signal_scanner(sidecar, "SIGKILL")
        answer = send(agent, "seen.test", f"k={STORED.decode()}")
        assert "HTTP/1.1 200" not in answer, answer
    eventually(lambda: sidecar.control("status")["restarts"]["scan"] > restarts, sidecar.logs)
    eventually(lambda: passes(agent), sidecar.logs)
    assert send(agent, "seen.test", STORED.decode()).startswith("HTTP/1.1 403 ")
    eventually(lambda: sidecar.control("status")["healthy"], sidecar.logs)  # as of its next look


def test_the_chain_is_whole_and_nothing_of_a_key_is_in_it(sidecar: Sidecar) -> None:
    assert sidecar.control("seal", outcome="done")["ok"]
    lines = sidecar.receipts()
    assert verify_chain(lines, key=KEY).status == "verified"
    text = b"\n".join(lines)
    assert AWS.encode() not in text
    assert STORED not in text
    assert SECRET.encode() not in text


def test_where_nothing_is_opened_there_is_no_scanner_until_something_is(world: World) -> None:
    plain = Policy(rules=(Rule("allow", "unseen.test", origin="spec"),))
    with Sidecar.up(world, plain, dlp="log") as sidecar:
        sidecar.must_open()
        assert "scan" not in sidecar.control("status")["restarts"]
        assert sidecar.control("policy.put", policy=json.loads(POLICY.encode()))["ok"]
        assert sidecar.control("status")["restarts"]["scan"] == 0
        agent = sidecar.agent()
        assert send(agent, "seen.test", f"k={AWS}").startswith("HTTP/1.1 200 ")
        assert findings(sidecar)[-1]["action"] == "log"
