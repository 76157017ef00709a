"""Rules that a user adds to a policy, or takes from it, while it is in force: what is to become of the policy, and in
words why it cannot. Pure; a live rule is told by its origin, and lives as long as the sandbox that holds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pydantic import ValidationError

from agent_container.errors import UsageError
from agent_container.spec import EgressRule
from agent_egress.policy import DEFAULT_PORTS, Decision, Policy, PolicyError, Rule, decide_name
from agent_egress.rules import REFUSING

LIVE = "live"
SPEC = "spec "
"""How the origin of a rule of the spec begins."""
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:/\s]+):(\d{1,5})")
_SCHEME_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}


@dataclass(frozen=True)
class Edited:
    """A policy after one edit."""

    policy: Policy
    changed: bool
    words: str
    """What was done, or why there was nothing to do."""


def parse_entry(text: str, *, ports: Sequence[int] = (), addresses: Sequence[str] = ()) -> EgressRule:
    """The entry that `text` means: a host as the spec has it, or what people paste, `host:port` and URLs.

    Raises: UsageError with what is wrong with it.
    """
    host, pasted = _pasted(text.strip())
    fields: dict[str, object] = {"host": host}
    if ports or pasted:
        fields["ports"] = tuple(ports) or pasted
    if addresses:
        fields["addresses"] = tuple(addresses)
    try:
        return EgressRule.model_validate(fields)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, row['loc']))}: {row['msg'].removeprefix('Value error, ')}" for row in error.errors()
        ]
        raise UsageError(
            f"{text[:200]!r} is not something that a rule can name",
            details=problems,
            hint="a host, `*.` and a domain, an address, or a range such as 10.30.0.0/16",
        ) from None


def _pasted(text: str) -> tuple[str, tuple[int, ...]]:
    """Host and ports of what a browser or a log shows; what is neither is left for the grammar to judge."""
    if "://" in text:
        try:
            url = urlsplit(text)
            host, port = url.hostname or "", url.port
        except ValueError:
            return text, ()
        default = _SCHEME_PORTS.get(url.scheme.lower())
        if default is None and port is None:
            return text, ()
        return host, (port,) if port is not None and port != default else ()
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        return text.removeprefix("[").removesuffix("]"), ()
    port = int(found[2])
    return found[1].strip("[]"), () if port in DEFAULT_PORTS else (port,)


def with_rules(policy: Policy, rules: Iterable[Rule]) -> Policy:
    """The policy with further rules. Raises: UsageError when the sidecar would not take it."""
    try:
        return Policy.parse(replace(policy, rules=(*policy.rules, *rules)).encode())
    except PolicyError as error:
        raise UsageError("the egress sidecar would not take this rule", details=error.problems) from None


def allow(policy: Policy, entry: EgressRule) -> Edited:
    """Opens what the entry names. Raises: UsageError when another rule closes it all the same."""
    rule = Rule("allow", entry.host, entry.ports, entry.addresses, LIVE)
    rest = replace(
        policy, rules=tuple(one for one in policy.rules if not (one.origin == LIVE and _closes(one, rule.pattern)))
    )
    reached = _reached(policy, rule)
    for after in (rest, with_rules(rest, [rule])):
        found = _reached(after, rule)
        closed = [decision for decision in found.values() if not decision.allowed]
        # A host of which one of the usual ports is open is one that its user calls allowed.
        if closed and (rule.ports != DEFAULT_PORTS or len(closed) == len(found)):
            continue
        lifted = [decision.floor_lifted for decision in found.values() if decision.allowed]
        if all(set(rule.lifted) <= set(networks) for networks in lifted):
            break
    else:
        port, decision = next((port, one) for port, one in found.items() if not one.allowed)
        raise UsageError(
            f"{rule.pattern} stays closed on port {port}: {decision.reason}",
            details=[f"rule: {decision.rule}, from {decision.origin}"] if decision.rule else (),
            hint=what_to_type(decision, rule.pattern, port),
        )
    if found == reached:
        by = next(decision for decision in found.values() if decision.allowed)
        return Edited(policy, changed=False, words=f"{rule.pattern} is allowed already, by {by.origin or by.rule}")
    return Edited(after, changed=True, words=f"allowed {_shown(rule)}")


def _reached(policy: Policy, rule: Rule) -> dict[int, Decision]:
    """What a policy says of a host that the rule is over, by port."""
    return {port: decide_name(policy, _sample(rule), port) for port in rule.ports}


def deny(policy: Policy, entry: EgressRule) -> Edited:
    """Closes what the entry names, on every port."""
    rule = Rule("deny", entry.host, origin=LIVE)
    there = next((one for one in policy.rules if _closes(one, rule.pattern)), None)
    if there is not None:
        return Edited(policy, changed=False, words=f"{rule.pattern} is denied already, by {there.origin or 'a rule'}")
    return Edited(with_rules(policy, [rule]), changed=True, words=f"denied {rule.pattern}")


def remove(policy: Policy, pattern: str) -> Edited:
    """Takes out every rule over exactly this pattern, but not what the agent or a credential cannot do without.

    Raises: UsageError when there is none, or one that stays.
    """
    found = [rule for rule in policy.rules if rule.pattern == pattern]
    if not found:
        near = sorted({rule.pattern for rule in policy.rules if pattern.removeprefix("*.") in rule.pattern})
        raise UsageError(
            f"no rule is over exactly {pattern}",
            details=[f"there is {name}" for name in near[:5]],
            hint="agent-container egress ls",
        )
    kept = [rule for rule in found if not (rule.origin == LIVE or rule.origin.startswith(SPEC))]
    gone = [rule for rule in found if rule not in kept]
    if not gone:
        raise UsageError(
            f"{pattern} is allowed for {kept[0].origin or 'the sandbox'}, which needs it",
            hint=f"agent-container egress deny {pattern}",
        )
    after = replace(policy, rules=tuple(rule for rule in policy.rules if rule not in gone))
    words = f"removed {', '.join(dict.fromkeys(f'{rule.text} ({rule.origin})' for rule in gone))}"
    if kept:
        words += f"; it stays allowed for {kept[0].origin}"
    return Edited(after, changed=True, words=words)


def live_rules(policy: Policy) -> tuple[Rule, ...]:
    """The rules that were added while the policy was in force."""
    return tuple(rule for rule in policy.rules if rule.origin == LIVE)


def carried_over(before: Policy, wanted: Policy, *, stood: Policy | None = None) -> Policy:
    """The wanted policy with what was changed live in the one before: rules that were added, less those that it holds
    by itself now, and without those of the spec that were taken out. `stood` is what the spec asked for then.

    Raises: UsageError when they do not fit together.
    """
    taken_out = [
        rule
        for rule in (stood.rules if stood is not None else ())
        if rule.origin.startswith(SPEC) and not any(_same(rule, left) for left in before.rules)
    ]
    kept = [
        rule
        for rule in wanted.rules
        if not (rule.origin.startswith(SPEC) and any(_same(rule, gone) for gone in taken_out))
    ]
    added = [rule for rule in live_rules(before) if not any(_same(rule, own) for own in kept)]
    return with_rules(replace(wanted, rules=tuple(kept)), added)


def what_to_type(decision: Decision, host: str, port: int) -> str:
    """The next command for someone who wants to reach what a decision refuses; empty when there is none."""
    target = host if port in DEFAULT_PORTS else f"{host} --port {port}"
    if not decision.rule:
        return f"agent-container egress allow {target}" if decision.reason == "no rule allows it" else ""
    action, _, pattern = decision.rule.partition(" ")
    if action in REFUSING:
        return f"agent-container egress rm {pattern}"
    if decision.reason.startswith("allowed on ports"):
        return f"agent-container egress allow {host} --port {port}"
    return ""


def _closes(rule: Rule, pattern: str) -> bool:
    return rule.refuses and rule.pattern == pattern


def _same(one: Rule, other: Rule) -> bool:
    def plain(rule: Rule) -> tuple[object, ...]:
        return rule.action, rule.pattern, frozenset(rule.ports), frozenset(rule.addresses)

    return plain(one) == plain(other)


def _sample(rule: Rule) -> str:
    """A host that the rule is over."""
    if rule.network is not None:
        return str(rule.network.network_address)
    return rule.pattern.replace("*.", "any-name.", 1)


def _shown(rule: Rule) -> str:
    words = rule.pattern
    if rule.ports != DEFAULT_PORTS:
        words += f" on port {', '.join(map(str, rule.ports))}"
    if rule.addresses:
        words += f" within {', '.join(rule.addresses)}"
    return words
