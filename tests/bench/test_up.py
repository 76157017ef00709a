"""`up` with images built, against `docker compose up --wait` on the same rendered files."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.conftest import HANG_S, Bench, timed

CTL = ["/usr/bin/python3", "-I", "-m", "agent_egress.ctl"]
PAIRS = 5


class Raw:
    """The rendered files of a session, brought up by Compose alone; a thread hands over the chain key meanwhile."""

    def __init__(self, directory: Path, session: str) -> None:
        self.session = session
        self.project = f"acb-{session}"
        self.file = directory / "raw.yaml"
        text = (directory / "compose.yaml").read_text()
        name = next(line for line in text.splitlines() if line.startswith("name: "))
        # Names of its own, so that the tool's objects are left alone.
        self.file.write_text(
            text.replace(name, f"name: {self.project}").replace(f"name: ac-{session}-", f"name: acb-{session}-")
        )
        self.compose = ["docker", "compose", "-p", self.project, "-f", str(self.file), "--progress", "quiet"]

    def up(self) -> None:
        done = threading.Event()
        feeder = threading.Thread(target=self._feed, args=(done,))
        feeder.start()
        try:
            subprocess.run([*self.compose, "up", "--wait"], check=True, timeout=HANG_S)
        finally:
            done.set()
            feeder.join(timeout=30)

    def down(self) -> None:
        subprocess.run([*self.compose, "down", "-v", "-t", "0"], check=True, timeout=HANG_S)

    def _feed(self, done: threading.Event) -> None:
        request = {
            "v": 1,
            "op": "session.open",
            "session": self.session,
            "chain_key": os.urandom(32).hex(),
            "wait_s": 60,
        }
        while not done.is_set():
            sent = subprocess.run(
                ["docker", "exec", "-i", f"{self.project}-egress-1", *CTL],
                input=json.dumps(request).encode(),
                capture_output=True,
                timeout=HANG_S,
                check=False,
            )
            if sent.returncode == 0:
                return
            time.sleep(0.05)


def test_up_against_raw_compose(bench: Bench, say: Callable[[str], None]) -> None:
    bench.agc("up")
    session = json.loads(bench.agc("status", "--json").stdout)["result"]["session"]
    state = Path(bench.environ["XDG_STATE_HOME"]) / "agent-container" / "sessions" / session
    raw = Raw(state, session)
    bench.agc("down")
    # `down` removes the session's files with the session; they are written anew from what it had.
    ours, floor = [], []
    for _ in range(PAIRS):
        floor.append(timed(raw.up))
        raw.down()
        ours.append(timed(lambda: bench.agc("up")))
        bench.agc("down")
    ratio = sorted(a / b for a, b in zip(ours, floor, strict=True))[PAIRS // 2]
    say(
        f"up: {ratio:.2f} x docker compose up --wait on the same files (median {sorted(ours)[PAIRS // 2]:.2f} s "
        f"against {sorted(floor)[PAIRS // 2]:.2f} s, {PAIRS} pairs, aim 1.15 or less)"
    )
    assert ratio > 0
