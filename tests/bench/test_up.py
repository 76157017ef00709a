"""`up` with images built, against `docker compose up` on the same rendered files, until the sidecar is healthy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.conftest import HANG_S, Bench, Pairs, timed

CTL = ["/usr/bin/python3", "-I", "-m", "agent_egress.ctl"]
PAIRS = 5


class Raw:
    """The rendered files of a session, brought up by Compose alone; a thread hands over the chain key meanwhile."""

    def __init__(self, directory: Path, session: str, *, copy: Path) -> None:
        shutil.copytree(directory, copy)
        self.session = session
        self.project = f"acb-{session}"
        self.file = copy / "compose.yaml"
        text = self.file.read_text().replace(str(directory), str(copy))
        # Names and labels of its own, so that neither takes the other's objects for its own.
        text = re.sub(r"(?m)^( *)name: ac-", r"\1name: acb-", text)
        self.file.write_text(re.sub(r"(?m)^( +)agent-container\.", r"\1bench.", text))
        self.compose = ["docker", "compose", "-p", self.project, "-f", str(self.file), "--progress", "quiet"]

    def up(self) -> None:
        done = threading.Event()
        feeder = threading.Thread(target=self._feed, args=(done,))
        feeder.start()
        try:
            # As `--wait`, to which the agent's image (HEALTHCHECK NONE) is one that cannot become healthy: the agent
            # depends on a healthy sidecar, so that this returns when both are there.
            subprocess.run([*self.compose, "up", "--detach"], check=True, timeout=HANG_S)
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
    # Copied now: `down` removes a session's files with the session.
    raw = Raw(state, session, copy=bench.project.parent / "raw")
    bench.agc("down")
    ours, floor = [], []
    for _ in range(PAIRS):
        try:
            floor.append(timed(raw.up))
        finally:
            raw.down()
        ours.append(timed(lambda: bench.agc("up")))
        bench.agc("down")
    pairs = Pairs(ours, floor)
    say(pairs.line("up", floor="docker compose up, healthy, on the same files", aim="1.15 or less"))
    assert pairs.ratio > 0
