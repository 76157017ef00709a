"""Files that an agent must find in its HOME before it starts. HOME outlives a standing sandbox, and the agent may have
put anything there: nothing is followed, nothing is waited for, nothing of it is deleted, and what stands in the way is
set aside under another name beside it, and said."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .lines import write_all

MAX_BYTES = 16 * 1024 * 1024
"""Of a file that is merged into; a larger one is set aside."""
MERGE, IF_ABSENT, REPLACE = "merge-json", "if-absent", "replace"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ATTEMPTS = 5
"""An agent that is at work may put the next thing in the way while one is set aside."""
KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFREG: "file",
}


class HomeRefused(Exception):
    """A file that cannot be put; says which and why."""


def put_files(home: str, files: Sequence[Mapping[str, Any]]) -> Tuple[List[str], List[Dict[str, str]]]:
    """Writes the files, each `{"path", "text", "how"}`; returns the paths that changed, and what was set aside for
    them, each `{"path", "kind", "now"}` with paths below HOME. Raises: HomeRefused."""
    aside: List[Dict[str, str]] = []
    return [file["path"] for file in files if _put(home, file, aside)], aside


def _put(home: str, file: Mapping[str, Any], aside: List[Dict[str, str]]) -> bool:
    path, how = file.get("path"), file.get("how")
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise HomeRefused(f"{path!r} is no path below HOME")
    if how not in (MERGE, IF_ABSENT, REPLACE) or not isinstance(file.get("text"), str):
        raise HomeRefused(f"{path}: 'how' or 'text' cannot be used")
    try:
        place = _Place(home, aside)
        try:
            for part in parts[:-1]:
                place.enter(part)
            return _write(place, parts[-1], file["text"].encode(), how)
        finally:
            os.close(place.fd)
    except OSError as error:
        raise HomeRefused(f"{path} cannot be put in HOME: {os.strerror(error.errno or 0)}") from error


class _Place:
    """A directory in HOME, reached without following anything."""

    def __init__(self, home: str, aside: List[Dict[str, str]]) -> None:
        self._above: List[str] = []
        self._aside = aside
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self.fd = os.open(home, flags)
        except PermissionError:
            os.chmod(home, 0o700)  # its parent is not the agent's: this name is no link
            self.fd = os.open(home, flags)
        _reopen(self.fd)

    def enter(self, part: str) -> None:
        """Goes down into a directory; makes it, or makes room for it, first."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=self.fd)
            try:
                inner = os.open(part, DIRECTORY, dir_fd=self.fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                # A link, some other file, or a directory that is closed to its own owner.
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
                    raise
                self.set_aside(part)
                continue
            os.close(self.fd)
            self.fd = inner
            self._above.append(part)
            _reopen(inner)
            return
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def set_aside(self, name: str) -> None:
        """Renames what has this name, whatever it is: no link is followed and no tree is walked."""
        with contextlib.suppress(FileNotFoundError):
            kind = stat.S_IFMT(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode)
            now = f"{name[:200]}.set-aside-{secrets.token_hex(6)}"
            os.rename(name, now, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            path, moved = ("/".join((*self._above, last)) for last in (name, now))
            self._aside.append({"path": path, "kind": KINDS.get(kind, "device"), "now": moved})


def _reopen(fd: int) -> None:
    """A directory that its owner closed to itself."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        os.fchmod(fd, mode | 0o700)


def _write(place: _Place, name: str, text: bytes, how: str) -> bool:
    there = _read(place.fd, name)
    if how == IF_ABSENT and there is not None:
        return False
    merged = _merged(there, text) if how == MERGE and there is not None else None
    wanted = text if merged is None else merged
    if wanted == there:
        return False
    if there is None or (how == MERGE and merged is None and there.strip()):
        place.set_aside(name)
    new = f".{secrets.token_hex(6)}.agent-container"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place.fd)
    try:
        try:
            write_all(fd, wanted)
        finally:
            os.close(fd)
        for _ in range(ATTEMPTS):
            try:
                os.replace(new, name, src_dir_fd=place.fd, dst_dir_fd=place.fd)
                return True
            except IsADirectoryError:
                place.set_aside(name)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=place.fd)
        raise


def _read(directory: int, name: str) -> bytes | None:
    """The regular file of this name; None when there is none of a size that can be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return None
        with os.fdopen(fd, "rb", closefd=False) as stream:
            return stream.read(MAX_BYTES + 1)
    finally:
        os.close(fd)


def _merged(there: bytes, text: bytes) -> bytes | None:
    """Both in one; None where they are no two objects."""
    try:
        old, new = json.loads(there), json.loads(text)
        if not isinstance(old, dict) or not isinstance(new, dict):
            return None
        merged = _merge(old, new)
        # Its own layout stays where nothing is to be changed.
        return there if merged == old else json.dumps(merged, indent=2).encode() + b"\n"
    except (ValueError, RecursionError):
        return None


def _merge(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merge(old[key], value) if key in old else value for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return old + [item for item in new if item not in old]
    return new
