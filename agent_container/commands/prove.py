"""`prove`: the escape battery in a live sandbox, from a twin of the agent's container and from the host's view, and a
signed account of what was seen. It changes nothing in the sandbox; its refusals stand in the receipts like anyone's."""

from __future__ import annotations

import base64
import json
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_container import __version__
from agent_container.commands.context import Context
from agent_container.commands.credential_sources import secret_of
from agent_container.commands.egress_log import Receipt, Wanted, read_log, sequence
from agent_container.commands.resolve import load_credentials
from agent_container.commands.sandboxes import Sandbox, sandbox_named
from agent_container.engine.posture import hardening_faults
from agent_container.engine.protocol import ContainerState
from agent_container.errors import AgentContainerError, NotRunning
from agent_container.sandbox.proving import Tried, killed, neighbours, probe_twin
from agent_container.stack import LABEL
from agent_container.stack_sidecar import CAPABILITIES
from agent_egress.attempts_outward import AIMED_AT, DISCARD, REFUSED_HOST
from agent_egress.attempts_proxy import PORTS, PROXIED
from agent_egress.policy import Policy, decide_name
from agent_egress.prober import Facts

RECEIPTS_WAIT_S = 12.0
"""An idle sidecar looks at the kernel's counts every few seconds."""
LAST = 5000
MIN_SECRET = 8


@dataclass(frozen=True)
class Seen:
    """One thing that was tried or looked at."""

    view: str
    """`sandbox`: tried from a twin of the agent's container; `host`: looked at from outside."""
    group: str
    name: str
    what: str
    held: bool
    detail: str
    tried: bool = True
    """False for what was left out, which says nothing."""


@dataclass(frozen=True)
class Proof:
    """What `prove` saw."""

    session: str
    held: bool
    tried: int
    rows: tuple[Seen, ...]
    about: tuple[tuple[str, str], ...]
    """What it was seen on: versions, digests."""
    seconds: float
    path: Path | None = None
    """Where the signed account lies."""


def prove(ctx: Context, *, run: str | None) -> Proof:
    """Tries everything and keeps the result, whatever it is. Raises NotRunning, EngineError, SidecarError."""
    began = time.monotonic()
    sandbox = sandbox_named(ctx, run)
    egress, agent = _containers(ctx, sandbox)
    held = sandbox.control.policy()
    status = sandbox.control.status()
    facts = facts_about(egress, held.policy, resolvers=_resolvers(ctx, sandbox))
    before = max(
        (sequence(row) for row in read_log(ctx, run=sandbox.state.id, wanted=Wanted(), last=1, follow=False)), default=0
    )
    near = next((host for host in facts.neighbours if host not in facts.kills), None)
    ctx.report("Looked at both containers")
    labels = ((f"{LABEL}.session", sandbox.state.id), (f"{LABEL}.project", sandbox.state.project_id))
    tried = probe_twin(
        ctx.engine, agent.id, image=egress.image_id, labels=(*labels, (f"{LABEL}.role", "twin")), facts=facts
    )
    ctx.report(f"Tried {sum(one.tried for one in tried)} ways out, from a twin of the agent's container")
    rows = (
        *(_tried(one) for one in tried),
        *_host_rows(ctx, sandbox, egress, agent, status),
        *_receipt_rows(ctx, sandbox, after=before, near=near),
    )
    proof = Proof(
        session=sandbox.state.id,
        held=all(row.held for row in rows),
        tried=sum(one.tried for one in tried),
        rows=rows,
        about=(
            ("version", __version__),
            ("kernel", platform.release()),
            ("engine", ctx.engine.ping()),
            ("sidecar image", egress.image_id),
            ("agent image", agent.image_id),
            ("rules", str(status.get("ruleset_digest", ""))),
            ("policy", held.digest),
        ),
        seconds=round(time.monotonic() - began, 1),
    )
    return _kept(ctx, proof)


def _kept(ctx: Context, proof: Proof) -> Proof:
    at = ctx.now()
    document: dict[str, object] = {"at": at.isoformat(timespec="seconds"), **asdict(proof)}
    document.pop("path")
    path = ctx.store.proofs.save(proof.session, name=f"{at:%Y%m%d-%H%M%S}", document=document)
    return Proof(**{**{name: getattr(proof, name) for name in proof.__dataclass_fields__}, "path": path})


def _containers(ctx: Context, sandbox: Sandbox) -> tuple[ContainerState, ContainerState]:
    found = [ctx.engine.inspect(sandbox.state.container(role) or "") for role in ("egress", "agent")]
    egress, agent = found
    if egress is None or agent is None or agent.status != "running":
        raise NotRunning("the sandbox is not running as a whole", hint="agent-container up")
    return egress, agent


def _resolvers(ctx: Context, sandbox: Sandbox) -> tuple[str, ...]:
    """The resolvers that the sidecar was rendered with."""
    document = json.loads((ctx.store.sessions.rendered_dir(sandbox.state.id) / "session.json").read_bytes())
    return tuple(map(str, document["resolvers"]))


