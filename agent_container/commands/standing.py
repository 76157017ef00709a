"""The standing environment of a project: found and judged. What `up`, `down`, `status` and `attach` share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.errors import EngineError, NotRunning
from agent_container.project import Project
from agent_container.sandbox.control import SidecarControl
from agent_container.sandbox.noting import note_stand
from agent_container.sandbox.turn import EXIT_EXPOSED, EXPOSED
from agent_container.session import Phase, SessionState

HIDES_ANEW = f"the agent's container ended itself: {EXPOSED}; `agent-container up` hides it anew"


@dataclass(frozen=True)
class Health:
    """How a standing environment is, as the engine and its sidecar see it."""

    state: SessionState
    running: bool
    amiss: tuple[str, ...]
    """What is wrong, in words; empty when nothing is."""
    shut: str = ""
    """Why nothing can be reached, and what to type, where that is meant so: it needs no healing."""

    @property
    def word(self) -> str:
        """In a word."""
        if not self.running:
            return "down"
        return "unhealthy" if self.amiss else "cut" if self.shut else "running"


def standing(ctx: Context, project_id: str) -> SessionState | None:
    """The newest standing session of a project that is not closed."""
    found = [state for state in ctx.store.sessions.list(project_id) if state.kind == "up"]
    return found[-1] if found else None


def must_stand(ctx: Context, project_id: str) -> SessionState:
    """The same, running. Raises NotRunning with what to type."""
    state = standing(ctx, project_id)
    if state is None:
        raise NotRunning("this project's environment is not up", hint="agent-container up")
    health = examine(ctx, state, ask=False)
    if not health.running or health.amiss:
        raise NotRunning(
            "this project's environment is not running as it should", details=health.amiss, hint="agent-container up"
        )
    return state


def examine(ctx: Context, state: SessionState, *, ask: bool = True) -> Health:
    """Looks at both containers; with `ask` the sidecar is asked too. Changes nothing but the host's own note of where
    the receipts stand."""
    amiss: list[str] = []
    shut = ""
    seen = {}
    for role, name in (("egress", "egress sidecar"), ("agent", "agent's container")):
        container = state.container(role)
        found = ctx.engine.inspect(container) if container else None
        if found is None:
            amiss.append(f"the {name} is gone")
        elif found.status != "running":
            exposed = role == "agent" and found.exit_code == EXIT_EXPOSED
            amiss.append(HIDES_ANEW if exposed else f"the {name} is {found.status} (status {found.exit_code})")
        elif found.health == "unhealthy":
            amiss.append(f"the {name} is unhealthy")
        seen[role] = found
        if role == "egress" and found is not None and (trouble := note_stand(ctx.store, state.id, found.health_words)):
            amiss.append(f"where the receipts stand could not be kept: {trouble}")
    egress, agent = seen["egress"], seen["agent"]
    running = bool(egress and agent and egress.status == agent.status == "running")
    if running and egress is not None and agent is not None and egress.started_at > agent.started_at:
        # The agent is in the namespace of a sidecar that is no more: no rules, and no way out either.
        amiss.append("the egress sidecar was restarted; the agent's network namespace is stale")
    if running and ask and not amiss and egress is not None:
        try:
            answer = SidecarControl(ctx.engine, egress.id).status()
        except EngineError as error:
            amiss.append(str(error))
        else:
            shut = _shut(answer)
            if answer.get("healthy") is False:
                amiss.append(f"the egress sidecar reports: {json.dumps(answer.get('checks') or answer)[:300]}")
    if state.phase in (Phase.CREATED, Phase.DRAINING):
        amiss.append(f"its last command was interrupted while the session was {state.phase}")
    return Health(state=state, running=running, amiss=tuple(amiss), shut=shut)


def _shut(answer: Mapping[str, object]) -> str:
    cure = "to open it again: agent-container egress restore"
    if answer.get("killed"):
        return f"egress is cut, the session was ended: {str(answer['killed'])[:300]}; {cure}"
    return f"egress is cut; {cure}" if answer.get("cut") is True and answer.get("state") == "open" else ""


def left_elsewhere(ctx: Context, project: Project) -> tuple[str, ...]:
    """Environments whose directory is gone: one may be this project's, from before it was moved. Each with the cure."""
    found = []
    for state in ctx.store.sessions.list():
        before = Path(state.project_root)
        if state.kind == "up" and state.project_id != project.id and not before.is_dir():
            cure = f"agent-container down --project {state.project_id}"
            found.append(f"an environment still stands for {before}, which is gone; if this was it: {cure}")
    return tuple(found)
