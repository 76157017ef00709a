"""The policy in force for one sandbox, with the origin of every rule: the spec's, the agent's, a credential's.

Pure. The floors stand in `agent_egress` and hold whatever is planned here; what a user adds while it
is in force is `live_rules`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent_container.credential_kinds import KINDS
from agent_container.credentials import Binding, Credential, narrow
from agent_container.errors import CredentialMissing, SpecError, UsageError
from agent_container.git_remote import GitRemote, parse_remote
from agent_container.spec import CredentialUse, EgressRule, OwnAgent, ProjectSpec
from agent_egress.gateway_policy import decide_git_host
from agent_egress.policy import Policy, PolicyError, Rule, decide_name
from agent_egress.repositories import DEFAULT_PUSH, Repository


@dataclass(frozen=True)
class GrantedCredential:
    """A credential of the store as far as one project may use it."""

    name: str
    kind: str
    binding: Binding


def granted_credentials(
    spec: ProjectSpec, store: Iterable[Credential], *, implied: Sequence[str] = ()
) -> tuple[GrantedCredential, ...]:
    """What the spec names and the agent implies, each narrowed as the spec says.

    `implied` are the kinds of which the agent needs one, the usual one first. It is the one that the spec names; else,
    of the first kind that is stored at all, the one called like the kind or the only one.
    Raises: UsageError naming all that is missing; SpecError for an entry that would widen.
    """
    known = {credential.name: credential for credential in store}
    uses = list(spec.credentials)
    if implied and not any(use.name in known and known[use.name].kind in implied for use in uses):
        stored = {credential.kind for credential in known.values()}
        kind = next((kind for kind in implied if kind in stored), implied[0])
        uses.append(CredentialUse(name=_implied_name(known, kind)))
    missing = [use.name for use in uses if use.name not in known]
    if missing and not any(use.name in missing for use in spec.credentials):
        # The agent's own: its user may hold one already, under a name that every tool of its kind knows.
        raise CredentialMissing(
            f"no credential is stored as {missing[0]}, which {spec.agent_name} needs",
            kinds=implied,
            hint=how_to_set(missing[0]),
        )
    if missing:
        raise UsageError(
            f"no credential is stored as {', '.join(missing)}",
            hint=how_to_set(missing[0]),
        )
    return tuple(
        GrantedCredential(use.name, known[use.name].kind, narrow(known[use.name].binding, use)) for use in uses
    )


def how_to_set(name: str) -> str:
    """The line to type for a credential: one that is not of a known kind has to be told where it may be used."""
    where = "" if name in KINDS else " --host HOST --path '/**' --method GET --env VARIABLE"
    return f"agent-container credential set {name}{where}"


def _implied_name(known: dict[str, Credential], kind: str) -> str:
    if kind in known:
        return kind
    of_kind = [credential.name for credential in known.values() if credential.kind == kind]
    if len(of_kind) > 1:
        names = ", ".join(sorted(of_kind))
        raise UsageError(
            f"several credentials of kind {kind}: {names}", hint="name one under `credentials:` in the spec"
        )
    return of_kind[0] if of_kind else kind


def effective_policy(
    spec: ProjectSpec,
    *,
    agent_hosts: Sequence[str] = (),
    credentials: Sequence[GrantedCredential] = (),
    host_addresses: Sequence[str] = (),
    own_remote: GitRemote | None = None,
) -> Policy:
    """The policy of a sandbox. `agent_hosts` are the profile's; those of an own agent are read from the spec;
    `own_remote` is the project's, where that is one over ssh.

    Raises: SpecError when the sidecar would not take the policy.
    """
    own, profile_hosts = (spec.agent.hosts, ()) if isinstance(spec.agent, OwnAgent) else ((), agent_hosts)
    rules = (
        *_allow(spec, spec.egress.allow, "egress.allow"),
        *_allow(spec, spec.egress.inspect, "egress.inspect", action="inspect"),
        *_refuse(spec, "deny", spec.egress.deny),
        *_refuse(spec, "kill", spec.egress.kill),
        *_allow(spec, own, "agent.hosts"),
        *(Rule("allow", host, origin=f"agent {spec.agent_name}") for host in profile_hosts),
        *(
            Rule("allow", host, ports=(place.port,), origin=f"credential {granted.name}")
            for granted in credentials
            for place in granted.binding.places
            for host in place.hosts
        ),
    )
    policy = Policy(
        rules=rules,
        allow_metadata=spec.egress.allow_metadata,
        host_addresses=tuple(host_addresses),
        credentials=tuple(row for granted in credentials for row in granted.binding.rows(granted.name)),
        tls=spec.egress.tls,
        tripwire=spec.egress.tripwire,
        git=repositories(spec, own_remote),
    )
    try:
        return Policy.parse(policy.encode())
    except PolicyError as error:
        raise SpecError("the egress sidecar would not take this policy", details=error.problems) from None


def repositories(spec: ProjectSpec, own_remote: GitRemote | None) -> tuple[Repository, ...]:
    """What the git gateway may reach: what the spec names, or the project's own remote. None without `ssh_key`."""
    if not spec.ssh_key:
        return ()
    if spec.git is None:
        return () if own_remote is None else (_repository(own_remote, DEFAULT_PUSH, (), "the project's own remote"),)
    return tuple(
        _repository(parse_remote(entry.repo), entry.push, entry.delete, _origin(spec, f"git[{index}]"))
        for index, entry in enumerate(spec.git)
    )


