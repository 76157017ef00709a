"""The index among processes: many at once, one that is killed at any step, and a store that may only be read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from agent_container.commands.run_index import read_facts
from agent_container.run_facts import RunQuery
from agent_container.store import Store
from tests.process.test_store_crash import every_crash
from tests.support.records import record_of

WORKERS, EACH = 4, 12
FIRST, SECOND = "20261129-153359-000001", "20261129-153359-000002"


def add(store: Store, run: str, project: str = "abc") -> None:
    place = store.runs.place(project, run)
    with store.runs.staging(place) as staged:
        (staged / "record.json").write_bytes(record_of(run=run).encode())
        store.runs.publish(staged, place)


def listed(store: Store) -> list[str]:
    return [facts.run for facts in store.index(read_facts).select(RunQuery())]


def in_child(action: object, *, uid: int | None = None) -> int:
    child = os.fork()
    if child:
        return child
    try:
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        action()  # type: ignore[operator]
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()
        os._exit(7)
    os._exit(0)


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "data", tmp_path / "state").prepare()

    def work(worker: int) -> None:
        for number in range(EACH):
            run = f"20261129-153359-{worker:03}{number:03}"
            add(store, run, project=f"p{number % 2}")
            assert run in listed(store)
            if number % 5 == 4:
                (store.data / "index.db").unlink(missing_ok=True)
            if number % 4 == 3:
                store.runs.remove(store.runs.place(f"p{number % 2}", run))
                assert run not in listed(store)

    children = [in_child(lambda worker=worker: work(worker)) for worker in range(WORKERS)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * WORKERS
    assert listed(store) == [place.run_id for place in store.runs.list()]
    assert len(listed(store)) == WORKERS * (EACH - EACH // 4)


def test_a_writer_that_is_killed_leaves_no_record_unseen(tmp_path: Path) -> None:
    def prepare(store: Store) -> None:
        add(store, FIRST)
        assert listed(store) == [FIRST]

    for store in every_crash(tmp_path, prepare, lambda store: add(store, SECOND)):
        assert listed(store) == [place.run_id for place in store.runs.list()]


def test_a_reader_that_is_killed_leaves_an_index_that_answers(tmp_path: Path) -> None:
    for store in every_crash(tmp_path, lambda store: add(store, FIRST), listed):
        add(store, SECOND)
        assert listed(store) == [SECOND, FIRST]


@pytest.mark.parametrize("made", [True, False], ids=["with an index from before", "without one"])
def test_a_store_that_may_only_be_read_is_listed(made: bool, tmp_path: Path) -> None:
    store = Store(tmp_path / "data", tmp_path / "state").prepare()
    add(store, FIRST)
    if made:
        listed(store)
    add(store, SECOND)
    paths = [tmp_path, *tmp_path.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in tmp_path.parents:
        if path.stat().st_uid == os.geteuid() and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(path.stat().st_mode | 0o055)
    before = {path: path.stat().st_mtime_ns for path in paths}

    def look() -> None:
        assert not os.access(store.data, os.W_OK)
        assert listed(store) == [SECOND, FIRST]

    # Modes hold nothing back from root.
    child = in_child(look, uid=65534 if os.geteuid() == 0 else None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {path: path.stat().st_mtime_ns for path in [tmp_path, *tmp_path.rglob("*")]} == before
    for path in paths:
        path.chmod(0o700 if path.is_dir() else 0o600)
