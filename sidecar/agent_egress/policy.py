"""Decisions: the one answer to "may this host, address or request go out", the same in the sidecar's daemons, in
`egress explain` and in the replay of a run's receipts. Pure; nothing here raises, and what cannot be read is denied.
The secrets that a request may carry are `swap`'s, not known here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from ipaddress import ip_address
from typing import ParamSpec

from agent_egress.floors import (
    FLOOR4,
    FLOOR6,
    METADATA,
    METADATA4,
    METADATA6,
    NEVER,
    Address,
    Network,
    in_any,
    in_floor,
)
from agent_egress.names import NameRefused, canonical_host, canonical_name, canonical_pattern, literal_address
from agent_egress.paths import match_path, path_is_plain
from agent_egress.rules import DEFAULT_PORTS, SSH_PORT, Binding, Policy, PolicyError, Rule

__all__ = [
    "DEFAULT_PORTS",
    "FLOOR4",
    "FLOOR6",
    "METADATA",
    "METADATA4",
    "METADATA6",
    "Binding",
    "Decision",
    "NameRefused",
    "Policy",
    "PolicyError",
    "Rule",
    "bindings_for",
    "canonical_host",
    "canonical_name",
    "canonical_pattern",
    "decide_address",
    "decide_lookup",
    "decide_name",
    "decide_request",
    "deny_all",
    "match_path",
    "path_is_plain",
    "refusal_words",
    "scans",
]

TLS_PORTS = frozenset({443, 8443})
"""On these a tunnel must begin with a TLS hello, whose SNI is compared; on others a client may speak anything."""

MAX_MEMO = 4096


@dataclass(frozen=True)
class Decision:
    """The answer, and the rule that gave it."""

    allowed: bool
    action: str
    """`splice`, `bump` (TLS terminated), `raw` (no TLS expected), `deny`, or `kill`: denied, and the session ends."""
    rule: str
    """The rule's text; empty when none matched."""
    origin: str
    reason: str
    """In words, for people; empty when allowed by a plain rule."""
    floor_lifted: tuple[Network, ...] = ()
    scanned: bool = False
    """Whether what goes there is seen, and its bodies are to be scanned: its TLS is opened, by a rule or for a
    credential."""


_P = ParamSpec("_P")


def _denies_on_error(decide: Callable[_P, Decision]) -> Callable[_P, Decision]:
    """Whatever a hostile input or a policy made by hand trips over, the answer is no."""

    @wraps(decide)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> Decision:
        try:
            return decide(*args, **kwargs)
        except Exception as error:
            return _deny(f"could not be decided ({type(error).__name__})")

    return guarded


def _deny(reason: str, rule: Rule | None = None) -> Decision:
    text, origin = (rule.text, rule.origin) if rule is not None else ("", "")
    return Decision(allowed=False, action="deny", rule=text, origin=origin, reason=reason)


def _refused_by(rule: Rule) -> Decision:
    if rule.action == "kill":
        return Decision(False, "kill", rule.text, rule.origin, "contact with it ends the session")
    return _deny("denied by a rule", rule)


@_denies_on_error
def decide_name(policy: Policy, host: str, port: int) -> Decision:
    """May a client connect to this host (a name, or an address literal) and port? By name: what it resolves to is
    `decide_address`'s."""
    known = policy.memo.get((host, port))
    if isinstance(known, Decision):
        return known
    decision = _decide_name(policy, host, port)
    if len(policy.memo) < MAX_MEMO and len(host) < 256:
        policy.memo[host, port] = decision
    return decision


