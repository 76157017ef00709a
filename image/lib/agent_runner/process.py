"""Processes: starting one in a session of its own, and knowing every descendant.

Descendants are found by walking /proc, since a daemonised child leaves its process group. All orphans come back to the
runner (PID 1, or a child subreaper in tests), so "descends from the runner" is everything in the container except what
the host itself started with `docker exec`, whose parent is outside the namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import termios
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set

from .config import MARK
from .protect import PR_SET_DUMPABLE, prctl

OOM_SCORE_ADJ = b"500"


def spawn(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: str,
    stdin: int,
    stdout: int,
    stderr: int,
    terminal: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `argv` as leader of a new session; with `terminal`, stdin becomes its controlling terminal.

    Never wait for it: `Reaper` does, and tells the Popen.
    """

    def prepare() -> None:  # runs in the child; safe, since the runner has one thread
        os.umask(0o022)
        with contextlib.suppress(OSError):
            # The kernel should choose the agent before PID 1 when memory runs out. An undumpable process does not own
            # its own /proc files, so this copy becomes dumpable first; exec would do the same a moment later.
            prctl(PR_SET_DUMPABLE, 1)
            with open("/proc/self/oom_score_adj", "wb", buffering=0) as handle:
                handle.write(OOM_SCORE_ADJ)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return subprocess.Popen(
        list(argv),
        env=dict(environ),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        close_fds=True,
        start_new_session=True,
        preexec_fn=prepare,
    )


def merged_environ(base: Mapping[str, str], changes: Mapping[str, Optional[str]], mark: str) -> Dict[str, str]:
    """The container's environment with the request's changes (None removes) and the mark that names the turn."""
    environ = {name: value for name, value in base.items() if not name.startswith("AGENT_CONTAINER_RUN")}
    for name, value in changes.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    environ[MARK] = mark
    return environ


def signal_group(pgid: int, number: int) -> None:
    """Signal a whole process group; that it is gone already is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


def _parents() -> Dict[int, int]:
    parents: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as handle:
                state, parent = handle.read(4096).rsplit(b")", 1)[1].split()[:2]
        except (OSError, IndexError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            parents[int(name)] = int(parent)
    return parents


def descendants(root: int, parents: Optional[Dict[int, int]] = None) -> Set[int]:
    """Every live process below `root`."""
    table = _parents() if parents is None else parents
    children: Dict[int, List[int]] = {}
    for pid, parent in table.items():
        children.setdefault(parent, []).append(pid)
    found: Set[int] = set()
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.add(pid)
            queue.extend(children.get(pid, ()))
    return found


def _carries(pid: int, marks: Set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as handle:
            return not marks.isdisjoint(handle.read(1024 * 1024).split(b"\0"))
    except OSError:
        return False


def left_over(*, spare_roots: Iterable[int] = (), spare_marks: Iterable[str] = ()) -> Set[int]:
    """What descends from the runner, but not the trees of other live turns and terminals nor their marked orphans."""
    parents = _parents()
    found = descendants(os.getpid(), parents)
    for root in spare_roots:
        found -= descendants(root, parents) | {root}
    marks = {f"{MARK}={mark}".encode() for mark in spare_marks}
    if marks:
        found = {pid for pid in found if not _carries(pid, marks)}
    return found


def kill(pids: Iterable[int]) -> None:
    """SIGKILL each; that one is gone already is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_all() -> None:
    """SIGKILL every process of the namespace at once. Only for PID 1: elsewhere -1 is the whole machine."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
