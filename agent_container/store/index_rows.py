"""The tables of the index, and how facts become rows and questions become SQL. Every value is bound, none is written
into a statement."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent_container.run_facts import RunFacts, RunQuery
from agent_container.store.marks import IMPORTED

SCHEMA = 2
"""Counted up with every change of the tables or of what is put into them: an index of another one is made again."""

SCHEMA_SQL = """
CREATE TABLE journal (generation TEXT NOT NULL, offset INTEGER NOT NULL, checked REAL NOT NULL);
INSERT INTO journal VALUES ('', 0, 0);
CREATE TABLE directories (name TEXT PRIMARY KEY, modified INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, directory TEXT NOT NULL, run TEXT NOT NULL, mark TEXT NOT NULL,
    project_id TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, project TEXT NOT NULL, agent TEXT NOT NULL,
    model TEXT NOT NULL, started REAL, week TEXT NOT NULL, duration_s REAL, cost_usd REAL,
    tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, tokens_cached INTEGER NOT NULL,
    denied INTEGER NOT NULL, tripwires INTEGER NOT NULL, verified TEXT NOT NULL, task TEXT NOT NULL,
    notes TEXT NOT NULL, labels TEXT NOT NULL, bytes INTEGER NOT NULL, work INTEGER NOT NULL, cut INTEGER NOT NULL,
    UNIQUE (directory, run)
);
CREATE INDEX runs_by_time ON runs (run DESC);
CREATE INDEX runs_by_project ON runs (project_id, run DESC);
CREATE INDEX runs_by_cost ON runs (cost_usd);
CREATE TABLE labels (id INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (id, key)) WITHOUT ROWID;
CREATE INDEX labels_by_value ON labels (key, value, id);
CREATE TABLE hosts (id INTEGER NOT NULL, host TEXT NOT NULL, PRIMARY KEY (id, host)) WITHOUT ROWID;
CREATE INDEX hosts_by_name ON hosts (host, id);
CREATE TABLE paths (id INTEGER NOT NULL, path TEXT NOT NULL, PRIMARY KEY (id, path)) WITHOUT ROWID;
CREATE INDEX paths_by_name ON paths (path, id)
"""

_COLUMNS = (
    "project_id", "run", "kind", "state", "project", "agent", "model", "started", "duration_s", "cost_usd", "tokens_in",
    "tokens_out", "tokens_cached", "denied", "tripwires", "verified", "task", "notes", "labels", "bytes", "work", "cut",
)  # fmt: skip
_LISTS = ("labels", "hosts", "paths")
_COMPARED = ("<", "<=", ">", ">=", "=")
MOST_BOUND = 500
"""Values that one statement binds."""
GROUPS = ("project", "agent", "model", "week")
"""What can be summed by."""
FROM_ELSEWHERE = "(imported)"
"""How the names of groups end whose records came from elsewhere."""


@dataclass(frozen=True)
class Mark:
    """Which state of a record the index holds: its file's modification time, size and inode; all 0 without a file."""

    modified: int = 0
    size: int = 0
    inode: int = 0

    @classmethod
    def of(cls, file: Path) -> Mark:
        """As it is now."""
        try:
            found = file.stat(follow_symlinks=False)
        except OSError:
            return cls()
        return cls(found.st_mtime_ns, found.st_size, found.st_ino)

    def __str__(self) -> str:
        return f"{self.modified}.{self.size}.{self.inode}"


def put(db: sqlite3.Connection, directory: str, name: str, mark: Mark, facts: RunFacts) -> None:
    """One record's row, in place of the one before; `name` is its directory's own."""
    drop(db, directory, name)
    values = [getattr(facts, column) for column in _COLUMNS]
    values[_COLUMNS.index("notes")] = json.dumps(facts.notes)
    values[_COLUMNS.index("labels")] = json.dumps(facts.labels)
    values[_COLUMNS.index("run")] = name
    marks = ", ".join("?" * (len(values) + 3))
    statement = f"INSERT INTO runs (directory, mark, week, {', '.join(_COLUMNS)}) VALUES ({marks})"  # noqa: S608 - our names
    number = db.execute(statement, (directory, str(mark), _week(facts.started), *values)).lastrowid
    db.executemany("INSERT OR IGNORE INTO labels VALUES (?, ?, ?)", ((number, *pair) for pair in facts.labels))
    db.executemany("INSERT OR IGNORE INTO hosts VALUES (?, ?)", ((number, host) for host in facts.hosts))
    db.executemany("INSERT OR IGNORE INTO paths VALUES (?, ?)", ((number, path) for path in facts.paths))


def drop(db: sqlite3.Connection, directory: str, run: str) -> None:
    """One record's row goes, when there is one."""
    found = db.execute("SELECT id FROM runs WHERE directory = ? AND run = ?", (directory, run)).fetchone()
    if found is None:
        return
    for table in _LISTS:
        db.execute(f"DELETE FROM {table} WHERE id = ?", found)  # noqa: S608 - our names
    db.execute("DELETE FROM runs WHERE id = ?", found)


def drop_directory(db: sqlite3.Connection, directory: str) -> None:
    """All rows of a directory go."""
    for (run,) in db.execute("SELECT run FROM runs WHERE directory = ?", (directory,)).fetchall():
        drop(db, directory, run)
    db.execute("DELETE FROM directories WHERE name = ?", (directory,))


