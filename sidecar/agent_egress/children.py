"""Daemons as child processes of PID 1: started already demoted, their words prefixed into the container's log, reaped,
started again when they end. Which daemons there are, and what their end means for the session, is the boundary's
affair."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
LINES_PER_S = 100
MAX_LINE_BYTES = 2000
BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 5.0)
STEADY_S = 30.0
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def demoted(uid: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` run as `uid`, for good: no capability in any set, and none to be had from a file.

    setpriv, because doing it between fork and exec in Python needs the interpreter to be single-threaded and intact.
    """
    return (
        "/usr/bin/setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--no-new-privs",
        "--",
        *argv,
    )


def reserve(descriptor: int) -> None:
    """Keeps a descriptor's number for a child's secret, so that nothing of ours comes to lie on it."""
    null = os.open("/dev/null", os.O_RDONLY)
    if null != descriptor:
        os.dup2(null, descriptor, inheritable=False)
        os.close(null)


def log(name: str, text: str) -> None:
    """One line into the container's log; what a daemon or an agent wrote is reduced to printable ASCII."""
    sys.stderr.write(f"{name}: {_UNPRINTABLE.sub('?', text)[:MAX_LINE_BYTES]}\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class Daemon:
    """How one daemon is run."""

    name: str
    uid: int
    argv: tuple[str, ...]
    restart: bool = True
    """Not for the audit writer: its chain key is gone with it."""


class Child:
    """One daemon's process and its successors."""

    def __init__(self, daemon: Daemon, on_end: Callable[[Child], None]) -> None:
        self.daemon = daemon
        self.restarts = 0
        self.ended = False
        """Whether the present process has ended (and, if it restarts, the next one is not there yet)."""
        self.tail: deque[str] = deque(maxlen=30)
        self._process: subprocess.Popen[bytes] | None = None
        self._on_end = on_end
        self._stopping = False
        self._started = 0.0
        self._quick_ends = 0
        self._pending = b""
        self._window, self._lines = 0, 0

    @property
    def pid(self) -> int | None:
        """The process's id, while there is one."""
        return None if self._process is None or self.ended else self._process.pid

    def start(self, *, secret: bytes | None = None, secret_fd: int = 3) -> None:
        """Starts the process; `secret` is written into a pipe that it finds at `secret_fd` (which is `reserve`d)."""
        if secret is not None:
            read_end, write_end = os.pipe()
            os.write(write_end, secret)
            os.close(write_end)
            os.dup2(read_end, secret_fd)
            os.close(read_end)
        try:
            self._process = subprocess.Popen(
                demoted(self.daemon.uid, self.daemon.argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
                start_new_session=True,
                pass_fds=(secret_fd,) if secret is not None else (),
            )
        finally:
            if secret is not None:
                reserve(secret_fd)
        self.ended = False
        self._started = time.monotonic()
        assert self._process.stdout is not None  # noqa: S101 - narrows the type
        descriptor = self._process.stdout.fileno()
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._drain, self._process)

    def poll(self) -> None:
        """Takes note when the process has ended, and plans its successor."""
        process = self._process
        if process is None or self.ended or process.poll() is None:
            return
        self.ended = True
        self._drain(process)
        # What the daemon started itself (squid's helpers) must not outlive it: it holds the daemon's uid.
        kill_uid(self.daemon.uid)
        log("supervisor", f"{self.daemon.name} ended with {process.returncode}")
        self._on_end(self)
        if self._stopping or not self.daemon.restart:
            return
        steady = time.monotonic() - self._started > STEADY_S
        self._quick_ends = 0 if steady else self._quick_ends + 1
        pause = BACKOFF_S[min(self._quick_ends, len(BACKOFF_S)) - 1] if self._quick_ends else 0.0
        asyncio.get_running_loop().call_later(pause, self._restart)

    def _restart(self) -> None:
        if self._stopping or not self.ended:
            return
        self.restarts += 1
        self.start()

    def kill(self) -> None:
        """Ends the process and all that it started, now; a daemon that restarts is there again in a moment."""
        self._started = 0.0  # ended on purpose: no reason to wait before it is started again
        kill_uid(self.daemon.uid)

    def stop(self) -> None:
        """Ends it for good."""
        self._stopping = True
        self.kill()

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - narrows the type
        while True:
            try:
                data = os.read(process.stdout.fileno(), 65536)
            except BlockingIOError:
                return
            except (OSError, ValueError):
                data = b""
            if not data:
                with contextlib.suppress(ValueError, OSError):
                    asyncio.get_running_loop().remove_reader(process.stdout.fileno())
                    process.stdout.close()
                return
            *lines, self._pending = (self._pending + data).split(b"\n")
            self._pending = self._pending[-MAX_LINE_BYTES:]
            for line in lines:
                self._note(line[:MAX_LINE_BYTES].decode("utf-8", "replace"))

    def _note(self, line: str) -> None:
        self.tail.append(_UNPRINTABLE.sub("?", line))
        window = int(time.monotonic())
        if window != self._window:
            self._window, self._lines = window, 0
        self._lines += 1
        if self._lines <= LINES_PER_S:  # an agent that makes squid talk must not fill the disk
            log(self.daemon.name, line)


def kill_uid(uid: int) -> None:
    """SIGKILL to every process of `uid` in this container, until none is left that could still fork."""
    for _ in range(50):
        found = [pid for pid in _pids() if _uid_of(pid) == uid]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and entry != "1"]  # noqa: PTH208 - bare names


def _uid_of(pid: int) -> int | None:
    status = process_status(pid)
    if status.get("State", "Z").startswith(("Z", "X")):
        return None  # dead already, only not yet reaped
    return int(status["Uid"].split()[0])


def process_status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def reap(children: list[Child]) -> None:
    """Collects every ended process: ours, and the orphans that fall to PID 1."""
    known = {child.pid: child for child in children if child.pid is not None}
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        child = known.pop(ended.si_pid, None)
        if child is not None:
            child.poll()
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(ended.si_pid, 0)


def undemoted(pid: int, uid: int) -> str:
    """Why the process is not confined as it must be; empty when it is."""
    status = process_status(pid)
    if set(status.get("Uid", "").split()) != {str(uid)} or set(status.get("Gid", "").split()) != {str(uid)}:
        return f"runs as uid {status.get('Uid')}, gid {status.get('Gid')}"
    for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(status.get(field, "1"), 16):
            return f"holds {field} {status.get(field)}"
    return "" if status.get("NoNewPrivs") == "1" else "may gain privileges"
