"""Docker's attach stream: stdout and stderr multiplexed over one socket, in frames of an 8-byte header and a body.

https://docs.docker.com/reference/api/engine/version/v1.45/#tag/Container/operation/ContainerAttach
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

HEADER = struct.Struct(">BxxxL")
STDOUT, STDERR = 1, 2
MAX_HEAD_BYTES = 64 * 1024


class HijackRefused(Exception):
    """The engine answered an upgrade request with an error; `status` and its words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


def hijack(address: Path, target: str, body: dict[str, object], *, timeout_s: float) -> tuple[socket.socket, bytes]:
    """POSTs `body` to the engine and takes over the connection: the socket, and what came with the answer's head.

    docker-py reads the head through a buffered reader and drops what that reader has read ahead, which under load is
    the stream's beginning; so the head is read here.
    """
    payload = json.dumps(body).encode()
    head = (
        f"POST {target} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(str(address))
        sock.sendall(head.encode() + payload)
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            data = sock.recv(4096)
            if not data or len(received) > MAX_HEAD_BYTES:
                raise HijackRefused(0, "the engine closed the connection")
            received += data
        status = int(received.split(b" ", 2)[1])
        rest = bytes(received[end + 4 :])
        if status not in (101, 200):
            raise HijackRefused(status, rest.decode(errors="replace").strip())
        return sock, rest
    except BaseException:
        sock.close()
        raise


def read_frames(sock: socket.socket, *, deadline: float | None, start: bytes = b"") -> Iterator[tuple[int, bytes]]:
    """(stream, bytes) until the stream ends. Raises TimeoutError at `deadline` (monotonic seconds)."""
    buffer = bytearray(start)
    while True:
        while len(buffer) >= HEADER.size:
            stream, size = HEADER.unpack_from(buffer)
            if len(buffer) < HEADER.size + size:
                break
            yield stream, bytes(buffer[HEADER.size : HEADER.size + size])
            del buffer[: HEADER.size + size]
        if deadline is None:
            sock.settimeout(None)
        else:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
        data = sock.recv(65536)
        if not data:
            return
        buffer += data


class SocketChannel:
    """A program in a container, spoken to in lines; implements `protocol.Channel`."""

    MAX_LINE_BYTES = 8 * 1024 * 1024

    def __init__(self, sock: socket.socket, *, start: bytes = b"") -> None:
        self._sock = sock
        self._raw = bytearray(start)
        self._lines = bytearray()
        self.stderr = bytearray()
        self._ended = False
        self._unpack()

    def send(self, line: bytes) -> None:
        """Writes one line; the newline is added."""
        self._sock.settimeout(30)
        self._sock.sendall(line + b"\n")

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """The next line without its newline; None at the end of the stream. Raises TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            end = self._lines.find(b"\n")
            if end >= 0:
                line = bytes(self._lines[:end])
                del self._lines[: end + 1]
                return line
            if self._ended:
                return None
            if len(self._lines) > self.MAX_LINE_BYTES:  # no honest runner sends such a line: frames are capped
                self._ended = True
                return None
            self._fill(deadline)

    def _fill(self, deadline: float | None) -> None:
        if deadline is None:
            self._sock.settimeout(None)
        else:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
        try:
            data = self._sock.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._ended = True
            return
        self._raw += data
        self._unpack()

    def _unpack(self) -> None:
        while len(self._raw) >= HEADER.size:
            stream, size = HEADER.unpack_from(self._raw)
            if len(self._raw) < HEADER.size + size:
                return
            body = self._raw[HEADER.size : HEADER.size + size]
            if stream == STDERR:
                self.stderr = (self.stderr + body)[-8192:]
            else:
                self._lines += body
            del self._raw[: HEADER.size + size]

    def close(self) -> None:
        """Ends the conversation."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
