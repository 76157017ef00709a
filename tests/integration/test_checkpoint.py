"""The host's note of where a live chain stands: taken while an agent works, and held against what is there later.

The sidecar is killed before it can seal, and receipts are cut off in its volume, as only root on this machine can.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.home import HANG_S, Home, docker, leftovers

ASKS = '["sh", "-c", "echo working; n=0; while true; do n=$((n+1)); getent hosts n$n.example; sleep 1; done"]'
SPEC = f"version: 1\nname: ack-stand\nagent: {{command: {ASKS}}}\negress: {{allow: []}}\n"
IMAGE = "debian:trixie-slim"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "user").make(SPEC)
    made.approve()
    yield made
    down = made.run("down", "--orphans", "-v")
    assert down.status == 0, down.output
    assert leftovers(made) == []


def stand_past(home: Home, session: str, length: int) -> int:
    """The length of the chain that the host knows of, once it is more than `length`."""
    path = home.state / "checkpoints" / f"{session}.json"
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        known = int(json.loads(path.read_bytes())["length"]) if path.exists() else 0
        if known > length:
            return known
        time.sleep(0.2)
    raise AssertionError(f"the host knows of {length} receipts and no more")


def test_receipts_cut_off_after_the_sidecar_was_killed_are_missed(home: Home) -> None:
    run = home.start("run", "work")
    session = home.wait_for("running")
    first = stand_past(home, session, 0)
    known = stand_past(home, session, first)  # and it goes on while the agent works
    run.signal(signal.SIGKILL)
    assert run.end().status == -signal.SIGKILL
    egress = home.container(session, "egress")
    docker("kill", egress)
    (volume,) = (
        row["Name"]
        for row in json.loads("\n".join(docker("inspect", "-f", "{{json .Mounts}}", egress)))
        if row["Destination"] == "/var/lib/egress"
    )
    cut = f"head -n {known - 1} /x/receipts.jsonl > /x/cut && cat /x/cut > /x/receipts.jsonl && rm /x/cut"
    docker("run", "--rm", "--network", "none", "-v", f"{volume}:/x", IMAGE, "sh", "-c", cut)

    stopped = home.run("runs", "stop", session)

    assert stopped.status == 0, stopped.output
    assert home.records()[session]["host"]["egress"]["verified"] == "tampered"
    verified = home.run("runs", "verify", session)
    assert verified.status == 5, verified.output
    assert "1 missing at the end" in " ".join(verified.output.split())
    everything = home.run("runs", "verify", "--all")
    assert (everything.status, session in everything.output) == (5, True)
