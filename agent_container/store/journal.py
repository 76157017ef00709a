"""What changed among the records, one line a change: so that the index looks at what is new and at nothing else.

Each line says how old the directory was before the change and after it, by its modification time. A reader that knows
the directory as one line found it, and finds it as the last line left it, knows that nobody else was there; where the
chain does not hold (a crash between change and line, a record copied in by hand, a lost journal) it lists the
directory. So the journal may be lost, cut or unwritable at any time: that costs time and no record.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from agent_container.errors import StoreError
from agent_container.store.writer import FILE_MODE

MAX_BYTES = 4 * 1024 * 1024
WAIT_S = 5.0
"""How long a change waits for another one's end; then it goes on without a line."""
POLL_S = 0.005
ABSENT = -1
"""The modification time of a directory that is not there."""

T = TypeVar("T")


@dataclass(frozen=True)
class Change:
    """One line."""

    directory: str
    """Whose content changed, from the data directory on."""
    run: str
    before: int
    """Modification time of the directory before the change, in nanoseconds."""
    after: int


@dataclass(frozen=True)
class Position:
    """How far a reader has come."""

    generation: str = ""
    offset: int = 0


NOTHING = Position("-")
"""Where there is no journal."""


@dataclass(frozen=True)
class Tail(Generic[T]):
    """What came after a position, and what `look` saw at the end of it, between two changes."""

    position: Position
    changes: tuple[Change, ...]
    unbroken: bool
    """Whether these are all the changes that were noted since."""
    seen: T


class Journal:
    """One file beside the records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._top = path.parent

    @contextmanager
    def change(self, directory: Path, run: str) -> Iterator[None]:
        """Around one change of a directory's entries. Never raises itself: the record is what counts."""
        fd = self._open()
        try:
            before = modified(directory)
            try:
                yield
            finally:
                if fd is not None:
                    self._note(fd, Change(self._relative(directory), run, before, modified(directory)))
        finally:
            if fd is not None:
                os.close(fd)

    def touch(self, directory: Path, run: str) -> None:
        """Notes that something of a record is another now, while its directory's entries stay."""
        with self.change(directory, run):
            pass

    def read(self, since: Position, look: Callable[[], T]) -> Tail[T]:
        """The changes since a position. While `look` runs there are none."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            # Nobody has noted anything yet, or all was lost; the directories themselves say which.
            return Tail(NOTHING, (), unbroken=since == NOTHING, seen=look())
        except OSError:
            return Tail(Position(), (), unbroken=False, seen=look())
        try:
            locked = _lock(fd, fcntl.LOCK_SH)
            seen = look()
            body = _read_all(fd)
        except OSError:
            return Tail(Position(), (), unbroken=False, seen=look())
        finally:
            os.close(fd)
        head, _, _ = body.partition(b"\n")
        generation = head.decode("ascii", "replace")
        start = len(head) + 1 if since == NOTHING else since.offset
        continues = locked and since in (NOTHING, Position(generation, since.offset)) and 0 < start <= len(body)
        changes, whole = _parse(body[start:]) if continues else ((), False)
        return Tail(Position(generation, len(body)), changes, unbroken=whole, seen=seen)

    def _open(self) -> int | None:
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(self._path, flags, FILE_MODE)
        except OSError:
            return None
        try:
            if _lock(fd, fcntl.LOCK_EX):
                return fd
        except OSError:
            pass
        os.close(fd)
        return None

    def _note(self, fd: int, change: Change) -> None:
        row = json.dumps([change.directory, change.run, change.before, change.after])
        with contextlib.suppress(OSError):
            size = os.fstat(fd).st_size
            if size > MAX_BYTES:
                os.ftruncate(fd, 0)
                size = 0
            if not size:
                os.fchmod(fd, FILE_MODE)  # whatever the umask took
            head = b"" if size else secrets.token_hex(8).encode() + b"\n"
            os.write(fd, head + row.encode("ascii") + b"\n")

    def _relative(self, directory: Path) -> str:
        try:
            return directory.relative_to(self._top).as_posix()
        except ValueError as bad:
            raise StoreError(f"{directory} lies outside the store") from bad


def modified(directory: Path) -> int:
    """The modification time of a directory in nanoseconds, ABSENT when it is not there."""
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return ABSENT


def _lock(fd: int, how: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True


def _read_all(fd: int) -> bytes:
    pieces = []
    while piece := os.read(fd, 1024 * 1024):
        pieces.append(piece)
    return b"".join(pieces)


def _parse(body: bytes) -> tuple[tuple[Change, ...], bool]:
    if body and not body.endswith(b"\n"):
        return (), False
    changes = []
    try:
        for line in body.splitlines():
            directory, run, before, after = json.loads(line)
            changes.append(Change(str(directory), str(run), int(before), int(after)))
    except (ValueError, TypeError):
        return (), False
    return tuple(changes), True
