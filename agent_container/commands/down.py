"""`down`: seal, drain, stop, remove. The record is on disk before anything is removed; no work is lost unasked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.commands.ending import close_standing
from agent_container.commands.leftovers import known_projects, remove_unknown, sweep_closed
from agent_container.commands.recovery import reap_orphans
from agent_container.commands.runs import load_record
from agent_container.commands.standing import left_elsewhere
from agent_container.errors import AgentContainerError, StoreError, UsageError
from agent_container.project import find_project
from agent_container.sandbox.recording import left_behind
from agent_container.session import SessionState

LOCK_WAIT_S = 120.0


@dataclass(frozen=True)
class DownResult:
    """What was taken down, one line each."""

    sessions: tuple[str, ...]
    lines: tuple[str, ...]


class WorkWouldBeLost(AgentContainerError):
    """A volume that was to be removed holds work which is nowhere else."""


class Unfinished(AgentContainerError):
    """Something could not be drained, and so was not removed."""


def take_down(
    ctx: Context, *, volumes: bool, force: bool, project: str | None, all_projects: bool, orphans: bool
) -> DownResult:
    """Takes standing environments down, and with `orphans` the runs that nobody drives and what the engine has of
    sessions that the store has lost; harmless when none is up. Raises Unfinished once all else is done."""
    elsewhere: tuple[str, ...] = ()
    states = _chosen(ctx, project=project, all_projects=all_projects)
    ids = sorted({state.project_id for state in states})
    if not all_projects and project is None:
        here = find_project(ctx.directory, ctx.spec_path)
        ids, elsewhere = [here.id], left_elsewhere(ctx, here)
    done: list[str] = []
    lines: list[str] = []
    unfinished: list[str] = []
    kept: list[str] = []
    for project_id in ids:
        with ctx.store.project_lock(project_id, doing="down", wait_s=LOCK_WAIT_S):
            reaped = reap_orphans(ctx, project_id, stop_live=orphans)
            unfinished += reaped.unfinished
            done += [one.record.host.run for one in reaped.closed]
            lines += [f"finished run {one.record.host.run}: {one.record.host.outcome}" for one in reaped.closed]
            for state in ctx.store.sessions.list(project_id):
                if state.kind != "up":
                    continue
                taken = close_standing(ctx, state, reason="taken down")
                if not taken.removed:
                    unfinished.append(f"environment {state.id}: its record could not be read in full")
                    continue
                done.append(state.id)
                lines.append(f"took down {state.project_name or state.project_id}; its record is {state.id}")
                lines += [f"not in the record: {what}" for what in taken.left_behind]
            if volumes and not force:
                kept += (holds := _only_there(ctx, project_id))
                if holds:
                    continue
            if volumes:
                lines += _remove_volumes(ctx, project_id, force=force)
    if all_projects:
        sweep_closed(ctx, None)
    if orphans:
        lines += _remove_unknown(ctx, set(ids) | (known_projects(ctx) if all_projects else set()), told=all_projects)
    if unfinished:
        raise Unfinished(
            "not everything could be taken down; what is left is as it was",
            details=[*lines, *unfinished],
            hint="agent-container down again, once the reason is gone",
        )
    if kept:
        raise WorkWouldBeLost(
            "its volumes hold work that is in no record, so they stay",
            details=[*lines, *kept],
            hint="agent-container up, and bring it to the branch that is checked out there; or down -v --force",
        )
    return DownResult(sessions=tuple(done), lines=tuple(lines) or ("nothing was up", *elsewhere))


def _remove_unknown(ctx: Context, projects: set[str], *, told: bool) -> list[str]:
    """What the engine has and the store does not know; `told`: what is left is named too."""
    gone, kept = remove_unknown(ctx, projects=projects)
    lines = [f"removed what was left of a session that the store does not know; {found}" for found in gone]
    return lines + ([f"left alone, since {found.kept_because}; {found}" for found in kept] if told else [])


def _only_there(ctx: Context, project_id: str) -> list[str]:
    """What the newest environment's end found in the volumes beside the work that it recorded, while they are there."""
    prefix = f"ac-{project_id}-"
    if not any(name.startswith(prefix) for name in ctx.engine.volume_names(prefix)):
        return []
    for place in ctx.store.sessions.records(""):
        try:
            record = load_record(place)
        except StoreError:  # another project's, as far as can be told
            continue
        if record.host.project_id == project_id:
            return [f"only in its volumes: {what}" for what in left_behind(record)]
    return []


def _remove_volumes(ctx: Context, project_id: str, *, force: bool) -> list[str]:
    live = ctx.store.sessions.list(project_id)
    if live and not force:
        raise WorkWouldBeLost(
            "runs of this project are not finished; their volumes stay",
            details=[f"run {state.id} is {state.phase}" for state in live],
            hint="agent-container down -v --orphans, or --force",
        )
    prefix = f"ac-{project_id}-"
    removed = ctx.engine.remove_volumes([name for name in ctx.engine.volume_names(prefix) if name.startswith(prefix)])
    return [f"removed volume {name}" for name in removed]


def _chosen(ctx: Context, *, project: str | None, all_projects: bool) -> Sequence[SessionState]:
    states = ctx.store.sessions.list()
    if all_projects:
        return states
    if project is None:
        return ()
    found = [s for s in states if project in (s.project_id, s.project_name)] or [
        s for s in states if s.project_id.startswith(project) or s.project_name.startswith(project)
    ]
    if not found:
        raise UsageError(f"nothing of a project called {project!r} is up", hint="agent-container ls")
    if len({s.project_id for s in found}) > 1:
        rows = sorted({f"{s.project_id}  {s.project_root}" for s in found})
        raise UsageError(f"{project!r} names several projects", details=rows, hint="give the id")
    return found
