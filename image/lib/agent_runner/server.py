"""The runner's socket: JSON lines from any number of clients, answers, and streams of frames.

An answer has `"ok"`, a frame has `"ch"`. A connection carries at most one stream or one attached terminal beside its
answers. What a client does, or that it vanishes, touches nothing but its own connection.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
from typing import Any, Dict, List, Optional

from . import PROTOCOL, VERSION
from .config import CLIENTS_MAX, OUT_HIGH_BYTES, OUT_LOW_BYTES, REQUEST_MAX_BYTES
from .lines import encode, parse
from .loop import READ, WRITE, Loop
from .operations import Stream, answer
from .runner import Runner
from .terminal import Terminal
from .turn import Turn


class Client:
    """One connection."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.stream: Optional[Stream] = None
        self.terminal: Optional[Terminal] = None
        self.position: Optional[int] = None
        self._server = server
        self._socket = connection
        self._in = bytearray()
        self._out = bytearray()
        self._scanned = 0
        self._half_closed = False
        self._leaving = False
        self._closed = False

    def pump(self) -> None:
        """Refill from the stream or terminal, send what the socket takes, and wait for the rest."""
        if self._closed:
            return
        while True:
            self._refill()
            if not self._out:
                break
            try:
                sent = self._socket.send(memoryview(self._out)[: 256 * 1024])
            except BlockingIOError:
                break
            except OSError:
                self.close()
                return
            del self._out[:sent]
        idle = self.stream is None and self.terminal is None
        if not self._out and (self._leaving or (self._half_closed and idle)):
            self.close()
            return
        readable = not self._half_closed and not self._leaving and len(self._out) < OUT_HIGH_BYTES
        events = (READ if readable else 0) | (WRITE if self._out else 0)
        self._server.loop.watch(self._socket.fileno(), events, self._on_ready)

    def say(self, message: Dict[str, Any]) -> None:
        """Queue one line."""
        self._out += encode(message)

    def close(self) -> None:
        """Forget the connection; whatever it watched goes on."""
        if not self._closed:
            self._closed = True
            self._server.loop.watch(self._socket.fileno(), 0, self._on_ready)
            self._socket.close()
            self._server.clients.discard(self)

    def _on_ready(self, events: int) -> None:
        if events & READ and not self._half_closed:
            self._receive()
        self.pump()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            self._half_closed = True
            self.terminal = None  # keys are over; a stream is still sent to its end
            return
        self._in += data
        while not self._closed and not self._leaving:
            end = self._in.find(b"\n", self._scanned)
            if end < 0:
                self._scanned = len(self._in)
                break
            line = bytes(self._in[:end])
            del self._in[: end + 1]
            self._scanned = 0
            if line.strip():
                self._serve(line)
        if len(self._in) > REQUEST_MAX_BYTES:
            self._in.clear()
            self._leaving = True
            self.say(refusal("too-long", f"a request line is at most {REQUEST_MAX_BYTES} bytes"))

    def _serve(self, line: bytes) -> None:
        request = parse(line)
        if request is None:
            self.say(refusal("bad-request", "a request is one JSON object a line"))
            return
        reply = answer(self._server.runner, self, request)
        if reply is not None:
            if "id" in request:
                reply["id"] = request["id"]
            self.say(reply)

    def _refill(self) -> None:
        more = True
        while more and len(self._out) < OUT_LOW_BYTES:
            more = False
            if self.stream is not None:
                data, over = self.stream.next()
                self._out += data
                if over:
                    self.stream = None
                more = bool(data)
            elif self.terminal is not None:
                more = self._refill_terminal(self.terminal)

    def _refill_terminal(self, terminal: Terminal) -> bool:
        data, self.position = terminal.read(self.position)
        if data:
            self.say({"ch": "pty", "b64": base64.b64encode(data).decode("ascii")})
        elif terminal.exit is not None:
            self.say(terminal.exit)
            self.terminal = None
        return bool(data)


class Server:
    """Listens, and tells clients when there is more for them."""

    def __init__(self, runner: Runner, *, loop: Loop) -> None:
        self.runner = runner
        self.loop = loop
        self.clients: set[Client] = set()
        self._listener: Optional[socket.socket] = None
        runner.on_turn = self._turn_changed
        runner.on_terminal = self._terminal_changed

    def listen(self) -> None:
        """Bind the socket, 0600, in a directory of our own. Raises: OSError."""
        path = self.runner.paths.socket
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(64)
        self._listener = listener
        self.loop.watch(listener.fileno(), READ, self._on_connection)

    def _on_connection(self, _events: int) -> None:
        assert self._listener is not None
        try:
            connection, _address = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        client = Client(self, connection)
        if len(self.clients) >= CLIENTS_MAX:
            with contextlib.suppress(OSError):
                connection.send(encode(refusal("too-many", f"there are {CLIENTS_MAX} clients already")))
            connection.close()
            return
        self.clients.add(client)
        client.pump()

    def _turn_changed(self, turn: Turn) -> None:
        for client in self._watching(turn=turn):
            client.pump()

    def _terminal_changed(self, terminal: Terminal) -> None:
        for client in [client for client in self.clients if client.terminal is terminal]:
            client.pump()

    def _watching(self, *, turn: Turn) -> List[Client]:
        return [client for client in self.clients if client.stream is not None and client.stream.turn is turn]


def refusal(code: str, message: str) -> Dict[str, Any]:
    """An answer that says no."""
    return {"v": PROTOCOL, "ok": False, "error": {"code": code, "message": message}, "runner": VERSION}
