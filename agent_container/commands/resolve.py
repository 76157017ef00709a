"""From a directory to everything that its sandbox would be: spec, agent, user, policy. Reads; changes nothing.

Every verb that works on a project begins here, so that `plan`, `up` and `run` can never disagree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from agent_container.agents import PROFILES, AgentProfile, HomeFile, profile_of
from agent_container.commands.context import Context
from agent_container.credential_kinds import KINDS
from agent_container.credentials import Binding, Credential, narrow, parse_credential
from agent_container.errors import ApprovalNeeded, CredentialMissing, SpecError, UsageError
from agent_container.git_remote import ssh_remote
from agent_container.image_plan import DEFAULT_BASE, choose_uid
from agent_container.project import SPEC_NAME, Project, find_project, read_spec
from agent_container.settings import host_addresses, host_resolvers
from agent_container.spec import KNOWN_AGENTS, KnownAgent, ProjectSpec, default_spec, load_spec
from agent_container.stack_policy import GrantedCredential, effective_policy, granted_credentials
from agent_container.trust import Grants, check, grants_of, parse_grants
from agent_container.workspace.protected import one_state
from agent_container.workspace.tree import TreeFacts, inspect_tree
from agent_egress.budget import ModelLimits
from agent_egress.identity import DAEMON_UIDS
from agent_egress.policy import Policy
from agent_egress.repositories import DEFAULT_PUSH

NEAR_NAMES = ("agent-container.yml", ".agent-container.yaml", ".agent-container.yml")
UNUSABLE_GIDS = frozenset({0, *DAEMON_UIDS})

Mode = Literal["bind", "clone"]


@dataclass(frozen=True)
class Resolved:
    """A project resolved against this host."""

    project: Project
    spec: ProjectSpec
    profile: AgentProfile
    mode: Mode
    facts: TreeFacts
    uid: int
    gid: int
    grants: Grants
    granted: tuple[GrantedCredential, ...]
    policy: Policy
    resolvers: tuple[str, ...]
    upstream_ca: str
    """`public`, or PEM text of more roots."""

    @property
    def user(self) -> str:
        """The agent's `uid:gid`."""
        return f"{self.uid}:{self.gid}"

    @property
    def model_limits(self) -> ModelLimits:
        """What the sidecar counts of the model service."""
        limits = self.spec.limits
        keys = _model_keys(self.granted)
        return ModelLimits(
            credentials=frozenset(granted.name for granted in keys),
            hosts=frozenset(host for granted in keys for host in granted.binding.hosts),
            requests=limits.model_requests or 0,
            bytes=limits.model_bytes or 0,
        )

    def home_files(self, decoys: Iterable[tuple[str, str]]) -> tuple[HomeFile, ...]:
        """What the agent must find in its HOME; `decoys` are (credential, placeholder)."""
        kinds = {granted.name: granted.kind for granted in self.granted}
        return self.profile.home({kinds[name]: decoy for name, decoy in decoys if name in kinds})


def resolve(
    ctx: Context,
    *,
    verb: Literal["up", "run"],
    agent: str | None = None,
    mode: str | None = None,
    model: str | None = None,
) -> Resolved:
    """Reads and resolves; `model` stands in for the spec's. Raises SpecError or UsageError with all that is wrong."""
    project = find_project(ctx.directory, ctx.spec_path)
    spec = read_project_spec(project, agent=agent)
    profile = profile_of(spec)
    facts = inspect_tree(project.root, home=Path(ctx.environ.get("HOME") or "/"))
    chosen = cast("Mode", mode or spec.workspace.mode or ("bind" if verb == "up" else "clone"))
    if chosen == "bind" and facts.owner_uid == 0 and not (mode or spec.workspace.mode):
        chosen = "clone"  # nobody asked to bind, and the agent, which is never root, could not write there
    uid = _choose_uid(facts, chosen)
    granted = _granted(ctx, spec, profile, model=model)
    _check_limits(spec, profile, granted)
    policy = effective_policy(
        spec,
        agent_hosts=profile.hosts,
        credentials=granted,
        host_addresses=host_addresses(),
        own_remote=ssh_remote(project.repository),
    )
    resolvers = ctx.settings.resolvers or host_resolvers()
    if not resolvers:
        raise UsageError(
            "this host has no resolver that a container could ask",
            details=("/etc/resolv.conf names none but loopback addresses",),
            hint="name one: `resolvers: [ADDRESS]` in the configuration file",
        )
    return Resolved(
        project=project,
        spec=spec,
        profile=profile,
        mode=chosen,
        facts=facts,
        uid=uid,
        gid=facts.owner_gid if chosen == "bind" and facts.owner_gid not in UNUSABLE_GIDS else uid,
        grants=asked_grants(ctx, project, spec, profile),
        granted=granted,
        policy=policy,
        resolvers=tuple(resolvers),
        upstream_ca=_upstream_ca(ctx.settings.upstream_ca),
    )


