"""The runner's spool and any other stream of lines: cut into lines, read as frames, held in bounded memory.

Pure. What a sandbox wrote is untrusted: these parsers take any bytes, keep what they cannot read as marked evidence,
hold no more than a stated number of bytes, and raise nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

MAX_FRAME_LINE_BYTES = 256 * 1024
"""A frame holds 32 KiB of data; escaped in JSON that is at most six times as much."""
MAX_AGENT_LINE_BYTES = 16 * 1024 * 1024
"""The longest line of an agent's own stream that is parsed; what is longer is kept raw and marked."""
MAX_AGENT_PARTS = 400_000
"""Strings, numbers, lists and objects of one line that is parsed. 16 MiB of `{}` cost 700 MiB of memory and seconds of
time; the longest lines of real agents are long texts."""
HEAD_BYTES = 512
"""How much of an unreadable line is shown with its mark."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a stream, without its \\n."""

    number: int
    data: bytes
    """The line, or its first `HEAD_BYTES` when it is longer than the cap."""
    size: int
    """Bytes of the whole line."""
    ended: bool
    """Whether its \\n was there; a last line without one may be half a line."""

    @property
    def cut(self) -> bool:
        """Whether `data` is only the head of it."""
        return self.size > len(self.data)


class LineSplitter:
    """Cuts a stream at \\n alone: U+2028, \\x0b and the like are data (`str.splitlines` would cut there).

    Holds at most `max_bytes` and one chunk; of a longer line the head is given and the rest only counted.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._number = 1
        self._size = 0
        self._kept = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that end in `chunk`."""
        start = 0
        while (stop := chunk.find(b"\n", start)) >= 0:
            self._keep(chunk, start, stop)
            yield self._take(ended=True)
            start = stop + 1
        self._keep(chunk, start, len(chunk))

    def finish(self) -> Iterator[Line]:
        """What stands after the last \\n, if anything."""
        if self._size:
            yield self._take(ended=False)

    def _keep(self, chunk: bytes, start: int, stop: int) -> None:
        if self._size <= self._max_bytes:
            self._kept += chunk[start:stop]
        self._size += stop - start
        if self._size > self._max_bytes:
            del self._kept[HEAD_BYTES:]

    def _take(self, *, ended: bool) -> Line:
        line = Line(self._number, bytes(self._kept), self._size, ended)
        self._number, self._size, self._kept = self._number + 1, 0, bytearray()
        return line


def split_lines(chunks: Iterable[bytes], *, max_bytes: int) -> Iterator[Line]:
    """All lines of a stream, as `LineSplitter` cuts them."""
    splitter = LineSplitter(max_bytes=max_bytes)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.finish()


def whole_lines(chunks: Iterable[bytes], *, max_bytes: int) -> Iterator[bytes]:
    """The same lines as bytes with their newlines, several times as fast, for who counts none and keeps none: of a
    longer one its first `max_bytes`, without one."""
    rest, skipping = b"", False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if skipping:
                skipping = False
            elif len(line) > max_bytes:
                yield line[:max_bytes]
            else:
                yield line + b"\n"
        if skipping:
            rest = b""
        elif len(rest) > max_bytes:
            yield rest[:max_bytes]
            rest, skipping = b"", True
    if rest:
        yield rest


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the runner's spool: a piece of the agent's output, or its end."""

    line: int
    seq: int
    t_ms: int
    """Milliseconds since the turn began, by a clock that never steps."""
    wall_ms: int | None
    """The container's wall clock, milliseconds since the epoch; the agent's word."""
    channel: Literal["stdout", "stderr", "exit", "truncated"]
    data: bytes = b""
    code: int | None = None
    signal: str | None = None
    reason: str = ""
    detail: str = ""


BadKind = Literal["half-line", "too-long", "too-many-parts", "not-utf8", "not-json", "not-object", "not-a-frame"]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no frame, kept as evidence."""

    line: int
    kind: BadKind
    size: int
    head: bytes


