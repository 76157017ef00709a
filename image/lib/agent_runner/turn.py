"""One turn: a process started with a task, its output as frames on the volume, its limits, and its end.

The end is always the same: signal the process group, wait the grace, SIGKILL everything that is left, read the pipes to
their end, write the exit frame. A turn that ends by itself enters at the third step.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import process
from .config import FRAME_DATA_BYTES
from .lines import encode
from .loop import READ, Loop, Timer
from .spool import Spool, SpoolError, volume_error, write_file

SWEEP_INTERVAL_S = 0.02
SWEEPS_MAX = 250
KILL_ALL_AFTER = 100
"""Sweeps by pid before a fork bomb, which outruns them, gets the one signal that it cannot outrun."""
PIPE_CLOSE_S = 3.0


class Request:
    """What `turn.start` asked for, checked."""

    def __init__(self, message: Mapping[str, Any], *, default_spool_bytes: int) -> None:
        self.turn: str = message["turn"]
        self.argv: List[str] = message["argv"]
        self.env: Dict[str, Optional[str]] = message.get("env") or {}
        self.cwd: str = message.get("cwd") or "/workspace"
        self.stdin: bytes = base64.b64decode(message.get("stdin") or "", validate=True)
        self.time_s: float = float(message.get("time_s") or 0)
        self.idle_s: float = float(message.get("idle_s") or 0)
        self.grace_s: float = float(message["grace_s"] if message.get("grace_s") is not None else 5)
        self.spool_bytes: int = int(message.get("spool_bytes") or default_spool_bytes)


class Output:
    """One of the process's two pipes; keeps a character that a read cut in two for the next frame."""

    def __init__(self, channel: str, fd: int) -> None:
        self.channel = channel
        self.fd = fd
        self._carry = b""

    def take(self) -> Tuple[Optional[Dict[str, str]], bool]:
        """The next piece as `{"text"}` or `{"b64"}` (None: none yet), and whether the pipe is at its end."""
        try:
            data = os.read(self.fd, FRAME_DATA_BYTES - len(self._carry))
        except BlockingIOError:
            return None, False
        except OSError:
            data = b""
        ended = not data
        data, self._carry = self._carry + data, b""
        if not data:
            return None, ended
        try:
            return {"text": data.decode("utf-8")}, ended
        except UnicodeDecodeError as error:
            if not ended and error.reason == "unexpected end of data" and len(data) - error.start < 4:
                self._carry = data[error.start :]
                text = data[: error.start].decode("utf-8")
                return ({"text": text} if text else None), False
            return {"b64": base64.b64encode(data).decode("ascii")}, ended


class Turn:
    """States: new, running, stopping, sweeping, draining, ended."""

    def __init__(self, name: str, spool: Spool, *, changed: Callable[[Turn], None]) -> None:
        self.name = name
        self.spool = spool
        self.state = "new"
        self.exit_frame: Optional[Dict[str, Any]] = None
        self.exit_on_volume = False
        self.acknowledged = False
        self.argv: Sequence[str] = ()
        self.started_wall_ms = 0
        self._changed = changed

    @property
    def live(self) -> bool:
        """Whether its process or something it left may still run."""
        return self.state not in ("new", "ended")

    def describe(self) -> Dict[str, Any]:
        """For `status`."""
        return {
            "turn": self.name,
            "state": self.state,
            "seq": self.spool.seq,
            "spool_bytes": self.spool.size,
            "started_wall_ms": self.started_wall_ms,
            "acknowledged": self.acknowledged,
            "exit": self.exit_frame,
        }

    def record_exit(self, frame: Dict[str, Any]) -> None:
        """Last frame on the volume if it takes it, in memory in any case."""
        try:
            self.exit_frame = self.spool.append(frame, last=True)
            self.exit_on_volume = True
        except SpoolError as error:
            self.exit_frame = {"seq": self.spool.seq + 1, **frame, "unspooled": str(error)}
        self.state = "ended"
        self._changed(self)


