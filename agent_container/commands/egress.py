"""`egress ls / allow / deny / rm / cut / restore`: the policy of a live sandbox, changed while it works.

The sidecar holds the truth: every change starts from the policy that it holds, is taken whole or not at all, and is
done when the sidecar has named the digest that it enforces. Nothing here is kept on the host but the policy's body, for
the replay of its receipts, and with `save` an entry in the spec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent_container.commands.context import Context
from agent_container.commands.resolve import resolve
from agent_container.commands.sandboxes import Sandbox, live_sandboxes, sandbox_named
from agent_container.commands.spec_saving import Saving
from agent_container.errors import AgentContainerError, NotRunning, UsageError
from agent_container.live_rules import Edited, allow, deny, parse_entry, remove
from agent_container.project import SPEC_NAME
from agent_container.sandbox.control import Hits, PolicyMoved
from agent_container.stack_policy import how_seen
from agent_egress.policy import Policy

ATTEMPTS = 5
Edit = Callable[[Policy], Edited]


@dataclass(frozen=True)
class LiveRule:
    """One rule in force, where it comes from and how often it decided."""

    action: str
    pattern: str
    ports: tuple[int, ...]
    addresses: tuple[str, ...]
    seen: str
    """What the sidecar sees of what goes there."""
    origin: str
    allowed: int | None
    """None where nothing is running."""
    denied: int | None


@dataclass(frozen=True)
class Rules:
    """What `egress ls` says."""

    session: str | None
    """None where nothing is running: the rules are what the next sandbox would begin with."""
    digest: str
    cut: bool
    rules: tuple[LiveRule, ...]
    unmatched: int
    """Refusals that no rule named."""


@dataclass(frozen=True)
class Done:
    """What one change came to."""

    session: str | None
    digest: str
    """Of the policy that the sidecar enforces now; empty where only the spec was changed."""
    changed: bool
    words: tuple[str, ...]


def list_rules(ctx: Context, *, run: str | None) -> Rules:
    """The rules of a live sandbox with their hits; of the next one where nothing is running."""
    try:
        sandbox = sandbox_named(ctx, run)
    except NotRunning:
        if run is not None:
            raise
        policy = resolve(ctx, verb="up").policy
        return Rules(None, policy.digest, cut=False, rules=_rows(policy, None), unmatched=0)
    held, hits = sandbox.control.policy(), sandbox.control.hits()
    unmatched = sum(row.count for row in hits if not row.rule and row.action == "deny")
    return Rules(sandbox.state.id, held.digest, held.cut, _rows(held.policy, hits), unmatched)


def change_rules(
    ctx: Context,
    verb: Literal["allow", "deny", "rm"],
    host: str,
    *,
    ports: Sequence[int] = (),
    addresses: Sequence[str] = (),
    run: str | None = None,
    save: bool = False,
) -> Done:
    """Changes a live sandbox's policy, and with `save` the spec too; where nothing is running, the spec alone.

    Raises: UsageError, NotRunning, SidecarError. What could not be saved was not put in force either.
    """
    entry = parse_entry(host, ports=ports, addresses=addresses)
    saving = Saving.plan(ctx, verb, entry) if save else None
    edit: Edit = {
        "allow": lambda policy: allow(policy, entry),
        "deny": lambda policy: deny(policy, entry),
        "rm": lambda policy: remove(policy, entry.host),
    }[verb]
    try:
        sandbox = sandbox_named(ctx, run)
    except NotRunning as nothing:
        if saving is None or run is not None:
            raise NotRunning(
                nothing.message, hint=f"agent-container up, or with --save into {SPEC_NAME} for the next one"
            ) from None
        return Done(None, "", saving.changes, (*saving.write(ctx), "nothing is running: it holds from the next start"))
    if saving is not None and sandbox.state.project_id != saving.project.id:
        raise UsageError(
            f"{sandbox.words} is another project's, and --save writes this one's {SPEC_NAME}",
            hint="leave --save out, or do it where that project is",
        )
    try:
        done = _put(ctx, sandbox, edit)
    except UsageError:
        if verb != "rm" or saving is None or not saving.changes:
            raise
        done = Done(sandbox.state.id, "", changed=False, words=())  # it stands in the spec alone
    words = saving.write(ctx) if saving is not None else ()
    return replace(done, changed=done.changed or bool(words), words=(*done.words, *words))


def _put(ctx: Context, sandbox: Sandbox, edit: Edit) -> Done:
    """One edit of the policy in force, again from the newest where somebody else was quicker."""
    for attempt in range(ATTEMPTS):
        held = sandbox.control.policy()
        edited = edit(held.policy)
        if not edited.changed:
            return Done(sandbox.state.id, held.digest, changed=False, words=(edited.words,))
        ctx.store.policies.save(edited.policy.encode())  # before any receipt can name it
        try:
            digest = sandbox.control.put_policy(edited.policy, expect=held.policy.digest)
        except PolicyMoved:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        words = [f"{edited.words} for {sandbox.words}"]
        if held.cut:
            words.append("everything is cut: it holds after `agent-container egress restore`")
        elif digest != edited.policy.digest:
            raise AgentContainerError(
                f"the egress sidecar enforces {digest}, not the policy that it took", hint="agent-container egress ls"
            )
        return Done(sandbox.state.id, digest, changed=True, words=tuple(words))
    raise AssertionError("unreachable")


def cut_egress(ctx: Context, *, run: str | None, everywhere: bool, restore: bool = False) -> tuple[Done, ...]:
    """Cuts, or restores, every live sandbox of the project, of all projects, or the one that is named.

    Each is tried, whatever becomes of the others. Raises: NotRunning, SidecarError for the first that refused.
    """
    found = (sandbox_named(ctx, run),) if run is not None else live_sandboxes(ctx, everywhere=everywhere)
    if not found:
        raise NotRunning("nothing is running here", hint="agent-container ls")
    done: list[Done] = []
    failures: list[AgentContainerError] = []
    for sandbox in found:
        control = sandbox.control
        try:
            before = control.policy().cut
            digest = control.restore() if restore else control.cut()
        except AgentContainerError as error:
            failures.append(error)
            continue
        verb = "restored" if restore else "cut"
        words = f"{verb}: {sandbox.words}" if before == restore else f"was {verb} already: {sandbox.words}"
        done.append(Done(sandbox.state.id, digest, changed=before == restore, words=(words,)))
    if failures:
        raise failures[0]
    return tuple(done)


def _rows(policy: Policy, hits: Sequence[Hits] | None) -> tuple[LiveRule, ...]:
    counts = {(row.rule, row.action): row.count for row in hits or ()}
    ordered = sorted(policy.rules, key=lambda rule: (rule.allows, rule.origin, rule.pattern))
    return tuple(
        LiveRule(
            action=rule.action,
            pattern=rule.pattern,
            ports=rule.ports,
            addresses=rule.addresses,
            seen=how_seen(policy, rule),
            origin=rule.origin,
            allowed=None if hits is None else counts.get((rule.text, "allow"), 0),
            denied=None if hits is None else counts.get((rule.text, "deny"), 0),
        )
        for rule in ordered
    )
