"""`egress explain`: what the policy says of one URL, decided by the sidecar's own evaluator; nothing is sent anywhere,
and no name is resolved."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from agent_container.commands.context import Context
from agent_container.commands.resolve import resolve
from agent_container.commands.sandboxes import sandbox_named
from agent_container.errors import NotRunning, UsageError
from agent_container.live_rules import what_to_type
from agent_egress.names import NameRefused, canonical_host, literal_address
from agent_egress.policy import TLS_PORTS, Binding, Decision, Policy, bindings_for, decide_name, decide_request

_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80, "ssh": 22, "git": 9418}
_BARE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/\s?#]+)(?::(\d{1,5}))?(/\S*)?")


@dataclass(frozen=True)
class Target:
    """What a URL asks for."""

    scheme: str
    """`https`, `http`, or empty for a bare TCP connection."""
    host: str
    port: int
    path: str


@dataclass(frozen=True)
class Explanation:
    """The verdict on one URL and what it rests on."""

    allowed: bool
    host: str
    port: int
    rule: str
    origin: str
    reason: str
    tls: str
    credential: str
    """In words; empty when the host holds none."""
    addresses: tuple[str, ...]
    """Private ranges that its names may resolve into."""
    next_command: str
    session: str | None
    digest: str
    cut: bool


def explain(ctx: Context, url: str, *, method: str, run: str | None) -> Explanation:
    """Decides by the policy in force; where nothing is running, by the one that the next sandbox would have.

    Raises: UsageError for what is no URL or host.
    """
    target = parse_target(url)
    session, cut = None, False
    try:
        sandbox = sandbox_named(ctx, run)
    except NotRunning:
        if run is not None:
            raise
        policy = resolve(ctx, verb="up").policy
    else:
        held = sandbox.control.policy()
        session, cut, policy = sandbox.state.id, held.cut, held.policy
    return explained(policy, target, method=method.upper(), session=session, cut=cut)


def parse_target(url: str) -> Target:
    """What `https://host/path`, `host:port` or `host` asks for. Raises: UsageError."""
    text = url.strip()
    if "://" not in text:
        found = _BARE.fullmatch(text)
        if found is None and literal_address(text) is None:
            raise UsageError(
                f"{url[:200]!r} is no URL and no host", hint="agent-container egress explain https://HOST/"
            )
        host = text if found is None else found[1].strip("[]")
        port = int(found[2]) if found and found[2] else 443
        scheme = "https" if port in TLS_PORTS else "http" if port == 80 else ""
        path = found[3] if found and found[3] else "/"
        return Target(scheme, host, port, path)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme.lower(), 0)
    except ValueError as error:
        raise UsageError(f"{url[:200]!r} is no URL: {error}") from None
    if not host or not 0 < port < 65536:
        raise UsageError(
            f"{url[:200]!r} names no {'port' if host else 'host'}", hint="write it as https://HOST:PORT/PATH"
        )
    scheme = {"https": "https", "wss": "https", "http": "http", "ws": "http"}.get(parts.scheme.lower(), "")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(scheme, host, port, path)


def explained(policy: Policy, target: Target, *, method: str, session: str | None, cut: bool) -> Explanation:
    """Pure."""
    host, port = target.host, target.port
    by_name = decide_name(policy, host, port)
    decision = by_name
    if target.scheme and by_name.allowed:
        decision = decide_request(
            policy,
            host=host,
            port=port,
            method=method,
            raw_path=target.path,
            scheme=target.scheme,
            tunnelled=target.scheme == "https",
        )
    return Explanation(
        allowed=decision.allowed and not cut,
        host=host,
        port=port,
        rule=decision.rule,
        origin=decision.origin,
        reason="everything is cut" if cut and decision.allowed else decision.reason,
        tls=_tls(by_name, target),
        credential=_credential(policy, target, method) if by_name.allowed else "",
        addresses=tuple(str(network) for network in by_name.floor_lifted),
        next_command=_next(policy, by_name, decision, target, cut=cut),
        session=session,
        digest=policy.digest,
        cut=cut,
    )


def _next(policy: Policy, by_name: Decision, decision: Decision, target: Target, *, cut: bool) -> str:
    if cut:
        return "agent-container egress restore"
    if decision.allowed or by_name.allowed:
        return ""
    # Where a credential is bound no rule opens another port.
    opens_nothing = by_name.rule.startswith("allow ") and _bound(policy, target)
    return "" if opens_nothing else what_to_type(by_name, target.host, target.port)


def _tls(decision: Decision, target: Target) -> str:
    if not decision.allowed or target.scheme != "https":
        return ""
    if decision.action == "bump":
        return "opened by the sidecar, with this sandbox's own CA"
    return "passes unopened: what is inside is not seen"


def _bound(policy: Policy, target: Target) -> tuple[Binding, ...]:
    try:
        return policy.bindings.get(canonical_host(target.host), ())
    except NameRefused:
        return ()


def _credential(policy: Policy, target: Target, method: str) -> str:
    rows = _bound(policy, target)
    if not rows:
        return ""
    host = rows[0].host
    covering = bindings_for(policy, host=host, port=target.port, method=method, raw_path=target.path)
    if covering and target.scheme == "https":
        return "; ".join(dict.fromkeys(f"{row.name} replaces its placeholder in {row.header}" for row in covering))
    bound = "; ".join(f"{row.name} is bound to {' '.join(row.methods)} on {' '.join(row.paths)}" for row in rows)
    return f"none is given for {method} {target.path.partition('?')[0]}: {bound}"
