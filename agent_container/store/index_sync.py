"""Brings the index up to date: what the journal names, or, where its chain does not hold, what a look at the
directories finds."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_container.run_facts import RunFacts
from agent_container.store.index_rows import Mark, drop, drop_directory, marks, put
from agent_container.store.journal import ABSENT, Journal, Position, modified
from agent_container.store.paths import SAFE_NAME
from agent_container.store.runs import REPLACED, RunPlace, visible

RECORD = "record.json"
RUNS, SESSIONS = "runs", "sessions"
CHECK_AGE_S = 24 * 3600
"""After so long every record is looked at, whatever the journal says: an edit in place changes no directory."""
SAME_TICK_NS = 20_000_000
"""A directory that changed a moment ago may change again without a new modification time."""
BATCH = 1_000
SAID_EVERY = 10_000

Read = Callable[[RunPlace, str], RunFacts]
"""(place, `run` or `up`) to facts; never raises for what a record holds."""


class IndexSync:
    """From a store's directories to the tables."""

    def __init__(self, data: Path, *, journal: Journal, read: Read, progress: Callable[[str], None]) -> None:
        self._data = data
        self._journal = journal
        self._read = read
        self._progress = progress

    def run(self, db: sqlite3.Connection) -> None:
        """Reads what is new, and only that; writes nothing when nothing is."""
        row = db.execute("SELECT generation, offset, checked FROM journal").fetchone()
        if row is None:
            raise sqlite3.DatabaseError("it is not whole")
        generation, offset, checked = row
        tail = self._journal.read(Position(generation, offset), self._directories)
        known: dict[str, int] = dict(db.execute("SELECT name, modified FROM directories").fetchall())
        now = time.time()
        everything = not tail.unbroken or not 0 <= now - checked < CHECK_AGE_S
        if not everything and not tail.changes and known == tail.seen:
            return
        chained, broken, touched = dict(known), set(), set()
        for change in tail.changes:
            touched.add((change.directory, change.run))
            if change.directory.startswith(f"{RUNS}/"):
                if chained.get(change.directory, ABSENT) != change.before:
                    broken.add(change.directory)
                chained[change.directory] = change.after
        listed = {name for name, at in tail.seen.items() if everything or name in broken or chained.get(name) != at}
        for name in sorted(listed):
            self._list(db, name, tail.seen[name])
        for name in known.keys() - tail.seen.keys():
            with _transaction(db):
                drop_directory(db, name)
        if everything:
            self._list_sessions(db)
        with _transaction(db):
            for directory, run in sorted(touched):
                if directory not in listed:
                    self._refresh(db, directory, run)
            db.executemany("INSERT OR REPLACE INTO directories VALUES (?, ?)", tail.seen.items())
            values = (tail.position.generation, tail.position.offset, now if everything else checked)
            db.execute("UPDATE journal SET generation = ?, offset = ?, checked = ?", values)

    def refresh(self, db: sqlite3.Connection, stale: Iterable[tuple[str, str]]) -> bool:
        """Reads some records again; False where the index cannot be written just now."""
        try:
            with _transaction(db):
                for directory, run in stale:
                    self._refresh(db, directory, run)
        except sqlite3.OperationalError:
            return False
        return True

    def _directories(self) -> dict[str, int]:
        """Every project's directory, with its modification time."""
        return {f"{RUNS}/{name}": modified(self._data / RUNS / name) for name in _names(self._data / RUNS)}

    def _list(self, db: sqlite3.Connection, directory: str, at: int) -> None:
        young = SAME_TICK_NS - (time.time_ns() - at)
        if 0 < young <= SAME_TICK_NS:
            time.sleep(young / 1e9)
        there = set(_names(self._data / directory))
        there |= {run for run in _names(self._data / directory, prefix=REPLACED) if run not in there}
        self._compare(db, directory, there)

    def _list_sessions(self, db: sqlite3.Connection) -> None:
        """Records of standing environments: each lies in a directory of its own."""
        there = [name for name in _names(self._data / SESSIONS) if (self._data / SESSIONS / name / name).is_dir()]
        for directory in {f"{SESSIONS}/{name}" for name in there} | _session_directories(db):
            name = directory.removeprefix(f"{SESSIONS}/")
            self._compare(db, directory, {name} & set(there))

    def _compare(self, db: sqlite3.Connection, directory: str, there: set[str]) -> None:
        held = marks(db, directory)
        with _transaction(db):
            for run in held.keys() - there:
                drop(db, directory, run)
        new = sorted(run for run in there if held.get(run) != str(Mark.of(self._path(directory, run) / RECORD)))
        for start in range(0, len(new), BATCH):
            # In batches: what an interrupted first look has read is not read again.
            with _transaction(db):
                for run in new[start : start + BATCH]:
                    self._refresh(db, directory, run)
            if start and start % SAID_EVERY == 0:
                self._progress(f"Read {start} of {len(new)} new records")

    def _refresh(self, db: sqlite3.Connection, directory: str, run: str) -> None:
        kind = "up" if directory.startswith(f"{SESSIONS}/") else "run"
        project = "" if kind == "up" else directory.removeprefix(f"{RUNS}/")
        path = self._path(directory, run)
        if not SAFE_NAME.fullmatch(run) or not path.is_dir():
            drop(db, directory, run)
            return
        mark = Mark.of(path / RECORD)  # before the reading: what changes meanwhile is read again
        put(db, directory, run, mark, self._read(RunPlace(project, run, path), kind))

    def _path(self, directory: str, run: str) -> Path:
        path = self._data / directory / run
        return path if path.is_dir() else path.with_name(f"{REPLACED}{run}")


def _session_directories(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT directory FROM runs WHERE kind = 'up'")}


def _names(directory: Path, *, prefix: str = "") -> list[str]:
    """`visible`; none where it cannot be looked at."""
    try:
        return list(visible(directory, prefix=prefix))
    except OSError:
        return []


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
