"""From a Stack's ingredients to a sandbox whose agent's container runs idle, for `up` and `run` alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent_container.commands.context import Context
from agent_container.commands.credential_rotate import WAIT_S
from agent_container.commands.credential_sources import secret_of
from agent_container.commands.imaging import Images
from agent_container.commands.resolve import Resolved
from agent_container.commands.resuming import Resumed
from agent_container.commands.ssh_key import ensure_key, load_ring, to_hand_over, unpinned
from agent_container.commands.stacking import comparable, frame, is_subnet_clash, plan_stack, with_subnet
from agent_container.credential_kinds import make_decoy
from agent_container.credentials import parse_credential
from agent_container.errors import AgentContainerError, EngineError, UsageError
from agent_container.records import Outcome
from agent_container.sandbox.closing import Closed, close_run, throwaway
from agent_container.sandbox.control import SealedCredential, SidecarControl, SshKeys
from agent_container.sandbox.opening import Opened, Opening, open_sandbox
from agent_container.sandbox.recording import Closing
from agent_container.sandbox.turn import TurnEnd
from agent_container.session import MountUse, SessionLimits, SessionState, WorkspaceUse
from agent_container.stack import Stack
from agent_container.stack_policy import sandbox_variables
from agent_container.store import Phase, default_roots
from agent_container.workspace.mounts import HostPaths
from agent_container.workspace.plan import WorkspacePlan, plan_workspace
from agent_container.workspace.prepare import prepare_workspace, read_user_git, restore_home, write_files
from agent_container.workspace.protected import protected_state
from agent_egress.fingerprints import KEY_BYTES, Fingerprint, fingerprint
from agent_egress.policy import Policy, scans

CHAIN_KEY_BYTES = 32
SUBNET_ATTEMPTS = 6


@dataclass(frozen=True)
class Start:
    """What is to be started."""

    resolved: Resolved
    images: Images
    session: str
    kind: Literal["up", "run"]
    task: str | None = None
    model: str | None = None
    previous: str | None = None
    resumed: Resumed | None = None
    committed: bool = False
    """A clone starts from the last commit, without uncommitted work."""
    labels: tuple[tuple[str, str], ...] = ()


class NeverStarted(AgentContainerError):
    """A run whose sandbox did not come up; its record says why."""

    exit_code = 15


@dataclass(frozen=True)
class Decoys:
    """Placeholders made for one session, and what the sidecar swaps them for."""

    environment: tuple[tuple[str, str], ...]
    credentials: tuple[SealedCredential, ...]
    entries: tuple[bytes, ...] = field(default=(), repr=False)
    """What the store held of each credential when its secret was fetched."""


@dataclass(frozen=True)
class Planned:
    """A Stack and the workspace that it mounts."""

    stack: Stack
    workspace: WorkspacePlan


def plan_for(ctx: Context, start: Start, *, decoys: tuple[tuple[str, str], ...] | None = None) -> Planned:
    """The Stack of a session, without a subnet yet. Placeholders are empty where none are given. Writes nothing."""
    resolved = start.resolved
    workspace = plan_session_workspace(ctx, resolved, start.session)
    if decoys is None:
        nothing = {granted.name: "" for granted in resolved.granted}
        decoys = tuple((name, "") for name, _ in _variables(resolved, nothing))
    stack = plan_stack(
        ctx,
        resolved,
        start.images,
        session=start.session,
        kind=start.kind,
        workspace=workspace,
        host=host_paths(ctx),
        decoys=decoys,
    )
    return Planned(stack=stack, workspace=workspace)


def start_session(ctx: Context, start: Start) -> Opened:
    """Opens the sandbox. Raises EngineError or SidecarError; the caller closes what is there."""
    resolved = start.resolved
    decoys = make_decoys(ctx, resolved)
    ctx.store.policies.save(resolved.policy.encode())
    ctx.store.policies.save(Policy(rules=()).encode())  # in force once the chain is sealed: nothing may go out
    planned = plan_for(ctx, start, decoys=decoys.environment)
    directory = ctx.store.sessions.rendered_dir(start.session).parent / "mounts"
    ctx.store.writer.make_dir(directory)
    write_files(planned.workspace, directory)
    ssh = _ssh_keys(ctx, resolved)
    deadline = float(resolved.spec.limits.time_s) if start.kind == "run" else None
    for attempt in range(SUBNET_ATTEMPTS):
        placed = with_subnet(planned.stack, ctx.engine, pool=ctx.settings.network.pool, attempt=attempt)
        state = _state(ctx, start, placed, decoys)
        opening = Opening(
            stack=placed,
            state=state,
            chain_key=_chain_key(ctx, start.session),
            credentials=decoys.credentials,
            policy=resolved.policy,
            stored=stored_fingerprints(ctx, resolved),
            prepare=_preparation(ctx, start, placed, state, planned.workspace),
            deadline_s=deadline,
            ssh=ssh,
        )
        try:
            opened = open_sandbox(ctx.engine, ctx.store, opening, report=ctx.report)
            _catch_up(ctx, opened.state, decoys)
            _catch_up_keys(ctx, opened.state, ssh)
            return opened
        except EngineError as error:
            if not is_subnet_clash(error) or attempt == SUBNET_ATTEMPTS - 1:
                raise
            ctx.engine.remove_session(start.session, volumes=())
    raise EngineError("no free subnet was found")


def _chain_key(ctx: Context, session: str) -> bytes:
    """The session's chain key: made once, and the same one when opening is tried again."""
    try:
        return ctx.store.sessions.load_chain_key(session)
    except AgentContainerError:
        return ctx.entropy(CHAIN_KEY_BYTES)


