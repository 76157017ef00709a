"""`credential rotate / rm`: another secret under the same name and binding, or none, in the store and in every live
sandbox.

The sandbox keeps its placeholder; its sidecar puts the new secret behind it, from the next request on. One rotation of
a name at a time, over both steps, so that of two the later one ends up everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime

from agent_container.commands.context import Context
from agent_container.commands.credential import checked_value, load_credential, missing, remove_credential
from agent_container.commands.credential_sources import secret_of
from agent_container.commands.sandboxes import Sandbox, live_sandboxes
from agent_container.credential_reference import Reference
from agent_container.credentials import parse_credential, rotated
from agent_container.errors import AgentContainerError

AT_A_TIME = 8
WAIT_S = 60.0


@dataclass(frozen=True)
class RotatedCredential:
    """What a rotation reached."""

    name: str
    sandboxes: tuple[str, ...]
    """Sessions whose sidecar has taken it: their next request carries it."""
    failed: tuple[str, ...]
    """The others, each with its reason: they still hold the former one."""


def rotate_credential(ctx: Context, name: str, *, secret: bytes | Reference | None) -> RotatedCredential:
    """Seals another secret under the same binding and hands it to what is live; without one, a reference is followed
    anew. Raises NotRunning when there is no such credential, UsageError for a value that cannot be one."""
    load_credential(ctx, name)  # said before anything is asked of a place
    value = None if secret is None else checked_value(ctx, secret)
    with ctx.store.lock(f"credential-{name}", what=f"credential {name}", doing="rotating it", wait_s=WAIT_S):
        if value is not None:
            now, given = ctx.now(), value
            changed = ctx.store.credentials.update(
                name, lambda body: rotated(parse_credential(body, name=name), given, set_at=now).encode()
            )
            if not changed:
                raise missing(name)
        held = load_credential(ctx, name)
        fresh = secret_of(ctx, held).reveal()
        if value is None and held.reference is not None:
            # Told from the entry by a sandbox that is coming up now, and has followed the reference before.
            ctx.store.credentials.update(name, lambda body: _noted(body, name=name, at=ctx.now()))
        return _hand_over(name, fresh, _holders(ctx, name))


def _noted(body: bytes, *, name: str, at: datetime) -> bytes:
    return replace(parse_credential(body, name=name), set_at=at).encode()


def withdraw_credential(ctx: Context, name: str) -> RotatedCredential:
    """Removes it from the store and takes it from what is live: the placeholder opens nothing any more. Raises
    NotRunning when there is none."""
    with ctx.store.lock(f"credential-{name}", what=f"credential {name}", doing="removing it", wait_s=WAIT_S):
        remove_credential(ctx, name)
        return _hand_over(name, None, _holders(ctx, name))


def _holders(ctx: Context, name: str) -> list[Sandbox]:
    states = ctx.store.sessions.list()
    if not any(name in dict(state.decoys) for state in states):
        return []  # nobody has it: no engine need be asked
    return [one for one in live_sandboxes(ctx, everywhere=True) if name in dict(one.state.decoys)]


def _hand_over(name: str, secret: bytes | None, holders: Sequence[Sandbox]) -> RotatedCredential:
    def put(sandbox: Sandbox) -> str | None:
        try:
            sandbox.control.rotate(name, secret)
        except AgentContainerError as error:
            return f"{sandbox.state.id}: {error.message}"
        return None

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        problems = list(pool.map(put, holders))
    done = tuple(one.state.id for one, problem in zip(holders, problems, strict=True) if problem is None)
    return RotatedCredential(name, done, tuple(problem for problem in problems if problem is not None))
