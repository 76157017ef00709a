"""`runs logs`: what a record holds of a run as one stream in the order of time: its events, the output of the agent's
program, and the sidecar's receipts.

Each source keeps its own order, whatever its clock says; between them time decides. Events alone stand as they are
numbered. Only what was kept is there: where
a cap cut something, at the drain or here, that is said at the end.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import count

from agent_container.commands.context import Context
from agent_container.commands.egress_log import subject
from agent_container.commands.run_filters import parse_moment
from agent_container.commands.runs import MAX_EVENT_BYTES, load_record, resolve_run
from agent_container.drain import EVENTS, RAW, RECEIPTS, file_pieces
from agent_container.errors import UsageError
from agent_container.events import Event, encode_event, parse_event
from agent_container.frames import BadLine, Frame, parse_frames, split_lines
from agent_container.records import RunRecord
from agent_container.store import RunPlace
from agent_egress.identity import MAX_RECEIPT_BYTES
from agent_egress.receipts import parse_receipt

SOURCES = ("events", "output", "receipts")
MAX_TEXT = 64 * 1024
"""Characters of one entry that a pattern is looked for in."""
_INTO = re.compile(r"\+(\d{1,6})([smh])")


@dataclass(frozen=True)
class LogEntry:
    """One thing that happened."""

    at: datetime | None
    source: str
    """events, output or receipts."""
    type: str
    """An event's type, a receipt's kind, or the channel of output."""
    host: str
    text: str
    """Of output, what was written; else the event or receipt as JSON."""
    event: Event | None = field(default=None, compare=False)
    receipt: dict[str, object] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class LogQuery:
    """What of it is wanted."""

    sources: Sequence[str] = ("events",)
    types: Sequence[str] = ()
    """With `*`; any of them."""
    host: str | None = None
    since: str | None = None
    """A moment, so long ago, or `+5m`: so long into the run."""
    grep: str | None = None
    """A regular expression."""
    limit: int | None = None
    """Only the last so many."""


@dataclass
class LogEnd:
    """What is said after the last entry."""

    run: str = ""
    entries: int = 0
    cut: list[str] = field(default_factory=list)
    """What a cap kept out of the answer."""


def read_logs(context: Context, run: str | None, query: LogQuery, end: LogEnd) -> Iterator[LogEntry]:
    """The entries that are wanted, in order; `end` is filled when the last one was given. Raises UsageError before the
    first."""
    place = resolve_run(context, run)
    record = load_record(place)
    wanted = log_filter(query, record.host.started, now=context.now())
    end.run = place.run_id
    return _limited(_counted(filter(wanted, _merged(place, record, query.sources, end)), end), query.limit, record, end)


def _merged(place: RunPlace, record: RunRecord, sources: Sequence[str], end: LogEnd) -> Iterator[LogEntry]:
    streams: list[Iterator[LogEntry]] = []
    if tuple(sources) == ("events",):
        return _events(place, lambda _: True, end)  # as the file has them, numbered
    if "events" in sources:
        # The agent's come first in the file, then what the receipts said: two streams, each in its own order.
        streams.append(_events(place, lambda event: not event.type.startswith("egress."), end))
        streams.append(_events(place, lambda event: event.type.startswith("egress."), None))
    if "output" in sources:
        streams.append(_output(place, record, end))
    if "receipts" in sources:
        streams.append(_receipts(place, end))
    number = count()
    return (row[-1] for row in heapq.merge(*(_timed(stream, rank, number) for rank, stream in enumerate(streams))))


def _timed(entries: Iterable[LogEntry], rank: int, number: Iterator[int]) -> Iterator[tuple[float, int, int, LogEntry]]:
    """With a time that never goes back: an entry without one happened when the one before it did."""
    latest = 0.0
    for entry in entries:
        latest = max(latest, entry.at.timestamp() if entry.at is not None else 0.0)
        yield latest, rank, next(number), entry


def _events(place: RunPlace, mine: Callable[[Event], bool], end: LogEnd | None) -> Iterator[LogEntry]:
    if not (place.path / EVENTS).is_file():
        return
    for line in split_lines(file_pieces(place.path / EVENTS), max_bytes=MAX_EVENT_BYTES):
        event = None if line.cut else parse_event(line.data)
        if event is None:
            if end is not None and line.size:
                _note(end, f"{EVENTS} line {line.number}: {line.size} bytes that are no event of this version")
        elif mine(event):
            yield event_entry(event)


def event_entry(event: Event) -> LogEntry:
    """One event as an entry."""
    text = encode_event(event)[:MAX_TEXT].decode("utf-8", "replace").rstrip("\n")
    return LogEntry(event.at, "events", event.type, getattr(event, "host", ""), text, event=event)


def _output(place: RunPlace, record: RunRecord, end: LogEnd) -> Iterator[LogEntry]:
    if not (place.path / RAW).is_file():
        return
    skew = timedelta(seconds=record.host.clock_skew_s or 0)
    for frame in parse_frames(file_pieces(place.path / RAW)):
        if isinstance(frame, BadLine):
            _note(end, f"{RAW} line {frame.line}: {frame.kind}, {frame.size} bytes")
        elif frame.channel == "truncated":
            _note(end, f"the output was cut while the agent worked: {frame.detail}")
        else:
            yield LogEntry(_wall(frame, skew), "output", frame.channel, "", _frame_text(frame))


def _receipts(place: RunPlace, end: LogEnd) -> Iterator[LogEntry]:
    if not (place.path / RECEIPTS).is_file():
        return
    for line in split_lines(file_pieces(place.path / RECEIPTS), max_bytes=MAX_RECEIPT_BYTES + 64):
        receipt = parse_receipt(line.data)
        if receipt is None:
            if line.size:
                _note(end, f"{RECEIPTS} line {line.number}: {line.size} bytes that are no receipt")
            continue
        text = json.dumps(receipt, ensure_ascii=False)[:MAX_TEXT]
        yield LogEntry(_when(receipt), "receipts", str(receipt.get("kind")), subject(receipt), text, receipt=receipt)


def _frame_text(frame: Frame) -> str:
    if frame.channel == "exit":
        return f"exit {frame.signal or frame.code} {frame.reason}".rstrip()
    return frame.data.decode("utf-8", "backslashreplace")


def _wall(frame: Frame, skew: timedelta) -> datetime | None:
    try:
        return None if frame.wall_ms is None else datetime.fromtimestamp(frame.wall_ms / 1000, UTC) - skew
    except (OverflowError, OSError, ValueError):
        return None


def _when(receipt: dict[str, object]) -> datetime | None:
    moment = receipt.get("t")
    try:
        return datetime.fromtimestamp(moment / 1000, UTC) if isinstance(moment, int) else None
    except (OverflowError, OSError, ValueError):
        return None


def log_filter(query: LogQuery, started: datetime, *, now: datetime) -> Callable[[LogEntry], bool]:
    """Whether an entry is wanted. Raises UsageError."""
    unknown = [source for source in query.sources if source not in SOURCES]
    if unknown:
        raise UsageError(f"--source {unknown[0]!r}: one of {', '.join(SOURCES)}, or all")
    if query.limit is not None and query.limit < 1:
        raise UsageError(f"--limit {query.limit}: a number of entries, from 1")
    try:
        pattern = re.compile(query.grep) if query.grep is not None else None
    except (re.error, OverflowError, RecursionError) as bad:
        raise UsageError(f"--grep {query.grep!r} is no regular expression: {bad}") from None
    since = _since(query.since, started, now)

    def wanted(entry: LogEntry) -> bool:
        if query.types and not any(fnmatchcase(entry.type, pattern) for pattern in query.types):
            return False
        if query.host is not None and not fnmatchcase(entry.host.lower(), query.host.lower()):
            return False
        if since is not None and (entry.at is None or entry.at < since):
            return False
        return pattern is None or pattern.search(entry.text[:MAX_TEXT]) is not None

    return wanted


def _since(text: str | None, started: datetime, now: datetime) -> datetime | None:
    if text is None:
        return None
    into = _INTO.fullmatch(text.strip())
    try:
        if into is not None:
            return started + timedelta(seconds=int(into[1]) * {"s": 1, "m": 60, "h": 3600}[into[2]])
        return datetime.fromtimestamp(parse_moment(text, now), UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {text!r}: a moment like 2026-11-29T15:00, so long ago (10m), or so long into the run (+5m)"
        ) from None


def _counted(entries: Iterable[LogEntry], end: LogEnd) -> Iterator[LogEntry]:
    for entry in entries:
        end.entries += 1
        yield entry


def _limited(entries: Iterator[LogEntry], limit: int | None, record: RunRecord, end: LogEnd) -> Iterator[LogEntry]:
    if limit is None:
        yield from entries
    else:
        last = deque(entries, maxlen=limit)
        if end.entries > limit:
            _note(end, f"{end.entries - limit} earlier entries, by --limit {limit}")
        yield from last
    for name in record.host.drained.truncated:
        _note(end, f"when the record was made: {name}")
    for note in record.host.drained.notes:
        _note(end, note)


MAX_NOTES = 50


def _note(end: LogEnd, text: str) -> None:
    if len(end.cut) < MAX_NOTES:
        end.cut.append(text)
    elif len(end.cut) == MAX_NOTES:
        end.cut.append("and more")
