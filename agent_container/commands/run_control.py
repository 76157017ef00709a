"""`runs stop`, `runs attach` and `runs apply`: what may be done with a run while it works, and with its work after."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_container.commands.context import Context
from agent_container.commands.imaging import plan_images
from agent_container.commands.recovery import finish_orphan, profile_named, reap_orphans
from agent_container.commands.resolve import resolve
from agent_container.commands.runs import is_imported, load_record, project_here, resolve_run
from agent_container.drain import file_pieces
from agent_container.errors import Locked, NotRunning, UsageError
from agent_container.events import Event
from agent_container.records import RunRecord
from agent_container.sandbox.closing import PATCH, close_run, throwaway
from agent_container.sandbox.noting import note_stand
from agent_container.sandbox.recording import Closing
from agent_container.sandbox.turn import TurnLimits, TurnWatch, follow_turn
from agent_container.session import Phase, SessionState, WorkspaceUse
from agent_container.workspace.result import ApplyResult, apply_result
from agent_container.workspace.tree import inspect_tree

STOP_WAIT_S = 60.0
DEFAULT_TIME_S = 2 * 3600
DEFAULT_IDLE_S = 15 * 60
FINISH = "agent-container runs recover   (writes the record of every run that has ended)"


@dataclass(frozen=True)
class Stopped:
    """A run that was ended by its user."""

    run: str
    outcome: str


def live_session(ctx: Context, prefix: str | None) -> SessionState:
    """The unfinished run that a prefix names; the newest for None. Raises NotRunning or UsageError."""
    live = [state for state in ctx.store.sessions.list() if state.kind == "run"]
    found = [state for state in live if prefix is None or state.id.startswith(prefix)]
    if not found:
        raise NotRunning(
            "no run of that name is going on" if prefix else "no run is going on", hint="agent-container ls"
        )
    if prefix is not None and len(found) > 1:
        raise UsageError(f"{prefix!r} is the beginning of several runs", details=[s.id for s in found])
    return found[-1]


def stop_run(ctx: Context, prefix: str | None) -> Stopped:
    """Ends a run in order: its driver is asked; where there is none, this process finishes it."""
    state = live_session(ctx, prefix)
    ctx.store.sessions.request_stop(state.id)
    deadline = time.monotonic() + STOP_WAIT_S
    while time.monotonic() < deadline:
        if ctx.store.sessions.load(state.id).phase is Phase.CLOSED:
            break
        with contextlib.suppress(Locked), ctx.store.sessions.lock(state.id, doing="stop", wait_s=0):
            fresh = ctx.store.sessions.load(state.id)
            if fresh.phase is not Phase.CLOSED:
                finish_orphan(ctx, fresh, stop_live=True)
            break
        time.sleep(0.2)
    place = ctx.store.runs.place(state.project_id, state.id)
    if not place.path.is_dir():
        raise NotRunning(f"run {state.id} has been asked to stop and has not ended yet", hint="agent-container ls")
    return Stopped(run=state.id, outcome=str(load_record(place).host.outcome))


def attach_run(ctx: Context, prefix: str | None, *, on_event: Callable[[Event], None]) -> RunRecord:
    """Follows a run that is going on; drives it to its record where its driver is gone."""
    state = live_session(ctx, prefix)
    egress, agent = state.container("egress"), state.container("agent")
    if state.phase is not Phase.RUNNING and ctx.store.sessions.owner(state.id) is None:
        return _finish(ctx, state)  # there is nothing to follow, only to write down
    if state.phase is not Phase.RUNNING or egress is None or agent is None:
        raise NotRunning(f"run {state.id} is {state.phase}; there is nothing to follow yet", hint="agent-container ls")
    profile = profile_named(state.agent)
    watch = TurnWatch(
        engine=ctx.engine,
        egress=egress,
        agent=agent,
        turn=state.id,
        profile=profile,
        limits=TurnLimits(
            time_s=state.limits.time_s or DEFAULT_TIME_S,
            idle_s=state.limits.idle_s or DEFAULT_IDLE_S,
            turns=state.limits.turns,
            cost_usd=state.limits.cost_usd,
        ),
        on_event=on_event,
        stop=lambda: None,
        stop_requested=lambda: ctx.store.sessions.stop_requested(state.id),
        now=ctx.now,
        started=state.started(),
        note=lambda words: note_stand(ctx.store, state.id, words),
    )
    try:
        with ctx.store.sessions.lock(state.id, doing="runs attach", wait_s=0):
            if ctx.store.sessions.load(state.id).phase is Phase.CLOSED:
                return load_record(ctx.store.runs.place(state.project_id, state.id))  # it ended just now
            end = follow_turn(watch)
            closing = Closing(state=ctx.store.sessions.load(state.id), end=end, profile=profile, ended=ctx.now())
            return close_run(ctx.engine, ctx.store, closing, report=ctx.report).record
    except Locked:
        follow_turn(watch)  # its driver writes the record; we only look on
    place = ctx.store.runs.place(state.project_id, state.id)
    deadline = time.monotonic() + STOP_WAIT_S
    while not place.path.is_dir() and time.monotonic() < deadline:
        time.sleep(0.2)
    return load_record(place)


def recover_run(ctx: Context, prefix: str, *, on_event: Callable[[Event], None]) -> RunRecord:
    """Joins a run that nobody follows any more and drives it to its record.

    Raises:
        NotRunning: its sandbox does not run, in words; nothing was changed.
        Locked: another process follows it.
    """
    state = live_session(ctx, prefix)
    owner = ctx.store.sessions.owner(state.id)
    if owner is not None:
        raise NotRunning(
            f"run {state.id} has not lost its driver ({owner})", hint=f"agent-container runs attach {state.id}"
        )
    if state.phase is not Phase.RUNNING:
        raise NotRunning(f"run {state.id} is {state.phase}: there is no agent to join", hint=FINISH)
    for role, name in (("egress", "egress sidecar"), ("agent", "agent's container")):
        container = state.container(role)
        found = ctx.engine.inspect(container) if container else None
        if found is None or found.status not in ("running", "paused"):
            words = "is gone" if found is None else f"is {found.status} (status {found.exit_code})"
            raise NotRunning(f"the sandbox of run {state.id} does not run: the {name} {words}", hint=FINISH)
    return attach_run(ctx, state.id, on_event=on_event)


def _finish(ctx: Context, state: SessionState) -> RunRecord:
    with ctx.store.sessions.lock(state.id, doing="runs attach"):
        fresh = ctx.store.sessions.load(state.id)
        if fresh.phase is not Phase.CLOSED:
            finish_orphan(ctx, fresh, stop_live=False)
    return load_record(ctx.store.runs.place(state.project_id, state.id))


@dataclass(frozen=True)
class Recovered:
    """What became of runs that nobody drove."""

    finished: tuple[str, ...]
    working: tuple[str, ...]
    """Runs whose agent still works: attach to them, or stop them."""
    unfinished: tuple[str, ...]
    """Runs that could not be finished, each with the reason."""


def recover_runs(ctx: Context) -> Recovered:
    """Finishes what killed processes left in this project: every run that has ended gets its record."""
    project_id = project_here(ctx)
    reaped = reap_orphans(ctx, project_id)
    finished = tuple(closed.record.host.run for closed in reaped.closed)
    return Recovered(finished, working=reaped.working, unfinished=reaped.unfinished)


def run_patch(ctx: Context, prefix: str | None) -> Iterator[bytes]:
    """The patch of a run's work, in pieces. Raises UsageError when it changed nothing."""
    place = resolve_run(ctx, prefix)
    if not (place.path / PATCH).is_file():
        return iter(())
    return file_pieces(place.path / PATCH)


