"""`down`: seal, drain, stop, remove. The record is on disk before anything is removed; no work is lost unasked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.commands.recovery import reap_orphans
from agent_container.commands.standing import close_standing
from agent_container.errors import AgentContainerError, UsageError
from agent_container.project import find_project
from agent_container.session import SessionState

LOCK_WAIT_S = 120.0


@dataclass(frozen=True)
class DownResult:
    """What was taken down, one line each."""

    sessions: tuple[str, ...]
    lines: tuple[str, ...]


class WorkWouldBeLost(AgentContainerError):
    """A volume that was to be removed holds work which is nowhere else."""


def take_down(
    ctx: Context, *, volumes: bool, force: bool, project: str | None, all_projects: bool, orphans: bool
) -> DownResult:
    """Takes standing environments down, and with `orphans` the runs that nobody drives; harmless when none is up."""
    states = _chosen(ctx, project=project, all_projects=all_projects)
    ids = sorted({state.project_id for state in states})
    if not all_projects and project is None:
        ids = [find_project(ctx.directory, ctx.spec_path).id]
    done: list[str] = []
    lines: list[str] = []
    for project_id in ids:
        with ctx.store.project_lock(project_id, doing="down", wait_s=LOCK_WAIT_S):
            closed = reap_orphans(ctx, project_id, stop_live=orphans)
            done += [one.record.host.run for one in closed]
            lines += [f"finished run {one.record.host.run}: {one.record.host.outcome}" for one in closed]
            for state in ctx.store.sessions.list(project_id):
                if state.kind != "up":
                    continue
                taken = close_standing(ctx, state, reason="taken down")
                done.append(state.id)
                lines.append(f"took down {state.project_name or state.project_id}; its record is {state.id}")
                lines += [f"not in the record: {what}" for what in taken.left_behind]
            if volumes:
                lines += _remove_volumes(ctx, project_id, force=force)
    return DownResult(sessions=tuple(done), lines=tuple(lines) or ("nothing was up",))


def _remove_volumes(ctx: Context, project_id: str, *, force: bool) -> list[str]:
    live = ctx.store.sessions.list(project_id)
    if live and not force:
        raise WorkWouldBeLost(
            "runs of this project are not finished; their volumes stay",
            details=[f"run {state.id} is {state.phase}" for state in live],
            hint="agent-container down -v --orphans, or --force",
        )
    names = [f"ac-{project_id}-{key}" for key in ("home", "memory")]
    removed = ctx.engine.remove_volumes(names)
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
