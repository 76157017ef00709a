"""`host-key`: the key that signs this host's records. Shown and handed out by its public half alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_container.commands.context import Context
from agent_container.manifest import key_fingerprint


@dataclass(frozen=True)
class KeyRow:
    """One key whose signatures count as this host's."""

    fingerprint: str
    state: Literal["current", "former"]
    """`former`: its private half is gone; what it signed stays verifiable."""

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return self.fingerprint, self.state


@dataclass(frozen=True)
class KeysExported:
    """Public keys for who verifies elsewhere."""

    keys: tuple[KeyRow, ...]
    pem: str


@dataclass(frozen=True)
class KeyRotated:
    """What a rotation did; None where there was no key before."""

    former: str | None
    current: str


def list_host_keys(context: Context) -> tuple[KeyRow, ...]:
    """The current key, then those before it, newest first. Makes none."""
    current = context.store.host_key.published()
    found = context.store.host_key.all_public()
    return tuple(KeyRow(key_fingerprint(key), "current" if key == current else "former") for key in found)


def export_host_keys(context: Context) -> KeysExported:
    """All of them as PEM. The first call on a host makes its key, so that it can be handed out before a run."""
    if context.store.host_key.published() is None:
        context.store.host_key.public()  # asks for the store's key, which showing a public half does not
    return KeysExported(list_host_keys(context), context.store.host_key.export().decode("ascii"))


def rotate_host_key(context: Context) -> KeyRotated:
    """A new key; the private half of the old one is gone."""
    rotated = context.store.host_key.rotate()
    former = key_fingerprint(rotated.former) if rotated.former is not None else None
    return KeyRotated(former, key_fingerprint(rotated.current))
