"""SIGKILL before and after every call through engine and store, during `run`, `up` and `down`, on a real engine.

A dry run says which calls there are. Then, for each of them, in a store and a project of its own: the command is
killed there, given again, and everything is taken down. The second one must succeed whatever the first one left; then
the engine holds nothing of the project but volumes that are meant to stay, every session is closed and has a record, no
staging or stream is left on disk, and no lock is held.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.support.home import Home, leftovers, objects
from tests.support.killed import Driver, Outcome, Point, kill_points

WORKERS = max(2, os.cpu_count() or 1)
SPEC = 'version: 1\nname: ack-killed\nagent: {command: ["true"]}\negress: {allow: []}\n'
pytestmark = pytest.mark.timeout(3600)


@dataclass(frozen=True)
class Verb:
    """A command to kill, and what comes before it."""

    argv: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    only: tuple[str, ...] = ()
    """The beginnings of the calls to kill it at; all of them without."""

    def __str__(self) -> str:
        return self.argv[0]


VERBS = (
    Verb(("run", "do nothing")),
    Verb(("up",)),
    Verb(("down",), before=(("up",),)),
    # It is a `down` and an `up` in one process; what lies between them is its own.
    Verb(("redeploy",), before=(("up",),), only=("store.write", "engine.create", "docker.start agent")),
)
MUST_REACH = {
    "run": (
        *("engine.create#1", "exec.session.open#1", "exec.core#1", "exec.posture#1", "channel.turn.start#1"),
        *("exec.seal#1", "docker.create collect#1"),
    ),
    "up": ("engine.create#1", "docker.start egress#1", "exec.core#1", "exec.posture#1", "docker.start agent#1"),
    "down": ("docker.stop agent#1", "exec.seal#1", "docker.remove_volume#1"),
    "redeploy": ("docker.stop agent#1", "exec.seal#1", "docker.start agent#1"),
}
"""Calls that the enumeration cannot lack: a driver that wraps nothing would pass all else."""


@pytest.fixture(scope="module")
def drivers() -> Iterator[SimpleQueue[Driver]]:
    """As many as work at once."""
    queue: SimpleQueue[Driver] = SimpleQueue()
    made = [Driver() for _ in range(WORKERS)]
    for driver in made:
        queue.put(driver)
    yield queue
    for driver in made:
        driver.close()


@pytest.fixture(scope="module")
def accept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the spec, the same for every project; both images are there afterwards."""
    return Home(tmp_path_factory.mktemp("images")).make(SPEC).approve()


@contextmanager
def borrowed(drivers: SimpleQueue[Driver]) -> Iterator[Driver]:
    """One of them, for as long as the block runs."""
    driver = drivers.get()
    try:
        yield driver
    finally:
        drivers.put(driver)


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_killed_anywhere_the_same_command_converges(
    verb: Verb, drivers: SimpleQueue[Driver], accept: str, tmp_path: Path
) -> None:
    with borrowed(drivers) as driver:
        case = Case(tmp_path / "dry", verb, driver, accept)
        trace = case.dry_run()
    assert not set(MUST_REACH[str(verb)]) - {label for _, label in trace}, trace
    only = os.environ.get("KILLED_AT", "")  # one row again: KILLED_AT='before exec.seal#1'
    points = [
        point
        for point in kill_points(trace)
        if only in ("", str(point)) and (not verb.only or point.label.startswith(verb.only))
    ]

    def row(number: int) -> list[str]:
        with borrowed(drivers) as driver:
            case = Case(tmp_path / f"{number:03}", verb, driver, accept)
            faults = case.kill_and_repeat(points[number])
        return [f"killed {points[number]}: {fault}" for fault in faults]

    with ThreadPoolExecutor(WORKERS) as pool:
        faults = [fault for found in pool.map(row, range(len(points))) for fault in found]
    assert not faults, f"{len(faults)} faults at {len(points)} points:\n" + "\n".join(faults)


class Case:
    """One row: a user of one project, killed once."""

    def __init__(self, path: Path, verb: Verb, driver: Driver, accept: str) -> None:
        self.home = Home(path).make(SPEC)
        self.verb = verb
        self.driver = driver
        self.accept = accept
        self.faults: list[str] = []

    def dry_run(self) -> tuple[tuple[str, str], ...]:
        """What the command calls when nobody kills it."""
        for argv in self.verb.before:
            self._must(*argv)
        trace = self._must(*self.verb.argv)
        self._must("down", "--orphans", "-v")
        self.faults += leftovers(self.home)
        assert not self.faults, self.faults
        return trace

    def kill_and_repeat(self, point: Point) -> list[str]:
        """What is wrong afterwards, in words."""
        for argv in self.verb.before:
            self._must(*argv)
        killed = self._call(self.verb.argv, kill=point)
        if killed.status != -signal.SIGKILL:
            self.faults.append(f"it was not reached: {killed.output[-500:]}")
        begun = {label for when, label in killed.trace if when == "after"}
        for argv in (("status",), ("ls",), ("runs", "ls")):
            self._must(*argv)
        self._must(*self.verb.argv)
        self._must("down", "--orphans")
        self.faults += leftovers(self.home)
        if "channel.turn.start#1" in begun and len(self.home.records()) < 2:
            self.faults.append("the agent had started, and there is no record of it")
        self._must("runs", "ls")
        self._must("down", "-v")
        self.faults += [f"left after `down -v`: {name}" for name in objects(self.home.project_id())]
        return self.faults

    def _call(self, argv: Sequence[str], *, kill: Point | None = None) -> Outcome:
        accept = ("--accept", self.accept) if argv[0] in ("run", "up", "redeploy") else ()
        return self.driver.call(self.home, *argv, *accept, kill=kill)

    def _must(self, *argv: str) -> tuple[tuple[str, str], ...]:
        done = self._call(argv)
        if done.status != 0:
            self.faults.append(f"{' '.join(argv)} gave {done.status}: {done.output[-1500:]}")
        return done.trace
