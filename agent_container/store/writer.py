"""Every durable write: files appear whole or not at all, for this user alone, and survive a power cut once announced.

A file is written beside its final place under a name that no reader lists, flushed to the disk, renamed, and then
the directory is flushed: before the rename readers see the old content, after it the new, and a crash leaves at most
an invisible leftover that `sweep` removes. Modes are set by fchmod, so that no umask widens or narrows them.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_container.errors import StoreError

DIR_MODE = 0o700
FILE_MODE = 0o600
TEMP_PREFIX = ".tmp-"
LEFTOVER_AGE_S = 3600
"""A leftover younger than this may belong to a living writer; pids do not tell on a shared home directory."""

_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space, then run the same command again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, then run the same command again"),
    errno.EROFS: (
        "the file system is read-only",
        "remount it, or set XDG_DATA_HOME and XDG_STATE_HOME to a place that can be written",
    ),
    errno.EACCES: ("permission denied", "the store belongs to one user; do not mix sudo and plain calls"),
    errno.EPERM: ("not permitted", "the store belongs to one user; do not mix sudo and plain calls"),
    errno.EFBIG: ("the file is too large for the file system", None),
    errno.ENOTDIR: ("a file stands where a directory is needed", "move the file away"),
    errno.EISDIR: ("a directory stands where a file is needed", "move the directory away"),
    errno.ELOOP: ("a symbolic link stands where a file is needed", "remove the link"),
}


@contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Turns an OSError into a StoreError that names `path` and what to do about it."""
    try:
        yield
    except OSError as bad:
        reason, hint = _REASONS.get(bad.errno or 0, (bad.strerror or str(bad), None))
        raise StoreError(f"cannot {verb} {path}: {reason}", hint=hint) from bad


class Writer:
    """The one writer. Stateless; two of them, in one process or in two, do no harm to each other."""

    def make_dir(self, path: Path) -> Path:
        """`path` as a directory of mode 0700, with its missing parents; the XDG root above them keeps its own mode."""
        with explained(path, "create"):
            self._make_dir(path)
        return path

    def _make_dir(self, path: Path) -> None:
        try:
            made = path.stat()
        except FileNotFoundError:
            self._make_dir(path.parent)
            try:
                path.mkdir(DIR_MODE)
            except FileExistsError:
                return self._make_dir(path)
            path.chmod(DIR_MODE)  # the umask may have taken bits from the mode of mkdir
            self._sync_dir(path.parent)
            return None
        if not stat.S_ISDIR(made.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return None

    def make_private(self, path: Path) -> Path:
        """`path` as a directory that only this user reads, also when it stood there wider before."""
        self.make_dir(path)
        with explained(path, "secure"):
            found = path.stat()
            if found.st_uid != os.geteuid():
                raise StoreError(
                    f"{path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}",
                    hint="the store belongs to one user; do not mix sudo and plain calls",
                )
            if stat.S_IMODE(found.st_mode) != DIR_MODE:
                path.chmod(DIR_MODE)
        return path

    def write(self, path: Path, data: bytes | Iterable[bytes], *, mode: int = FILE_MODE) -> None:
        """Replaces `path` by `data` in one step. Raises StoreError; then `path` is as it was."""
        self.make_dir(path.parent)
        with explained(path, "write"), self._temporary(path, mode) as (fd, temp):
            self._fill(fd, data)
            temp.rename(path)
            self._sync_dir(path.parent)

    def create(self, path: Path, data: bytes, *, mode: int = FILE_MODE) -> bool:
        """Writes `path` only if nothing is there; False when something was. Of two at once exactly one gets True."""
        self.make_dir(path.parent)
        with explained(path, "create"), self._temporary(path, mode) as (fd, temp):
            self._fill(fd, data)
            try:
                path.hardlink_to(temp)  # unlike rename, link never replaces
            except FileExistsError:
                return False
            temp.unlink()
            self._sync_dir(path.parent)
        return True

    def publish_dir(self, staged: Path, final: Path) -> None:
        """Moves a filled directory, flushed, to its place in one step. `final` must not exist."""
        self.make_dir(final.parent)
        with explained(final, "publish"):
            self.sync_tree(staged)
        self.move_dir(staged, final)

    def move_dir(self, staged: Path, final: Path) -> None:
        """The last step of `publish_dir`, for a directory that is flushed."""
        with explained(final, "publish"):
            staged.rename(final)
            self._sync_dir(final.parent)
            if staged.parent != final.parent:
                self._sync_dir(staged.parent)

    def sync_tree(self, top: Path) -> None:
        """Flushes every file and directory below `top`, and `top` itself."""
        for directory, _, names in os.walk(top, topdown=False):
            for name in names:
                self._sync(Path(directory) / name, os.O_RDONLY | os.O_NOFOLLOW)
            self._sync_dir(Path(directory))

    def remove(self, path: Path) -> bool:
        """Removes a file; False when it was not there."""
        with explained(path, "remove"):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            self._sync_dir(path.parent)
        return True

    def remove_tree(self, path: Path) -> None:
        """Removes a directory: first out of sight by one rename, then file by file."""
        with explained(path, "remove"):
            hidden = path
            if not path.name.startswith("."):
                hidden = path.with_name(f"{TEMP_PREFIX}{path.name}-{secrets.token_hex(4)}")
                try:
                    path.rename(hidden)
                except FileNotFoundError:
                    return
                self._sync_dir(path.parent)
            shutil.rmtree(hidden, ignore_errors=False)

    def sweep(self, directory: Path, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        """Removes what writers that were killed left in `directory`; returns how many leftovers went."""
        if not directory.is_dir():
            return 0
        removed = 0
        with explained(directory, "tidy"):
            for entry in list(os.scandir(directory)):
                if not entry.name.startswith(TEMP_PREFIX):
                    continue
                try:
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime < older_than_s:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    else:
                        Path(entry.path).unlink()
                except FileNotFoundError:
                    continue  # its writer was alive after all, or another sweep was faster
                removed += 1
        return removed

    @contextmanager
    def _temporary(self, path: Path, mode: int) -> Iterator[tuple[int, Path]]:
        temp = path.with_name(f"{TEMP_PREFIX}{path.name[:96]}-{secrets.token_hex(8)}")
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                os.fchmod(fd, mode)
                yield fd, temp
            finally:
                os.close(fd)
        finally:
            with suppress(OSError):  # renamed away, or not removable: readers do not see it either way
                temp.unlink()

    def _fill(self, fd: int, data: bytes | Iterable[bytes]) -> None:
        for chunk in [data] if isinstance(data, bytes) else data:
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)

    def _sync_dir(self, path: Path) -> None:
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def _sync(self, path: Path, flags: int) -> None:
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def read_file(path: Path, *, max_bytes: int = 64 * 1024 * 1024) -> bytes | None:
    """The content of a regular file of the store, None when it is not there. Follows no link and reads no FIFO."""
    with explained(path, "read"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as stream:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StoreError(f"{path} is not a regular file", hint="move it away")
            body = stream.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise StoreError(f"{path} is larger than {max_bytes} bytes")
    return body