def apply_run(
    ctx: Context, prefix: str | None, *, mode: Literal["branch", "files"] | None, accept_sensitive: bool
) -> ApplyResult:
    """Brings a run's work to the project that it began in. Raises ApprovalNeeded naming what holds it up."""
    place = resolve_run(ctx, prefix)
    if is_imported(place):
        raise UsageError(
            f"run {place.run_id} came from elsewhere, and its work enters no project by itself",
            hint=f"look at it, then: agent-container runs diff {place.run_id} | git apply",
        )
    record = load_record(place)
    workspace = record.host.workspace
    bundle = place.path / "workspace.bundle"
    nothing = workspace is None or not (workspace.commits or workspace.files_changed)
    if nothing or workspace is None or workspace.base_commit is None or not bundle.exists():
        raise UsageError(f"run {place.run_id} changed nothing", hint=f"agent-container runs show {place.run_id}")
    root = Path(record.host.project_root)
    facts = inspect_tree(root, home=Path(ctx.environ.get("HOME") or "/"))
    use = _workspace_use(ctx, place.run_id)
    image = _git_image(ctx, record.host.digests.agent_image)
    with ctx.store.sessions.lock(place.run_id, doing="runs apply"):
        applied = apply_result(
            throwaway(ctx.engine, ctx.store, session=place.run_id, project=place.project_id, image=image),
            facts,
            bundle,
            run=place.run_id,
            base=workspace.base_commit,
            environ=ctx.environ,
            mode=mode,
            bound=workspace.mode == "bind",
            carried=bool(use and use.carried),
            protect=use.protect if use else (),
            accept_sensitive=accept_sensitive,
        )
    ctx.store.marks.change(place.run_id, applied=ctx.now().isoformat(timespec="seconds"))
    return applied


def _workspace_use(ctx: Context, run: str) -> WorkspaceUse | None:
    """How the run's workspace was used; None when this host has forgotten, which costs a better hint and no more."""
    try:
        return ctx.store.sessions.load(run).workspace
    except NotRunning:
        return None


def _git_image(ctx: Context, recorded: str | None) -> str:
    """An image whose git looks at the work: the run's own, or the one that the project has now."""
    if recorded and ctx.engine.image_id(recorded) is not None:
        return recorded
    current = plan_images(ctx, resolve(ctx, verb="run")).agent.tag
    if ctx.engine.image_id(current) is None:
        raise UsageError(
            "the image is gone in which git would look at the work before it enters your repository",
            hint="agent-container build",
        )
    return current
