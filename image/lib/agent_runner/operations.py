"""The requests of protocol v1: checked, carried out, answered. No request can end the runner."""

from __future__ import annotations

import base64
import binascii
import os
import signal
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import PROTOCOL, VERSION
from .config import NAME, SPOOL_MAX_BYTES
from .home import HomeRefused, put_files
from .lines import encode, parse
from .runner import Refused, Runner
from .spool import SpoolError
from .terminal import Terminal
from .turn import Request, Turn

if TYPE_CHECKING:
    from .server import Client

Message = Mapping[str, Any]
Reply = Optional[Dict[str, Any]]


class Stream:
    """One client's place in a turn's frames."""

    def __init__(self, turn: Turn, first: int) -> None:
        self.turn = turn
        self._first = first
        self._offset = turn.spool.offset_before(first)

    def next(self) -> Tuple[bytes, bool]:
        """Frames that are ready, and whether the exit frame is among them."""
        while True:
            chunk, self._offset = self.turn.spool.read(self._offset)
            if not chunk:
                return self._at_end()
            if self._first > 1:
                chunk = b"".join(line for line in chunk.splitlines(keepends=True) if self._wanted(line))
            if chunk:
                turn = self.turn
                over = turn.exit_frame is not None and turn.exit_on_volume and self._offset >= turn.spool.size
                return chunk, over

    def _wanted(self, line: bytes) -> bool:
        frame = parse(line)
        seq = frame.get("seq") if frame else None
        if isinstance(seq, int) and seq >= self._first:
            self._first = 1  # frames are in order: the rest needs no look
            return True
        return self._first <= 1

    def _at_end(self) -> Tuple[bytes, bool]:
        if self.turn.exit_frame is None:
            return b"", False
        # Not on the volume (full, or the file was cut by the agent), or behind the asked seq: from memory.
        return encode(self.turn.exit_frame), True