def _decide_name(policy: Policy, host: str, port: int) -> Decision:
    if policy.broken:
        return _deny(policy.broken)
    try:
        canonical = canonical_host(host)
    except NameRefused as error:
        return _deny(f"not a host that policy can name: {error}")
    address = literal_address(canonical)
    if address is not None:
        return _decide_literal(policy, address, port)
    allows, refuses = policy.matching(canonical)
    fitting = tuple(rule for rule in allows if port in rule.ports)
    refusal = _no_way(port, allows, refuses, fitting)
    if refusal is not None:
        return refusal
    bound = tuple(binding.port for binding in policy.bindings.get(canonical, ()))
    if bound and port not in bound and port != SSH_PORT:
        # Anything else would carry the decoy, or the answer to it, past the only place where they are watched.
        return _deny(f"holds a credential, so only port {', '.join(map(str, sorted(set(bound))))} is open", fitting[0])
    lifted = tuple(network for rule in fitting for network in rule.lifted)
    opened = port in bound or _inspected(policy, fitting, port)
    return _allowed(fitting[0], port, tuple(dict.fromkeys(lifted)), opened=opened)


def _no_way(
    port: int, allows: tuple[Rule, ...], refuses: tuple[Rule, ...], fitting: tuple[Rule, ...]
) -> Decision | None:
    if refuses:
        return _refused_by(refuses[0])
    if fitting:
        return None
    if allows:
        return _deny(f"allowed on ports {', '.join(map(str, _ports(allows)))}, not {port}", allows[0])
    return _deny("no rule allows it")


def _inspected(policy: Policy, fitting: tuple[Rule, ...], port: int) -> bool:
    """Whether TLS is opened. A rule that says so wins over one that says otherwise, and both over the policy: no order
    of rules changes it. Where the policy says it alone, ssh stays what it is."""
    if any(rule.inspects for rule in fitting):
        return True
    return policy.tls == "inspect" and port != SSH_PORT and not any(rule.tls == "splice" for rule in fitting)


def _allowed(rule: Rule, port: int, lifted: tuple[Network, ...], *, opened: bool) -> Decision:
    # Opened on every port of the rule: what is no TLS there does not get through unseen.
    action = "bump" if opened else ("splice" if port in TLS_PORTS else "raw")
    return Decision(True, action, rule.text, rule.origin, "", lifted, opened)


def _ports(rules: tuple[Rule, ...]) -> list[int]:
    return sorted({port for rule in rules for port in rule.ports})


def _decide_literal(policy: Policy, address: Address, port: int) -> Decision:
    allows, refuses = policy.over(address)
    fitting = tuple(rule for rule in allows if port in rule.ports)
    refusal = _no_way(port, allows, refuses, fitting)
    if refusal is not None:
        return refusal
    lifted = tuple(dict.fromkeys(rule.network for rule in fitting if rule.network is not None))
    problem = _floor_problem(policy, address, lifted)
    if problem:
        return _deny(problem, fitting[0])
    return _allowed(fitting[0], port, lifted, opened=_inspected(policy, fitting, port))


def _floor_problem(policy: Policy, address: Address, lifted: tuple[Network, ...]) -> str:
    """Why the floor refuses the address; empty when it does not."""
    if in_any(address, NEVER):
        return "loopback, multicast and reserved addresses are never reached"
    if address in policy.own_addresses and not any(
        network.num_addresses == 1 and address in network for network in lifted if network.version == address.version
    ):
        return "this machine's own address: only a rule that names exactly it reaches it"
    if in_any(address, METADATA) and not (policy.allow_metadata and in_any(address, lifted)):
        return "cloud metadata and link-local addresses need allow_metadata: true and a rule that names them"
    if in_floor(address) and not in_any(address, lifted):
        return "a private address: only a rule that names the range, or `addresses` of the host's rule, reaches it"
    return ""


def _decide_resolved(policy: Policy, base: Decision, address: str) -> Decision:
    found = literal_address(address)
    if found is None:
        return _deny(f"{address[:64]!r} is no address in its usual spelling")
    _, refuses = policy.over(found)
    if refuses:
        # No kill: whoever runs an allowed name's DNS must not be able to end the session.
        return _deny("resolves to an address that a rule denies", refuses[0])
    problem = _floor_problem(policy, found, base.floor_lifted)
    if problem:
        return Decision(False, "deny", base.rule, base.origin, f"resolves to {found}: {problem}")
    return base


@_denies_on_error
def decide_address(policy: Policy, host: str, address: str, port: int) -> Decision:
    """May this address be dialled for this host and port? Refuses what `decide_name` refuses."""
    base = decide_name(policy, host, port)
    return _decide_resolved(policy, base, address) if base.allowed else base


