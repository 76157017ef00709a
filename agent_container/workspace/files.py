"""Writing a run's changes into a directory of the user: all of them or none, only regular files, never through a link.

Every path is opened component by component with O_NOFOLLOW, so that a link in the tree, planted before or swapped
in meanwhile, leads nowhere. A file is replaced or removed only when its content is what the agent started from.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import UsageError
from agent_container.workspace.transfer import Change

FILE_MODES = {"100644": 0o666, "100755": 0o777}
NOTHING = "000000"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Applied:
    """What was written."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    skipped: tuple[str, ...]
    """Links and submodules, each with its reason: they are never written."""


def write_changes(root: Path, changes: Sequence[Change], *, contents: Path) -> Applied:
    """Applies the changes below `root`; `contents` holds the new content of each, named by its position.

    Raises: UsageError naming every file in the way; nothing is written then.
    """
    todo: list[tuple[int, Change]] = []
    skipped: list[str] = []
    conflicts: list[str] = []
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, change in enumerate(changes):
            if not {change.old_mode, change.new_mode} <= {*FILE_MODES, NOTHING}:
                skipped.append(f"{change.path}: a link or submodule, which is never written")
            elif reason := _conflict(top, change):
                conflicts.append(f"{change.path}: {reason}")
            else:
                todo.append((number, change))
        if conflicts:
            raise UsageError(
                f"{len(conflicts)} files are not as the agent found them; nothing was written",
                details=conflicts[:50],
                hint="commit or move your own changes, or apply workspace.patch by hand",
            )
        for number, change in todo:
            if change.new_mode == NOTHING:
                _remove(top, change.path)
            else:
                _write(top, change, contents / str(number))
    finally:
        os.close(top)
    return Applied(
        written=tuple(change.path for _, change in todo if change.new_mode != NOTHING),
        removed=tuple(change.path for _, change in todo if change.new_mode == NOTHING),
        skipped=tuple(skipped),
    )


def _conflict(top: int, change: Change) -> str | None:
    """Why the change cannot be made; None when it can, or already was."""
    parts = _parts(change.path)
    if any(part in (b"", b".", b"..") or part.lower() == b".git" or b"\0" in part for part in parts):
        return "not a path that is ever written"
    try:
        with _folder(top, parts[:-1]) as folder:
            found = _blob_id(folder, parts[-1], length=len(change.old))
    except FileNotFoundError:
        found = None
    except OSError as error:
        linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
        return "a directory on its way is a link or a file" if linked else str(error.strerror)
    if found is not None and found == change.new:
        return None
    before = None if change.old_mode == NOTHING else change.old
    if found == before or (found is None and change.new_mode == NOTHING):
        return None
    return "is not there" if found is None else "exists already" if before is None else "was changed since"


def _parts(path: str) -> list[bytes]:
    """The components as the summary's bytes were, whatever the locale."""
    return path.encode("utf-8", "surrogateescape").split(b"/")


def _blob_id(folder: int, name: bytes, *, length: int) -> str | None:
    """git's id of a file's content; None when there is no such name, and a word that is no id for anything but a
    file."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a link"
        raise
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        return "no file"
    with os.fdopen(handle, "rb") as stream:
        digest = hashlib.sha256() if length == 64 else hashlib.sha1(usedforsecurity=False)
        digest.update(b"blob %d\0" % status.st_size)
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _folder(top: int, parts: Sequence[bytes], *, create: bool = False) -> Iterator[int]:
    """A directory below `top`, reached without following any link."""
    handle = os.dup(top)
    try:
        for part in parts:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = deeper
        yield handle
    finally:
        os.close(handle)


def _write(top: int, change: Change, content: Path) -> None:
    parts = _parts(change.path)
    fresh = f".{hashlib.sha256(change.path.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.agent-container"
    with _folder(top, parts[:-1], create=True) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(fresh, flags, FILE_MODES[change.new_mode], dir_fd=folder)
        with os.fdopen(handle, "wb") as out, content.open("rb") as body:
            while block := body.read(BLOCK):
                out.write(block)
            out.flush()
            os.fsync(handle)
        os.rename(fresh.encode(), parts[-1], src_dir_fd=folder, dst_dir_fd=folder)


def _remove(top: int, path: str) -> None:
    """Removes a file, and the directories that it leaves empty, as git does."""
    parts = _parts(path)
    try:
        with _folder(top, parts[:-1]) as folder:
            os.unlink(parts[-1], dir_fd=folder)
        for depth in range(len(parts) - 1, 0, -1):
            with _folder(top, parts[: depth - 1]) as folder:
                os.rmdir(parts[depth - 1], dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
