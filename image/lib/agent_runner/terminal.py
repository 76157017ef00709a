"""A pseudo-terminal that the runner keeps: the agent's own interface goes on when nobody is attached.

Its last output is kept in a bounded scrollback. Each attached client reads from there at its own pace; one that falls
behind further than the scrollback starts again at its beginning, so the agent never waits for a slow terminal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import process
from .config import FRAME_DATA_BYTES, SCROLLBACK_BYTES
from .loop import READ, WRITE, Loop

INPUT_MAX_BYTES = 256 * 1024
RESET = b"\x1bc"


class Terminal:
    """One named pty and the process on it."""

    def __init__(self, name: str, *, loop: Loop, changed: Callable[[Terminal], None]) -> None:
        self.name = name
        self.pid = 0
        self.exit: Optional[Dict[str, Any]] = None
        self.argv: List[str] = []
        self._loop = loop
        self._changed = changed
        self._master = -1
        self._popen: Any = None
        self._scrollback = bytearray()
        self._total = 0
        self._input = bytearray()

    @property
    def live(self) -> bool:
        """Whether its process still runs."""
        return self._popen is not None and self.exit is None

    def start(
        self,
        argv: List[str],
        *,
        environ: Mapping[str, str],
        changes: Mapping[str, Optional[str]],
        cwd: str,
        rows: int,
        cols: int,
    ) -> None:
        """Raises: OSError, ValueError when the program cannot be started."""
        master, slave = pty.openpty()
        try:
            os.set_blocking(master, False)
            os.set_inheritable(master, False)
            self._master = master
            self.resize(rows, cols)
            self._popen = process.spawn(
                argv,
                environ=process.merged_environ({"TERM": "xterm-256color", **environ}, changes, self.name),
                cwd=cwd,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                terminal=True,
            )
        except (OSError, ValueError):
            os.close(master)
            self._master = -1
            raise
        finally:
            os.close(slave)
        self.argv = argv
        self.pid = self._popen.pid
        self._watch()

    def describe(self) -> Dict[str, Any]:
        """For `pty.list`."""
        return {"name": self.name, "live": self.live, "pid": self.pid, "argv": self.argv, "exit": self.exit}

    def resize(self, rows: int, cols: int, *, redraw: bool = False) -> None:
        """Set the size; with `redraw`, tell the program to paint again even when the size is the same."""
        if self._master < 0:
            return
        size = struct.pack("HHHH", max(1, min(rows, 10000)), max(1, min(cols, 10000)), 0, 0)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
            if redraw:
                process.signal_group(os.tcgetpgrp(self._master), signal.SIGWINCH)

    def write(self, data: bytes) -> None:
        """Keys from a client; what exceeds the bound is dropped, as a tty does when nobody reads it."""
        if self._master >= 0:
            self._input += data[: max(0, INPUT_MAX_BYTES - len(self._input))]
            self._watch()

    def read(self, position: Optional[int]) -> Tuple[bytes, int]:
        """Output after `position` (None: the whole scrollback) and the position after it."""
        first = self._total - len(self._scrollback)
        start = first if position is None or position < first else position
        chunk = bytes(self._scrollback[start - first : start - first + FRAME_DATA_BYTES])
        lost = position is not None and position < first
        return (RESET + chunk if lost else chunk), start + len(chunk)

    def at_end(self, position: Optional[int]) -> bool:
        """Whether a client at this position has seen everything."""
        return position is not None and position >= self._total

    def stop(self, grace_s: float) -> None:
        """Hang up and terminate, then kill the group."""
        if self.live:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
                process.signal_group(self.pid, number)
            self._loop.later(grace_s, self._kill)

    def reaped(self, status: int) -> None:
        """The process has ended; take what it printed last, then close."""
        self._popen.returncode = status
        for _ in range(2 * SCROLLBACK_BYTES // FRAME_DATA_BYTES):
            if not self._take():
                break
        self._close()
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None
        self.exit = {"ch": "exit", "code": code, "signal": number}
        self._changed(self)

    def _kill(self) -> None:
        if self.live:
            process.signal_group(self.pid, signal.SIGKILL)

    def _watch(self) -> None:
        self._loop.watch(self._master, READ | (WRITE if self._input else 0), self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events & WRITE and self._input:
            try:
                del self._input[: os.write(self._master, self._input[:4096])]
            except BlockingIOError:
                pass
            except OSError:
                self._input.clear()
        if events & READ and not self._take():
            return
        if self._master >= 0:
            self._watch()

    def _take(self) -> bool:
        if self._master < 0:
            return False
        try:
            data = os.read(self._master, FRAME_DATA_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # EIO: no process holds the terminal any more
            data = b""
        if not data:
            self._loop.watch(self._master, 0, self._on_ready)
            return False
        self._scrollback += data
        self._total += len(data)
        if len(self._scrollback) > SCROLLBACK_BYTES:
            del self._scrollback[: len(self._scrollback) - SCROLLBACK_BYTES]
        self._changed(self)
        return True

    def _close(self) -> None:
        if self._master >= 0:
            self._loop.watch(self._master, 0, self._on_ready)
            os.close(self._master)
            self._master = -1
