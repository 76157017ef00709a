"""What the engine still has of sessions that are over, and of sessions that this store does not know.

Labels only find candidates. What belongs to a session that the store has closed goes by itself: its record is on disk.
What names no session of the store goes only when its user asked (`down --orphans`), is named, and stays where it may be
another user's: another store on the same engine has sessions of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.engine.protocol import Labelled
from agent_container.errors import AgentContainerError, Locked, NotRunning
from agent_container.session import Phase, SessionState


@dataclass(frozen=True)
class Unknown:
    """What names one session that this store does not know."""

    session: str
    objects: tuple[Labelled, ...]
    kept_because: str | None = None

    def __str__(self) -> str:
        return f"session {self.session}: {', '.join(map(str, self.objects))}"


def sweep_closed(ctx: Context, project_id: str | None) -> None:
    """Removes what a killed process left of sessions that are closed: what the engine was making just then, say."""
    for session, objects in _by_session(ctx.engine.labelled()):
        state = _known(ctx, session)
        if state is None or state.phase is not Phase.CLOSED or project_id not in (None, state.project_id):
            continue
        try:
            with ctx.store.sessions.lock(session, doing="removing leftovers", wait_s=0):
                ctx.engine.remove_labelled(objects)
        except Locked:
            continue  # `runs apply` looks at its work in a throw-away container


def remove_unknown(ctx: Context, *, projects: set[str]) -> tuple[list[Unknown], list[Unknown]]:
    """Removes what names no session of this store and is of these projects; what went, and what was left and why."""
    gone, kept = [], []
    # The engine is asked first: a session is in the store before anything of it is in the engine.
    for session, objects in _by_session(ctx.engine.labelled()):
        if _known(ctx, session) is not None:
            continue
        reason = _why_not(ctx, objects, projects)
        found = Unknown(session, objects, reason)
        if reason is None:
            ctx.engine.remove_labelled(objects)
            gone.append(found)
        else:
            kept.append(found)
    return gone, kept


def known_projects(ctx: Context) -> set[str]:
    """Every project that this store has heard of."""
    sessions = {state.project_id for state in ctx.store.sessions.list(closed=True)}
    return sessions | {place.project_id for place in ctx.store.runs.list()} | set(ctx.store.approvals.list())


def _why_not(ctx: Context, objects: Iterable[Labelled], projects: set[str]) -> str | None:
    """Why these may not be removed; None when they may. Binds tell whose a container is: labels can be forged."""
    binds = [Path(bind) for found in objects for bind in found.binds if found.role == "egress"]
    if any(bind.is_relative_to(ctx.store.state) for bind in binds):
        return None
    if any(_may_exist(bind) for bind in binds):
        return "its files are in another store"
    if not {found.project for found in objects} <= projects:
        return "it names no project of yours"
    return None


def _may_exist(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # another user's directory


def _known(ctx: Context, session: str) -> SessionState | None:
    """The session in this store; None for one that is not there, or whose label is no id at all."""
    try:
        return ctx.store.sessions.load(session)
    except NotRunning:
        return None
    except AgentContainerError:
        if (ctx.store.state / "sessions" / session).is_dir():
            raise  # a file that cannot be read is no reason to take its sandbox away
        return None


def _by_session(objects: Iterable[Labelled]) -> list[tuple[str, tuple[Labelled, ...]]]:
    """Grouped; without the volumes that outlive sessions: their label is that of the one that made them."""
    own = [o for o in objects if o.kind != "volume" or o.name.startswith(f"ac-{o.session}-")]
    rows = sorted(own, key=lambda found: found.session)
    return [(session, tuple(group)) for session, group in groupby(rows, key=lambda found: found.session)]
