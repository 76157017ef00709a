"""What a project's directory is, found without running git on it: pointers, alternates and nested repositories, read
as plain text.

A pointer that leads out of the project counts only when what it leads to points back: a downloaded archive could
otherwise name any repository of this host.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_container.errors import UsageError
from agent_container.project import MAX_READ_BYTES, read_plain

MAX_ENTRIES = 5_000_000
MAX_LISTED = 10
_WORKTREE_KEY = re.compile(r"^\s*worktree\s*=\s*\"?([^\"\n]*?)\"?\s*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Nested:
    """A repository below the project's root: a submodule's `.git` file, or a `.git` directory."""

    path: Path
    """Of `.git` itself, absolute."""
    kind: Literal["file", "directory"]
    git_dir: Path | None
    """Where a `.git` file leads; none when it leads nowhere."""


@dataclass(frozen=True)
class TreeFacts:
    """A project's directory as it stood when it was looked at."""

    root: Path
    """Real path, no link in it."""
    kind: Literal["git", "plain"]
    git_dir: Path | None = None
    """Holds HEAD and the index."""
    common_dir: Path | None = None
    """Holds objects, refs and the configuration; differs from `git_dir` in a linked worktree."""
    dotgit: Literal["directory", "file", "absent"] = "absent"
    alternates: tuple[Path, ...] = ()
    """Object directories outside the project and its repository that it borrows from, those of nested repositories
    included."""
    missing: tuple[Path, ...] = ()
    """Paths that git's pointers name and that do not exist."""
    nested: tuple[Nested, ...] = ()
    owner_uid: int = 0
    owner_gid: int = 0
    special_files: tuple[Path, ...] = ()
    """The first sockets, FIFOs and devices outside `.git`."""
    enclosing: Path | None = None
    """The repository around a project that has no `.git` of its own."""

    @property
    def is_worktree(self) -> bool:
        """Whether this is a linked worktree (`git worktree add`)."""
        return self.git_dir != self.common_dir

    @property
    def owner(self) -> str:
        """`uid:gid` of the directory."""
        return f"{self.owner_uid}:{self.owner_gid}"


def inspect_tree(root: Path, *, home: Path, max_entries: int = MAX_ENTRIES) -> TreeFacts:
    """Looks at a project. Raises: UsageError for a `.git` that leads elsewhere without a way back, a bare
    repository, or too many files."""
    real = Path(os.path.realpath(root, strict=True))
    status = real.stat()
    dotgit = real / ".git"
    if not os.path.lexists(dotgit):
        if all((real / name).exists() for name in ("HEAD", "objects", "refs")):
            raise UsageError(
                f"{real} is a bare repository: it has no files to work on", hint=f"git -C {real} worktree add DIR"
            )
        found: tuple[Path, Path] | None = None
    else:
        found = _pointers(real, dotgit)
    special, nested = _walk(real, max_entries=max_entries)
    stores = [] if found is None else [found[1] / "objects"]
    stores += [one.git_dir / "objects" for one in nested if one.git_dir is not None]
    alternates, missing = _alternates(stores, inside=[real, *(found or ())])
    return TreeFacts(
        root=real,
        kind="plain" if found is None else "git",
        git_dir=found[0] if found else None,
        common_dir=found[1] if found else None,
        dotgit="absent" if found is None else "file" if dotgit.is_file() else "directory",
        alternates=tuple(alternates),
        missing=tuple(missing),
        nested=tuple(nested),
        owner_uid=status.st_uid,
        owner_gid=status.st_gid,
        special_files=tuple(special),
        enclosing=_enclosing(real, home) if found is None else None,
    )


def _pointers(root: Path, dotgit: Path) -> tuple[Path, Path]:
    """The git directory and the common directory behind `.git`."""
    if dotgit.is_symlink():
        raise UsageError(
            f"{dotgit} is a link to {dotgit.readlink()}: the agent would be given a repository outside the project",
            hint="move the git directory back, or use `git worktree add`",
        )
    if dotgit.is_dir():
        if text(dotgit / "commondir") is not None:
            raise UsageError(
                f"{dotgit}/commondir leads to another repository; a main checkout has no such file",
                hint=f"rm {dotgit}/commondir",
            )
        if not (dotgit / "objects").is_dir() or (dotgit / "objects").is_symlink():
            raise UsageError(
                f"{dotgit} is no git directory: `objects` is missing or a link", hint=f"git -C {root} status"
            )
        return dotgit, dotgit
    pointer = text(dotgit)
    if pointer is None or not pointer.startswith("gitdir:"):
        raise UsageError(f"{dotgit} is no pointer to a git directory", hint=f"git -C {root} status")
    git_dir = _real(root, pointer.removeprefix("gitdir:").strip())
    if not git_dir.is_dir():
        raise UsageError(f"{dotgit} leads to {git_dir}, which does not exist", hint=f"git worktree repair {root}")
    common = text(git_dir / "commondir")
    if common is not None:
        common_dir = _real(git_dir, common.strip())
        back = text(git_dir / "gitdir")
        if back is None or _real(git_dir, back.strip()) != dotgit or git_dir.parent != common_dir / "worktrees":
            raise UsageError(
                f"{dotgit} leads to {git_dir}, which does not point back: it belongs to another worktree",
                hint=f"git worktree repair {root}",
            )
        return git_dir, common_dir
    if git_dir.is_relative_to(root):
        return git_dir, git_dir
    back = next(iter(_WORKTREE_KEY.findall(text(git_dir / "config") or "")), None)
    if back is None or _real(git_dir, back) != root:
        raise UsageError(
            f"{dotgit} leads to {git_dir}, which does not point back to this directory",
            hint=f"git --git-dir={git_dir} config core.worktree {root}",
        )
    return git_dir, git_dir


