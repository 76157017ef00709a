"""The run that another one goes on from: its agent's own session, what that needs of HOME, and the work it left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.commands.resolve import Resolved
from agent_container.commands.runs import load_record, resolve_run, verify_record
from agent_container.errors import Tampered, UsageError
from agent_container.sandbox.closing import BUNDLE, KEPT_HOME
from agent_container.workspace.prepare import Earlier


@dataclass(frozen=True)
class Resumed:
    """What is taken over from an earlier run."""

    run: str
    session: str
    """The agent's own name of its session."""
    home: Path | None
    """Files of the record that belong into HOME."""
    work: Earlier | None
    """None when that run changed nothing."""


def find_resumed(ctx: Context, resolved: Resolved, run: str) -> Resumed:
    """The earlier run, looked at closely: an agent believes what its own session says.

    Raises: UsageError when nothing can be resumed; Tampered when the record is not what was published.
    """
    place = resolve_run(ctx, run)
    record = load_record(place)
    again = f"agent-container runs show {place.run_id}"
    if place.project_id != resolved.project.id:
        raise UsageError(f"run {place.run_id} is one of another project, {record.host.project_root}", hint=again)
    if record.host.versions.agent != resolved.profile.name:
        raise UsageError(
            f"run {place.run_id} was {record.host.versions.agent}'s, and the spec names {resolved.profile.name}",
            hint="only the agent that began a session can go on with it",
        )
    session = record.agent.session if record.agent is not None else None
    if not session or not resolved.profile.keeps:
        raise UsageError(
            f"run {place.run_id} cannot be resumed: {resolved.profile.name} "
            + ("named no session of its own there" if resolved.profile.keeps else "keeps no sessions"),
            hint=again,
        )
    if not resolved.profile.names_session(session):
        raise UsageError(
            f"run {place.run_id} cannot be resumed: {resolved.profile.name} called its session {session[:80]!r} there, "
            "and none of its sessions has such a name",
            hint=again,
        )
    workspace = record.host.workspace
    if resolved.mode != "clone" or workspace is None or workspace.mode != "clone":
        raise UsageError(
            "only runs in a clone can be resumed",
            details=("what an agent does to the bound directory is there anyway: tell a new run to go on",),
            hint="add --clone",
        )
    if verify_record(ctx, place.run_id).exit_code == Tampered.exit_code:
        raise Tampered(
            f"the record of run {place.run_id} was changed since it was published, so its agent is not told what it "
            "says",
            hint=f"agent-container runs verify {place.run_id}",
        )
    bundle, home = place.path / BUNDLE, place.path / KEPT_HOME
    work = None
    changed = workspace.head_commit is not None and workspace.head_commit != workspace.base_commit
    if not bundle.is_file() and (workspace.note is not None or workspace.base_commit is None or changed):
        raise UsageError(
            f"the work of run {place.run_id} is not in its record as a bundle, so no run can go on from it",
            details=(workspace.note,) if workspace.note else (),
            hint=again,
        )
    if bundle.is_file() and workspace.base_commit is not None:
        work = Earlier(
            bundle=bundle,
            base=workspace.base_commit,
            head=workspace.project_commit,
            carried=workspace.carried,
        )
    return Resumed(run=place.run_id, session=session, home=home if home.is_dir() else None, work=work)
