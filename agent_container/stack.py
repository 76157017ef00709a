"""The desired state of one sandbox as a value: containers, their shared network namespace, volumes, files and probes.

Engine-neutral: `render/compose.py` is its first renderer. Nothing here reads the host or runs anything.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Literal

LABEL = "agent-container"


@dataclass(frozen=True)
class Mount:
    """One path inside a container. Binds are non-recursive and never create their source."""

    kind: Literal["bind", "volume"]
    source: str
    """Host path of a bind, key in `Stack.volumes` of a volume."""
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Tmpfs:
    """A memory-backed directory owned by one uid."""

    target: str
    uid: int = 0
    mode: int = 0o755
    size_bytes: int = 16 * 1024 * 1024
    executable: bool = False


@dataclass(frozen=True)
class Probe:
    """How the engine tells that a container is ready: an argv that ends with 0."""

    argv: tuple[str, ...]
    interval_s: float = 5.0
    start_interval_s: float = 0.1
    start_period_s: float = 30.0
    timeout_s: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class Limits:
    """What a container may use of the host; `None` leaves the engine's default."""

    pids: int
    memory_bytes: int | None = None
    cpus: float | None = None
    swap: bool = False
    """Whether the container may swap: the sidecar may not, it holds secrets in memory."""


@dataclass(frozen=True)
class Container:
    """One container. Hardening is not a field: root filesystem read-only, all capabilities dropped and
    no-new-privileges hold for every one, and the renderer cannot leave them out."""

    service: Literal["egress", "agent"]
    image: str
    user: str
    """Numeric `uid:gid`."""
    environment: tuple[tuple[str, str], ...] = ()
    working_dir: str = "/"
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[Tmpfs, ...] = ()
    cap_add: tuple[str, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    limits: Limits = field(default_factory=lambda: Limits(pids=256))
    probe: Probe | None = None
    stop_grace_s: int = 5
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Network:
    """The sidecar's own way out. `join` names networks that exist already, for doubles and private services."""

    subnet4: str | None = None
    subnet6: str | None = None
    internal: bool = False
    join: tuple[str, ...] = ()


@dataclass(frozen=True)
class Volume:
    """A named volume; `keep` means that it outlives the session (home, memory)."""

    key: str
    name: str
    keep: bool = False


@dataclass(frozen=True)
class Stack:
    """Everything that must exist for one session, and nothing else."""

    session: str
    project: str
    """Project id, 12 hex digits."""
    compose_project: str
    display_name: str
    egress: Container
    agent: Container
    network: Network
    volumes: tuple[Volume, ...]
    files: tuple[tuple[str, str], ...]
    """Rendered sidecar files, name to text; bound read-only at /etc/agent-egress. No secret stands in them."""
    placeholders: tuple[str, ...] = ()
    """Variables of the agent whose values are made anew for every session."""

    @property
    def digest(self) -> str:
        """Digest over all of it; the same digest means that there is nothing to do."""
        body = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(body.encode()).hexdigest()
