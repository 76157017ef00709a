"""A reader of tar streams that a sandbox had a hand in: bounded memory, never a file system, never an extraction.

Pure. `tarfile` reads an extended header of any claimed size into memory, expands sparse maps and recurses over
chained headers; here every header is capped, sparse and linked members are only named, and bodies are passed on in
pieces. Understands ustar, GNU long names and pax (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header
Block"), which is what container engines write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

BLOCK = 512
MAX_EXTENDED_BYTES = 64 * 1024
"""A path has at most 4096 bytes; engines add a few extended attributes."""
MAX_CHAINED = 8
"""Extended headers before one member: engines write one or two."""

Kind = Literal["file", "directory", "link", "symlink", "device", "fifo", "sparse", "other"]

_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "link",
    b"2": "symlink",
    b"3": "device",
    b"4": "device",
    b"5": "directory",
    b"6": "fifo",
    b"S": "sparse",
}
_EXTENDED = frozenset(b"xXgLK")


class TarDamaged(ValueError):
    """The stream is no tar, ends in the middle of one, or goes over a cap; what was read before stands."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member's header."""

    name: bytes
    kind: Kind
    size: int


@dataclass(frozen=True, slots=True)
class _Extension:
    name: bytes | None = None
    size: int | None = None
    sparse: bool = False


class TarReader:
    """Reads one stream. `body` may be taken whole, in part or not at all before the next member."""

    def __init__(self, chunks: Iterable[bytes], *, max_bytes: int) -> None:
        self._chunks = iter(chunks)
        self._buffer = b""
        self._left = max_bytes
        self._unread = 0
        self._body_left = 0
        self.empty = True
        """Whether not a single byte came: the path is absent."""

    def members(self) -> Iterator[Member]:
        """The members in order. Raises TarDamaged, also when more than `max_bytes` came."""
        extension, chained = _Extension(), 0
        while True:
            for _ in self.body():
                pass  # what the caller left of the body, and the padding to a full block
            header = self._exactly(BLOCK, may_end=True)
            if header is None or not header.strip(b"\0"):
                return
            member = _parse_header(header)
            flag = header[156:157]
            if flag[0] in _EXTENDED:
                chained += 1
                if chained > MAX_CHAINED or member.size > MAX_EXTENDED_BYTES:
                    raise TarDamaged("an extended header over the cap")
                body = self._exactly(_padded(member.size)) or b""
                extension = _extend(extension, flag, body[: member.size])
                continue
            size = member.size if extension.size is None else extension.size
            if member.kind in ("link", "symlink", "device", "fifo", "directory"):
                size = 0  # these have no body, whatever the size field says
            name = member.name if extension.name is None else extension.name
            member = Member(
                name=name.rstrip(b"/") if member.kind == "directory" else name,
                kind="sparse" if extension.sparse else member.kind,
                size=size,
            )
            extension, chained = _Extension(), 0
            self._unread = _padded(size)
            self._body_left = size
            yield member

    def body(self) -> Iterator[bytes]:
        """The rest of the present member's body, in pieces."""
        while self._unread:
            piece = self._some(self._unread)
            self._unread -= len(piece)
            useful, self._body_left = piece[: self._body_left], max(self._body_left - len(piece), 0)
            if useful:
                yield useful

    def _exactly(self, size: int, *, may_end: bool = False) -> bytes | None:
        parts: list[bytes] = []
        wanted = size
        while wanted:
            if may_end and wanted == size and not self._buffer and not self._refill():
                return None
            piece = self._some(wanted)
            parts.append(piece)
            wanted -= len(piece)
        return b"".join(parts)

    def _some(self, most: int) -> bytes:
        if not self._buffer and not self._refill():
            raise TarDamaged("the stream ends in the middle of a member")
        piece, self._buffer = self._buffer[:most], self._buffer[most:]
        return piece

    def _refill(self) -> bool:
        for chunk in self._chunks:
            if chunk:
                self.empty = False
                self._left -= len(chunk)
                if self._left < 0:
                    raise TarDamaged("more bytes than the cap")
                self._buffer = chunk
                return True
        return False


def _padded(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


def _parse_header(header: bytes) -> Member:
    blank = header[:148] + b" " * 8 + header[156:]
    signed = sum(byte - 256 if byte > 127 else byte for byte in blank)  # some old writers sum signed bytes
    if _number(header[148:156]) not in (sum(blank), signed):
        raise TarDamaged("a header's checksum does not fit")
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and prefix:
        name = prefix + b"/" + name
    # A file is a file also when its name ends with "/": a long name that is cut at 100 bytes often does.
    return Member(name=name, kind=_KINDS.get(header[156:157], "other"), size=_number(header[124:136]))


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU base-256
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value >= 1 << 63:
            raise TarDamaged("a number out of range")
        return value
    text = field.strip(b" \0")
    if text.strip(b"01234567"):
        raise TarDamaged("a number that is not octal")
    return int(text or b"0", 8)


def _extend(extension: _Extension, flag: bytes, body: bytes) -> _Extension:
    if flag == b"L":
        return replace(extension, name=body.split(b"\0", 1)[0])
    if flag in b"gK":
        return extension  # global headers and link names decide nothing here
    for key, value in _pax_records(body):
        if key == b"path":
            extension = replace(extension, name=value)
        elif key == b"size":
            if not value.isdigit() or len(value) > 19:
                raise TarDamaged("a pax size that is no number")
            extension = replace(extension, size=int(value))
        elif key.startswith(b"GNU.sparse."):
            extension = replace(extension, sparse=True)
    return extension


def _pax_records(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position < len(body):
        digits, space, _ = body[position : position + 20].partition(b" ")
        if not space or not digits.isdigit():
            raise TarDamaged("a pax record without a length")
        record = body[position : position + int(digits)]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if len(record) != int(digits) or not equals or not value.endswith(b"\n"):
            raise TarDamaged("a pax record whose length does not fit")
        yield key, value[:-1]
        position += len(record)
