"""The keys that the store's files are sealed under: found, unlocked, made at first use, never made anew in silence.

Without a key document the key is the 0600 file `keys/kek` itself, which is how every store begins. With one, the data
keys stand in it, locked by what its user chose.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import StoreError, Unverifiable
from agent_container.store.keydoc import KeyDocument, key_id, parse_document
from agent_container.store.keyrings import Keyring
from agent_container.store.writer import Writer, explained, read_file

KEY_BYTES = 32
FIRST_FILE = "kek"
DOCUMENT = "lock.json"
FROM_A_BACKUP = "put the key file back from a backup"
GIVE_UP = "lost for good? `agent-container credential lock file --abandon` starts anew; then set every credential again"


@dataclass(frozen=True)
class DataKey:
    """One key of the store."""

    id: str
    key: bytes

    def __repr__(self) -> str:
        return f"DataKey(id={self.id!r})"


class DataKeys:
    """The data keys of one store, unlocked once a process and document."""

    def __init__(
        self,
        directory: Path,
        *,
        writer: Writer,
        keyring: Keyring,
        passphrase: Callable[[], bytes],
        in_use: Callable[[], bool],
    ) -> None:
        self.directory = directory
        self.path = directory / DOCUMENT
        self.keyring = keyring
        self.writer = writer
        self._passphrase = passphrase
        self.in_use = in_use
        self._unlocked: tuple[bytes, tuple[DataKey, ...]] | None = None

    def document(self) -> KeyDocument | None:
        """The key document; None where the key file `kek` is the key."""
        body = read_file(self.path, max_bytes=65536)
        return None if body is None else parse_document(body, where=self.path)

    def keys(self, *, create: bool = False, wanted: str = "") -> tuple[DataKey, ...]:
        """All data keys, the one in force first; `wanted` is named when there are none.

        Raises Unverifiable when they cannot be had, StoreError for damage.
        """
        body = read_file(self.path, max_bytes=65536)
        if body is None:
            return (self._first_file(create=create, wanted=wanted),)
        if self._unlocked is None or self._unlocked[0] != body:
            document = parse_document(body, where=self.path)
            self._unlocked = body, self._open(document)
        return self._unlocked[1]

    def lock_file(self, slot: str) -> Path:
        """The key file of a document that is locked with one."""
        return self.directory / f"{FIRST_FILE}-{slot}"

    def _open(self, document: KeyDocument) -> tuple[DataKey, ...]:
        lock = self._lock_key(document)
        found = []
        for wrapped in document.keys:
            key = document.unwrap(lock, wrapped)
            if key is None and document.lock == "passphrase":
                raise Unverifiable("the passphrase does not open the credential store", hint=f"try again; {GIVE_UP}")
            if key is None:
                raise StoreError(f"{self.path} was changed: its key {wrapped.id} does not open", hint=GIVE_UP)
            found.append(DataKey(wrapped.id, key))
        return tuple(found)

    def _lock_key(self, document: KeyDocument) -> bytes:
        if document.stretching is not None:
            return document.stretching.derive(self._passphrase())
        if document.lock == "file":
            lock, where = self._read_file(self.lock_file(document.slot), document.lock_key), "the key file"
        else:
            lock, where = self._read_keyring(document), "the keyring"
        if key_id(lock) != document.lock_key:
            raise Unverifiable(
                f"the store is locked with key {document.lock_key}, but {where} holds key {key_id(lock)}",
                details=("one of the two was put back from an older copy",),
                hint=GIVE_UP,
            )
        return lock

    def _read_keyring(self, document: KeyDocument) -> bytes:
        text = self.keyring.get(entry_name(document))
        if text is None:
            raise Unverifiable(
                f"the keyring has no key {document.lock_key}, which the store is locked with",
                details=(f"its entry would be {entry_name(document)} of agent-container",),
                hint=f"is it the keyring of this user and machine? {GIVE_UP}",
            )
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise StoreError("what the keyring holds for the store is no key", hint=GIVE_UP) from None

    def _first_file(self, *, create: bool, wanted: str) -> DataKey:
        path = self.directory / FIRST_FILE
        if create and read_file(path, max_bytes=4096) is None and not self.in_use():
            # Exclusive: of two first calls one key wins, and both use it.
            self.writer.create(path, os.urandom(KEY_BYTES))
        key = self._read_file(path, wanted)
        return DataKey(key_id(key), key)

    def _read_file(self, path: Path, wanted: str) -> bytes:
        key = read_file(path, max_bytes=4096)
        if key is None:
            named = f"key {wanted}" if wanted else "the store's key"
            raise Unverifiable(f"{named} is missing: there is no {path}", hint=f"{FROM_A_BACKUP}; {GIVE_UP}")
        if len(key) != KEY_BYTES:
            raise StoreError(f"{path} holds {len(key)} bytes, expected {KEY_BYTES}", hint=FROM_A_BACKUP)
        with explained(path, "read"):
            mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise StoreError(
                f"{path} has mode {mode:04o}: others can read the key",
                hint=f"chmod 600 {path}, and rotate what was sealed with it",
            )
        return key


def entry_name(document: KeyDocument) -> str:
    """The keyring's entry of the key that a document is locked with."""
    return f"{document.store}-{document.slot}"
