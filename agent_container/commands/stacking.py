"""A resolved project and its images as one session's Stack: names, networks, volumes, files."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from agent_container.commands.context import Context
from agent_container.commands.imaging import Images
from agent_container.commands.resolve import Resolved
from agent_container.engine.protocol import Engine
from agent_container.errors import EngineError
from agent_container.render.sidecar_files import DEFAULT_CREDENTIAL_HEADERS, SidecarConfig, render_sidecar_files
from agent_container.stack import Container, Limits, Network, Stack, Volume
from agent_container.stack_agent import agent_container
from agent_container.stack_sidecar import PROBE_S, STANDING_PROBE_S, sidecar_container
from agent_container.subnets import DEFAULT_POOL, host_routes4, parse_networks4, plan_subnet4, plan_subnet6
from agent_container.workspace.mounts import HostPaths, MountRequest, plan_mounts
from agent_container.workspace.plan import WorkspacePlan
from agent_egress.identity import BOOT_POLICY_FILE
from agent_egress.names import canonical_header
from agent_egress.policy import Policy

Kind = Literal["up", "run"]
POLICY_FILE = Path(BOOT_POLICY_FILE).name


def plan_stack(
    ctx: Context,
    resolved: Resolved,
    images: Images,
    *,
    session: str,
    kind: Kind,
    workspace: WorkspacePlan,
    host: HostPaths,
    decoys: tuple[tuple[str, str], ...],
) -> Stack:
    """The Stack of one session. `decoys` are (variable, placeholder) and no secret."""
    spec, project, settings = resolved.spec, resolved.project, ctx.settings
    git = spec.ssh_key
    compose_project = project.compose_name if kind == "up" else f"{project.compose_name}-{session}"
    headers = (
        *DEFAULT_CREDENTIAL_HEADERS,
        *(place.header for granted in resolved.granted for place in granted.binding.places),
    )
    config = SidecarConfig(
        session=session,
        project=project.id,
        agent_uid=resolved.uid,
        policy=resolved.policy,
        resolvers=resolved.resolvers,
        deadline_s=spec.limits.time_s if kind == "run" else STANDING_DEADLINE_S,
        credential_headers=_distinct(headers),
        ipv6=settings.network.ipv6,
        upstream_ca=resolved.upstream_ca,
        model=resolved.model_limits,
        dlp=spec.egress.dlp,
        git=git,
    )
    memory = spec.memory != "none"
    probe_s = PROBE_S if kind == "run" else STANDING_PROBE_S
    return Stack(
        session=session,
        project=project.id,
        compose_project=compose_project,
        display_name=spec.name,
        egress=sidecar_container(image=images.egress.tag, probe_s=probe_s, git=git),
        agent=agent_container(
            image=images.agent.tag,
            user=resolved.user,
            environment=(*_quiet(resolved), *sorted(spec.env.items()), *decoys),
            workspace=workspace.mounts,
            hidden=workspace.hidden,
            mounts=plan_mounts(
                [MountRequest(m.source, m.target, m.read_only) for m in spec.mounts],
                root=project.root,
                host=host,
            ),
            memory_volume=memory,
            git=git,
            limits=Limits(
                pids=spec.resources.pids,
                memory_bytes=spec.resources.memory_bytes or default_memory_bytes(),
                cpus=spec.resources.cpus,
                swap=True,
            ),
        ),
        network=Network(
            subnet4=None,
            subnet6=plan_subnet6(session) if settings.network.ipv6 else None,
            internal=settings.network.internal,
            join=settings.network.join,
        ),
        volumes=(
            *(
                Volume(key=key, name=f"ac-{session}-{key}")
                for key in ("receipts", "ca", "run", *(("git",) if git else ()))
            ),
            _home(project.id, session, kind),
            *(_workspace(project.id, session, kind, key) for key in workspace.volumes),
            *((_memory(project.id, session, kind, spec.memory),) if memory else ()),
        ),
        files=render_sidecar_files(config),
        placeholders=tuple(name for name, _ in decoys),
    )


def _quiet(resolved: Resolved) -> tuple[tuple[str, str], ...]:
    """The agent's own settings, where the spec does not say otherwise."""
    return tuple((name, value) for name, value in resolved.profile.environment if name not in resolved.spec.env)


def comparable(stack: Stack) -> Stack:
    """The Stack without what differs between two sessions that are otherwise the same: ids, subnet, placeholders, and
    the host's own addresses, which come and go with every network that anybody makes."""
    session = stack.session

    def plain(text: str) -> str:
        return text.replace(session, "SESSION")

    def file(name: str, text: str) -> str:
        return lasting(text.encode()) if name == POLICY_FILE else plain(text)

    def container(value: Container) -> Container:
        environment = tuple((name, "" if name in stack.placeholders else text) for name, text in value.environment)
        return replace(value, environment=environment)

    return replace(
        stack,
        session="",
        compose_project=plain(stack.compose_project),
        egress=container(stack.egress),
        agent=container(stack.agent),
        network=replace(stack.network, subnet4=None, subnet6=None),
        volumes=tuple(replace(volume, name=plain(volume.name)) for volume in stack.volumes),
        files=tuple((name, file(name, text)) for name, text in stack.files),
    )


def frame(stack: Stack) -> Stack:
    """What of a comparable Stack only a new sandbox can change: all but the policy, which its sidecar takes live."""
    plain = comparable(stack)
    return replace(plain, files=tuple((name, "" if name == POLICY_FILE else text) for name, text in plain.files))


def lasting(policy: bytes) -> str:
    """A policy's text without the host's addresses of the moment."""
    return replace(Policy.parse(policy), host_addresses=()).encode().decode()


STANDING_DEADLINE_S = 30 * 24 * 3600
"""A standing environment has no task and no limit of its own; a month is when its CA would expire anyway."""


def with_subnet(stack: Stack, engine: Engine, *, pool: str | None, attempt: int = 0) -> Stack:
    """The Stack with a free subnet. Others may take it in the meantime: callers try again on a refusal."""
    used = [*parse_networks4(engine.subnets()), *host_routes4()]
    wanted = IPv4Network(pool) if pool else DEFAULT_POOL
    subnet = plan_subnet4(wanted, used=used, seed=stack.session, attempt=attempt)
    return replace(stack, network=replace(stack.network, subnet4=subnet))


def is_subnet_clash(error: EngineError) -> bool:
    """Whether the engine refused a network because its range is taken."""
    text = " ".join((error.message, *error.details)).lower()
    return "pool overlaps" in text or "address space" in text or "conflicts with network" in text


def default_memory_bytes() -> int:
    """Half of the host's memory."""
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _home(project: str, session: str, kind: Kind) -> Volume:
    if kind == "up":
        return Volume(key="home", name=f"ac-{project}-home", keep=True)
    return Volume(key="home", name=f"ac-{session}-home")


def _workspace(project: str, session: str, kind: Kind, key: str) -> Volume:
    """A standing environment's clone, or its private git directory, outlives the sandbox: work is in it."""
    if kind == "up":
        return Volume(key=key, name=f"ac-{project}-{key}", keep=True)
    return Volume(key=key, name=f"ac-{session}-{key}")


def _memory(project: str, session: str, kind: Kind, mode: str) -> Volume:
    if mode == "shared" and kind == "up":
        return Volume(key="memory", name=f"ac-{project}-memory", keep=True)
    return Volume(key="memory", name=f"ac-{session}-memory")


def _distinct(headers: tuple[str, ...]) -> tuple[str, ...]:
    """Header names, each once, as the policy spells them."""
    return tuple(dict.fromkeys(canonical_header(header) for header in headers))
