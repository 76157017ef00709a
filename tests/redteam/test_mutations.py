"""Five thousand requests that no client would send, at the proxy and inside its tunnels: no secret comes back or
arrives where it does not belong, nothing is reached that no rule allows, the daemons live, and what reached the world
has its receipt. A failure is reproduced by its seed and number: `mutations.mutated(SEED, number, DECOY)`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_egress.receipts import Fields, parse_receipt, verify_chain
from agent_egress.replay import reconcile
from tests.redteam.attempts import DECOY, SECRETS
from tests.redteam.judge import CREDENTIALS, NAMES, POLICY, ZONE, run_attempts, seen_outside, with_attempts
from tests.support.net import KEY, Answer, Log, Sidecar, World

SEED = 20261129
REQUESTS = 5_000
LONGEST_S = 90
FEWEST = 1_500
"""However slow the machine is."""
CONTROLS = ("control_explicit_http", "control_explicit_https", "control_injection", "control_inspected")
GENERATOR = Path(__file__).with_name("mutations.py")
SENDING = """
import collections, contextlib, json, socket, sys, time
from concurrent.futures import ThreadPoolExecutor
from attempts.tools import SECRETS, tcp, tunnel
{generator}
until = time.monotonic() + {longest}
def send(number):
    if time.monotonic() > until:
        return "not sent"
    where, data = mutated({seed}, number, {decoy!r})
    received = b""
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(tunnel(where, verify=False) if where else tcp("127.0.0.1", 3128))
            sock.settimeout(1)
            sock.sendall(data)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR) if not where else None
            while len(received) < 100000 and b'"world": true' not in received:
                chunk = sock.recv(65536)
                if not chunk:
                    break
                received += chunk
    except (OSError, ValueError) as error:
        if not received:
            return type(error).__name__
    text = received.decode("latin-1")
    if any(secret in text for secret in SECRETS):
        return f"SECRET in {{number}}: {{text[:200]}}"
    return received[9:12].decode("latin-1") if received.startswith(b"HTTP/") else "closed" if not received else "other"
with ThreadPoolExecutor(32) as pool:
    print(json.dumps(collections.Counter(pool.map(send, range({requests})))))
"""


class Fuzzed:
    """What came back, what arrived, how the sidecar is afterwards, and what it wrote."""

    def __init__(self, world: World, sidecar: Sidecar) -> None:
        agent = sidecar.agent()
        self.restarts: dict[str, int] = sidecar.control("status")["restarts"]
        world.clear()
        code = SENDING.format(
            generator=GENERATOR.read_text().replace("from __future__ import annotations", ""),
            longest=LONGEST_S,
            seed=SEED,
            decoy=DECOY,
            requests=REQUESTS,
        )
        self.tally: dict[str, int] = json.loads(agent.run(with_attempts(code)))
        self.log: Log = world.log()
        self.outside = seen_outside(self.log)
        self.status: Answer = sidecar.control("status")
        self.healthy = sidecar.healthy()
        self.after = run_attempts(agent, CONTROLS)
        assert sidecar.control("seal", outcome="succeeded")["ok"]
        self.lines = sidecar.receipts()
        self.receipts: list[Fields] = [found for found in map(parse_receipt, self.lines) if found is not None]


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    with World.up(zone=ZONE, names=NAMES) as world, Sidecar.up(world, POLICY) as sidecar:
        sidecar.must_open()
        assert sidecar.control("credential.put", credentials=CREDENTIALS)["ok"]
        yield Fuzzed(world, sidecar)


def test_enough_was_sent_and_some_of_it_was_understood(fuzzed: Fuzzed) -> None:
    assert REQUESTS - fuzzed.tally.get("not sent", 0) >= FEWEST, fuzzed.tally
    assert fuzzed.tally.get("200", 0) > 20, fuzzed.tally
    assert fuzzed.tally.get("403", 0) > 100, fuzzed.tally


def test_no_secret_came_back(fuzzed: Fuzzed) -> None:
    assert [key for key in fuzzed.tally if key.startswith("SECRET")] == []


def test_nothing_arrived_that_is_not_allowed(fuzzed: Fuzzed) -> None:
    assert fuzzed.outside == {}


def test_the_daemons_live_and_are_the_same(fuzzed: Fuzzed) -> None:
    assert fuzzed.healthy, fuzzed.status
    assert fuzzed.status["restarts"] == fuzzed.restarts
    assert [name for name, report in fuzzed.after.items() if not report["reached"]] == []


def test_every_request_that_arrived_has_its_receipt(fuzzed: Fuzzed) -> None:
    allowed = {
        (str(r.get("host")), r.get("port"))
        for r in fuzzed.receipts
        if (r.get("kind"), r.get("action")) == ("decision", "allow")
    }
    # Inside a tunnel that nobody looks into, a Host says nothing: it is whom the hello greeted that was reached.
    seen = [
        (r["sni"] if r["tls"] else r["host"].partition(":")[0].lower().rstrip("."), r["port"])
        for r in fuzzed.log.requests
    ]
    arrived = set(seen)
    assert arrived
    assert arrived <= allowed


def test_the_chain_is_whole_and_explains_every_connection(fuzzed: Fuzzed) -> None:
    assert verify_chain(fuzzed.lines, key=KEY).status == "verified"
    assert reconcile(fuzzed.receipts) == ()
    assert not [secret for secret in (*SECRETS, DECOY) if secret in b"".join(fuzzed.lines).decode()]
