"""A turn's frames on the run volume: appended before anyone sees them, read back by offset for any number of clients.

Clients are served from the file, so a slow one costs no memory. The agent has the same uid and may cut or replace the
file; readers then get less, never an exception, and the exit frame is kept in memory as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any, Dict, List, Optional, Tuple

from .config import SPOOL_RESERVE_BYTES
from .lines import encode, parse, write_all

INDEX_EVERY = 64
CHUNK_BYTES = 512 * 1024
"""More than the longest frame: 32 KiB of control characters are 192 KiB of JSON."""


class SpoolError(Exception):
    """The frame is not on the volume. `kind` is "cap" (the spool's own limit) or "volume" (the disk's)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def volume_error(path: str, error: OSError) -> SpoolError:
    """In words, naming the volume."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return SpoolError("volume", f"the run volume {path} cannot be written: {reason}")


def write_file(path: str, data: bytes) -> None:
    """A new file, complete or absent, 0600. What the agent put in its place before is removed, never opened: a FIFO
    would hold PID 1 for ever."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + ".new")
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(path + ".new", path)


class Spool:
    """One turn's spool.jsonl."""

    def __init__(self, directory: str, *, max_bytes: int) -> None:
        self.path = os.path.join(directory, "spool.jsonl")
        self._reserve = os.path.join(directory, ".reserve")
        self._volume = os.path.dirname(os.path.dirname(directory))
        self.max_bytes = max_bytes
        self.size = 0
        self.seq = 0
        self._index: List[int] = []
        self._fd = -1

    def create(self) -> None:
        """A new file and room for the last frames. Raises: SpoolError."""
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            write_file(self._reserve, b"\0" * SPOOL_RESERVE_BYTES)
        except OSError as error:
            raise volume_error(self._volume, error) from error

    def reopen(self) -> Optional[Dict[str, Any]]:
        """Take over the file of an earlier runner: cut a half-written last line, answer with its last frame."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        tail = os.pread(self._fd, CHUNK_BYTES, max(0, status.st_size - CHUNK_BYTES))
        cut = len(tail) - (tail.rfind(b"\n") + 1)
        self.size = status.st_size - cut
        if cut:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)
        last = parse(tail[: len(tail) - cut].rstrip(b"\n").rsplit(b"\n", 1)[-1])
        self.seq = last.get("seq", 0) if last and isinstance(last.get("seq"), int) else 0
        return last

    def append(self, frame: Dict[str, Any], *, last: bool = False) -> Dict[str, Any]:
        """Number the frame and write it; `last` ignores the cap, uses the reserve and syncs. Raises: SpoolError."""
        numbered = {"seq": self.seq + 1, **frame}
        line = encode(numbered)
        if not last and self.size + len(line) > self.max_bytes:
            raise SpoolError("cap", f"the turn printed more than the spool's {self.max_bytes} bytes")
        if last:
            with contextlib.suppress(OSError):
                os.unlink(self._reserve)
        try:
            os.lseek(self._fd, self.size, os.SEEK_SET)
            write_all(self._fd, line)
            if last:
                os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)  # half a line would hide the next one
            raise volume_error(self._volume, error) from error
        if self.seq % INDEX_EVERY == 0:
            self._index.append(self.size)
        self.seq += 1
        self.size += len(line)
        return numbered

    def offset_before(self, seq: int) -> int:
        """An offset at a line's start, at or before frame `seq`."""
        slot = (max(1, seq) - 1) // INDEX_EVERY
        return self._index[min(slot, len(self._index) - 1)] if self._index else 0

    def read(self, offset: int) -> Tuple[bytes, int]:
        """Whole lines from `offset` and the offset after them; nothing at the end or when the file was cut."""
        if self._fd < 0 or offset >= self.size:
            return b"", offset
        try:
            chunk = os.pread(self._fd, min(CHUNK_BYTES, self.size - offset), offset)
        except OSError:
            return b"", offset
        whole = chunk[: chunk.rfind(b"\n") + 1]
        return whole, offset + len(whole)

    def close(self) -> None:
        """Give the descriptor back; reads answer nothing from now on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """The host has it: free the volume's space."""
        self.close()
        for path in (self.path, self._reserve):
            with contextlib.suppress(OSError):
                os.unlink(path)