def facts_about(egress: ContainerState, policy: Policy, *, resolvers: tuple[str, ...]) -> Facts:
    """What the battery must know of a sandbox: where to aim, and what its user's own rules are over."""
    networks: Mapping[str, Any] = _section(egress.raw, "NetworkSettings").get("Networks") or {}
    gateways = tuple(str(row["Gateway"]) for row in networks.values() if row.get("Gateway"))
    near = neighbours(egress.raw)
    out = tuple(
        host for host in (*PROXIED, *gateways) if any(decide_name(policy, host, port).allowed for port in PORTS)
    )
    return Facts(
        resolvers=resolvers,
        gateways=gateways,
        neighbours=near,
        kills=killed(policy, (*AIMED_AT, *PROXIED, *gateways, *near, *resolvers)),
        leave_out=out,
    )


def _tried(one: Tried) -> Seen:
    return Seen("sandbox", one.group, one.name, one.what, one.held, one.detail, one.tried)


def _host_rows(
    ctx: Context, sandbox: Sandbox, egress: ContainerState, agent: ContainerState, status: Mapping[str, object]
) -> Iterator[Seen]:
    def row(name: str, what: str, faults: list[str]) -> Seen:
        return Seen("host", "containers", name, what, not faults, "; ".join(faults[:3]))

    recorded = dict(sandbox.state.images)
    images = [
        f"the {role} container runs another image than recorded"
        for role, state in (("egress", egress), ("agent", agent))
        if recorded.get(role) != state.image_id
    ]
    yield row("images", "both containers run the images that were recorded at their start", images)
    yield row(
        "sidecar_held",
        "the sidecar has its few capabilities and no more, a read-only root, no way to more",
        hardening_faults(egress.raw, cap_add=CAPABILITIES, network_mode=None),
    )
    yield row(
        "agent_held",
        "the agent's container has no capability, no network of its own, a read-only root",
        hardening_faults(agent.raw, cap_add=(), network_mode=f"container:{egress.id}"),
    )
    stale = ["the sidecar was started after the agent"] if egress.started_at > agent.started_at else []
    yield row("order", "the rules were there before the agent", stale)
    others = [name for name in ctx.engine.joined(egress.id) if name != agent.name]
    yield row("alone", "nobody else lives in their network namespace", [f"{name} does" for name in others])
    wrong = [f"{part}: {words}" for part, words in _section(status, "wrong").items()]
    if status.get("healthy") is not True:
        wrong.append(f"its state is {status.get('state')}")
    yield row("healthy", "the sidecar's parts answer, and its rules are those that were loaded", wrong)
    yield Seen(
        "host",
        "credential",
        "no_secret",
        "no stored secret in what the engine or the rendered files show",
        *_no_secret(ctx, sandbox, egress, agent),
    )


def _no_secret(ctx: Context, sandbox: Sandbox, *states: ContainerState) -> tuple[bool, str]:
    shown = [repr(state.raw).encode() for state in states]
    directory = ctx.store.sessions.rendered_dir(sandbox.state.id).parent
    shown += [path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    count = 0
    unread = []
    given = dict(sandbox.state.decoys)
    for credential in load_credentials(ctx):
        if credential.secret is None and credential.name not in given:
            continue  # what a reference leads to is fetched for who was given it
        try:
            secret = secret_of(ctx, credential).reveal()
        except AgentContainerError:
            unread.append(credential.name)
            continue
        if len(secret) < MIN_SECRET:
            continue
        count += 1
        if any(
            form in text for form in (secret, base64.b64encode(secret)[:-4], secret.hex().encode()) for text in shown
        ):
            return False, f"that of {credential.name} stands there"
    left = f"; not that of {', '.join(unread)}, which could not be fetched" if unread else ""
    return True, f"{count} secrets looked for{left}"


def _receipt_rows(ctx: Context, sandbox: Sandbox, *, after: int, near: str | None) -> Iterator[Seen]:
    """What was refused must stand in the receipts: a packet that left unseen would be missing here. `near` is an
    address to which there is a way; None where contact with each of them ends the session."""
    wanted: dict[str, tuple[str, tuple[object, ...]]] = {
        "seen_request": ("the refused request has its receipt", ("decision", REFUSED_HOST, "deny", 80)),
        "seen_lookup": ("the refused lookup has its receipt", ("lookup", REFUSED_HOST, "deny", None)),
    }
    for name, proto, port in (("tcp", "tcp", DISCARD), ("udp", "udp", DISCARD), ("quic", "udp", 443)) if near else ():
        words = f"the kernel counted the {name.upper()} packet that it refused"
        wanted[f"seen_{name}"] = (words, ("drop", near, proto, port))
    until = time.monotonic() + RECEIPTS_WAIT_S
    while True:
        rows = read_log(ctx, run=sandbox.state.id, wanted=Wanted(), last=LAST, follow=False)
        found = {_key(receipt) for receipt in rows if sequence(receipt) > after}
        missing = {name for name, (_, key) in wanted.items() if key not in found}
        if not missing or time.monotonic() > until:
            break
        time.sleep(0.5)
    for name, (what, _) in wanted.items():
        yield Seen("host", "receipts", name, what, name not in missing, "there is none" if name in missing else "")


def _key(receipt: Receipt) -> tuple[object, ...]:
    kind = receipt.get("kind")
    if kind == "drop":
        return kind, receipt.get("address"), receipt.get("proto"), receipt.get("port")
    return kind, receipt.get("host") or receipt.get("name"), receipt.get("action"), receipt.get("port")


def _section(document: Mapping[str, object], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}
