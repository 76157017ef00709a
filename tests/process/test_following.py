"""A turn followed over streams that break: the real runner, reached through a conversation that is cut."""

from __future__ import annotations

import dataclasses
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from agent_container.agents.own import own_profile
from agent_container.engine.protocol import ContainerState, Engine
from agent_container.errors import EngineError
from agent_container.events import Event, RunStarted
from agent_container.records import Outcome
from agent_container.sandbox import turn as following
from agent_container.sandbox.turn import ContactLost, TurnEnd, TurnLimits, TurnWatch, follow_turn
from tests.process.runner.conftest import RunningRunner, directory

__all__ = ["directory"]
RUNNING = ContainerState(
    id="c", name="c", image_id="i", status="running", exit_code=0, health="healthy", started_at="", pid=1, labels=(),
    oom_killed=False, health_words="", raw={},
)  # fmt: skip
TICKS = "for n in 1 2 3 4 5 6 7 8 9; do echo tick $n; sleep 0.2; done"


class Cut:
    """A conversation by `runner connect`, as the engine holds one; `lines` after which it breaks."""

    def __init__(self, process: subprocess.Popen[bytes], lines: int) -> None:
        self.process, self.left = process, lines
        self.buffer = b""

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        assert self.process.stdout is not None
        if self.left <= 0:
            return None
        while b"\n" not in self.buffer:
            if not select.select([self.process.stdout], [], [], timeout_s)[0]:
                raise TimeoutError
            piece = self.process.stdout.read1(65536)  # type: ignore[attr-defined]
            if not piece:
                return None
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        self.left -= 1
        return line

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Machine:
    """What an engine is for one that follows: a container that runs the real runner."""

    def __init__(self, runner: RunningRunner, lives: list[int]) -> None:
        self.runner, self.lives = runner, lives
        """How many lines each conversation lasts, the last one for all that follow."""
        self.state: ContainerState | None = RUNNING
        self.opened = 0

    def inspect(self, container: str) -> ContainerState | None:
        if self.state is not None and self.state.status == "dead":
            raise EngineError("no answer")
        return self.state

    def open_channel(self, container: str, argv: object) -> Cut:
        if self.state is None or self.state.status != "running":
            raise EngineError("the container does not take an exec")
        lines = self.lives[min(self.opened, len(self.lives) - 1)]
        self.opened += 1
        return Cut(self.runner.popen("connect", stdin=subprocess.PIPE, stdout=subprocess.PIPE), lines)


@pytest.fixture
def runner(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningRunner]:
    monkeypatch.setattr(following, "BACKOFF_S", 0.01)
    running = RunningRunner(directory)
    running.start()
    yield running
    running.stop(signal.SIGTERM)


def follow(machine: Machine, *, idle_s: float = 60, said: list[str] | None = None) -> TurnEnd:
    def hear(event: Event) -> None:
        if said is not None and hasattr(event, "text"):
            said.append(str(event.text).strip())

    watch = TurnWatch(
        engine=cast(Engine, machine),
        egress="e",
        agent="a",
        turn="t",
        profile=own_profile(command=("sh",), environment=(), hosts=()),
        limits=TurnLimits(time_s=60, idle_s=idle_s),
        on_event=hear,
        stop=lambda: None,
        stop_requested=lambda: False,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        started=RunStarted(at=datetime(2026, 1, 1, tzinfo=UTC), run="t", agent="own"),
    )
    return follow_turn(watch)


def begin(runner: RunningRunner, shell: str = TICKS) -> None:
    answer: dict[str, Any] = runner.begin(runner.connect(), "t", shell)
    assert answer["ok"], answer


def test_a_stream_that_breaks_again_and_again_is_joined_where_it_broke(runner: RunningRunner) -> None:
    begin(runner)
    said: list[str] = []
    machine = Machine(runner, [2])  # the answer to hello, and one frame
    assert follow(machine, said=said).outcome is Outcome.SUCCEEDED
    assert machine.opened > following.RECONNECTS + 2, "more often than it may in a row"
    assert [line for line in said if line.startswith("tick")] == [f"tick {n}" for n in range(1, 10)]


def test_a_stream_that_cannot_be_joined_ends_the_following_and_not_the_run(runner: RunningRunner) -> None:
    begin(runner)
    with pytest.raises(ContactLost, match="goes on by itself") as lost:
        follow(Machine(runner, [1]))
    assert lost.value.hint == "agent-container runs recover t"
    assert follow(Machine(runner, [10**6])).outcome is Outcome.SUCCEEDED


def test_only_a_container_that_is_gone_makes_lost(runner: RunningRunner) -> None:
    begin(runner)
    machine = Machine(runner, [3])
    machine.state = dataclasses.replace(RUNNING, status="exited", exit_code=137)
    end = follow(machine)
    assert end.outcome is Outcome.LOST and "ended with status 137" in end.reason
    machine.state = None
    assert follow(machine).outcome is Outcome.LOST


def test_an_engine_that_is_away_for_a_moment_costs_nothing(runner: RunningRunner) -> None:
    begin(runner)
    machine = Machine(runner, [2, 10**6])
    away = threading.Timer(0.3, lambda: setattr(machine, "state", dataclasses.replace(RUNNING, status="dead")))
    back = threading.Timer(0.34, lambda: setattr(machine, "state", RUNNING))
    away.start()
    back.start()
    assert follow(machine).outcome is Outcome.SUCCEEDED


def test_a_paused_container_is_waited_for_and_is_not_idle(
    runner: RunningRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RUNNER_SLACK_S", 0.0)
    begin(runner)
    machine = Machine(runner, [2, 10**6])
    machine.state = dataclasses.replace(RUNNING, status="paused")
    threading.Timer(2.5, lambda: setattr(machine, "state", RUNNING)).start()
    assert follow(machine, idle_s=1).outcome is Outcome.SUCCEEDED


def test_a_follower_that_was_stopped_itself_blames_nobody_for_the_silence(
    runner: RunningRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "RUNNER_SLACK_S", 0.0)
    monkeypatch.setattr(following, "STALL_S", 1.0)
    begin(runner)
    machine = Machine(runner, [10**6])
    receive = Cut.receive
    stops = iter([False, False, False, True])

    def receive_late(self: Cut, timeout_s: float | None = None) -> bytes | None:
        if next(stops, False):
            time.sleep(2)  # SIGSTOP, and CONT
            raise TimeoutError
        return receive(self, timeout_s)

    monkeypatch.setattr(Cut, "receive", receive_late)
    assert follow(machine, idle_s=1.5).outcome is Outcome.SUCCEEDED
