"""Opens a session's sandbox in the one order that is safe, and writes down each step before it is taken.

 1. The session is saved, its chain key sealed: whatever exists from here on has a name in the store.
 2. Compose makes both containers and starts neither; their ids are saved, and secrets will go to these ids alone.
 3. The engine's own account of both is checked against the Stack.
 4. The sidecar starts, loads its rules, gets the chain key and answers when it is healthy. Meanwhile the workspace is
    prepared in a throw-away container without a network, and the core of the escape battery is tried for real.
 5. Deadline and credentials are put; only then does the agent's container start, with an idle runner.

A failure anywhere starts nothing further; the caller closes what is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent_container.engine.docker import COMPOSE_FILE
from agent_container.engine.posture import check_container
from agent_container.engine.protocol import ContainerState, Created, Engine, Report
from agent_container.errors import EngineError, SidecarError
from agent_container.render.compose import FILES_TARGET, render_compose
from agent_container.sandbox.control import Ready, SealedCredential, SidecarControl, SshKeys
from agent_container.sandbox.proving import probe_core
from agent_container.session import Phase, SessionState, WorkspaceUse
from agent_container.stack import Container, Mount, Stack
from agent_container.store import Store
from agent_egress.fingerprints import Fingerprint
from agent_egress.policy import Policy

OPEN_WAIT_S = 60.0
"""A part that ends while it starts is told at once; only a busy machine needs so long."""
ENDING_WAIT_S = 5.0
ROLES = ("egress", "agent")


@dataclass(frozen=True)
class Opening:
    """All that is needed to open a sandbox; nothing of it is decided here."""

    stack: Stack
    state: SessionState
    chain_key: bytes
    credentials: tuple[SealedCredential, ...]
    policy: Policy
    """The one that the sidecar starts with."""
    stored: tuple[Fingerprint, ...]
    """Of secrets that this session does not get: the body scanner looks for them."""
    prepare: Callable[[], WorkspaceUse]
    """Fills the workspace; runs while the sidecar starts, and has ended before the agent's container does."""
    deadline_s: float | None
    ssh: SshKeys | None = None
    """For the git gateway, where there is one."""


@dataclass(frozen=True)
class Opened:
    """A sandbox whose agent's container runs, idle."""

    state: SessionState
    ready: Ready
    posture: tuple[str, ...]
    """Names of the checks that were made."""


def open_sandbox(engine: Engine, store: Store, opening: Opening, *, report: Report) -> Opened:
    """Opens it. Raises EngineError or SidecarError naming what failed; the caller then closes the session."""
    stack = opening.stack
    state = store.sessions.save(opening.state)
    store.sessions.save_chain_key(state.id, opening.chain_key)
    directory = write_stack(store, stack)
    created = engine.create(stack, directory=directory)
    state = store.sessions.save(state.updated(containers=(("egress", created.egress), ("agent", created.agent))))
    checked = _check_both(engine, stack, created, files_dir=str(directory / "etc"))
    report("Created the sandbox")
    with ThreadPoolExecutor(max_workers=1) as pool:
        preparing = pool.submit(opening.prepare)
        ready = _start_sidecar(engine, created.egress, opening)
        state = store.sessions.save(state.updated(phase=Phase.OPENED, policy_digest=ready.policy_digest))
        report("Started the egress sidecar; its rules are loaded and verified")
        tried = probe_core(engine, created.egress, user=stack.agent.user, policy=opening.policy)
        report(f"Tried {len(tried)} ways out; none is open")
        state = store.sessions.save(state.updated(workspace=preparing.result()))
    SidecarControl(engine, created.egress).make_ready(
        core=len(tried),
        deadline_s=opening.deadline_s,
        credentials=opening.credentials,
        stored=opening.stored,
        ssh=opening.ssh,
    )
    engine.start(created.agent)
    _check_joined(engine, created)
    return Opened(state=state, ready=ready, posture=(*checked, *(f"core {one.name}" for one in tried)))


def write_stack(store: Store, stack: Stack) -> Path:
    """The session's rendered files on disk: compose.yaml and, in etc/, what the sidecar reads."""
    etc = store.sessions.save_rendered(stack.session, dict(stack.files))
    directory = etc.parent
    store.writer.write(directory / COMPOSE_FILE, render_compose(stack, files_dir=str(etc)).encode())
    return directory


def _start_sidecar(engine: Engine, container: str, opening: Opening) -> Ready:
    engine.start(container)
    try:
        return SidecarControl(engine, container).open_session(
            session=opening.state.id, chain_key=opening.chain_key, wait_s=OPEN_WAIT_S
        )
    except EngineError as error:
        if isinstance(error, SidecarError) and error.part != "control":
            raise  # in its own words
        state = _ended(engine, container)
        if state is not None and state.status == "running":
            raise
        words = engine.tail(container, lines=12)
        code = state.exit_code if state is not None else None
        part = next((p for p in ("nftables", "unbound", "squid", "audit", "policy", "dns") if p in " ".join(words)), "")
        raise SidecarError(
            f"the egress sidecar ended with status {code} before it was healthy" + (f": {part}" if part else ""),
            part=part or getattr(error, "part", "supervisor"),
            details=words,
        ) from None


def _ended(engine: Engine, container: str) -> ContainerState | None:
    """Waits a moment for the end of a sidecar that gave no answer: it may be about to say why."""
    until = time.monotonic() + ENDING_WAIT_S
    while (state := engine.inspect(container)) is not None and state.status == "running":
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    return state


def _check_both(engine: Engine, stack: Stack, created: Created, *, files_dir: str) -> tuple[str, ...]:
    """The posture between create and start, from the engine's own inspect document."""
    faults: list[str] = []
    names = {volume.key: volume.name for volume in stack.volumes}
    for container, id_, network in (
        (stack.egress, created.egress, None),
        (stack.agent, created.agent, f"container:{created.egress}"),
    ):
        state = _must_exist(engine, id_)
        extra = (Mount(kind="bind", source=files_dir, target=FILES_TARGET, read_only=True),)
        mounts = [
            Mount(kind=m.kind, source=names.get(m.source, m.source), target=m.target, read_only=m.read_only)
            if m.kind == "volume"
            else m
            for m in (*container.mounts, *(extra if network is None else ()))
        ]
        found = check_container(
            state.raw, container, image_id=_image_id(engine, container), mounts=mounts, network_mode=network
        )
        faults += [f"{container.service}: {fault}" for fault in found]
    if faults:
        raise EngineError(
            "the engine made a container that is not what was asked for; nothing was started",
            details=faults,
            hint="look for defaults in the Docker daemon's configuration (daemon.json) or in the base image",
        )
    return tuple(f"{role} container as asked" for role in ROLES)


def _image_id(engine: Engine, container: Container) -> str:
    image = engine.image_id(container.image)
    if image is None:
        raise EngineError(f"image {container.image} is gone", hint="agent-container build")
    return image


def _check_joined(engine: Engine, created: Created) -> None:
    """The agent runs in the very namespace whose rules were verified: the sidecar was not replaced in between."""
    egress, agent = _must_exist(engine, created.egress), _must_exist(engine, created.agent)
    if agent.status != "running":
        raise EngineError(
            f"the agent's container ended at once with status {agent.exit_code}",
            details=engine.tail(created.agent, lines=12),
        )
    if egress.status != "running" or egress.started_at > agent.started_at:
        raise SidecarError("the egress sidecar was replaced while the agent started", part="supervisor")


def _must_exist(engine: Engine, container: str) -> ContainerState:
    state = engine.inspect(container)
    if state is None:
        raise EngineError(f"container {container[:12]} is gone: something else removed it")
    return state
