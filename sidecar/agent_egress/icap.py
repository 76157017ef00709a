"""ICAP/1.0 (RFC 3507) as squid's client speaks it: the head of a request, its encapsulated headers, chunked bodies, and
the answers. Bytes in, values and bytes out; connections are the scanner's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_HEAD = 128 * 1024
"""squid takes headers of 64 KB; two of them are encapsulated in an answer's scan."""
MAX_CHUNK_LINE = 256
ISTAG = '"agent-container-1"'
CONTINUE = b"ICAP/1.0 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
METHODS = {"request": "REQMOD", "answer": "RESPMOD"}
"""By service."""
SECTIONS = frozenset({"req-hdr", "res-hdr", "req-body", "res-body", "opt-body", "null-body"})


class IcapError(ValueError):
    """What is not ICAP, or not what squid sends."""


@dataclass(frozen=True)
class IcapHead:
    """The first lines of an ICAP request."""

    method: str
    """`OPTIONS`, `REQMOD` or `RESPMOD`."""
    service: str
    """The last part of its address: which of our services is asked."""
    headers: Mapping[str, str]
    """Names in lower case."""
    sections: tuple[tuple[str, int], ...]
    """The encapsulated parts and where each begins; the last one is the body."""

    @property
    def header_bytes(self) -> int:
        """Length of all encapsulated headers."""
        return self.sections[-1][1] if self.sections else 0

    @property
    def has_body(self) -> bool:
        """Whether chunks follow."""
        return bool(self.sections) and self.sections[-1][0] != "null-body"

    @property
    def previews(self) -> bool:
        """Whether the client waits for a word before it sends the body."""
        return "preview" in self.headers

    @property
    def may_skip(self) -> bool:
        """Whether 204 (as it was) may be answered."""
        return self.previews or "204" in self.headers.get("allow", "")


@dataclass(frozen=True)
class HttpHead:
    """An encapsulated HTTP header."""

    first_line: str
    headers: Mapping[str, str]
    """Names in lower case; the values of a repeated one are joined with commas."""

    @property
    def place(self) -> tuple[str, int]:
        """Of a request: host, in lower case, and port; empty and 0 where none can be read."""
        words = self.first_line.split(" ")
        target = words[1] if len(words) > 2 else ""
        if "://" not in target:
            target = f"https://{self.headers.get('host', '')}/"
        try:
            place = urlsplit(target)
            return (place.hostname or "").rstrip("."), place.port or (80 if place.scheme == "http" else 443)
        except ValueError:
            return "", 0


def parse_head(data: bytes) -> IcapHead:
    """From the request line to the empty line. Raises: IcapError."""
    first, headers = _lines(data)
    words = first.split(" ")
    if len(words) != 3 or words[2] != "ICAP/1.0" or words[0] not in {"OPTIONS", "REQMOD", "RESPMOD"}:
        raise IcapError(f"not an ICAP request: {first[:80]!r}")
    sections = _sections(headers.get("encapsulated", ""))
    if words[0] != "OPTIONS" and not sections:
        raise IcapError("nothing encapsulated")
    return IcapHead(words[0], words[1].rpartition("/")[2], headers, sections)


def _lines(data: bytes) -> tuple[str, dict[str, str]]:
    first, *rest = data.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if colon:
            key = name.strip().lower()
            headers[key] = f"{headers[key]},{value.strip()}" if key in headers else value.strip()
    return first, headers


