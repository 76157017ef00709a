"""Which live sandboxes a verb of `egress` is about: the project's standing environment, its runs, or one that is
named."""

from __future__ import annotations

from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.commands.runs import project_here
from agent_container.commands.standing import examine, standing
from agent_container.errors import NotRunning, UsageError
from agent_container.sandbox.control import SidecarControl
from agent_container.session import Phase, SessionState


@dataclass(frozen=True)
class Sandbox:
    """One sandbox whose sidecar answers."""

    state: SessionState
    egress: str
    """The sidecar's container."""
    control: SidecarControl

    @property
    def words(self) -> str:
        """What it is called in messages."""
        return f"run {self.state.id}" if self.state.kind == "run" else "the standing environment"


def live_sandboxes(ctx: Context, *, everywhere: bool = False) -> tuple[Sandbox, ...]:
    """The standing environment first, then the runs, oldest first; of this project or of all."""
    project = None if everywhere else project_here(ctx)
    states = [state for state in ctx.store.sessions.list(project) if _is_live(ctx, state)]
    return tuple(_sandbox(ctx, state) for state in sorted(states, key=lambda state: (state.kind == "run", state.id)))


def sandbox_named(ctx: Context, run: str | None) -> Sandbox:
    """The one that `run` names; without it the project's standing environment, or its only run.

    Raises: NotRunning, UsageError.
    """
    if run is not None:
        found = [sandbox for sandbox in live_sandboxes(ctx, everywhere=True) if sandbox.state.id.startswith(run)]
        if len(found) == 1 and run:
            return found[0]
        if found:
            raise UsageError(f"{run!r} is the beginning of several", details=[one.state.id for one in found])
        raise NotRunning(f"no sandbox {run} is running", hint="agent-container ls")
    here = live_sandboxes(ctx)
    if not here:
        raise NotRunning("nothing of this project is running", hint="agent-container up")
    if here[0].state.kind == "up" or len(here) == 1:
        return here[0]
    raise UsageError(
        "several runs of this project are going on",
        details=[f"{one.state.id}  {one.state.agent}" for one in here],
        hint="name one: --run RUN",
    )


def _is_live(ctx: Context, state: SessionState) -> bool:
    if state.phase not in (Phase.OPENED, Phase.RUNNING) or state.container("egress") is None:
        return False
    if state.kind == "up" and state != standing(ctx, state.project_id):
        return False
    return examine(ctx, state, ask=False).running


def _sandbox(ctx: Context, state: SessionState) -> Sandbox:
    egress = state.container("egress") or ""
    return Sandbox(state, egress, SidecarControl(ctx.engine, egress))
