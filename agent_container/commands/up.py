"""`up` and `redeploy`: the standing environment as the spec wants it. Asking again is harmless, what broke heals."""

from __future__ import annotations

from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.commands.ending import close_standing
from agent_container.commands.imaging import Images, make_images
from agent_container.commands.recovery import reap_orphans
from agent_container.commands.resolve import Resolved, approve, resolve
from agent_container.commands.stacking import comparable, frame, lasting
from agent_container.commands.standing import examine, left_elsewhere, standing
from agent_container.commands.starting import Start, close_failed, plan_for, start_session
from agent_container.errors import EngineError
from agent_container.ids import new_id
from agent_container.live_rules import carried_over
from agent_container.sandbox.control import PolicyMoved, SidecarControl
from agent_container.sandbox.runner import RunnerClient
from agent_container.session import Phase, SessionState
from agent_container.stack import Stack
from agent_egress.policy import Policy

LOCK_WAIT_S = 120.0
PUT_ATTEMPTS = 5
NOTHING_TO_DO = "nothing to do: it is up as the spec wants it"


@dataclass(frozen=True)
class UpResult:
    """What `up` did."""

    session: str
    changed: bool
    changes: tuple[str, ...]
    summary: str


def bring_up(ctx: Context, *, accept: str | None, agent: str | None, mode: str | None, recreate: bool) -> UpResult:
    """Converges on the spec. Raises ApprovalNeeded, EngineError or SidecarError; nothing is left half up."""
    resolved = resolve(ctx, verb="up", agent=agent, mode=mode)
    approve(ctx, resolved, accept=accept)
    images = make_images(ctx, resolved)
    verb = "redeploy" if recreate else "up"
    for line in left_elsewhere(ctx, resolved.project):
        ctx.report(f"Note: {line}")
    with ctx.store.project_lock(resolved.project.id, doing=verb, wait_s=LOCK_WAIT_S):
        reap_orphans(ctx, resolved.project.id)
        return _converge(ctx, resolved, images, recreate=recreate)


def _converge(ctx: Context, resolved: Resolved, images: Images, *, recreate: bool) -> UpResult:
    before = standing(ctx, resolved.project.id)
    changes: tuple[str, ...] = ()
    if before is not None:
        health = examine(ctx, before)
        stack = plan_for(ctx, Start(resolved=resolved, images=images, session=before.id, kind="up")).stack
        changes = health.amiss + _differences(ctx, resolved, images, before, stack)
        if health.running and not changes and not recreate:
            return UpResult(before.id, changed=False, changes=(), summary=NOTHING_TO_DO)
        if health.running and not health.amiss and not recreate and frame(stack).digest == before.frame_digest:
            return _put_policy(ctx, resolved, before, stack)
        if not close_standing(ctx, before, reason="replaced by a newer environment").removed:
            raise EngineError(  # Compose would replace its containers, and with them what has not been read
                f"the record of environment {before.id} could not be read in full, so it stays",
                hint="the same command again; if it is damaged for good, the second time lets it go",
            )
    session = new_id(ctx.now(), ctx.entropy(3))
    start = Start(resolved=resolved, images=images, session=session, kind="up", previous=before.id if before else None)
    try:
        opened = start_session(ctx, start)
        _put_home(ctx, resolved, opened.state)
    except BaseException as error:
        close_failed(ctx, resolved, session, error=error, interrupted=isinstance(error, KeyboardInterrupt))
        raise
    ctx.store.sessions.save(ctx.store.sessions.load(session).updated(phase=Phase.RUNNING))
    return UpResult(session, changed=True, changes=changes, summary="up; `agent-container attach` opens the agent")


def _put_home(ctx: Context, resolved: Resolved, state: SessionState) -> None:
    """For `shell` too: who starts the agent by hand meets no more questions than `attach`."""
    files, agent = resolved.home_files(state.decoys), state.container("agent")
    if files and agent is not None:
        with RunnerClient.connect(ctx.engine, agent) as runner:
            for words in runner.put_home(files):
                ctx.report(f"Note: {words}")


def _put_policy(ctx: Context, resolved: Resolved, before: SessionState, stack: Stack) -> UpResult:
    """Only the policy differs, and a sidecar takes that while the agent goes on working. Live changes stay."""
    control = SidecarControl(ctx.engine, before.container("egress") or "")
    body = ctx.store.policies.load(before.policy_digest) if before.policy_digest else None
    stood = Policy.parse(body) if body is not None else None
    for attempt in range(PUT_ATTEMPTS):
        held = control.policy()
        wanted = carried_over(held.policy, resolved.policy, stood=stood)
        for policy in (resolved.policy, wanted):
            ctx.store.policies.save(policy.encode())
        try:
            control.put_policy(wanted, expect=held.policy.digest)
            break
        except PolicyMoved:
            if attempt == PUT_ATTEMPTS - 1:
                raise
    # Not before it holds: a crash in between leaves a difference, which the same command finds and puts again.
    ctx.store.sessions.save(
        ctx.store.sessions.load(before.id).updated(
            stack_digest=comparable(stack).digest,
            policy_digest=resolved.policy.digest,
            spec_digest=resolved.grants.digest,
        )
    )
    words = "egress policy changed"
    return UpResult(
        before.id, changed=True, changes=(words,), summary="up; the new egress policy holds, nothing else changed"
    )


def _differences(
    ctx: Context, resolved: Resolved, images: Images, before: SessionState, stack: Stack
) -> tuple[str, ...]:
    """What is different from the environment that stands, in words."""
    if comparable(stack).digest == before.stack_digest:
        return ()
    changes = []
    now = {"egress": ctx.engine.image_id(images.egress.tag), "agent": ctx.engine.image_id(images.agent.tag)}
    changes += [f"{role} image changed" for role, image in before.images if now.get(role) != image]
    stood = ctx.store.policies.load(before.policy_digest) if before.policy_digest else None
    if stood is None or lasting(stood) != lasting(resolved.policy.encode()):
        changes.append("egress policy changed")
    if resolved.grants.digest != before.spec_digest:
        changes.append("the spec changed")
    return tuple(changes) or ("the configuration changed",)
