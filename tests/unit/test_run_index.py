from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_container.commands.run_index import read_facts
from agent_container.commands.run_patch import changed_paths
from agent_container.run_facts import RunFacts, RunQuery
from agent_container.store import RunPlace, Store
from agent_container.store.index import RunIndex
from tests.support.records import decision, publish_run, record_of

FIRST, SECOND, THIRD = "20261129-153359-7f3a2c", "20261130-080000-aaaaaa", "20261130-090000-bbbbbb"
PROJECT = "abc"


class Shelf:
    """A store with an index that counts what it reads."""

    def __init__(self, top: Path) -> None:
        self.store = Store(top / "data", top / "state").prepare()
        self.read: list[str] = []

    @property
    def index(self) -> RunIndex:
        def counted(place: RunPlace, kind: str) -> RunFacts:
            self.read.append(place.run_id)
            return read_facts(place, kind)

        return self.store.index(counted)

    def add(self, run: str, project: str = PROJECT, patch: bytes = b"", **host: object) -> Path:
        """A small record, published as a drain does."""
        place = self.store.runs.place(project, run)
        with self.store.runs.staging(place) as staged:
            (staged / "record.json").write_bytes(record_of(run=run, **host).encode())
            if patch:
                (staged / "workspace.patch").write_bytes(patch)
            self.store.runs.publish(staged, place)
        return place.path

    def runs(self, **query: object) -> list[str]:
        return [facts.run for facts in self.index.select(RunQuery(**query))]  # type: ignore[arg-type]

    def newly_read(self) -> list[str]:
        """What the last question had to read."""
        self.read.clear()
        self.runs()
        return sorted(self.read)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    made.add(FIRST)
    made.add(SECOND)
    assert made.runs() == [SECOND, FIRST]
    yield made


class TestSync:
    def test_only_what_is_new_is_read(self, shelf: Shelf) -> None:
        assert shelf.newly_read() == []
        shelf.add(THIRD)
        assert shelf.newly_read() == [THIRD]
        assert shelf.newly_read() == []

    def test_a_record_that_is_replaced_or_removed_is_followed(self, shelf: Shelf) -> None:
        shelf.add(FIRST, outcome="timeout", basis="host")
        assert [facts.state for facts in shelf.index.select(RunQuery())] == ["succeeded", "timeout"]
        shelf.store.runs.remove(shelf.store.runs.place(PROJECT, SECOND))
        assert shelf.runs() == [FIRST]
        assert shelf.newly_read() == []

    def test_what_nobody_noted_is_found_by_looking(self, shelf: Shelf) -> None:
        there = shelf.store.data / "runs" / PROJECT
        shutil.copytree(there / FIRST, there / THIRD)
        assert shelf.newly_read() == [THIRD]
        shutil.rmtree(there / FIRST)
        assert shelf.runs() == [THIRD, SECOND]
        shutil.copytree(there, shelf.store.data / "runs" / "def")
        assert shelf.runs(project_id="def") == [THIRD, SECOND]
        shutil.rmtree(there)
        assert len(shelf.runs()) == 2

    def test_a_foreign_change_between_two_of_ours_is_not_hidden_by_them(self, shelf: Shelf) -> None:
        there = shelf.store.data / "runs" / PROJECT
        shutil.copytree(there / FIRST, there / "20261130-070000-cccccc")
        shelf.add(THIRD)
        assert shelf.newly_read() == ["20261130-070000-cccccc", THIRD]

    def test_an_edit_in_place_is_seen_when_it_is_shown(self, shelf: Shelf) -> None:
        path = shelf.store.runs.place(PROJECT, FIRST).path / "record.json"
        path.write_bytes(path.read_bytes().replace(b"say hello", b"say goodbye"))
        assert shelf.index.select(RunQuery())[1].task == "say goodbye"
        path.write_bytes(b"{")
        assert [facts.state for facts in shelf.index.select(RunQuery())] == ["succeeded", "unreadable"]

    @pytest.mark.parametrize("damage", [b"", b"garbage\n", b"0123\n[1]\n", None], ids=["empty", "text", "rows", "gone"])
    def test_a_lost_journal_costs_a_look_and_no_record(self, damage: bytes | None, shelf: Shelf) -> None:
        journal = shelf.store.data / "records.journal"
        journal.unlink()
        if damage is not None:
            journal.write_bytes(damage)
        shutil.rmtree(shelf.store.data / "runs" / PROJECT / FIRST)
        shelf.add(THIRD)
        assert shelf.runs() == [THIRD, SECOND]

    def test_a_store_without_a_journal_is_looked_through_once(self, shelf: Shelf) -> None:
        (shelf.store.data / "records.journal").unlink()
        shelf.runs()
        (shelf.store.data / "runs" / PROJECT / FIRST / "record.json").touch()
        shelf.read.clear()
        assert shelf.runs(limit=1) == [SECOND]
        assert shelf.read == [], "only a look at everything would have seen that"
        shelf.add(THIRD)
        shelf.read.clear()
        assert shelf.runs(limit=1) == [THIRD]
        assert shelf.read == [THIRD]

    def test_a_line_that_was_cut_is_no_end_of_it(self, shelf: Shelf) -> None:
        with (shelf.store.data / "records.journal").open("ab") as stream:
            stream.write(b'["runs/abc", "2026')
        shelf.add(THIRD)
        assert shelf.newly_read() == [THIRD]
        shelf.runs()
        assert shelf.newly_read() == []


def _older(path: Path, shelf: Shelf) -> None:
    """A copy from before the last record."""
    old = path.read_bytes()
    shelf.add("20261130-100000-dddddd")
    shelf.runs()
    shelf.store.runs.remove(shelf.store.runs.place(PROJECT, "20261130-100000-dddddd"))
    path.write_bytes(old)


