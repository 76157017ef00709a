"""The runner's protections of itself, set before anything else: no ptrace, no readable memory, no core file.

A module of its own and small: each of the host's conversations starts a `runner connect`, which loads it.
"""

from __future__ import annotations

import ctypes
import os
import resource

PR_SET_DUMPABLE = 4
PR_GET_DUMPABLE = 3
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, argument: int) -> int:
    """prctl(2). Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def protect_self() -> None:
    """No ptrace, no /proc/PID/mem or environ for the agent (same uid), and no core files. Verified, else OSError."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(PR_SET_DUMPABLE, 0)
    if prctl(PR_GET_DUMPABLE, 0) != 0:
        raise OSError("the kernel did not make this process undumpable")


def become_subreaper() -> None:
    """Take in orphans although not PID 1; for running outside a container."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
