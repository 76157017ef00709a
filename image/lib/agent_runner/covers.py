"""Hidden files of a bound tree stay hidden, or the container ends.

What is hidden has an empty file or directory mounted on it. When a program on the host puts another file in its place
(an editor that saves by rename), the kernel takes that mount away in here too, and only the host can mount it anew. The
kernel tells of it through `mountinfo`; nothing in this container can unmount, so a mount that is gone was lost so.
"""

from __future__ import annotations

import os
import select
from typing import Callable, List, Set, Tuple

from .loop import READ, Loop

MOUNTS = "/proc/self/mountinfo"
TREE = "/workspace"
EMPTY = frozenset({"empty", "empty.d"})
"""The names, on the host, of what is mounted on hidden paths."""
LOOK_S = 5.0
"""The kernel tells at once; this is for a kernel that does not (a tree that lies in a virtual machine's share)."""


def hidden_mounts(text: str, *, tree: str = TREE) -> Set[str]:
    """Where something empty is mounted inside the tree, from the text of `mountinfo` (proc(5))."""
    return {point for root, point in _mounts(text) if root.rpartition("/")[2] in EMPTY and point.startswith(tree + "/")}


def missing(before: Set[str], text: str) -> List[str]:
    """Which of the mount points that were there are none any more."""
    return sorted(before - {point for _, point in _mounts(text)})


def _mounts(text: str) -> List[Tuple[str, str]]:
    rows = (line.split(" ") for line in text.splitlines())
    return [(_plain(row[3]), _plain(row[4])) for row in rows if len(row) > 4]


def _plain(field: str) -> str:
    """Without the kernel's octal escapes; the backslash comes last, since names may hold one before digits."""
    for escaped, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escaped, char)
    return field


def watch(loop: Loop, lost: Callable[[str], None]) -> None:
    """Calls `lost(path)` once, when the first hidden path is no longer hidden."""
    before = hidden_mounts(_read())
    if not before:
        return
    mounts = os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
    # A poll of its own: the selector knows only "readable", which this file always is.
    changes = select.epoll()
    changes.register(mounts, select.EPOLLPRI | select.EPOLLERR)
    told: List[str] = []

    def look(_events: int = 0) -> None:
        changes.poll(0)
        gone = missing(before, _read())
        if gone and not told:
            told.extend(gone)
            lost(gone[0])

    def again() -> None:
        look()
        loop.later(LOOK_S, again)

    loop.watch(changes.fileno(), READ, look)
    again()


def _read() -> str:
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as handle:
        return handle.read()
