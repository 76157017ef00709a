"""Locks between processes: one a project, one a live session. The kernel frees the lock of a holder that dies.

flock on a file of the state directory; the file also says who holds it, for the error message only. Whether it is
held is decided by the kernel alone, so that a stale file or a reused pid cannot block anybody.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent_container.errors import Locked, StoreError
from agent_container.store.writer import FILE_MODE, Writer, explained

POLL_S = 0.05
PROBE_GRACE_S = 1.0
"""A probe of `holder` holds the lock shared for an instant; a taker waits at least this long before it gives up."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, in its own words."""

    pid: int
    started: str
    """When it took the lock, ISO 8601 in UTC; empty when it could not be read."""
    doing: str

    def __str__(self) -> str:
        since = f" since {self.started}" if self.started else ""
        doing = f" ({self.doing})" if self.doing else ""
        return f"process {self.pid}{since}{doing}" if self.pid else "another process"


class Locks:
    """The lock files of one directory."""

    def __init__(self, directory: Path, writer: Writer) -> None:
        self._directory = directory
        self._writer = writer

    def path(self, name: str) -> Path:
        """The lock file of `name`."""
        return self._directory / f"{name}.lock"

    @contextmanager
    def hold(self, name: str, *, what: str, doing: str = "", wait_s: float = 0.0) -> Iterator[None]:
        """Holds the lock `name` while the block runs. Raises Locked, naming the holder, after `wait_s`."""
        fd = self._take(name, what=what, wait_s=wait_s)
        try:
            self._sign(fd, doing)
            yield
        finally:
            # Unlock before close: a program that is just being started has the descriptor until its exec is through.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)  # the file stays: removing it here would let two holders in

    def holder(self, name: str) -> Holder | None:
        """Who holds `name` now; None when nobody does, which for a session means that its owner is gone."""
        try:
            fd = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as bad:
            raise StoreError(f"cannot read the lock {self.path(name)}: {bad.strerror}") from bad
        try:
            # Shared, so that two probes do not take each other for the owner.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_holder(fd)
        finally:
            os.close(fd)
        return None

    def forget(self, name: str) -> None:
        """Removes the lock file of something that is gone for good, unless it is held."""
        try:
            with self.hold(name, what=name):
                self._writer.remove(self.path(name))
        except Locked:
            return

    def _take(self, name: str, *, what: str, wait_s: float) -> int:
        path = self.path(name)
        self._writer.make_dir(self._directory)
        deadline = time.monotonic() + max(wait_s, 0.0)
        probe_deadline = time.monotonic() + PROBE_GRACE_S
        while True:
            with explained(path, "lock"):
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as bad:
                holder = _read_holder(fd)
                os.close(fd)
                if bad.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise StoreError(
                        f"cannot lock {path}: {bad.strerror}", hint="the store needs a file system with flock"
                    ) from bad
                now = time.monotonic()
                # The signature may be that of a holder long dead, while a probe has the lock for an instant.
                if now >= deadline and (_lives(holder.pid) or now >= probe_deadline):
                    raise Locked(
                        f"{what} is in use by {holder}",
                        pid=holder.pid,
                        hint=f"wait for it, or end it: kill {holder.pid}" if holder.pid else "try again",
                    ) from bad
                time.sleep(POLL_S)
                continue
            if _still_there(fd, path):
                return fd
            os.close(fd)  # the file was removed between open and flock: what we hold, nobody else looks at

    def _sign(self, fd: int, doing: str) -> None:
        body = json.dumps(
            {"pid": os.getpid(), "started": datetime.now(UTC).isoformat(timespec="seconds"), "doing": doing}
        )
        try:
            os.fchmod(fd, FILE_MODE)
            os.ftruncate(fd, 0)
            os.pwrite(fd, body.encode(), 0)
        except OSError:
            return  # on a full disk the lock holds all the same; only the message will be poorer


def _still_there(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _lives(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").exists()


def _read_holder(fd: int) -> Holder:
    try:
        row = json.loads(os.pread(fd, 4096, 0))
        return Holder(pid=int(row["pid"]), started=str(row["started"]), doing=str(row["doing"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Holder(pid=0, started="", doing="")
