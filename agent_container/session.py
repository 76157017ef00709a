"""One sandbox's life as a value: what was made for it, how far it got, and who owns it.

The store writes it before the first Docker object exists and again at every step, so that whatever a crash leaves
behind can be found by name. Secrets are not part of it: the chain key is sealed beside it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from agent_container.errors import StoreError
from agent_container.events import RunStarted


class Phase(StrEnum):
    """How far a session got; it only moves forward."""

    CREATED = "created"
    """Written down; Docker objects may exist."""
    OPENED = "opened"
    """The sidecar is healthy and holds the chain key."""
    RUNNING = "running"
    """The agent's process may be alive."""
    DRAINING = "draining"
    """Sealed or being sealed; the volumes are being read."""
    CLOSED = "closed"
    """Drained and removed; only the record is left."""


PHASES = tuple(Phase)


class SessionLimits(BaseModel):
    """What ends a session from outside; `None` is no limit. The last two bind a cooperative agent only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time_s: int | None = None
    idle_s: int | None = None
    model_requests: int | None = None
    model_bytes: int | None = None
    cost_usd: float | None = None
    turns: int | None = None


class MountUse(BaseModel):
    """One mount of the agent's workspace, as the engine was given it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["bind", "volume"]
    source: str
    target: str


class WorkspaceUse(BaseModel):
    """What is needed to collect the work of a session, also by another process after a crash."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["bind", "clone"]
    user: str
    """`uid:gid` of the agent."""
    mounts: tuple[MountUse, ...]
    git_dir: str | None = None
    """Where the private git directory lies in the container; none where the workspace holds its own."""
    hide: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    """Protected paths that a mount holds."""
    protected: tuple[tuple[str, str], ...] = ()
    """The other protected paths of a bound tree, each with its digest before the start."""
    base: str | None = None
    """The commit where the work began; none until the workspace is prepared."""
    head: str | None = None
    """The project's own last commit then."""
    carried: bool = False


class SessionState(BaseModel):
    """What the host knows of one session. `updated` makes the next value; nothing is changed in place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    id: str
    project_id: str
    project_root: str
    project_name: str = ""
    kind: Literal["up", "run"]
    created: AwareDatetime
    owner_pid: int
    """The process that drives the session; whether it still lives is told by the session's lock, not by this number."""
    phase: Phase = Phase.CREATED
    stack_digest: str = ""
    frame_digest: str = ""
    """Of the Stack without its policy, which can be changed while the sandbox works; empty in an older session."""
    policy_digest: str = ""
    spec_digest: str = ""
    compose_project: str = ""
    containers: tuple[tuple[str, str], ...] = ()
    """(role, container id as made at create): secrets go to these ids alone, whatever labels say."""
    networks: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    images: tuple[tuple[str, str], ...] = ()
    """(role, image digest)."""
    agent: str = ""
    task: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    workspace: WorkspaceUse | None = None
    limits: SessionLimits = Field(default_factory=SessionLimits)
    model_hosts: tuple[str, ...] = ()
    """Hosts of the model service whose key the agent uses."""
    decoys: tuple[tuple[str, str], ...] = ()
    """(credential name, decoy): placeholders that the sandbox sees, worth nothing outside it."""
    previous: str | None = None
    """The session that this one continues, when a sidecar was replaced."""
    resumes: str | None = None
    """The run whose agent session and work this run goes on with."""
    outcome: str | None = None
    """How the turn ended as its driver saw it, kept for whoever finishes the session in its place."""
    reason: str | None = None
    recorded: bool = False
    """The record is published and holds all that could be read: what is left is to remove."""
    turn_started: AwareDatetime | None = None
    """When the agent's process was asked for, by the host's clock."""
    notes: tuple[str, ...] = ()

    def updated(self, **changes: object) -> SessionState:
        """The next value, checked like a fresh one. Raises ValueError when the phase would move backwards."""
        after = SessionState.model_validate({**self.model_dump(), **changes})
        if PHASES.index(after.phase) < PHASES.index(self.phase):
            raise ValueError(f"session {self.id} cannot go back from {self.phase} to {after.phase}")
        return after

    def container(self, role: str) -> str | None:
        """The id of the container made for `role`, as recorded at create."""
        return dict(self.containers).get(role)

    def started(self) -> RunStarted:
        """The first event of its record."""
        return RunStarted(at=self.created, run=self.id, agent=self.agent, task=self.task)

    def encode(self) -> bytes:
        """JSON, one line, UTF-8."""
        return self.model_dump_json().encode() + b"\n"


def parse_session(body: bytes, *, origin: str) -> SessionState:
    """The state that `encode` wrote. Raises StoreError naming `origin` when it is not one."""
    try:
        return SessionState.model_validate_json(body)
    except ValidationError as bad:
        details = [f"{'.'.join(map(str, row['loc'])) or 'file'}: {row['msg']}" for row in bad.errors()]
        raise StoreError(
            f"{origin} is not a session of this version",
            details=details,
            hint="a newer agent-container may have written it; use that one, or move the file away",
        ) from bad