def _sections(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in text.split(",") if text else ():
        name, _, offset = part.strip().partition("=")
        if name not in SECTIONS or not offset.isdigit() or int(offset) > MAX_HEAD:
            raise IcapError(f"encapsulated: {part[:40]!r}")
        found.append((name, int(offset)))
    offsets = [offset for _, offset in found]
    bodies = [index for index, (name, _) in enumerate(found) if name.endswith("body")]
    if offsets != sorted(offsets) or (found and (offsets[0] or bodies != [len(found) - 1])):
        raise IcapError(f"encapsulated: {text[:80]!r}")
    return tuple(found)


def parse_http(data: bytes) -> HttpHead:
    """An encapsulated header, its empty line included."""
    return HttpHead(*_lines(data))


def split_headers(head: IcapHead, data: bytes) -> dict[str, bytes]:
    """The encapsulated headers by section name."""
    starts = [*head.sections]
    return {name: data[at : starts[index + 1][1]] for index, (name, at) in enumerate(starts[:-1])}


class Chunks:
    """A chunked body, in whatever pieces it arrives. A preview is one too."""

    def __init__(self) -> None:
        self._left = -1
        """Bytes left of this chunk; -1: a size line is next, -2: the line end after a chunk."""
        self.done = False
        self.whole = False
        """Of a preview: that nothing follows it (`ieof`)."""

    def feed(self, buffer: bytearray) -> bytes:
        """Takes what it can out of the buffer, and gives the bytes of the body. Raises: IcapError."""
        parts = []
        while not self.done:
            if self._left > 0:
                part = bytes(buffer[: self._left])
                if not part:
                    break
                del buffer[: len(part)]
                parts.append(part)
                self._left = self._left - len(part) or -2
                continue
            line_end = buffer.find(b"\r\n", 0, MAX_CHUNK_LINE)
            if line_end < 0:
                if len(buffer) >= MAX_CHUNK_LINE:
                    raise IcapError("a chunk without a size")
                break
            if self._left == -1 and not self._size(bytes(buffer[:line_end]), buffer, line_end):
                break
            if self._left == -2:
                if line_end:
                    raise IcapError("a chunk without an end")
                self._left = -1
                del buffer[:2]
        return b"".join(parts)

    def _size(self, line: bytes, buffer: bytearray, line_end: int) -> bool:
        size, _, extension = line.partition(b";")
        digits = size.strip()
        if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
            raise IcapError("a chunk without a size")
        self._left = int(digits, 16)
        if self._left:
            del buffer[: line_end + 2]
            return True
        # The last one: an empty line follows. squid sends no trailers unless it is told that they are wanted.
        self._left = -1
        if len(buffer) < line_end + 4:
            return False
        if buffer[line_end : line_end + 4] != b"\r\n\r\n":
            raise IcapError("a body with a trailer")
        del buffer[: line_end + 4]
        self.done, self.whole = True, extension.strip() == b"ieof"
        return False


def chunk(data: bytes) -> bytes:
    """One chunk; nothing for no bytes, which would end the body."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def options(service: str) -> bytes:
    """The answer to OPTIONS of one service. Raises: IcapError."""
    method = METHODS.get(service)
    if method is None:
        raise IcapError(f"no service {service[:40]!r}")
    # Preview 0: squid asks for a word before the first byte, so that nothing waits until a preview is full.
    return (
        f"ICAP/1.0 200 OK\r\nMethods: {method}\r\nService: agent-container\r\nISTag: {ISTAG}\r\n"
        "Preview: 0\r\nTransfer-Preview: *\r\nAllow: 204\r\nOptions-TTL: 86400\r\nEncapsulated: null-body=0\r\n\r\n"
    ).encode("ascii")


def unchanged() -> bytes:
    """204: as it was."""
    return f"ICAP/1.0 204 No Modifications\r\nISTag: {ISTAG}\r\nEncapsulated: null-body=0\r\n\r\n".encode("ascii")


def echo(section: str, header: bytes, *, body: bool) -> bytes:
    """200 with a header as it came; its body, if any, follows in chunks."""
    kind = section[:3]
    rest = f"{kind}-body" if body else "null-body"
    parts = f"{section}=0, {rest}={len(header)}"
    return f"ICAP/1.0 200 OK\r\nISTag: {ISTAG}\r\nEncapsulated: {parts}\r\n\r\n".encode("ascii") + header


def refusal(words: str, *, close: bool) -> bytes:
    """200 with a whole HTTP answer of ours: 403 and one line of text. `close`: the rest of the body is not read."""
    text = words.encode("ascii", "replace") + b"\n"
    header = (
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n"
        f"Content-Length: {len(text)}\r\n\r\n"
    ).encode("ascii")
    parts = f"res-hdr=0, res-body={len(header)}"
    connection = "Connection: close\r\n" if close else ""
    head = f"ICAP/1.0 200 OK\r\nISTag: {ISTAG}\r\n{connection}Encapsulated: {parts}\r\n\r\n".encode("ascii")
    return head + header + chunk(text) + LAST_CHUNK


def failure(code: int, words: str) -> bytes:
    """An ICAP error, after which the connection is closed; squid then refuses the transaction."""
    head = f"ICAP/1.0 {code} {words}\r\nISTag: {ISTAG}\r\nConnection: close\r\nEncapsulated: null-body=0\r\n\r\n"
    return head.encode("ascii")
