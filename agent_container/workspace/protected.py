"""Protected paths that no mount can hold, because they do not exist yet or are links: compared with how they stood
before.

An agent in a bound workspace can create `.husky`, or a `.git` in a directory that had none; the host would obey
them at the user's next command.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from agent_container.workspace.tree import entries

MAX_DIGEST_BYTES = 64 * 1024 * 1024
MAX_TREE_ENTRIES = 100_000


def relative(root: Path, path: Path) -> str:
    """A path below the root, with `/`."""
    return path.relative_to(root).as_posix()


def expand(root: Path, patterns: Iterable[str]) -> tuple[str, ...]:
    """The paths below the root that match and that a mount can hold: real files and directories, reached without a
    link."""
    return tuple(
        dict.fromkeys(path for pattern in patterns for path, is_link in matching(root, pattern) if not is_link)
    )


def matching(root: Path, pattern: str) -> Iterator[tuple[str, bool]]:
    """Paths that match a pattern, and whether they are links; a link on the way ends the search with the link
    itself."""
    yield from _matching(root, "", os.fsdecode(pattern.encode()).split("/"))


def _matching(root: Path, done: str, parts: Sequence[str]) -> Iterator[tuple[str, bool]]:
    if not parts:
        yield done, False
        return
    try:
        with os.scandir(root / done) as found:
            names = sorted(
                (entry.name, entry.is_symlink()) for entry in found if fnmatch.fnmatchcase(entry.name, parts[0])
            )
    except OSError:
        return
    for name, is_link in names:
        inner = f"{done}/{name}" if done else name
        if is_link:
            yield inner, True
        else:
            yield from _matching(root, inner, parts[1:])


def protected_state(root: Path, patterns: Iterable[str], *, covered: Iterable[str]) -> dict[str, str]:
    """Path to digest of everything protected that no mount of `covered` holds, and of every `.git` in the tree."""
    held = set(covered)
    state = {
        path: digest(root / path)
        for pattern in patterns
        for path, _ in matching(root, pattern)
        if path not in held and not any(path.startswith(one + "/") for one in held)
    }
    for entry in entries(root):
        if entry.name.lower() == ".git":  # file systems that fold case exist
            state[relative(root, Path(entry.path))] = one_state(Path(entry.path))
    return state


def one_state(path: Path) -> str:
    """What `protected_state` says of one path; empty when there is nothing."""
    if not os.path.lexists(path):
        return ""
    # What is in a repository changes with every command of its user; that one came or went is what counts.
    return "git" if path.name.lower() == ".git" else digest(path)


def changed_protected(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The paths that came, went or differ."""
    return tuple(sorted(path for path in {*before, *after} if before.get(path) != after.get(path)))


def digest(path: Path) -> str:
    """A digest over a path's type and content, links not followed; bounded, and the bound is part of the digest."""
    hashed = hashlib.sha256()
    budget = MAX_DIGEST_BYTES
    paths = [path]
    if path.is_dir() and not path.is_symlink():
        found = []
        for number, entry in enumerate(entries(path)):
            if number >= MAX_TREE_ENTRIES:
                hashed.update(b"more")
                break
            found.append(Path(entry.path))
        paths += sorted(found)
    for one in paths:
        try:
            status = one.lstat()
        except OSError:
            continue
        kind = stat.S_IFMT(status.st_mode)
        hashed.update(b"%s\0%o\0" % (os.fsencode(one.relative_to(path)), kind | (status.st_mode & 0o111)))
        if kind == stat.S_IFLNK:
            hashed.update(os.fsencode(one.readlink()) + b"\0")
        elif kind == stat.S_IFREG:
            body = _content(one, budget)
            budget -= len(body)
            hashed.update(b"%d\0" % status.st_size + body)
    return "sha256:" + hashed.hexdigest()


def _content(path: Path, limit: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as stream:
        return stream.read(max(limit, 0))