def answer(runner: Runner, client: Client, request: Message) -> Reply:
    """Serve one request; None when there is nothing to say."""
    operation = request.get("op")
    try:
        if request.get("v", PROTOCOL) != PROTOCOL:
            raise Refused("version", f"this runner speaks protocol {PROTOCOL}, not {request.get('v')!r}")
        serve = OPERATIONS.get(operation) if isinstance(operation, str) else None
        if serve is None:
            raise Refused("unknown-op", f"there is no operation {operation!r}")
        fields = serve(runner, client, request)
    except Refused as error:
        return _no(operation, error.code, str(error))
    except SpoolError as error:
        return _no(operation, "volume", str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _no(operation, "failed", where + (os.strerror(error.errno) if error.errno else str(error)))
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        return _no(operation, "bad-request", f"{operation}: {type(error).__name__}: {error}"[:500])
    return None if fields is None else {"v": PROTOCOL, "ok": True, "op": operation, **fields}


def _no(operation: Any, code: str, message: str) -> Dict[str, Any]:
    return {"v": PROTOCOL, "ok": False, "op": operation, "error": {"code": code, "message": message}}


def _name(request: Message, key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not NAME.match(value):
        raise Refused("bad-request", f"{key!r} must match {NAME.pattern}")
    return value


def _argv(request: Message) -> List[str]:
    argv = request.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(item, str) for item in argv):
        raise Refused("bad-request", "'argv' must be a list of strings that is not empty")
    if any("\0" in item for item in argv):
        raise Refused("bad-request", "'argv' must not contain NUL")
    return argv


def _env(request: Message) -> Dict[str, Optional[str]]:
    env = request.get("env") or {}
    if not isinstance(env, dict) or not all(value is None or isinstance(value, str) for value in env.values()):
        raise Refused("bad-request", "'env' must map names to strings, or to null to remove them")
    if any(not name or "=" in name or "\0" in name or "\0" in (value or "") for name, value in env.items()):
        raise Refused("bad-request", "'env' holds a name or value that no environment can hold")
    return env


def _size(request: Message) -> Tuple[int, int]:
    return int(request.get("rows") or 24), int(request.get("cols") or 80)


def _hello(runner: Runner, _client: Client, _request: Message) -> Reply:
    return {
        "runner": VERSION,
        "protocols": [PROTOCOL],
        "pid": os.getpid(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "volume": runner.paths.volume,
        "volume_writable": os.access(runner.paths.volume, os.W_OK | os.X_OK),
    }


def _turn_start(runner: Runner, _client: Client, request: Message) -> Reply:
    _name(request, "turn")
    _argv(request)
    _env(request)
    turn, existing = runner.start_turn(Request(request, default_spool_bytes=SPOOL_MAX_BYTES))
    return {"turn": turn.name, "state": turn.state, "existing": existing}


def _turn_stream(runner: Runner, client: Client, request: Message) -> Reply:
    if client.stream is not None or client.terminal is not None:
        raise Refused("busy", "this connection has a stream already")
    turn = runner.find_turn(_name(request, "turn"))
    if turn.acknowledged:
        raise Refused("acknowledged", f"turn {turn.name} was drained; its frames are in the record")
    client.stream = Stream(turn, int(request.get("from") or 1))
    return None  # the frames are the answer


def _interrupt(runner: Runner, _client: Client, request: Message) -> Reply:
    turn = runner.stop_turn(_name(request, "turn"), "interrupted", _reason(request), signal.SIGINT)
    return {"turn": turn.name, "state": turn.state}


def _stop(runner: Runner, _client: Client, request: Message) -> Reply:
    turn = runner.stop_turn(_name(request, "turn"), "stopped", _reason(request), signal.SIGTERM)
    return {"turn": turn.name, "state": turn.state}


def _reason(request: Message) -> Optional[str]:
    reason = request.get("reason")
    return str(reason)[:1000] if reason is not None else None


def _status(runner: Runner, client: Client, _request: Message) -> Reply:
    return {
        "turns": [turn.describe() for turn in runner.turns.values()],
        "terminals": [terminal.describe() for terminal in runner.terminals.values()],
        "peak_kib": _peak_kib(),
    }


def _peak_kib() -> int:
    """Most memory ever resident. Not getrusage: its figure includes the process that started this one, before exec."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as handle:
        return next((int(line.split()[1]) for line in handle if line.startswith("VmHWM:")), 0)


def _acknowledge(runner: Runner, _client: Client, request: Message) -> Reply:
    return {"turn": runner.acknowledge(_name(request, "turn")).name}


def _home_put(runner: Runner, _client: Client, request: Message) -> Reply:
    files = request.get("files")
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise Refused("bad-request", "'files' must be a list of objects")
    try:
        changed, aside = put_files(runner.home, files)
        return {"changed": changed, "set_aside": aside}
    except HomeRefused as error:
        raise Refused("home", str(error)) from error


def _pty_start(runner: Runner, _client: Client, request: Message) -> Reply:
    rows, cols = _size(request)
    name, argv, cwd = _name(request, "name"), _argv(request), request.get("cwd") or "/workspace"
    existing = runner.start_terminal(name, argv, changes=_env(request), cwd=cwd, rows=rows, cols=cols)
    return {"name": name, "existing": existing}


def _pty_list(runner: Runner, _client: Client, _request: Message) -> Reply:
    return {"terminals": [terminal.describe() for terminal in runner.terminals.values()]}


def _pty_attach(runner: Runner, client: Client, request: Message) -> Reply:
    if client.stream is not None or client.terminal is not None:
        raise Refused("busy", "this connection has a stream already")
    terminal = runner.find_terminal(_name(request, "name"))
    client.terminal, client.position = terminal, None
    rows, cols = _size(request)
    terminal.resize(rows, cols, redraw=True)
    return {"name": terminal.name, "live": terminal.live}


def _attached(client: Client) -> Terminal:
    if client.terminal is None:
        raise Refused("not-attached", "this connection is not attached to a terminal")
    return client.terminal


def _pty_input(_runner: Runner, client: Client, request: Message) -> Reply:
    _attached(client).write(base64.b64decode(request["b64"], validate=True))
    return None


def _pty_resize(_runner: Runner, client: Client, request: Message) -> Reply:
    _attached(client).resize(*_size(request))
    return None


def _pty_detach(_runner: Runner, client: Client, _request: Message) -> Reply:
    _attached(client)
    client.terminal = None
    return {}


def _pty_stop(runner: Runner, _client: Client, request: Message) -> Reply:
    terminal = runner.find_terminal(_name(request, "name"))
    terminal.stop(float(request.get("grace_s") or 5))
    return {"name": terminal.name}


OPERATIONS: Dict[str, Callable[[Runner, "Client", Message], Reply]] = {
    "hello": _hello,
    "status": _status,
    "turn.start": _turn_start,
    "turn.stream": _turn_stream,
    "interrupt": _interrupt,
    "stop": _stop,
    "drain.ack": _acknowledge,
    "home.put": _home_put,
    "pty.start": _pty_start,
    "pty.list": _pty_list,
    "pty.attach": _pty_attach,
    "pty.input": _pty_input,
    "pty.resize": _pty_resize,
    "pty.detach": _pty_detach,
    "pty.stop": _pty_stop,
}