def _model_keys(granted: Iterable[GrantedCredential]) -> tuple[GrantedCredential, ...]:
    return tuple(one for one in granted if KINDS[one.kind].model)


def _check_limits(spec: ProjectSpec, profile: AgentProfile, granted: Iterable[GrantedCredential]) -> None:
    """A limit that nobody could hold is refused, not forgotten. Raises: SpecError."""
    limits = spec.limits
    asked = [key for key in ("model_requests", "model_bytes") if getattr(limits, key) is not None]
    if asked and not _model_keys(granted):
        raise SpecError(
            f"limits.{asked[0]}: {spec.agent_name} uses no key of a model service, so there is nothing to count",
            details=(f"counted: requests that carry a credential of {', '.join(k for k in KINDS if KINDS[k].model)}",),
        )
    if limits.cost_usd is not None and not profile.reports_cost:
        raise SpecError(
            f"limits.cost_usd: {spec.agent_name} does not say what it costs, so the limit could not hold",
            hint="limit what can be counted: model_requests, model_bytes, turns, time",
        )


def _granted(
    ctx: Context, spec: ProjectSpec, profile: AgentProfile, *, model: str | None
) -> tuple[GrantedCredential, ...]:
    implied = profile.credentials(model or spec.model)
    try:
        return granted_credentials(spec, load_credentials(ctx), implied=implied)
    except CredentialMissing as missing:
        offers = [
            (kind, variable) for kind in missing.kinds for variable in KINDS[kind].env if ctx.environ.get(variable)
        ]
        if not offers:
            raise
        kind, variable = offers[0]
        raise CredentialMissing(
            missing.message,
            kinds=missing.kinds,
            offers=offers,
            hint=f"agent-container credential set {kind} --from-env {variable}",
        ) from None


def read_project_spec(project: Project, *, agent: str | None = None) -> ProjectSpec:
    """The project's spec, or the defaults where there is none. `agent` stands in for a missing spec alone."""
    if project.spec_path is None:
        if agent is None:
            raise _no_spec(project)
        if agent not in KNOWN_AGENTS:
            raise UsageError(f"no agent is called {agent}", details=(f"this version runs: {', '.join(PROFILES)}",))
        return default_spec(default_name=project.name, agent=cast("KnownAgent", agent))
    spec = load_spec(read_spec(project.spec_path), path=project.spec_path, default_name=project.name)
    if agent is not None and agent != spec.agent_name:
        raise UsageError(
            f"the spec names agent {spec.agent_name}, --agent says {agent}",
            hint=f"change `agent:` in {project.spec_path}, or leave --agent out",
        )
    return spec


def _no_spec(project: Project) -> UsageError:
    """There is no spec, and the default agent is not one that this version runs."""
    near = next((name for name in NEAR_NAMES if (project.root / name).exists()), None)
    return UsageError(
        f"there is no {SPEC_NAME} in {project.root} or above it, and no --agent",
        details=(f"{near} is there: did you mean it?",) if near else (),
        hint=f"mv {near} {SPEC_NAME}"
        if near
        else f"write one (`agent: claude`), or add --agent with one of {known_agents()}",
    )


def load_credentials(ctx: Context) -> list[Credential]:
    """Every credential of the store, opened; none where there is nothing sealed."""
    found = []
    for name in ctx.store.credentials.names():
        body = ctx.store.credentials.load(name)
        if body is not None:
            found.append(parse_credential(body, name=name))
    return found


def asked_grants(ctx: Context, project: Project, spec: ProjectSpec, profile: AgentProfile) -> Grants:
    """What the spec asks for, the image's digest and the agent's own hosts included."""
    digests, also = grant_sources(ctx, project, spec, profile)
    return grants_of(spec, image_digests=digests, also=also)


