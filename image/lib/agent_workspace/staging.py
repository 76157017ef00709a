"""What a tree holds beyond its last commit, as a git tree: without hooks, without filters, without asking a submodule
anything.

`git add` would run `git status` in submodules, under the submodules' own configuration; `ls-files` and
`update-index` do not.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Sequence

from agent_workspace.git import Failed, Repository

MAX_NAMES = 200
"""How many names of one kind a summary lists."""


@dataclass
class Staged:
    """The tree's state as an object, and what could not be part of it."""

    tree: str
    unreadable: list[str] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)
    """Repositories inside the tree that it does not track: their files stay behind."""
    hidden: list[str] = field(default_factory=list)
    """Tracked files that were to be hidden: history holds them."""


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a path is one of the patterns or lies below one; `*`, `?` and `[...]` match within one component."""
    parts = path.split("/")
    for pattern in patterns:
        wanted = pattern.split("/")
        if len(parts) >= len(wanted) and all(fnmatch.fnmatchcase(part, glob) for part, glob in zip(parts, wanted)):  # noqa: B905 - Python 3.9
            return True
    return False


def names(output: bytes) -> list[str]:
    """The names of a NUL-separated list, once each, in order."""
    return list(dict.fromkeys(os.fsdecode(name) for name in output.split(b"\0") if name))


def joined(paths: Iterable[str]) -> bytes:
    """Names as a NUL-separated list."""
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def stage(repository: Repository, *, hide: Sequence[str] = ()) -> Staged:
    """Brings the private index up to the tree (tracked, and untracked but not ignored) and writes it as a tree.

    Hidden paths keep the state of the last commit: their content is not the agent's to see, nor the record's to keep.
    """
    _usable_index(repository)
    tracked = _without(names(repository.git("ls-files", "-z")), hide, keep=True)
    if tracked:
        repository.git("update-index", "-z", "--force-remove", "--stdin", stdin=joined(tracked))
        if repository.head is not None:
            listed = repository.git("ls-tree", "-r", "-z", repository.head)
            rows = [row for row in listed.split(b"\0") if row and matches(os.fsdecode(row.partition(b"\t")[2]), hide)]
            repository.git("update-index", "-z", "--index-info", stdin=b"".join(row + b"\0" for row in rows))
    gone = _without(names(repository.git("ls-files", "-z", "--deleted")), hide)
    repository.git("update-index", "-z", "--force-remove", "--stdin", stdin=joined(gone))
    modified = _without(names(repository.git("ls-files", "-z", "--modified")), hide)
    others = _without(names(repository.git("ls-files", "-z", "--others", "--exclude-standard")), hide)
    staged = Staged(tree="", nested=[name.rstrip("/") for name in others if name.endswith("/")], hidden=tracked)
    changed = [name for name in (*modified, *others) if not name.endswith("/")]
    usable = []
    staged.unreadable += dict.fromkeys(os.fsdecode(name) for name in repository.unopened)
    for name in changed:
        (usable if _readable(repository.tree / name) else staged.unreadable).append(name)
    repository.git("update-index", "-z", "--add", "--remove", "--replace", "--stdin", stdin=joined(usable))
    staged.tree = repository.git("write-tree").decode().strip()
    return staged


def _without(paths: Sequence[str], hide: Sequence[str], *, keep: bool = False) -> list[str]:
    return [path for path in paths if matches(path, hide) is keep]


def _usable_index(repository: Repository) -> None:
    """An index that an agent broke is rebuilt from the last commit: what it tracked is then found as changed files."""
    try:
        repository.git("ls-files", "-z", "--stage")
    except Failed:
        (repository.git_dir / "index").unlink()
    if not (repository.git_dir / "index").exists():
        head = [repository.head] if repository.head is not None else ["--empty"]
        repository.git("read-tree", *head)


def _readable(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    if stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return True
    return stat.S_ISREG(status.st_mode) and os.access(str(path), os.R_OK)