def _other_version(path: Path, shelf: Shelf) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("UPDATE runs SET task = 'of another version'")


def _without_a_table(path: Path, shelf: Shelf) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE labels")


def _emptied(path: Path, shelf: Shelf) -> None:
    with sqlite3.connect(path) as db:
        for table in ("runs", "directories", "journal"):
            db.execute(f"DELETE FROM {table}")


DAMAGES: dict[str, Callable[[Path, Shelf], object]] = {
    "removed": lambda path, _: path.unlink(),
    "empty": lambda path, _: path.write_bytes(b""),
    "not a database": lambda path, _: path.write_bytes(b"x" * 5000),
    "cut in half": lambda path, _: path.write_bytes(path.read_bytes()[:20_000]),
    "overwritten in the middle": lambda path, _: path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 60_000),
    "older than the records": _older,
    "of another version": _other_version,
    "without one of its tables": _without_a_table,
    "without its rows": _emptied,
    "a directory in its place": lambda path, _: (path.unlink(), path.mkdir()),
    "a link in its place": lambda path, _: (path.unlink(), path.symlink_to("/dev/null")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_whatever_becomes_of_the_index_the_answer_is_the_records(
    damage: Callable[[Path, Shelf], object], shelf: Shelf
) -> None:
    before = shelf.index.select(RunQuery(labels=()))
    damage(shelf.store.data / "index.db", shelf)
    assert shelf.index.select(RunQuery()) == before
    assert shelf.runs(labels=(("a", None),)) == []
    shelf.add(THIRD)
    assert shelf.runs() == [THIRD, SECOND, FIRST]


def test_the_index_is_for_this_user_alone(shelf: Shelf) -> None:
    assert (shelf.store.data / "index.db").stat().st_mode & 0o777 == 0o600


class TestHostile:
    def test_names_that_are_none_of_ours_hide_nothing(self, shelf: Shelf) -> None:
        for name in ("a b", "x\ny", "-rf", "é", "." * 3, "n" * 200):
            (shelf.store.data / "runs" / PROJECT / name).mkdir()
            (shelf.store.data / "runs" / name).mkdir()
        (shelf.store.data / "runs" / "file").write_bytes(b"")
        (shelf.store.data / "runs" / PROJECT / "link").symlink_to("/nowhere")
        assert shelf.runs() == [SECOND, FIRST]

    @pytest.mark.parametrize(
        "changes",
        [
            {"task": "\ud800 lone"}, {"task": "a\0b"}, {"task": "x" * 3_000_000}, {"task": "'); DROP TABLE runs; --"},
            {"project_name": "\u202e\x1b[2J"}, {"labels": {"k\0": "v\ud800", "%": "*"}},
            {"labels": {str(number): "v" * 5000 for number in range(500)}}, {"duration_s": 1e308},
        ],
        ids=lambda changes: next(iter(changes)),
    )  # fmt: skip
    def test_no_field_breaks_it(self, changes: dict[str, object], shelf: Shelf) -> None:
        path = shelf.store.runs.place(PROJECT, FIRST).path / "record.json"
        row = json.loads(path.read_bytes())
        row["host"].update(changes)
        row["agent"]["tokens"] = {"input": 2**90, "output": -5, "cached": 0}
        row["agent"]["model"] = "m\ud800" if "task" in changes else "m"
        path.write_text(json.dumps(row))
        assert shelf.runs() == [SECOND, FIRST]
        with sqlite3.connect(shelf.store.data / "index.db") as db:
            assert db.execute("SELECT max(length(task)) FROM runs").fetchone()[0] <= 512

    @pytest.mark.parametrize("body", [b"", b"[]", b"null", b"[" * 200_000, b"\xff\xfe", b'{"schema": 1}'])
    def test_what_is_no_record_is_a_row(self, body: bytes, shelf: Shelf) -> None:
        (shelf.store.runs.place(PROJECT, FIRST).path / "record.json").write_bytes(body)
        assert [facts.state for facts in shelf.index.select(RunQuery())] == ["succeeded", "unreadable"]


class TestFacts:
    def test_paths_of_a_patch(self, tmp_path: Path) -> None:
        names = ["src/a.py", "with space.txt", "b b/b", '"q\\303\\251\\t\\"x"']
        lines = [
            f"diff --git a/{n} b/{n}" if not n.startswith('"') else f'diff --git "a/{n[1:]} "b/{n[1:]}' for n in names
        ]
        body = "\n".join([*lines, "+diff --git a/no b/no", "diff --git nonsense", " diff --git a/n b/n"])
        (tmp_path / "workspace.patch").write_bytes(body.encode() + b"\n\xff\xfe" + b"x" * 100_000)
        assert list(changed_paths(tmp_path)) == ["src/a.py", "with space.txt", "b b/b", 'qé\t"x']

    def test_a_host_beyond_the_records_own_table_is_found(self, shelf: Shelf) -> None:
        from tests.support.records import chain_of

        rows = [decision(f"h{number:02}.test", allow=True) for number in range(30) for _ in range(2)]
        rows.append(decision("once.test", allow=True))
        rows.append(decision("denied.test", allow=False))
        publish_run(shelf.store, run=THIRD, lines=chain_of(rows, session=THIRD))
        assert shelf.runs(contacted=("once.test",)) == [THIRD]
        assert shelf.runs(contacted=("*.TEST",))[0] == THIRD
        assert shelf.runs(contacted=("denied.test",)) == []
        assert shelf.index.select(RunQuery(project_id="0123456789ab"))[0].bytes > 1000