def engine_text(path: Path) -> str:
    """A path as the engine's API and the container's programs take it, whatever the locale. Raises: UsageError.

    Under `LC_ALL=C` Python holds the bytes of `é` as two surrogates; the API would make something else of them.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise UsageError(f"{shown} is not UTF-8, and the engine takes no other path") from None


def text(path: Path) -> str | None:
    """A small plain file; None for anything else."""
    try:
        body = read_plain(path, max_bytes=MAX_READ_BYTES) if not path.is_symlink() else None
    except (OSError, ValueError):
        return None
    return None if body is None else os.fsdecode(body)


def _real(base: Path, pointer: str) -> Path:
    return Path(os.path.realpath(base / pointer))


def _walk(root: Path, *, max_entries: int) -> tuple[list[Path], list[Nested]]:
    """Special files outside `.git`, and every `.git` below the root."""
    special: list[Path] = []
    nested: list[Nested] = []
    for number, entry in enumerate(entries(root, skip=root / ".git")):
        if number >= max_entries:
            raise UsageError(f"{root} holds more than {max_entries} files; a part of it can be mounted by itself")
        if entry.name == ".git":
            path = Path(entry.path)
            pointer = text(path) or ""
            if entry.is_dir(follow_symlinks=False):
                nested.append(Nested(path, "directory", path))
            elif pointer.startswith("gitdir:"):
                target = _real(path.parent, pointer.removeprefix("gitdir:").strip())
                nested.append(Nested(path, "file", target if target.is_dir() else None))
        elif is_special(entry) and len(special) < MAX_LISTED:
            special.append(Path(entry.path))
    return special, sorted(nested, key=lambda one: one.path)


def entries(root: Path, *, skip: Path | None = None, into_git: bool = False) -> Iterator[os.DirEntry[str]]:
    """Every entry below a directory, without following a link; what cannot be read is passed over.

    Other file systems mounted below are entered: not every Compose makes binds that leave them out. A `.git` is entered
    only with `into_git`: a workspace has it masked, other mounts do not.
    """
    stack = [str(root)]
    while stack:
        try:
            found = list(os.scandir(stack.pop()))
        except OSError:
            continue
        for entry in found:
            if skip is not None and entry.path == str(skip):
                continue
            yield entry
            if entry.is_dir(follow_symlinks=False) and (into_git or entry.name != ".git"):
                stack.append(entry.path)


def is_special(entry: os.DirEntry[str]) -> bool:
    """Whether it is a socket, a FIFO or a device: read-only mounts do not stop a client from connecting to a host's
    socket."""
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _alternates(stores: list[Path], *, inside: list[Path]) -> tuple[list[Path], list[Path]]:
    """Borrowed object directories that lie outside, and those that are named and missing."""
    outside: list[Path] = []
    missing: list[Path] = []
    queue, seen = list(stores), set[Path]()
    while queue and len(seen) < 1000:
        store = queue.pop()
        if store in seen:
            continue
        seen.add(store)
        for line in (text(store / "info" / "alternates") or "").splitlines():
            if not line or line.startswith("#"):
                continue
            path = _real(store, line)
            (queue if path.is_dir() else missing).append(path)
            if not any(path.is_relative_to(top) for top in inside):
                outside.append(path)
    return list(dict.fromkeys(outside)), list(dict.fromkeys(missing))


def _enclosing(root: Path, home: Path) -> Path | None:
    """The repository that a directory without `.git` lies in. One around the whole home (dotfiles) does not count."""
    for parent in root.parents:
        if home == parent or home.is_relative_to(parent):
            return None
        if os.path.lexists(parent / ".git"):
            return parent
    return None
