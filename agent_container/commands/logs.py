"""`runs logs` of a run that is still under way: what its runner has kept so far, read once from the start.

Only looks on: whoever drives the run goes on doing so. What the sidecar refused is not among it; that is counted when
the run has ended, and stands in the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from agent_container.commands.context import Context
from agent_container.commands.recovery import profile_named
from agent_container.commands.runs import no_record_yet, project_here
from agent_container.errors import EngineError
from agent_container.events import Event, numbered
from agent_container.frames import Frame
from agent_container.sandbox.runner import RunnerClient
from agent_container.session import SessionState
from agent_container.store import RunPlace
from agent_container.tally import Tally

SILENCE_S = 2.0
"""How long frames that the runner has counted may fail to come: the agent has its uid, and may have cut them."""


def find_under_way(ctx: Context, run: str | None) -> SessionState | None:
    """The unfinished run that `run` names when no record goes by that name; for None, one that is newer than every
    record here."""
    here = project_here(ctx)
    live = [state for state in ctx.store.sessions.list() if state.kind == "run"]
    if run is None:
        newest = max((place.run_id for place in ctx.store.runs.list(here)), default="")
        return next((state for state in reversed(live) if state.project_id == here and state.id > newest), None)
    found = [state for state in live if run and state.id.startswith(run)]
    return found[0] if len(found) == 1 and not _recorded(ctx, run) else None


def events_so_far(ctx: Context, state: SessionState) -> Iterator[Event]:
    """The agent's events up to now. Raises NotRunning where there is no runner to ask."""
    tally = Tally(profile_named(state.agent).parser(), started=state.turn_started)
    frames = raw_so_far(ctx, state)
    first = list(islice(frames, 1))  # asked for before anything is said: a refusal must not come after an answer
    yield from numbered([state.started()])
    yield from numbered(tally.events(chain(first, frames), goes_on=True), first=2)


def raw_so_far(ctx: Context, state: SessionState) -> Iterator[bytes]:
    """The runner's frames up to now, one a line. Raises NotRunning where there is no runner to ask."""
    agent = state.container("agent")
    if agent is None:
        raise no_record_yet(ctx.store, state.id)
    try:
        with RunnerClient.connect(ctx.engine, agent) as runner:
            count = runner.frames_of(state.id)
            if count:
                yield from _frames(runner, state.id, count)
    except EngineError as error:
        raise no_record_yet(ctx.store, state.id) from error


def _frames(runner: RunnerClient, turn: str, count: int) -> Iterator[bytes]:
    for received in runner.stream(turn, start=1, poll_s=SILENCE_S):
        if received is None:
            return
        yield received.raw + b"\n"
        if isinstance(received.frame, Frame) and received.frame.seq >= count:
            return


def _recorded(ctx: Context, run: str) -> list[RunPlace]:
    return [place for place in ctx.store.runs.list(None) if place.run_id.startswith(run)]
