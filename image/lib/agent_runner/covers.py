"""Hidden files of a bound tree stay hidden, or the container ends.

What is hidden has an empty file or directory mounted on it. When a program on the host puts another file in its place
(an editor that saves by rename), the kernel takes that mount away in here too, and only the host can mount it anew. The
kernel tells of it through `mountinfo`; nothing in this container can unmount, so a mount that is gone was lost so.

The agent has this process's uid and can lower its limits: what is needed is open from the start, and whatever goes
wrong here ends the container too.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Callable, List, Sequence, Set

from .loop import READ, Loop
from .process import kill_all

MOUNTS = "/proc/self/mountinfo"
LOOK_S = 5.0
"""The kernel tells at once; this is for a kernel that does not (a tree that lies in a virtual machine's share)."""
EXIT_EXPOSED = 76
"""The host knows the number."""
CHUNK = 64 * 1024


def missing(hidden: Sequence[str], text: str) -> List[str]:
    """Which of the paths are no mount point, by the text of `mountinfo` (proc(5))."""
    rows = (line.split(" ") for line in text.splitlines())
    points: Set[str] = {_plain(row[4]) for row in rows if len(row) > 4}
    return sorted(set(hidden) - points)


def _plain(field: str) -> str:
    """Without the kernel's octal escapes; the backslash comes last, since names may hold one before digits."""
    for escaped, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escaped, char)
    return field


def watch(loop: Loop, hidden: Sequence[str], *, end: Callable[[str], None]) -> None:
    """Calls `end(why)` when one of the paths is not hidden (any more), or nothing can be said of them."""
    mounts = os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
    # A poll of its own: the selector knows only "readable", which this file always is.
    changes = select.epoll()
    changes.register(mounts, select.EPOLLPRI | select.EPOLLERR)

    def look(_events: int = 0) -> None:
        try:
            changes.poll(0)
            gone = missing(hidden, _read(mounts))
        except BaseException as error:  # whatever it was, nobody knows what can be seen now
            end(f"the mounts cannot be read ({type(error).__name__})")
            return
        if gone:
            end(f"{gone[0]} is hidden, and a program on the host put another file in its place: that would be seen")

    def again() -> None:
        loop.later(LOOK_S, again)
        look()

    loop.watch(changes.fileno(), READ, look)
    again()


def _read(mounts: int) -> str:
    data, piece = b"", b"-"
    while piece:
        piece = os.pread(mounts, CHUNK, len(data))
        data += piece
    return data.decode("utf-8", "surrogateescape")


def end_container(why: str) -> None:
    """PID 1 ends, and with it the kernel ends everything in the container."""
    kill_all()
    try:
        os.write(sys.stderr.fileno(), f"runner: {why}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(EXIT_EXPOSED)