def parse_frames(chunks: Iterable[bytes], *, max_bytes: int = MAX_FRAME_LINE_BYTES) -> Iterator[Frame | BadLine]:
    """The frames of a spool as they stand; what is no frame comes as BadLine. `chunks` may be cut anywhere."""
    for line in split_lines(chunks, max_bytes=max_bytes):
        if line.size:
            yield parse_frame(line)


def parse_frame(line: Line) -> Frame | BadLine:
    """One line of the spool."""
    if line.cut:
        return _bad(line, "too-long")
    row = parse_object(line)
    if isinstance(row, BadLine):
        return row
    try:
        return _frame(line.number, row)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return _bad(line, "not-a-frame")


def parse_object(line: Line) -> dict[str, object] | BadLine:
    """The JSON object in a line of any stream, or why there is none."""
    if (unread := not_parsed(line)) is not None:
        return _bad(line, unread)
    try:
        row = json.loads(line.data.decode("utf-8"))
    except UnicodeDecodeError:
        return _bad(line, "not-utf8" if line.ended else "half-line")
    except (ValueError, RecursionError):  # RecursionError: [[[[... from a hostile sandbox
        return _bad(line, "not-json" if line.ended else "half-line")
    return row if isinstance(row, dict) else _bad(line, "not-object")


def not_parsed(line: Line) -> Literal["too-long", "too-many-parts"] | None:
    """Why a line is not even tried: what parsing it would cost is its writer's to choose."""
    if line.cut:
        return "too-long"
    return "too-many-parts" if len(line.data) > MAX_AGENT_PARTS and _too_many(line.data) else None


# One part more than the bound, in one match: no object is made for any. No part of it goes back, and a string without
# an end is one: the time is linear in what is read.
_PARTS = rb'(?:[^",:\[{]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,:\[{])){%d}+'
_TOO_MANY = re.compile(_PARTS % (MAX_AGENT_PARTS + 1), re.DOTALL)


def _too_many(data: bytes) -> bool:
    if sum(data.count(mark) for mark in (b",", b":", b"[", b"{", b'"')) <= MAX_AGENT_PARTS:
        return False  # as nearly always, and a hundred times faster
    return _TOO_MANY.match(data) is not None


def _bad(line: Line, kind: BadKind) -> BadLine:
    return BadLine(line.number, kind, line.size, line.data[:HEAD_BYTES])


def _frame(number: int, row: dict[str, object]) -> Frame:
    channel = row["ch"]
    seq, t_ms = _count(row["seq"]), _count(row.get("t_ms", 0))
    wall_ms = None if row.get("wall_ms") is None else _count(row["wall_ms"])
    if channel == "exit":
        code = row.get("code")
        if code is not None and (not isinstance(code, int) or isinstance(code, bool)):
            raise TypeError("code")
        return Frame(
            number,
            seq,
            t_ms,
            wall_ms,
            "exit",
            code=code,
            signal=_text(row.get("signal")) or None,
            reason=_text(row.get("reason")),
            detail=_text(row.get("detail")),
        )
    if channel == "truncated":  # the spool's cap bit: said by a frame, so that no reader takes the rest for all
        return Frame(number, seq, t_ms, wall_ms, "truncated", detail=_text(row.get("detail")))
    if channel not in ("stdout", "stderr"):
        raise ValueError("ch")
    stream: Literal["stdout", "stderr"] = "stdout" if channel == "stdout" else "stderr"
    if "b64" in row:
        data = base64.b64decode(_strict(row["b64"]), validate=True)
    else:
        data = _strict(row["text"]).encode("utf-8", "surrogatepass")
    return Frame(number, seq, t_ms, wall_ms, stream, data=data)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError("not a count")
    return value


def _strict(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def _text(value: object) -> str:
    return "" if value is None else str(value)[:4096]
