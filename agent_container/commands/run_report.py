"""`runs report`: what a page about some runs is made of, with a bound on everything that a run can make long."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.commands.run_logs import LogEnd, LogEntry, LogQuery, read_logs
from agent_container.commands.runs import RunDetail, resolve_run, show_run
from agent_container.drain import file_pieces
from agent_container.errors import UsageError
from agent_container.frames import whole_lines
from agent_container.sandbox.closing import PATCH

MAX_RUNS = 20
FIRST, LAST = 200, 800
"""So many entries of a timeline from its beginning and from its end."""
DIFF_LINES, DIFF_LINE_CHARS = 3_000, 500
BUCKETS = 100
MAX_MOMENTS = 500_000


@dataclass(frozen=True)
class Activity:
    """How much happened in one part of a run's time."""

    agent: int = 0
    allowed: int = 0
    denied: int = 0


@dataclass(frozen=True)
class RunReport:
    """One run on the page."""

    detail: RunDetail
    timeline: tuple[LogEntry, ...]
    left_out: int
    """Entries between the first and the last that are shown."""
    gap: int
    """After how many shown entries they are missing."""
    cut: tuple[str, ...]
    """What was cut when the record was made, or could not be read."""
    activity: tuple[Activity, ...]
    """Equal parts of the run's time, from its first entry to its last."""
    diff: tuple[str, ...]
    """The first lines of its patch."""
    diff_left_out: int


def collect_reports(context: Context, runs: Sequence[str | None]) -> tuple[RunReport, ...]:
    """The runs in the order in which they are named. Raises UsageError."""
    places = list(dict.fromkeys(resolve_run(context, run) for run in runs))
    if len(places) > MAX_RUNS:
        raise UsageError(f"{len(places)} runs on one page; {MAX_RUNS} at most")
    return tuple(_report(context, place.run_id) for place in places)


def write_page(target: Path, page: str) -> Path:
    """Writes a page for its user alone. Raises UsageError when `target` is there already."""
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(page)
    except FileExistsError as there:
        raise UsageError(f"{target} exists already", hint="name another file") from there
    except OSError as bad:
        raise UsageError(f"cannot write {target}: {bad.strerror}") from bad
    return target


def _report(context: Context, run: str) -> RunReport:
    end = LogEnd()
    query = LogQuery(sources=("events", "receipts"))
    entries = (entry for entry in read_logs(context, run, query, end) if not _twice(entry))
    first = list(islice(entries, FIRST))
    last: deque[LogEntry] = deque(maxlen=LAST)
    seen = len(first)
    moments = [_moment(entry) for entry in first]
    for entry in entries:
        seen += 1
        last.append(entry)
        if len(moments) < MAX_MOMENTS:
            moments.append(_moment(entry))
    detail = show_run(context, run)
    diff, diff_more = _diff(detail.path)
    shown = (*first, *last)
    return RunReport(
        detail=detail,
        timeline=shown,
        left_out=seen - len(shown),
        gap=len(first),
        cut=tuple(end.cut),
        activity=_activity(moments),
        diff=diff,
        diff_left_out=diff_more,
    )


def _twice(entry: LogEntry) -> bool:
    """Whether a receipt says it in full already."""
    return entry.event is not None and entry.type in ("egress.denied", "egress.tripwire", "egress.dlp")


def _moment(entry: LogEntry) -> tuple[float | None, str]:
    kind = "agent"
    if entry.receipt is not None:
        action = entry.receipt.get("action")
        refused = action in ("deny", "block") or entry.type in ("drop", "tripwire", "kill")
        kind = "denied" if refused else "allowed" if entry.type == "decision" else ""
    return (entry.at.timestamp() if entry.at is not None else None), kind


def _activity(moments: Iterable[tuple[float | None, str]]) -> tuple[Activity, ...]:
    timed = [(at, kind) for at, kind in moments if at is not None and kind]
    if not timed:
        return ()
    begin, end = min(at for at, _ in timed), max(at for at, _ in timed)
    width = max((end - begin) / BUCKETS, 1e-9)
    counts = [{"agent": 0, "allowed": 0, "denied": 0} for _ in range(BUCKETS)]
    for at, kind in timed:
        counts[min(int((at - begin) / width), BUCKETS - 1)][kind] += 1
    return tuple(Activity(**count) for count in counts)


def _diff(directory: Path) -> tuple[tuple[str, ...], int]:
    if not (directory / PATCH).is_file():
        return (), 0
    lines: list[str] = []
    more = 0
    for line in whole_lines(file_pieces(directory / PATCH), max_bytes=4 * DIFF_LINE_CHARS):
        if len(lines) < DIFF_LINES:
            text = line.rstrip(b"\n").decode("utf-8", "backslashreplace")
            lines.append(text if len(text) <= DIFF_LINE_CHARS else f"{text[:DIFF_LINE_CHARS]}…")
        else:
            more += 1
    return tuple(lines), more