def make_decoys(ctx: Context, resolved: Resolved) -> Decoys:
    """A placeholder for each credential that the project may use, of the form that the real one has."""
    sealed: list[SealedCredential] = []
    entries: list[bytes] = []
    for granted in resolved.granted:
        body = ctx.store.credentials.load(granted.name)
        if body is None:
            raise UsageError(
                f"credential {granted.name} is gone", hint=f"agent-container credential set {granted.name}"
            )
        decoy = make_decoy(granted.kind, ctx.entropy(32))
        secret = secret_of(ctx, parse_credential(body, name=granted.name)).reveal()
        sealed.append(SealedCredential(name=granted.name, decoy=decoy, secret=secret))
        entries.append(body)
    variables = _variables(resolved, {one.name: one.decoy for one in sealed})
    return Decoys(environment=variables, credentials=tuple(sealed), entries=tuple(entries))


def _variables(resolved: Resolved, decoys: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What the sandbox's environment has of its credentials; git's settings only where the spec has none of its own."""
    own = "GIT_CONFIG_COUNT" in resolved.spec.env
    found = sandbox_variables(resolved.granted, decoys)
    return tuple(row for row in found if not (own and row[0].startswith("GIT_CONFIG_")))


def _catch_up(ctx: Context, state: SessionState, decoys: Decoys) -> None:
    """Hands over what was rotated while the sandbox came up: whoever rotated it saw no live session to tell."""
    for given, entry in zip(decoys.credentials, decoys.entries, strict=True):
        name = given.name
        ctx.store.used.note(name, at=ctx.now(), session=state.id)
        # Under the lock of a rotation: the one that comes next tells this sandbox after us, never before.
        with ctx.store.lock(f"credential-{name}", what=f"credential {name}", doing="handing it over", wait_s=WAIT_S):
            body = ctx.store.credentials.load(name)
            if body == entry:
                continue
            secret = None if body is None else secret_of(ctx, parse_credential(body, name=name)).reveal()
            if secret != given.secret:
                SidecarControl(ctx.engine, state.container("egress") or "").rotate(name, secret)


def _catch_up_keys(ctx: Context, state: SessionState, given: SshKeys | None) -> None:
    """The same for the project's ssh keys and pins."""
    now = to_hand_over(load_ring(ctx, state.project_id)) if given is not None else None
    if now is not None and now != given:
        SidecarControl(ctx.engine, state.container("egress") or "").put_ssh(now)


def _ssh_keys(ctx: Context, resolved: Resolved) -> SshKeys | None:
    """The project's key for its gateway; what is still missing to use it is said."""
    if not resolved.spec.ssh_key:
        return None
    ring = ensure_key(ctx, resolved.project)
    for place in unpinned(ring, tuple((row.host, row.port) for row in resolved.policy.git)):
        host = place.removesuffix(":22")
        ctx.report(f"Note: no host key of {host} is pinned yet: agent-container ssh-key pin {host} --scan")
    return to_hand_over(ring)


def stored_fingerprints(ctx: Context, resolved: Resolved) -> tuple[Fingerprint, ...]:
    """What the body scanner is told of the store's other secrets; one that cannot be read is not looked for."""
    if not scans(resolved.policy):
        return ()
    key = ctx.entropy(KEY_BYTES)
    mine = {granted.name for granted in resolved.granted}
    found = []
    for name in ctx.store.credentials.names():
        with contextlib.suppress(AgentContainerError):
            body = ctx.store.credentials.load(name) if name not in mine else None
            if body is not None:
                secret = parse_credential(body, name=name).secret
                # A reference is followed for who may use it, not for everybody who must not.
                if secret is not None:
                    found.append(fingerprint(secret.reveal(), name=name, role="stored", key=key))
    return tuple(row for row in found if row is not None)


def plan_session_workspace(ctx: Context, resolved: Resolved, session: str) -> WorkspacePlan:
    """How the project reaches the agent, and what the agent cannot change of it. Raises UsageError."""
    return plan_workspace(
        resolved.facts,
        mode=resolved.mode,
        host=host_paths(ctx),
        user=resolved.user,
        directory=ctx.store.sessions.rendered_dir(session).parent / "mounts",
        protect=resolved.spec.workspace.protect,
        hide=resolved.spec.workspace.hide,
    )


def host_paths(ctx: Context) -> HostPaths:
    """What a sandbox never sees of this host."""
    roots = default_roots(ctx.environ)
    return HostPaths(home=Path(ctx.environ.get("HOME") or "/"), stores=(roots.data, roots.state, roots.config))


def _preparation(
    ctx: Context, start: Start, stack: Stack, state: SessionState, plan: WorkspacePlan
) -> Callable[[], WorkspaceUse]:
    resolved = start.resolved
    names = {volume.key: volume.name for volume in stack.volumes}

    kept = _kept_workspace(ctx, start, plan)

    def prepare() -> WorkspaceUse:
        within = throwaway(ctx.engine, ctx.store, session=state.id, project=state.project_id, image=stack.agent.image)
        if start.resumed is not None and start.resumed.home is not None:
            restore_home(within, start.resumed.home, volume=names["home"], user=resolved.user)
        if kept is not None and plan.mode == "clone":
            return kept.model_copy(update={"user": resolved.user, "hide": plan.hide, "protect": plan.protect})
        readied = prepare_workspace(
            within,
            resolved.facts,
            plan,
            names=names,
            run=start.session,
            committed=start.committed,
            earlier=start.resumed.work if start.resumed else None,
            user_git=read_user_git(ctx.environ, home=Path(ctx.environ.get("HOME") or "/")),
        )
        for warning in readied.warnings:
            ctx.report(f"Note: {warning}")
        before = protected_state(resolved.project.root, plan.protect, covered=plan.covered)
        # A private git directory that was there before is brought up to date; the work in it began where it began.
        prepared = kept if kept is not None else readied.prepared
        return WorkspaceUse(
            mode=plan.mode,
            user=resolved.user,
            mounts=tuple(MountUse(kind=m.kind, source=m.source, target=m.target) for m in plan.named(names)),
            git_dir=plan.git_dir,
            hide=plan.hide,
            protect=plan.protect,
            covered=plan.covered,
            protected=tuple(sorted(before.items())) if plan.mode == "bind" else (),
            base=prepared.base if prepared else None,
            head=prepared.head if prepared else None,
            carried=prepared.carried if prepared else False,
        )

    return prepare


def _kept_workspace(ctx: Context, start: Start, plan: WorkspacePlan) -> WorkspaceUse | None:
    """How the project's last standing environment used the volumes that are still there; None when they are new.

    Volumes that no session has recorded as filled are removed: no agent has ever seen them.
    """
    if start.kind != "up" or not plan.volumes:
        return None
    project = start.resolved.project.id
    names = [f"ac-{project}-{key}" for key in plan.volumes]
    there = ctx.engine.volume_sessions(names)
    for state in reversed(ctx.store.sessions.list(project, closed=True)):
        use = state.workspace
        if state.kind == "up" and use is not None and use.base is not None and use.mode == plan.mode:
            if not set(names) <= set(there):
                return None
            ctx.report(f"Kept the workspace of session {state.id}")
            return use
    for name, session in there.items():
        _check_unfilled(ctx, name, session)
    ctx.engine.remove_volumes(list(there))
    return None


def _check_unfilled(ctx: Context, volume: str, session: str) -> None:
    """Raises UsageError unless the store knows that no agent has ever seen the volume."""
    try:
        unfilled = ctx.store.sessions.load(session).workspace is None
    except AgentContainerError:
        unfilled = False
    if not unfilled:
        raise UsageError(
            f"the volume {volume} holds a workspace that this store knows nothing of",
            details=("work may be in it, so it is neither used nor removed",),
            hint=f"look at it, then: docker volume rm {volume}",
        )


def _state(ctx: Context, start: Start, stack: Stack, decoys: Decoys) -> SessionState:
    resolved = start.resolved
    limits = resolved.spec.limits
    images = ctx.engine
    return SessionState(
        id=start.session,
        project_id=resolved.project.id,
        project_root=str(resolved.project.root),
        project_name=resolved.spec.name,
        kind=start.kind,
        created=ctx.now(),
        owner_pid=os.getpid(),
        phase=Phase.CREATED,
        stack_digest=comparable(stack).digest,
        frame_digest=frame(stack).digest,
        spec_digest=resolved.grants.digest,
        compose_project=stack.compose_project,
        volumes=tuple(volume.name for volume in stack.volumes if not volume.keep),
        images=(
            ("egress", images.image_id(stack.egress.image) or ""),
            ("agent", images.image_id(stack.agent.image) or ""),
        ),
        agent=resolved.profile.name,
        task=start.task,
        labels=start.labels,
        limits=SessionLimits(
            time_s=limits.time_s,
            idle_s=limits.idle_s,
            model_requests=limits.model_requests,
            model_bytes=limits.model_bytes,
            cost_usd=limits.cost_usd,
            turns=limits.turns,
        ),
        model_hosts=tuple(sorted(resolved.model_limits.hosts)),
        decoys=tuple((c.name, c.decoy) for c in decoys.credentials),
        previous=start.previous,
        resumes=start.resumed.run if start.resumed else None,
    )


def close_failed(
    ctx: Context, resolved: Resolved, session: str, *, error: BaseException, interrupted: bool
) -> Closed | None:
    """Closes a session whose sandbox did not come up, so that nothing is left half up. Its record says why."""
    try:
        state = ctx.store.sessions.load(session)
    except AgentContainerError:
        return None  # it failed before anything was made
    outcome = Outcome.INTERRUPTED if interrupted else Outcome.NEVER_STARTED
    words = "; ".join([str(error), *getattr(error, "details", ())[:3]]) or "interrupted while the sandbox came up"
    closing = Closing(state=state, end=TurnEnd(outcome, words), profile=resolved.profile, ended=ctx.now())
    return close_run(ctx.engine, ctx.store, closing, report=ctx.report)