def grant_sources(
    ctx: Context, project: Project, spec: ProjectSpec, profile: AgentProfile
) -> tuple[dict[str, str], list[str]]:
    """What is asked for besides the spec's own words, as it is at this moment: what its image resolves to, and lines
    of text."""
    base = spec.image.base
    digests = {}
    if base != DEFAULT_BASE and "@" not in base:
        image = ctx.engine.image_id(base)
        if image is not None:
            digests[base] = image
    also = [f"agent host {host}" for host in profile.hosts]
    if spec.git is None and (own := ssh_remote(project.repository)) is not None and spec.ssh_key:
        # Whoever writes the repository's configuration chooses it.
        also.append(f"git fetch {own.text}")
        also += [f"git push {own.text} {ref}" for ref in DEFAULT_PUSH]
    for use in spec.credentials:
        body = ctx.store.credentials.load(use.name)
        if body is not None:
            also += reach(use.name, narrow(parse_credential(body, name=use.name).binding, use))
    for path, before in ctx.store.touched.load(project.id).items():
        now = one_state(project.root / path)
        if now != before:
            what = "it changed while an agent worked, and tools on this host run or obey it"
            also.append(f"{path} as it is now, {now or 'absent'}: {what}")
    return digests, also


def reach(name: str, binding: Binding) -> list[str]:
    """Where a credential may be used, a line a place: bound wider than it was approved, it is asked for again."""
    return [
        f"credential {name} at {host}:{place.port}: {' '.join(sorted(place.methods))} {' '.join(sorted(place.paths))}"
        for place in binding.places
        for host in sorted(place.hosts)
    ]


def approve(ctx: Context, resolved: Resolved, *, accept: str | None) -> None:
    """Returns when the user has said yes to all that the spec asks for, and keeps that yes.

    Raises ApprovalNeeded with the difference. Nothing was built or changed until then.
    """
    if resolved.project.spec_path is None:
        ctx.report(f"Note: there is no {SPEC_NAME}; the defaults hold, with agent {resolved.spec.agent_name}")
        if accept is None and not ctx.store.touched.load(resolved.project.id):
            return  # the user's own words on the command line are all that asks for anything
    body = ctx.store.approvals.load(resolved.project.id)
    approved = parse_grants(body) if body is not None else None
    check(approved, resolved.grants, accept)
    ctx.store.touched.clear(resolved.project.id)
    if approved != resolved.grants:
        ctx.store.approvals.save(resolved.project.id, resolved.grants.encode())


def approval_lines(ctx: Context, resolved: Resolved) -> Sequence[str]:
    """What a yes is missing for, as `plan` shows it; one line when nothing is."""
    if resolved.project.spec_path is None and not ctx.store.touched.load(resolved.project.id):
        return ("not needed: there is no spec, and the defaults ask for nothing but the agent",)
    body = ctx.store.approvals.load(resolved.project.id)
    try:
        check(parse_grants(body) if body is not None else None, resolved.grants, None)
    except ApprovalNeeded as needed:
        return (needed.message, *needed.diff, f"digest {needed.digest[:12]}")
    return ("approved",)


def _choose_uid(facts: TreeFacts, mode: Mode) -> int:
    try:
        return choose_uid(
            passwd=_text(Path("/etc/passwd")),
            subuid=_text(Path("/etc/subuid")),
            owner=facts.owner_uid if mode == "bind" else None,
        )
    except SpecError as error:
        if mode != "bind":
            raise
        raise UsageError(
            error.message,
            details=(f"{facts.root} belongs to uid {facts.owner_uid}; the agent works as the owner of what it binds",),
            hint="let it work in a clone: add --clone, or `workspace: {mode: clone}`",
        ) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def _upstream_ca(setting: str) -> str:
    """The PEM text behind `upstream_ca`: whom the sidecar believes besides the public roots."""
    if setting == "public":
        return "public"
    paths = SYSTEM_BUNDLES if setting == "system" else (setting,)
    path = next((Path(p) for p in paths if os.access(p, os.R_OK)), None)
    if path is None:
        raise UsageError(
            f"upstream_ca: {paths[0]} cannot be read", hint="correct `upstream_ca` in the configuration file"
        )
    return certificates_of(path.read_text(errors="replace"), origin=str(path))


def certificates_of(text: str, *, origin: str) -> str:
    """The certificates of a PEM file, without the remarks around them. Raises UsageError when there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    parts = [part.split(end)[0] for part in text.split(begin)[1:]]
    if not parts:
        raise UsageError(f"{origin} holds no certificate in PEM form")
    return "".join(f"{begin}{part}{end}\n" for part in parts)


def known_agents() -> str:
    """The agents that this version runs, in words."""
    return ", ".join(PROFILES)