def marks(db: sqlite3.Connection, directory: str) -> dict[str, str]:
    """Run to mark, of a directory's rows."""
    return dict(db.execute("SELECT run, mark FROM runs WHERE directory = ?", (directory,)).fetchall())


def select(db: sqlite3.Connection, query: RunQuery) -> list[tuple[str, str, RunFacts]]:
    """(directory, mark, facts) of the runs that fit, newest first."""
    where, values = _where(query)
    columns = ", ".join(_COLUMNS)
    statement = f"SELECT directory, mark, {columns} FROM runs WHERE {where} ORDER BY run DESC"  # noqa: S608 - our names
    if query.limit is not None:
        statement, values = f"{statement} LIMIT ?", [*values, query.limit]
    return [(row[0], row[1], _facts(row[2:])) for row in db.execute(statement, values)]


def absent(db: sqlite3.Connection, names: Sequence[str]) -> frozenset[str]:
    """Those of the names that no row has."""
    missing = set(names)
    for start in range(0, len(names), MOST_BOUND):
        some = names[start : start + MOST_BOUND]
        marks = ", ".join("?" * len(some))
        missing -= {row[0] for row in db.execute(f"SELECT run FROM runs WHERE run IN ({marks})", some)}  # noqa: S608
    return frozenset(missing)


def sums(db: sqlite3.Connection, query: RunQuery, by: str) -> list[tuple[Any, ...]]:
    """(group, outcome, runs, runs with a cost, cost, tokens in, out, cached, seconds, denied) a group and outcome."""
    where, values = _where(query)
    if by not in GROUPS:
        raise ValueError(by)
    # Records from elsewhere are nobody's here, whatever name their makers gave the project.
    name = f"CASE WHEN substr(project_id, 1, {len(IMPORTED)}) = ? THEN trim({by} || ?) ELSE {by} END"
    statement = (
        f"SELECT {name} AS grouped, state, count(*), count(cost_usd), total(cost_usd), "  # noqa: S608 - our names
        "total(tokens_in), total(tokens_out), total(tokens_cached), total(duration_s), total(denied) "
        f"FROM runs WHERE {where} GROUP BY grouped, state ORDER BY grouped, state"
    )
    return db.execute(statement, [IMPORTED, f" {FROM_ELSEWHERE}", *values]).fetchall()


def _where(query: RunQuery) -> tuple[str, list[object]]:
    parts: list[str] = ["1"]
    values: list[object] = []

    def add(part: str, *bound: object) -> None:
        parts.append(part)
        values.extend(bound)

    if query.project_id is not None:
        add("project_id IN (?, '')", query.project_id)  # none: a standing environment's that cannot be read
    _any(add, "(project GLOB ? OR project_id GLOB ?)", query.projects, times=2)
    _any(add, "state = ?", query.outcomes)
    _any(add, "agent GLOB ?", query.agents)
    _any(add, "model GLOB ?", query.models)
    if query.since is not None:
        add("started >= ?", query.since)
    if query.until is not None:
        add("started < ?", query.until)
    for compared, amount in query.costs:
        if compared not in _COMPARED:
            raise ValueError(compared)
        add(f"cost_usd {compared} ?", amount)
    for key, value in query.labels:
        if value is None:
            add("id IN (SELECT id FROM labels WHERE key = ?)", key)
        else:
            add("id IN (SELECT id FROM labels WHERE key = ? AND value = ?)", key, value)
    for host in query.contacted:
        _named(add, "hosts", "host", host.lower(), below=False)
    for path in query.changed:
        _named(add, "paths", "path", path, below=True)
    return " AND ".join(parts), values


def _any(add: Any, part: str, wanted: Iterable[str], *, times: int = 1) -> None:
    values = tuple(wanted)
    if values:
        add(f"({' OR '.join([part] * len(values))})", *(value for value in values for _ in range(times)))


def _named(add: Any, table: str, column: str, wanted: str, *, below: bool) -> None:
    """By a pattern, or by the very name, and for a directory whatever lies below it."""
    if any(char in wanted for char in "*?["):
        add(f"id IN (SELECT id FROM {table} WHERE {column} GLOB ?)", wanted)  # noqa: S608 - our names
        return
    name = wanted.rstrip("/") or wanted
    # `0` is the character after `/`: a range, so that the index of the table is used.
    inside = f" OR ({column} >= ? AND {column} < ?)" if below else ""
    values = (name, f"{name}/", f"{name}0") if below else (name,)
    add(f"id IN (SELECT id FROM {table} WHERE {column} = ?{inside})", *values)  # noqa: S608 - our names


def _facts(row: tuple[Any, ...]) -> RunFacts:
    values = dict(zip(_COLUMNS, row, strict=True))
    values["notes"] = tuple(json.loads(values["notes"]))
    values["labels"] = tuple((key, value) for key, value in json.loads(values["labels"]))
    values["work"], values["cut"] = bool(values["work"]), bool(values["cut"])
    return RunFacts(**values)


def _week(started: float | None) -> str:
    """`2026-W48`, in UTC."""
    try:
        year, week, _ = datetime.fromtimestamp(started or 0, UTC).isocalendar()
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{year}-W{week:02d}" if started is not None else ""
