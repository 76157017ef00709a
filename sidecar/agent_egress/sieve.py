"""A body on its way through the scanner: its content coding undone for the scan alone, and of the bytes themselves so
much let go as cannot be the beginning of something that is looked for. Pure; memory stays flat whatever passes."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator

from agent_egress.scan import Finding, Patterns, Scanner

STEP = 256 * 1024
"""Decoded bytes a step: the scan of one body must not keep the others waiting."""
FREE_BYTES = 64 * 1024 * 1024
MAX_GROWTH = 256
"""Past FREE_BYTES a body may not decode into so many times its size: its scan would take for ever."""
_ANY_ZLIB = 47
_RAW_DEFLATE = -15
GZIP = frozenset({"gzip", "x-gzip"})


class Undecodable(ValueError):
    """A body whose content cannot be seen; the message says why."""


class _Identity:
    def feed(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), STEP):
            yield data[at : at + STEP]


class _Deflated:
    """gzip (several members too) and deflate, which some send without its header."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._inflater = zlib.decompressobj(_ANY_ZLIB)
        self._taken = 0
        self._given = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises: Undecodable."""
        first = not self._taken
        self._taken += len(data)
        if first and not self._gzip and data and not _has_zlib_header(data):
            self._inflater = zlib.decompressobj(_RAW_DEFLATE)
        out = b""
        while data or len(out) == STEP:  # a full step may leave some of it inside, with all of `data` taken
            try:
                out = self._inflater.decompress(data, STEP)
            except zlib.error as error:
                raise Undecodable("it is not what its coding says") from error
            self._given += len(out)
            if self._given > FREE_BYTES + MAX_GROWTH * self._taken:
                raise Undecodable("it decodes into far more than it is")
            yield out
            data = self._inflater.unconsumed_tail
            if self._inflater.eof:
                data = self._inflater.unused_data
                self._inflater = zlib.decompressobj(_ANY_ZLIB)


def _has_zlib_header(data: bytes) -> bool:
    return data[0] & 15 == 8 and (len(data) < 2 or int.from_bytes(data[:2], "big") % 31 == 0)


def _decoder(coding: str) -> _Identity | _Deflated:
    names = [name for part in coding.lower().split(",") if (name := part.strip()) not in {"", "identity"}]
    if not names:
        return _Identity()
    if len(names) == 1 and names[0] in GZIP | {"deflate"}:
        return _Deflated(gzip=names[0] in GZIP)
    raise Undecodable(f"its coding {coding[:40]} is not one that is undone here")


class Sieve:
    """One body."""

    def __init__(self, patterns: Patterns, coding: str, *, hold: int = 0) -> None:
        """`coding` is the Content-Encoding; of the first `hold` bytes none goes before all are there, or the end."""
        self.problem = ""
        """Why the rest of the body is not seen; it then passes as it is, if it passes."""
        self.waiting = 0
        """Bytes that wait."""
        self._scanner = Scanner(patterns)
        self._decoder: _Identity | _Deflated = _Identity()
        self._pieces: deque[tuple[bytes, int]] = deque()
        """Bytes that wait, and the length of the decoded stream that ends with them."""
        self._decoded = 0
        self._hold = hold
        self._taken = 0
        try:
            self._decoder = _decoder(coding)
        except Undecodable as error:
            self.problem = str(error)

    def take(self, raw: bytes) -> Iterator[list[Finding]]:
        """Scans the next bytes, a step at a time."""
        self._taken += len(raw)
        self.waiting += len(raw)
        try:
            for text in self._decoder.feed(raw) if not self.problem else ():
                self._decoded += len(text)
                yield self._scanner.feed(text)
        except Undecodable as error:
            self.problem = str(error)
        self._pieces.append((raw, self._decoded))

    def end(self) -> list[Finding]:
        """The body is over."""
        self._hold = 0
        return [] if self.problem else self._scanner.feed(b"", last=True)

    def give(self) -> bytes:
        """The bytes that may go now."""
        if self._taken < self._hold:
            return b""
        self._hold = 0
        safe = self._decoded - (0 if self.problem else self._scanner.held)
        ready = []
        while self._pieces:
            raw, end = self._pieces[0]
            if end > safe:
                if isinstance(self._decoder, _Identity) and end - len(raw) < safe:
                    keep = end - safe
                    ready.append(raw[:-keep])
                    self._pieces[0] = (raw[-keep:], end)
                break
            ready.append(raw)
            self._pieces.popleft()
        given = b"".join(ready)
        self.waiting -= len(given)
        return given
