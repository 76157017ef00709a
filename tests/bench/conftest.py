"""What benchmarks share: a store and a project of their own, and ratios measured in pairs within one run.

They assert no seconds. Each prints its figures as a ratio to a floor that is measured in turn with it: A B A B ...
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 600


@dataclass(frozen=True)
class Bench:
    """A project with an agent that exits at once, and the environment of its commands."""

    project: Path
    environ: dict[str, str]

    def agc(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The tool, as a user runs it."""
        return subprocess.run(
            [sys.executable, "-m", "agent_container.cli", "--no-input", *words],
            cwd=self.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=check,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    project = tmp_path / "bench"
    project.mkdir()
    (project / "agent-container.yaml").write_text(
        'version: 1\nname: bench\nagent: {command: ["true"]}\nworkspace: {mode: clone}\n'
    )
    settings = tmp_path / "config.yaml"
    settings.write_text("resolvers: [203.0.113.53]\nnetwork: {internal: true}\n")
    settings.chmod(0o600)
    environ = {
        **os.environ,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "AGENT_CONTAINER_CONFIG": str(settings),
    }
    made = Bench(project, environ)
    refused = made.agc("--json", "build", check=False)
    import json

    digest = json.loads(refused.stdout)["error"]["digest"]
    made.agc("build", "--accept", digest)
    yield made
    made.agc("down", "-v", "--orphans", check=False)


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Pairs:
    """Two things measured in turn."""

    subject: list[float]
    floor: list[float]

    @property
    def ratio(self) -> float:
        """The median of the ratios pair by pair."""
        return statistics.median(a / b for a, b in zip(self.subject, self.floor, strict=True))

    def line(self, name: str, *, floor: str, aim: str = "") -> str:
        """One line for people."""
        ours, theirs = statistics.median(self.subject), statistics.median(self.floor)
        text = f"{name}: {self.ratio:.2f} x {floor} (median {ours * 1000:.0f} ms against {theirs * 1000:.0f} ms"
        return f"{text}, {len(self.floor)} pairs{', aim ' + aim if aim else ''})"


def measure(subject: Callable[[], object], floor: Callable[[], object], *, pairs: int, warm_up: int = 1) -> Pairs:
    """A B A B ..., after a warm-up of both."""
    for _ in range(warm_up):
        subject()
        floor()
    rows = [(timed(subject), timed(floor)) for _ in range(pairs)]
    return Pairs([a for a, _ in rows], [b for _, b in rows])


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints past pytest's capture."""

    def print_line(text: str) -> None:
        with capsys.disabled():
            print(f"\nbench: {text}", flush=True)

    return print_line