def _repository(remote: GitRemote, push: tuple[str, ...], delete: tuple[str, ...], origin: str) -> Repository:
    return Repository(remote.host, remote.port, remote.user, remote.path, push, delete, origin)


def _allow(spec: ProjectSpec, rules: Sequence[EgressRule], path: str, *, action: str = "allow") -> Iterable[Rule]:
    for index, rule in enumerate(rules):
        tls = rule.tls or "" if action == "allow" else ""
        yield Rule(action, rule.host, rule.ports, rule.addresses, _origin(spec, f"{path}[{index}]"), tls)


def _refuse(spec: ProjectSpec, action: str, patterns: Sequence[str]) -> Iterable[Rule]:
    for index, pattern in enumerate(patterns):
        yield Rule(action, pattern, origin=_origin(spec, f"egress.{action}[{index}]"))


def _origin(spec: ProjectSpec, path: str) -> str:
    line = spec.line_of(path)
    return f"spec {path}" if line is None else f"spec {path} line {line}"


def sandbox_variables(granted: Sequence[GrantedCredential], decoys: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(variable, value) that a sandbox has of its credentials, by their placeholders: those themselves, and for git
    over https a helper that says them when a server asks. Nobody is asked a name and password inside."""
    found = [(variable, decoys[one.name]) for one in granted for variable in one.binding.env]
    helpers = [
        (
            f"credential.https://{host}{'' if place.port == 443 else f':{place.port}'}.helper",
            _git_helper(one.binding.env[0]),
        )
        for one in granted
        for place in one.binding.places
        if place.git and one.binding.env
        for host in place.hosts
    ]
    for index, (key, value) in enumerate(helpers):
        found += [(f"GIT_CONFIG_KEY_{index}", key), (f"GIT_CONFIG_VALUE_{index}", value)]
    if helpers:
        found.append(("GIT_CONFIG_COUNT", str(len(helpers))))
    return tuple(found)


def _authority(host: str, port: int) -> str:
    return host if port == 443 else f"{host}:{port}"


def _git_helper(variable: str) -> str:
    """gitcredentials(7): a shell snippet; `get` alone answers."""
    return f'!f() {{ test "$1" = get && printf \'username=x-access-token\\npassword=%s\\n\' "${variable}"; }}; f'


def contradictions(policy: Policy) -> tuple[str, ...]:
    """Hosts that the agent or a credential needs and another rule closes, in words: said before a run fails by them."""
    found = []
    for rule in policy.rules:
        if not rule.allows or rule.origin.startswith("spec ") or rule.pattern.startswith("*"):
            continue
        decision = decide_name(policy, rule.pattern, rule.ports[0])
        if not decision.allowed:
            found.append(f"{rule.origin} needs {rule.pattern}, which {decision.origin or 'the floor'} closes")
    for row in policy.git:
        reached = decide_git_host(policy, row.host, row.port)
        if not reached.allowed:
            found.append(f"{row.origin} needs {row.host}, which is {reached.reason}")
    return tuple(dict.fromkeys(found))


def how_seen(policy: Policy, rule: Rule) -> str:
    """What is seen of what goes where a rule allows it, in words; empty for a rule that allows nothing."""
    if not rule.allows:
        return ""
    # One of its subdomains stands for all: other rules may say more of some.
    host = rule.pattern.replace("*.", "any.", 1) if rule.network is None else str(rule.network[0])
    decisions = [decide_name(policy, host, port) for port in rule.ports]
    allowed = [decision for decision in decisions if decision.allowed] or decisions
    if not allowed[0].allowed:
        return f"closed by {allowed[0].origin or 'the floor'}"
    if any(decision.scanned for decision in allowed):
        return "injected" if host in policy.bindings else "inspected"
    how = "spliced" if any(decision.action == "splice" for decision in allowed) else "not TLS"
    return f"{how}: bodies not seen by DLP"
