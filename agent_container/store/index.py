"""The index of runs: a cache in SQLite over the records, so that a question to a hundred thousand of them takes no
longer than its answer.

Never a source of truth. It is brought up to date before every question, at the cost of what changed since the last one
(`journal` says what); it is made again when it is missing, damaged, of another version or of another store; and where
it cannot be written, or another process is busy with it for too long, the question is answered from memory. Which facts
a record holds is for `read`, which is given.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from agent_container.errors import StoreError
from agent_container.run_facts import RunFacts, RunQuery
from agent_container.store.index_rows import SCHEMA, SCHEMA_SQL, Mark, absent, put, select, sums
from agent_container.store.index_sync import RECORD, IndexSync, Read
from agent_container.store.journal import Journal
from agent_container.store.locks import Locks
from agent_container.store.writer import FILE_MODE

BUSY_S = 10.0
LOCK_WAIT_S = 120.0
"""How long to wait for another process that makes the index; then the question is answered from memory."""
SHOWN_CHECKED = 2_000
"""So many rows of an answer are compared with their files before it is given."""
_NOT_DAMAGED = frozenset(
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH,
    }
)  # fmt: skip
"""Codes that speak of the disk, or of other processes, and not of what is in the file."""

T = TypeVar("T")


class RunIndex:
    """The index of one data directory."""

    def __init__(
        self,
        data: Path,
        *,
        journal: Journal,
        locks: Locks,
        read: Read,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path = data / "index.db"
        self._data = data
        self._locks = locks
        self._sync = IndexSync(data, journal=journal, read=read, progress=progress)

    def select(self, query: RunQuery) -> tuple[RunFacts, ...]:
        """The runs that fit, newest first."""
        return self._ask(lambda db: self._select(db, query))

    def sums(self, query: RunQuery, by: str) -> tuple[tuple[Any, ...], ...]:
        """`index_rows.sums` of the runs that fit."""
        return self._ask(lambda db: tuple(sums(db, query, by)))

    def listing(self, query: RunQuery, names: Sequence[str]) -> tuple[tuple[RunFacts, ...], frozenset[str]]:
        """The runs that fit, newest first, and those of `names` that have no record."""
        return self._ask(lambda db: (self._select(db, query), absent(db, names)))

    def _select(self, db: sqlite3.Connection, query: RunQuery) -> tuple[RunFacts, ...]:
        rows = select(db, query)
        # An edit in place changes no directory. What is shown is looked at, whatever the index holds.
        stale = [
            (directory, facts.run)
            for directory, mark, facts in rows[:SHOWN_CHECKED]
            if mark != str(Mark.of(self._data / directory / facts.run / RECORD))
        ]
        if stale and self._sync.refresh(db, stale):
            rows = select(db, query)
        return tuple(facts for _, _, facts in rows)

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        for _ in range(2):
            try:
                with self._on_disk() as db:
                    return question(db)
            except (StoreError, OSError):
                break
            except sqlite3.Error as bad:
                if _code(bad) in _NOT_DAMAGED:
                    break
                with suppress(StoreError, OSError), self._hold():
                    self._remove()
        with closing(self._in_memory()) as db:
            return question(db)

    @contextmanager
    def _on_disk(self) -> Iterator[sqlite3.Connection]:
        """Brought up to date. Raises sqlite3.Error, StoreError or OSError."""
        with self._hold():
            self._check_file()
            db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            try:
                if not _is_ours(db):
                    db.close()
                    self._remove()
                    self._check_file()
                    db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
                    _create(db)
                self._sync.run(db)
            except BaseException:
                db.close()
                raise
        with closing(db):
            yield db

    def _in_memory(self) -> sqlite3.Connection:
        """Brought up to date from whatever can be read of the one on disk."""
        db = sqlite3.connect(":memory:", isolation_level=None)
        with suppress(sqlite3.Error, OSError):
            if stat.S_ISREG(self.path.lstat().st_mode):
                with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=1)) as disk:
                    disk.backup(db)
        try:
            if _is_ours(db):
                self._sync.run(db)
                return db
        except sqlite3.Error:
            pass
        db.close()
        db = sqlite3.connect(":memory:", isolation_level=None)
        _create(db)
        self._sync.run(db)
        return db

    def _hold(self) -> Any:
        return self._locks.hold("index", what="the index of runs", doing="bring it up to date", wait_s=LOCK_WAIT_S)

    def _check_file(self) -> None:
        """Makes an empty one of the right mode. Raises OSError for what is no regular file, which nothing opens."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(f"{self.path} is not a regular file")
            os.fchmod(fd, FILE_MODE)
        finally:
            os.close(fd)

    def _remove(self) -> None:
        # The journal first: it would be played back into the next file of that name.
        for suffix in ("-journal", "-wal", "-shm", ""):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def match(rows: Iterable[RunFacts], query: RunQuery) -> tuple[RunFacts, ...]:
    """Those of a few runs that fit, by the very rules of the index."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        _create(db)
        for facts in rows:
            put(db, "", facts.run, Mark(), facts)
        return tuple(facts for _, _, facts in select(db, query))


def _create(db: sqlite3.Connection) -> None:
    db.executescript(f"BEGIN; {SCHEMA_SQL}; PRAGMA user_version = {SCHEMA}; COMMIT;")


def _is_ours(db: sqlite3.Connection) -> bool:
    return bool(db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA)


def _code(bad: sqlite3.Error) -> int:
    return getattr(bad, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