class LiveTurn(Turn):
    """A turn of this runner's own life, with its process."""

    def __init__(
        self,
        request: Request,
        directory: str,
        *,
        loop: Loop,
        spared: Callable[[Turn], Tuple[List[int], List[str]]],
        changed: Callable[[Turn], None],
    ) -> None:
        super().__init__(request.turn, Spool(directory, max_bytes=request.spool_bytes), changed=changed)
        self.argv = request.argv
        self.pid = 0
        self._request = request
        self._directory = directory
        self._loop = loop
        self._spared = spared
        self._popen: Any = None
        self._outputs: List[Output] = []
        self._timers: List[Timer] = []
        self._began = time.monotonic()
        self._last_output = self._began
        self._status: Optional[int] = None
        self._reason = "exit"
        self._detail: Optional[str] = None
        self._sweeps = 0
        self._killed: set[int] = set()
        self._discarded = 0

    def start(self, environ: Mapping[str, str]) -> None:
        """Prepare the volume, then start the process. Raises: SpoolError; a process that cannot start ends the turn."""
        self._prepare_volume()
        self.started_wall_ms = int(time.time() * 1000)
        self._began = self._last_output = time.monotonic()
        request = self._request
        stdin = self._open_stdin(request.stdin)
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        try:
            self._popen = process.spawn(
                request.argv,
                environ=process.merged_environ(environ, request.env, self.name),
                cwd=request.cwd,
                stdin=stdin,
                stdout=out_w,
                stderr=err_w,
            )
        except (OSError, ValueError) as error:
            for fd in (out_r, err_r):
                os.close(fd)
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            where = getattr(error, "filename", None) or request.argv[0]
            self._reason, self._detail = "spawn", f"cannot start {where}: {reason}"
            self._finish()
            return
        finally:
            for fd in (stdin, out_w, err_w):
                os.close(fd)
        self.pid = self._popen.pid
        self.state = "running"
        for output in (Output("stdout", out_r), Output("stderr", err_r)):
            os.set_blocking(output.fd, False)
            self._outputs.append(output)
            self._loop.watch(output.fd, READ, lambda _events, output=output: self._on_output(output))
        if request.time_s > 0:
            self._timers.append(self._loop.later(request.time_s, self._on_time))
        if request.idle_s > 0:
            self._timers.append(self._loop.later(request.idle_s, self._on_idle))

    def stop(self, reason: str, detail: Optional[str] = None, *, number: int = signal.SIGTERM) -> None:
        """Begin the end; asked again while it waits for the grace, kill at once."""
        if self.state == "running":
            self.state, self._reason, self._detail = "stopping", reason, detail
            process.signal_group(self.pid, number)
            process.signal_group(self.pid, signal.SIGCONT)
            self._timers.append(self._loop.later(self._request.grace_s, self._sweep_from_start))
            self._changed(self)
        elif self.state == "stopping":
            self._sweep_from_start()

    def reaped(self, status: int) -> None:
        """The process itself has ended with this wait status."""
        self._status = status
        self._popen.returncode = status  # or Popen's destructor would wait for a pid that may be another's by now
        if self.state in ("running", "stopping"):
            self._sweep_from_start()

    def _prepare_volume(self) -> None:
        try:
            os.makedirs(os.path.dirname(self._directory), mode=0o700, exist_ok=True)
            os.mkdir(self._directory, 0o700)
            self.spool.create()
            start = {
                "v": 1,
                "turn": self.name,
                "argv": self.argv,
                "cwd": self._request.cwd,
                "time_s": self._request.time_s,
                "idle_s": self._request.idle_s,
                "wall_ms": int(time.time() * 1000),
            }
            write_file(os.path.join(self._directory, "start.json"), encode(start))
        except (OSError, SpoolError) as error:
            self.spool.discard()
            with contextlib.suppress(OSError):
                os.rmdir(self._directory)
            if isinstance(error, SpoolError):
                raise
            raise volume_error(os.path.dirname(os.path.dirname(self._directory)), error) from error

    @staticmethod
    def _open_stdin(data: bytes) -> int:
        if not data:
            return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        fd = os.memfd_create("stdin")  # a file at its end reads as a closed pipe, and never blocks the runner
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _on_output(self, output: Output) -> None:
        piece, ended = output.take()
        if piece is not None:
            self._last_output = time.monotonic()
            self._keep(output.channel, piece)
        if ended:
            self._close(output)
            if self.state == "draining" and not self._outputs:
                self._finish()

    def _keep(self, channel: str, piece: Dict[str, str]) -> None:
        if self._discarded:
            self._discarded += _data_bytes(piece)
            return
        try:
            self.spool.append({**self._clock(), "ch": channel, **piece})
        except SpoolError as error:
            self._discarded = _data_bytes(piece)
            with contextlib.suppress(SpoolError):
                marker = {**self._clock(), "ch": "truncated", "detail": str(error), "max_bytes": self.spool.max_bytes}
                self.spool.append(marker, last=True)
            self.stop("output" if error.kind == "cap" else "volume", str(error))
        self._changed(self)

    def _clock(self) -> Dict[str, int]:
        return {"t_ms": int((time.monotonic() - self._began) * 1000), "wall_ms": int(time.time() * 1000)}

    def _on_time(self) -> None:
        self.stop_once("time", f"the turn's time limit of {self._request.time_s:g} s is over")

    def _on_idle(self) -> None:
        left = self._request.idle_s - (time.monotonic() - self._last_output)
        if left > 0.001:
            self._timers.append(self._loop.later(left, self._on_idle))
        else:
            self.stop_once("idle", f"nothing was printed for {self._request.idle_s:g} s")

    def stop_once(self, reason: str, detail: str) -> None:
        """Stop, but do not hasten an end that has begun."""
        if self.state == "running":
            self.stop(reason, detail)

    def _sweep_from_start(self) -> None:
        if self.state in ("running", "stopping"):
            self._cancel_timers()
            self.state = "sweeping"
            self._sweep()

    def _sweep(self) -> None:
        roots, marks = self._spared(self)
        left = process.left_over(spare_roots=roots, spare_marks=marks)
        if not left and self._status is not None:
            self._drain()
            return
        self._sweeps += 1
        if self._sweeps > SWEEPS_MAX:
            self._detail = "; ".join(filter(None, (self._detail, f"{len(left)} processes could not be killed")))
            self._drain()
            return
        # The leader first: a shell that sees its child killed would exit with a status of its own choosing.
        process.kill(sorted(left, key=lambda pid: pid != self.pid))
        if self._sweeps == KILL_ALL_AFTER:
            process.kill_all()
        self._killed.update(left - {self.pid})
        self._loop.later(SWEEP_INTERVAL_S, self._sweep)

    def _drain(self) -> None:
        self.state = "draining"
        if self._outputs:
            self._timers.append(self._loop.later(PIPE_CLOSE_S, self._finish))
        else:
            self._finish()

    def _finish(self) -> None:
        if self.state == "ended":
            return
        self._cancel_timers()
        for output in list(self._outputs):
            self._close(output)
        code, number = _decode(self._status)
        frame: Dict[str, Any] = {
            **self._clock(),
            "ch": "exit",
            "code": code,
            "signal": number,
            "reason": self._reason,
            "detail": self._detail,
        }
        if self._killed:
            frame["left_killed"] = len(self._killed)
        if self._discarded:
            frame["discarded_bytes"] = self._discarded
        self.record_exit(frame)

    def _close(self, output: Output) -> None:
        self._outputs.remove(output)
        self._loop.watch(output.fd, 0, lambda _events: None)
        os.close(output.fd)

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


def recover(name: str, directory: str, *, changed: Callable[[Turn], None]) -> Turn:
    """A turn of an earlier runner on this volume; one without an end gets it now, reason `lost`. Raises: OSError."""
    turn = Turn(name, Spool(directory, max_bytes=0), changed=changed)
    turn.state = "ended"
    turn.acknowledged = os.path.lexists(os.path.join(directory, "acknowledged"))
    if turn.acknowledged:
        return turn
    last = turn.spool.reopen()
    if last and last.get("ch") == "exit":
        turn.exit_frame, turn.exit_on_volume = last, True
    else:
        clock = {"t_ms": 0, "wall_ms": int(time.time() * 1000)}
        detail = "the container stopped before the turn had ended"
        turn.record_exit({**clock, "ch": "exit", "code": None, "signal": None, "reason": "lost", "detail": detail})
    return turn


def _data_bytes(piece: Mapping[str, str]) -> int:
    return len(piece["text"].encode()) if "text" in piece else len(piece["b64"]) * 3 // 4


def _decode(status: Optional[int]) -> Tuple[Optional[int], Optional[str]]:
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, f"SIG{number}"
    return os.WEXITSTATUS(status), None
