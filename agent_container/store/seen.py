"""What the keyring has seen of the store: the newest number of each sealed name, so that an older file put back is told
from the newest. Only a store that is locked with the keyring has such a memory; for others nothing is known."""

from __future__ import annotations

import json

from agent_container.errors import StoreError
from agent_container.store.datakeys import DataKeys


class Seen:
    """The memory of one store, read once a process: what others add meanwhile is newer, and newer is fine."""

    def __init__(self, keys: DataKeys) -> None:
        self._keys = keys
        self._numbers: tuple[str, dict[str, int]] | None = None

    def number(self, purpose: str) -> int:
        """The newest number seen under this name; 0 when none was, or the keyring is not what locks the store."""
        entry = self._entry()
        return 0 if entry is None else self._read(entry).get(purpose, 0)

    def note(self, purpose: str, number: int) -> None:
        """Remembers a number; it never goes back. The caller holds the store's key lock."""
        entry = self._entry()
        if entry is None:
            return
        self._numbers = None  # another process may have added to it
        numbers = self._read(entry)
        if numbers.get(purpose, 0) < number:
            numbers[purpose] = number
            self._keys.keyring.put(entry, json.dumps(numbers, sort_keys=True))

    def _entry(self) -> str | None:
        document = self._keys.document()
        return None if document is None or document.lock != "keyring" else f"{document.store}-seen"

    def _read(self, entry: str) -> dict[str, int]:
        if self._numbers is None or self._numbers[0] != entry:
            text = self._keys.keyring.get(entry)
            try:
                rows = json.loads(text or "{}")
                self._numbers = entry, {str(name): int(number) for name, number in rows.items()}
            except (ValueError, AttributeError, TypeError):
                raise StoreError(
                    f"the keyring's entry {entry} of agent-container cannot be read",
                    hint="remove that entry; from then on nothing older is told until it is set again",
                ) from None
        return self._numbers[1]
