"""`plan` and `render`: what would be, from the same values that `up` uses. Nothing is built, written or started."""

from __future__ import annotations

from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.commands.imaging import plan_images
from agent_container.commands.resolve import approval_lines, resolve
from agent_container.commands.stacking import comparable, frame
from agent_container.commands.standing import standing
from agent_container.commands.starting import Start, plan_for
from agent_container.ids import new_id
from agent_container.render.compose import render_compose
from agent_container.session import SessionState
from agent_container.stack import Stack
from agent_container.stack_policy import contradictions, how_seen
from agent_egress.repositories import Repository

COMPOSE_FILE = "compose.yaml"


@dataclass(frozen=True)
class RuleRow:
    """One egress rule with its origin."""

    action: str
    pattern: str
    ports: tuple[int, ...]
    tls: str
    origin: str

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return self.action, self.pattern, " ".join(map(str, self.ports)), self.tls, self.origin


@dataclass(frozen=True)
class PlanResult:
    """What `up` would do."""

    fields: tuple[tuple[str, str], ...]
    rules: tuple[RuleRow, ...]
    approval: tuple[str, ...]
    changes: tuple[str, ...]
    digest: str


def plan_environment(ctx: Context, *, agent: str | None, mode: str | None) -> PlanResult:
    """The plan of the standing environment."""
    resolved = resolve(ctx, verb="up", agent=agent, mode=mode)
    images = plan_images(ctx, resolved)
    before = standing(ctx, resolved.project.id)
    session = before.id if before else new_id(ctx.now(), ctx.entropy(3))
    planned = plan_for(ctx, Start(resolved=resolved, images=images, session=session, kind="up"))
    same = before is not None and comparable(planned.stack).digest == before.stack_digest
    spec = resolved.spec
    rules = tuple(
        RuleRow(
            action=rule.action,
            pattern=rule.pattern,
            ports=tuple(rule.ports),
            tls=how_seen(resolved.policy, rule),
            origin=rule.origin,
        )
        for rule in resolved.policy.rules
    ) + tuple(_repository(row) for row in resolved.policy.git)
    problems = contradictions(resolved.policy)
    return PlanResult(
        fields=(
            ("project", f"{spec.name} ({resolved.project.id})"),
            ("spec", str(resolved.project.spec_path or "none: defaults hold, and nothing is written")),
            ("agent", spec.agent_name),
            ("workspace", f"{resolved.mode} {resolved.project.root}"),
            ("user", resolved.user),
            ("egress image", images.egress.tag),
            ("agent image", images.agent.tag),
            ("policy", resolved.policy.digest),
        ),
        rules=rules,
        approval=tuple(approval_lines(ctx, resolved)),
        changes=("nothing to do",) if same else (_step(planned.stack, before), *problems),
        digest=comparable(planned.stack).digest,
    )


def _repository(row: Repository) -> RuleRow:
    """A repository among the rules: the gateway alone reaches its host by it."""
    may = ["fetch", *(f"push {ref}" for ref in row.push), *(f"delete {ref}" for ref in row.delete)]
    return RuleRow("git", f"{row.user}@{row.host} {row.path}", (row.port,), ", ".join(may), row.origin)


def _step(stack: Stack, before: SessionState | None) -> str:
    if before is None:
        return "create the sandbox"
    if frame(stack).digest == before.frame_digest:
        return "put the new egress policy in force; the sandbox goes on"
    return "recreate the sandbox"


def render_environment(ctx: Context, *, agent: str | None, mode: str | None) -> tuple[tuple[str, str], ...]:
    """Name to text of every file that `up` would write."""
    resolved = resolve(ctx, verb="up", agent=agent, mode=mode)
    images = plan_images(ctx, resolved)
    before = standing(ctx, resolved.project.id)
    session = before.id if before else new_id(ctx.now(), ctx.entropy(3))
    stack = plan_for(ctx, Start(resolved=resolved, images=images, session=session, kind="up")).stack
    etc = ctx.store.sessions.rendered_dir(session)
    return ((COMPOSE_FILE, render_compose(stack, files_dir=str(etc))), *((f"etc/{n}", t) for n, t in stack.files))
