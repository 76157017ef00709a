"""`status` and `ls`: what is up and how it is. They read, report what they find amiss, and change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.commands.standing import examine, left_elsewhere, standing
from agent_container.project import find_project
from agent_container.session import SessionState
from agent_container.stack_policy import how_seen
from agent_egress.rules import Policy, PolicyError


@dataclass(frozen=True)
class StatusResult:
    """How one project's environment is."""

    project: str
    state: str
    session: str | None
    fields: tuple[tuple[str, str], ...]
    amiss: tuple[str, ...]
    hosts: tuple[tuple[str, str], ...] = ()
    """Each host that may be reached by the policy that it was put up with, and what is seen of it."""


@dataclass(frozen=True)
class SessionRow:
    """One session that is not closed."""

    project: str
    kind: str
    agent: str
    state: str
    session: str
    directory: str

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return self.project, self.kind, self.agent, self.state, self.session, self.directory


def read_status(ctx: Context) -> StatusResult:
    """The project's environment and its runs."""
    project = find_project(ctx.directory, ctx.spec_path)
    state = standing(ctx, project.id)
    runs = [s for s in ctx.store.sessions.list(project.id) if s.kind == "run"]
    orphans = {s.id for s in ctx.store.sessions.orphans(project.id)}
    amiss = [
        f"run {s.id} has no driver any more: agent-container runs attach {s.id}, or runs stop {s.id}"
        for s in runs
        if s.id in orphans
    ]
    if state is None:
        amiss += left_elsewhere(ctx, project)
        down = (("project", project.name), ("state", "down"), ("id", project.id))
        return StatusResult(project.name, "down", None, _with_runs(down, runs), tuple(amiss))
    health = examine(ctx, state)
    told = (*health.amiss, *((health.shut,) if health.shut else ()), *amiss)
    use = state.workspace
    fields = (
        ("project", state.project_name),
        ("state", health.word),
        ("session", state.id),
        ("agent", state.agent),
        ("workspace", f"{use.mode} {project.root}" if use else ""),
        ("since", state.created.isoformat(timespec="seconds")),
        ("policy", state.policy_digest[:19]),
        ("id", project.id),
    )
    return StatusResult(state.project_name, health.word, state.id, _with_runs(fields, runs), told, _hosts(ctx, state))


def list_sessions(ctx: Context) -> tuple[SessionRow, ...]:
    """Everything that is not closed, oldest first; an environment whose directory is gone is an orphan."""
    rows = []
    for state in ctx.store.sessions.list():
        if state.kind == "up":
            word = examine(ctx, state, ask=False).word
        else:
            word = "running" if ctx.store.sessions.owner(state.id) else "without driver"
        if not Path(state.project_root).is_dir():
            word += ", directory gone"
        rows.append(SessionRow(state.project_name, state.kind, state.agent, word, state.id, state.project_root))
    return tuple(rows)


def _with_runs(fields: tuple[tuple[str, str], ...], runs: list[SessionState]) -> tuple[tuple[str, str], ...]:
    return (*fields, ("runs", ", ".join(f"{s.id} ({s.phase})" for s in runs)))


def _hosts(ctx: Context, state: SessionState) -> tuple[tuple[str, str], ...]:
    body = ctx.store.policies.load(state.policy_digest) if state.policy_digest else None
    try:
        policy = Policy.parse(body or b"")
    except PolicyError:
        return ()
    return tuple(dict.fromkeys((rule.pattern, how_seen(policy, rule)) for rule in policy.rules if rule.allows))