@_denies_on_error
def decide_lookup(policy: Policy, name: str, address: str | None = None) -> Decision:
    """May this name be asked upstream, and may this address be given as its answer? For whichever port its rules
    name."""
    if policy.broken:
        return _deny(policy.broken)
    try:
        canonical = canonical_name(name)
    except NameRefused as error:
        return _deny(f"not a host that policy can name: {error}")
    allows, refuses = policy.matching(canonical)
    if refuses:
        return _refused_by(refuses[0])
    git = next((row for row in policy.git if row.host == canonical), None)
    if not allows and git is None:
        return _deny("no rule allows it")
    lifted = tuple(dict.fromkeys(network for rule in allows for network in rule.lifted))
    text, origin = (allows[0].text, allows[0].origin) if allows else (git.text, git.origin) if git else ("", "")
    base = Decision(True, "splice", text, origin, "", lifted)
    return base if address is None else _decide_resolved(policy, base, address)


@_denies_on_error
def decide_request(
    policy: Policy, *, host: str, port: int, method: str, raw_path: str, scheme: str, tunnelled: bool
) -> Decision:
    """May this HTTP request go out? `tunnelled`: it came inside TLS that we terminate. `raw_path` is undecoded, query
    included.

    On a host that holds a credential a request must be one that proxy and server read alike, and inside that TLS.
    """
    base = decide_name(policy, host, port)
    if not base.allowed:
        return base
    if scheme not in {"http", "https"} or (scheme == "https") != tunnelled:
        return _narrow(base, "https only inside a CONNECT tunnel, so use the proxy as https clients do")
    bindings = policy.bindings.get(canonical_host(host), ())
    if not bindings:
        return base
    if scheme != "https" or port not in {binding.port for binding in bindings}:
        return _narrow(base, "holds a credential, so plain http and other ports are refused: use https")
    if method.upper() in {"TRACE", "TRACK", "CONNECT"}:
        return _narrow(base, f"{method.upper()} is refused on a host that holds a credential")
    if not path_is_plain(raw_path):
        return _narrow(base, "the path has dot segments, `//`, or encoded dots or slashes: write it plainly")
    return base


def _narrow(base: Decision, reason: str) -> Decision:
    return Decision(False, "deny", base.rule, base.origin, reason)


def bindings_for(policy: Policy, *, host: str, port: int, method: str, raw_path: str) -> tuple[Binding, ...]:
    """The credential bindings that cover a request which `decide_request` allowed."""
    return tuple(
        binding
        for binding in policy.bindings.get(host, ())
        if binding.port == port
        and method in binding.methods
        and any(match_path(template, raw_path) for template in binding.paths)
    )


def refusal_words(decision: Decision, host: str, port: int) -> str:
    """What the agent reads: that policy refused, which rule, and what its user can type. One line, printable ASCII."""
    shown = "".join(char if 0x20 < ord(char) < 0x7F and char not in "\\\"'<>&" else "?" for char in host[:253]) or "?"
    words = f"agent-container: blocked by policy: {shown}:{port}: {decision.reason}"
    if decision.rule:
        words += f" (rule: {decision.rule}" + (f", from {decision.origin})" if decision.origin else ")")
    elif decision.reason == "no rule allows it":
        entry = shown if port in DEFAULT_PORTS else f"{shown} --port {port}"
        words += f". Its user can allow it with: agent-container egress allow {entry}"
    return "".join(char if 0x20 <= ord(char) < 0x7F else "?" for char in words)


def scans(policy: Policy) -> bool:
    """Whether TLS of any host is opened, so that bodies are scanned."""
    return bool(policy.credentials) or policy.tls == "inspect" or any(rule.inspects for rule in policy.rules)


def deny_all(reason: str) -> Policy:
    """The policy in force when none can be read."""
    return Policy(broken=reason or "no policy")


def address_text(address: bytes) -> str:
    """The canonical text of 4 or 16 packed bytes."""
    return str(ip_address(address))
