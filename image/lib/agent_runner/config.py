"""Where the runner's socket and run volume are, and the bounds on all that a client or an agent can make grow."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` and `dataclasses` would double the time that a conversation takes to start
    from typing import Mapping

FRAME_DATA_BYTES = 32 * 1024
"""Most bytes of output that one frame carries."""
REQUEST_MAX_BYTES = 8 * 1024 * 1024
"""Longest request line: a task and its stdin come in one."""
OUT_LOW_BYTES = 128 * 1024
"""A client's buffer is refilled from the spool below this, so a slow client costs no more than it plus one chunk."""
OUT_HIGH_BYTES = 4 * 1024 * 1024
"""Above this a client's requests are not read until it reads its answers."""
SPOOL_MAX_BYTES = 256 * 1024 * 1024
SPOOL_RESERVE_BYTES = 64 * 1024
"""Kept on the volume for the last frames of a turn that fills it."""
SCROLLBACK_BYTES = 256 * 1024
CLIENTS_MAX = 32
TERMINALS_MAX = 16
TURNS_KEPT_MAX = 200

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
"""Turn ids and terminal names: safe as one path component."""
MARK = "AGENT_CONTAINER_TURN"
"""Environment variable that tells one turn's processes from a terminal's, after they have lost their parents."""


class Paths:
    """Every path that the runner touches."""

    def __init__(self, *, socket: str, volume: str) -> None:
        self.socket = socket
        self.volume = volume
        self.turns = os.path.join(volume, "turns")
        """Holds one directory for each turn."""


def read_paths(environ: Mapping[str, str]) -> Paths:
    """The container's paths; the variables exist for tests outside a container."""
    return Paths(
        socket=environ.get("AGENT_CONTAINER_RUNNER_SOCKET", "/run/agent-container/runner.sock"),
        volume=environ.get("AGENT_CONTAINER_RUN_VOLUME", "/var/lib/agent-container/run"),
    )
