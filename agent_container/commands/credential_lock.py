"""`credential lock`: what the store's key is itself locked with, and changing it."""

from __future__ import annotations

from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.errors import UsageError
from agent_container.store import LOCKS, PROTECTS, LockKind, keyring_answers


@dataclass(frozen=True)
class LockState:
    """What the store is locked with."""

    lock: LockKind
    chosen: bool
    """Whether its user said so; a key file is what a store begins with."""
    protects: str
    sealed: int
    """How many files are sealed."""
    unfinished: bool
    """A change of the lock was interrupted; the same command goes on."""

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """For people."""
        rows = [("lock", self.lock if self.chosen else f"{self.lock} (nobody chose)"), ("that is", self.protects)]
        rows.append(("sealed", f"{self.sealed} files"))
        if self.unfinished:
            rows.append(("unfinished", f"a change was interrupted: agent-container credential lock {self.lock}"))
        return tuple(rows)


@dataclass(frozen=True)
class LockChanged:
    """What a change of the lock did."""

    lock: LockKind
    resealed: int
    left: tuple[str, ...]
    """Files that no known key opens; left as they are."""


def show_lock(ctx: Context) -> LockState:
    """The lock as it is; unlocks nothing. Raises StoreError when the key document is damaged."""
    document = ctx.store.keys.document()
    lock: LockKind = "file" if document is None else document.lock
    return LockState(
        lock=lock,
        chosen=document is not None,
        protects=PROTECTS[lock],
        sealed=ctx.store.sealed_count(),
        unfinished=document is not None and len(document.keys) > 1,
    )


def change_lock(ctx: Context, lock: str, *, abandon: bool = False) -> LockChanged:
    """Locks the store with `lock`: a new key, and every file sealed anew under it. Raises UsageError, Unverifiable."""
    chosen = next((kind for kind in LOCKS if kind == lock), None)
    if chosen is None:
        raise UsageError(
            f"the store cannot be locked with {lock!r}", details=[f"{kind}: {PROTECTS[kind]}" for kind in LOCKS]
        )
    done = ctx.store.relock(chosen, abandon=abandon)
    return LockChanged(lock=done.lock, resealed=done.resealed, left=done.left)


def choices(ctx: Context) -> tuple[tuple[LockKind, str], ...]:
    """What a first credential may be locked with on this machine, the one to prefer first; none once that is past."""
    if ctx.store.keys.document() is not None or ctx.store.credentials.names():
        return ()
    offered = [kind for kind in LOCKS if kind != "keyring" or keyring_answers()]
    return tuple((kind, PROTECTS[kind]) for kind in offered)
