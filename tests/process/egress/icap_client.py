"""squid's side of ICAP, for tests of the scanner: whole requests as squid writes them, and answers taken apart."""

from __future__ import annotations

import socket
from dataclasses import dataclass

REQUEST = b"POST https://%s/v1/messages HTTP/1.1\r\nHost: %s\r\n%s\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\n%s\r\n"


@dataclass(frozen=True)
class Answered:
    """One ICAP answer."""

    status: int
    header: bytes
    """The encapsulated HTTP header."""
    body: bytes
    whole: bool
    """Whether the body came to its end."""
    closes: bool


class Icap:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._received = b""

    def close(self) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, method: str, sections: list[tuple[str, bytes]], *, body: str, preview: bool = True) -> None:
        """The head and the encapsulated headers; `body` is the last section."""
        at, parts = 0, []
        for name, data in sections:
            parts.append(f"{name}={at}")
            at += len(data)
        parts.append(f"{body}={at}")
        previews = "Preview: 0\r\n" if preview and body != "null-body" else ""
        service = "request" if method == "REQMOD" else "answer"
        self.send(
            f"{method} icap://127.0.0.1/{service} ICAP/1.0\r\nHost: 127.0.0.1\r\nAllow: 204\r\n{previews}"
            f"Encapsulated: {', '.join(parts)}\r\n\r\n".encode()
            + b"".join(data for _, data in sections)
        )
        if previews:
            self.send(b"0\r\n\r\n")

    def request(self, host: str, *, headers: bytes = b"", body: bool = True) -> None:
        name = host.encode()
        self.head("REQMOD", [("req-hdr", REQUEST % (name, name, headers))], body="req-body" if body else "null-body")

    def answer(self, host: str, *, headers: bytes = b"", body: bool = True) -> None:
        name = host.encode()
        sections = [("req-hdr", REQUEST % (name, name, b"")), ("res-hdr", ANSWER % headers)]
        self.head("RESPMOD", sections, body="res-body" if body else "null-body")

    def chunks(self, *parts: bytes, end: bool = True) -> None:
        for part in parts:
            self.send(b"%x\r\n%s\r\n" % (len(part), part))
        if end:
            self.send(b"0\r\n\r\n")

    def _more(self) -> bool:
        data = self.sock.recv(65536)
        self._received += data
        return bool(data)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            if not self._more():
                raise EOFError(self._received)
        taken, _, self._received = self._received.partition(mark)
        return taken + mark

    def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            if not self._more():
                raise EOFError(self._received)
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def go_on(self) -> None:
        """100 Continue."""
        assert self._until(b"\r\n\r\n").startswith(b"ICAP/1.0 100 "), self._received

    def read_head(self) -> tuple[int, bytes, bool, bool]:
        """Status, encapsulated header, whether a body follows, whether the connection ends."""
        head = self._until(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        last = fields[b"Encapsulated"].rpartition(b",")[2].strip()
        name, _, offset = last.partition(b"=")
        header = self._exactly(int(offset))
        return int(head.split()[1]), header, name != b"null-body", fields.get(b"Connection") == b"close"

    def chunk(self) -> bytes:
        """The next chunk; empty at the end."""
        size = int(self._until(b"\r\n"), 16)
        data = self._exactly(size)
        self._exactly(2)
        return data

    def read(self) -> Answered:
        status, header, has_body, closes = self.read_head()
        body, whole = b"", True
        try:
            while has_body and (data := self.chunk()):
                body += data
        except (EOFError, ConnectionError):
            whole = False
        return Answered(status, header, body, whole, closes)

    def ended(self) -> bool:
        """Whether the other side has closed."""
        try:
            return not self._received and not self._more()
        except ConnectionError:
            return True
