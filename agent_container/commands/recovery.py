"""What dead processes left: runs that nobody drives are finished where they have ended, and named where they go on."""

from __future__ import annotations

from dataclasses import dataclass

from agent_container.agents import PROFILES, AgentProfile
from agent_container.agents.own import own_profile
from agent_container.commands.context import Context
from agent_container.commands.leftovers import sweep_closed
from agent_container.engine.protocol import Engine
from agent_container.errors import AgentContainerError, EngineError, Locked
from agent_container.records import Outcome
from agent_container.sandbox.closing import Closed, close_run
from agent_container.sandbox.recording import Closing
from agent_container.sandbox.runner import RunnerClient
from agent_container.sandbox.turn import TurnEnd, timed_out
from agent_container.session import Phase, SessionState


@dataclass(frozen=True)
class Reaped:
    """What became of the runs that nobody drove."""

    closed: tuple[Closed, ...]
    working: tuple[str, ...]
    """Runs whose agent still works; they were left."""
    unfinished: tuple[str, ...]
    """Runs that could not be finished, each with the reason."""


def reap_orphans(ctx: Context, project_id: str | None, *, stop_live: bool = False) -> Reaped:
    """Closes every run without a driver that has ended; one that still works is named and left, or stopped if asked.

    One that cannot be finished is named too, and holds up nothing else.
    """
    closed, working, unfinished = [], [], []
    ctx.store.sessions.sweep()
    for state in ctx.store.sessions.orphans(project_id):
        try:
            with ctx.store.sessions.lock(state.id, doing="finishing a run that was left behind", wait_s=0):
                fresh = ctx.store.sessions.load(state.id)
                if fresh.phase is Phase.CLOSED:
                    continue
                result = finish_orphan(ctx, fresh, stop_live=stop_live)
        except Locked:
            continue  # another process was first
        except AgentContainerError as error:
            words = "; ".join([error.message, *error.details[:3]])
            unfinished.append(f"run {state.id}: {words}")
            ctx.report(f"Could not finish run {state.id}, which was left behind: {words}")
            continue
        if result is not None:
            closed.append(result)
        else:
            working.append(state.id)
    sweep_closed(ctx, project_id)
    return Reaped(tuple(closed), tuple(working), tuple(unfinished))


def finish_orphan(ctx: Context, state: SessionState, *, stop_live: bool) -> Closed | None:
    """Closes one run whose driver is gone; None when its agent still works and is to go on."""
    end: TurnEnd | None = None
    if state.phase in (Phase.CREATED, Phase.OPENED):
        words = "the process that started it was gone before the agent did"
        end = TurnEnd(Outcome.NEVER_STARTED, words)
    elif state.phase is Phase.RUNNING and still_works(ctx.engine, state):
        age = (ctx.now() - state.created).total_seconds()
        limit = state.limits.time_s
        if stop_live:
            end = TurnEnd(Outcome.INTERRUPTED, "stopped by its user after the process that drove it was gone")
        elif limit is not None and age > limit:
            end = timed_out(limit)
        else:
            ctx.report(
                f"Run {state.id} still works without a driver: agent-container runs attach {state.id}, or runs stop"
            )
            return None
    closing = Closing(state=state, end=end, profile=profile_named(state.agent), ended=ctx.now())
    closed = close_run(ctx.engine, ctx.store, closing, report=lambda text: None)
    ctx.report(f"Finished run {state.id}, which was left behind: {closed.record.host.outcome}")
    return closed


def profile_named(name: str) -> AgentProfile:
    """The profile by the name that a session keeps; a command of one's own is read as plain text."""
    return PROFILES.get(name) or own_profile(command=("unknown",), environment=(), hosts=())


def still_works(engine: Engine, state: SessionState) -> bool:
    """Whether the agent's container runs and its runner still has the turn. A runner that gives no answer may be slow
    on a busy machine: its agent counts as working, until a limit or its user says otherwise."""
    agent = state.container("agent")
    found = engine.inspect(agent) if agent is not None else None
    if agent is None or found is None or found.status != "running":
        return False
    try:
        with RunnerClient.connect(engine, agent) as runner:
            return runner.works(state.id)
    except EngineError:
        found = engine.inspect(agent)
        return found is not None and found.status == "running"
