"""How the sidecar's processes talk: JSON lines (or squid's helper lines) over unix path sockets, the peer known by
SO_PEERCRED. Framing, listening, and one blocking call; what is said is each daemon's own."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

MAX_LINE = 1024 * 1024
_UCRED = struct.Struct("3i")
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class WireError(Exception):
    """The other side is gone, too slow, or said what is no message."""


def encode(message: Mapping[str, object]) -> bytes:
    """One message as a line."""
    return _ENCODER.encode(message).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """One line as a message. Raises: WireError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("not a JSON object")
    return message


def peer_uid(sock: socket.socket) -> int:
    """The uid that the kernel noted when the peer connected."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _pid, uid, _gid = _UCRED.unpack(credentials)
    return int(uid)


def listen_unix(path: str, *, mode: int = 0o666) -> socket.socket:
    """A listening path socket; a stale one of an earlier process is replaced. Peers are told apart by uid, not by
    mode."""
    target = Path(path)
    if target.is_socket():
        target.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(path)
    target.chmod(mode)
    sock.listen(128)
    sock.setblocking(False)
    return sock


def call(path: str, message: Mapping[str, object], *, timeout_s: float = 2.0) -> dict[str, object]:
    """Sends one message and waits for one answer. Raises: WireError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(path)
            sock.sendall(encode(message))
            received = b""
            while not received.endswith(b"\n"):
                chunk = sock.recv(65536)
                if not chunk:
                    raise WireError(f"{path}: closed before it answered")
                received += chunk
                if len(received) > MAX_LINE:
                    raise WireError(f"{path}: answer too long")
    except OSError as error:
        raise WireError(f"{path}: {error}") from error
    return decode(received)


class LineSplitter:
    """Turns chunks into whole lines, without their newlines."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._rest = b""
        self._max_line = max_line

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines completed by this chunk. Raises: WireError for a line past the bound."""
        lines = (self._rest + chunk if self._rest else chunk).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._max_line:
            raise WireError("line too long")
        return lines


class Peer(asyncio.Protocol):
    """One connection of a line server: hands whole lines on in the batches in which they arrive."""

    def __init__(self, on_lines: Callable[[Peer, list[bytes]], None], admit: Callable[[int], bool]) -> None:
        self.uid = -1
        self._on_lines = on_lines
        self._admit = admit
        self._splitter = LineSplitter()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuses who is not admitted before reading anything."""
        sock = transport.get_extra_info("socket")
        self.uid = peer_uid(sock)
        if not isinstance(transport, asyncio.Transport) or not self._admit(self.uid):
            transport.close()
            return
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Whole lines to the server."""
        if self._transport is None:
            return
        try:
            lines = self._splitter.feed(data)
        except WireError:
            self.close()
            return
        if lines:
            self._on_lines(self, lines)

    def connection_lost(self, exc: Exception | None) -> None:
        """Answers to a peer that left are dropped."""
        self._transport = None

    def send(self, data: bytes) -> None:
        """Whole lines to the peer."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Drops the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


async def serve_lines(
    path: str, *, on_lines: Callable[[Peer, list[bytes]], None], admit: Callable[[int], bool], mode: int = 0o666
) -> asyncio.AbstractServer:
    """Serves lines on a path socket to the uids that `admit` lets in."""
    sock = listen_unix(path, mode=mode)
    return await asyncio.get_running_loop().create_unix_server(lambda: Peer(on_lines, admit), sock=sock)


def harden() -> None:
    """No core dump of a process that holds a key or a credential; files of its own alone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)


def parse_roles(texts: list[str], default: Mapping[int, frozenset[str]]) -> Mapping[int, frozenset[str]]:
    """Peers by uid from `UID=role[,role]` options; none given means the default."""
    if not texts:
        return default
    found: dict[int, frozenset[str]] = {}
    for text in texts:
        uid, _, roles = text.partition("=")
        found[int(uid)] = found.get(int(uid), frozenset()) | frozenset(roles.split(","))
    return found
