"""The records as a store that grows: what one more costs among a thousand and among ten thousand, and what `runs ls`
takes over a hundred thousand, against SQLite alone."""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_container.commands.context import Context
from agent_container.commands.run_filters import Wanted
from agent_container.commands.run_index import read_facts
from agent_container.commands.run_list import list_runs
from agent_container.records import Egress, HostCount, Outcome, RunRecord
from agent_container.run_facts import RunQuery
from agent_container.store import Store
from tests.bench.conftest import HANG_S, measure, timed
from tests.support.records import record_of

FEW, MANY, STORE = 1_000, 10_000, int(os.environ.get("AGENT_CONTAINER_BENCH_RECORDS", "100000"))
ADDED = 60
DAY = datetime(2025, 1, 1, tzinfo=UTC)
MODELS, AGENTS, OUTCOMES = ("opus-4", "sonnet-4", "haiku-4"), ("claude", "codex"), ("succeeded", "failed")

Say = Callable[[str], None]


def run_id(number: int) -> str:
    return f"{DAY + timedelta(minutes=5 * number):%Y%m%d-%H%M%S}-{number:06x}"


def record(number: int, template: RunRecord) -> bytes:
    chance = random.Random(number)
    hosts = tuple(HostCount(host=f"h{chance.randrange(500)}.test", allowed=1) for _ in range(4))
    update = {
        "run": run_id(number), "session": run_id(number), "started": DAY + timedelta(minutes=5 * number),
        "labels": {"ticket": f"A-{number % 5000}"}, "egress": Egress(top_hosts=hosts),
        "outcome": Outcome(chance.choice(OUTCOMES)),
        "versions": template.host.versions.model_copy(update={"agent": chance.choice(AGENTS)}),
    }  # fmt: skip
    assert template.agent is not None
    agent = template.agent.model_copy(update={"model": chance.choice(MODELS), "cost_usd": chance.random() * 3})
    return template.model_copy(update={"host": template.host.model_copy(update=update), "agent": agent}).encode()


def fill(store: Store, project: str, count: int) -> None:
    """As `publish` would leave them, without its flushes: what is measured comes after."""
    template = record_of()
    top = store.data / "runs" / project
    top.mkdir(parents=True, mode=0o700)
    for number in range(count):
        place = top / run_id(number)
        place.mkdir(mode=0o700)
        (place / "record.json").write_bytes(record(number, template))


def add(store: Store, project: str, number: int) -> None:
    place = store.runs.place(project, run_id(number))
    with store.runs.staging(place) as staged:
        (staged / "record.json").write_bytes(record(number, record_of()))
        store.runs.publish(staged, place)


def test_one_more_costs_the_same_among_ten_thousand(tmp_path: Path, say: Say) -> None:
    medians = {}
    for count in (FEW, MANY):
        store = Store(tmp_path / str(count) / "data", tmp_path / str(count) / "state").prepare()
        fill(store, "abc", count)
        index = store.index(read_facts)
        first = timed(lambda index=index: index.select(RunQuery(limit=1)))  # type: ignore[misc]
        say(f"index made over {count} records: {first / count * 1000:.2f} ms a record")
        times = []
        for number in range(count, count + ADDED):
            times.append(
                timed(lambda: (add(store, "abc", number), index.select(RunQuery(limit=1))))  # noqa: B023
            )
            assert index.select(RunQuery(limit=1))[0].run == run_id(number)
        medians[count] = statistics.median(times)
    ratio = medians[MANY] / medians[FEW]
    say(
        f"publish one more and find it: {ratio:.2f} x among {MANY} of what it is among {FEW} "
        f"(median {medians[MANY] * 1000:.1f} ms against {medians[FEW] * 1000:.1f} ms, aim 1.0)"
    )
    assert ratio < 2, "what one more costs grows with the number of records"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Context:
    top = tmp_path_factory.mktemp("shelf")
    (top / "here").mkdir()
    environ = {**os.environ, "XDG_DATA_HOME": str(top / "d"), "XDG_STATE_HOME": str(top / "s")}
    made = Context(directory=top / "here", environ=environ)
    fill(made.store, "abc", STORE)
    return made


IN = "id IN (SELECT id FROM"
QUESTIONS: dict[str, tuple[Wanted, str, tuple[object, ...]]] = {
    "a label": (Wanted(labels=["ticket=A-77"]), f"{IN} labels WHERE key = ? AND value = ?)", ("ticket", "A-77")),
    "a host": (Wanted(contacted=["h7.test"]), f"{IN} hosts WHERE host = ?)", ("h7.test",)),
    "outcome, model and cost": (
        Wanted(outcomes=["failed"], models=["opus*"], costs=[">2.9"]),
        "state = ? AND model GLOB ? AND cost_usd > ?",
        ("failed", "opus*", 2.9),
    ),
    "the newest 20": (Wanted(limit=20), "1", ()),
}  # fmt: skip


@pytest.mark.timeout(3600)  # making a hundred thousand records is most of it
def test_runs_ls_over_a_hundred_thousand(shelf: Context, say: Say) -> None:
    first = timed(lambda: list_runs(shelf, Wanted(limit=1), everywhere=True))
    say(f"first look at {STORE} records: {first:.0f} s, {first / STORE * 1000:.2f} ms a record")
    db = sqlite3.connect(shelf.store.data / "index.db")
    for name, (wanted, where, values) in QUESTIONS.items():
        limit = f" LIMIT {wanted.limit}" if wanted.limit else ""

        def floor(where: str = where, values: tuple[object, ...] = values, limit: str = limit) -> list[object]:
            return db.execute(f"SELECT * FROM runs WHERE {where} ORDER BY run DESC{limit}", values).fetchall()

        def ours(wanted: Wanted = wanted) -> object:
            return list_runs(shelf, wanted, everywhere=True)

        assert len(ours()) == len(floor()) > 0  # type: ignore[arg-type]
        pairs = measure(ours, floor, pairs=7)
        say(pairs.line(f"runs ls by {name}, {len(floor())} of {STORE}", floor="SQLite alone"))

    def command(*words: str) -> None:
        argv = [sys.executable, "-m", "agent_container.cli", "--json", "-C", str(shelf.directory), *words]
        subprocess.run(argv, env=dict(shelf.environ), check=True, capture_output=True, timeout=HANG_S)

    pairs = measure(
        lambda: command("runs", "ls", "--all", "--label", "ticket=A-77"), lambda: command("version"), pairs=5
    )
    say(pairs.line(f"the whole command `runs ls --label`, over {STORE}", floor="`version`"))
