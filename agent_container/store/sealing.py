"""Sealed files: what one looks like, and who may write one when.

AES-256-GCM under a data key of the store. The name of what is sealed is authenticated with it, so that one sealed file
cannot be put in another's place, and so is its number, which grows with every new content. A sealed file names its key
by id: a key that is gone reads as "cannot", never as "tampered".
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import AgentContainerError, StoreError, Unverifiable
from agent_container.store.datakeys import DataKey, DataKeys
from agent_container.store.keydoc import LockKind
from agent_container.store.locks import Locks
from agent_container.store.passphrase import Passphrases
from agent_container.store.relock import Relocked, relock, sealed_files
from agent_container.store.writer import Writer, read_file

NONCE_BYTES = 12
LOCK_WAIT_S = 60.0
"""The longest that a writer waits while the lock of a large store is changed."""


@dataclass(frozen=True)
class Opened:
    """What a sealed file holds."""

    secret: bytes
    number: int
    """Which content of this name it is, from 1; 0 where files are written once and not counted."""

    def __repr__(self) -> str:
        return f"Opened(number={self.number})"


class Sealer:
    """Seals and opens with the data keys of one store."""

    def __init__(self, data: Path, *, keys: DataKeys, writer: Writer, locks: Locks) -> None:
        self._data = data
        self._writer = writer
        self._locks = locks
        self.keys = keys

    def locked(self, *, doing: str = "") -> AbstractContextManager[None]:
        """Held while something is sealed and written: a change of the lock in between would leave it unreadable."""
        return self._locks.hold("keys", what="the credential store", doing=doing, wait_s=LOCK_WAIT_S)

    def seal(self, secret: bytes, *, purpose: str, number: int = 0) -> bytes:
        """A sealed file's content; the caller holds `locked`. The first call makes the key."""
        return _sealed(self.keys.keys(create=True)[0], secret, purpose=purpose, number=number)

    def write(self, path: Path, secret: bytes, *, purpose: str) -> None:
        """Seals in place of what was there."""
        with self.locked():
            self._writer.write(path, self.seal(secret, purpose=purpose))

    def create(self, path: Path, secret: bytes, *, purpose: str) -> bool:
        """Seals where nothing is; False when something was."""
        with self.locked():
            return self._writer.create(path, self.seal(secret, purpose=purpose))

    def read(self, path: Path, *, purpose: str) -> Opened | None:
        """What was sealed there, None when nothing is. Raises Unverifiable when its key cannot be had, StoreError
        naming the file when the content is damaged, of another name, or changed."""
        body = read_file(path)
        while body is not None:
            try:
                return self._open(body, purpose=purpose, path=path)
            except AgentContainerError:
                again = read_file(path)
                if again == body:
                    raise
                body = again  # sealed anew between the two reads, under a key that is known now
        return None

    def relock(self, lock: LockKind, *, passphrases: Passphrases, abandon: bool = False) -> Relocked:
        """Changes what the store is locked with; see `relock`."""
        with self.locked(doing=f"locking it with {lock}"):
            return relock(self.keys, lock, passphrases=passphrases, reseal=self._reseal, abandon=abandon)

    def _reseal(self, every: Sequence[DataKey]) -> tuple[int, tuple[str, ...]]:
        by_id = {one.id: one for one in every}
        count, left = 0, []
        for path in sealed_files(self._data):
            body = read_file(path)
            if body is None:
                continue
            try:
                row = _parse(body, what=str(path))
                if row.key == every[0].id:
                    continue
                secret = _unsealed(row, by_id[row.key])
            except (AgentContainerError, KeyError):
                left.append(str(path.relative_to(self._data)))
                continue
            fresh = _sealed(every[0], secret, purpose=row.purpose, number=row.number)
            self._writer.write(path, fresh)
            count += 1
        return count, tuple(left)

    def _open(self, body: bytes, *, purpose: str, path: Path) -> Opened:
        row = _parse(body, what=f"the sealed {purpose} ({path})")
        if row.purpose != purpose:
            raise StoreError(
                f"{path} is damaged, or belongs elsewhere: it holds {row.purpose} in place of {purpose}",
                hint="were two files exchanged? put both back from a backup, or set them again",
            )
        keys = self.keys.keys(wanted=row.key)
        key = next((one for one in keys if one.id == row.key), None)
        if key is None:
            raise Unverifiable(
                f"the {purpose} is sealed under key {row.key}, but the store has key {keys[0].id}",
                details=(f"the file is {path}",),
                hint=f"put the key {row.key} back from a backup, or set the credential again",
            )
        try:
            return Opened(_unsealed(row, key), row.number)
        except StoreError as bad:
            raise StoreError(f"{bad.message} ({path})", hint="put it back from a backup, or set it again") from None


@dataclass(frozen=True)
class _Row:
    key: str
    purpose: str
    number: int
    nonce: bytes
    box: bytes

    @property
    def bound(self) -> bytes:
        """What is authenticated with the content."""
        return f"{self.purpose}\0{self.number}".encode() if self.number else self.purpose.encode()

    def encode(self) -> bytes:
        row: dict[str, object] = {
            "version": 2 if self.number else 1,
            "cipher": "AES-256-GCM",
            "key": self.key,
            "purpose": self.purpose,
            "nonce": base64.b64encode(self.nonce).decode("ascii"),
            "box": base64.b64encode(self.box).decode("ascii"),
        }
        if self.number:
            row["number"] = self.number
        return json.dumps(row, sort_keys=True).encode() + b"\n"


def number_of(body: bytes) -> int:
    """Which content a sealed file claims to be, not yet authenticated; 0 when that cannot be read."""
    try:
        return _parse(body, what="file").number
    except StoreError:
        return 0


def _parse(body: bytes, *, what: str) -> _Row:
    try:
        row = json.loads(body)
        found = _Row(
            key=str(row["key"]),
            purpose=str(row["purpose"]),
            number=int(row.get("number", 0)),
            nonce=base64.b64decode(row["nonce"]),
            box=base64.b64decode(row["box"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise StoreError(f"{what} is damaged", hint="put it back from a backup, or set it again") from None
    if found.encode() != body:
        raise StoreError(f"{what} is damaged, or was changed", hint="put it back from a backup, or set it again")
    return found


def _sealed(key: DataKey, secret: bytes, *, purpose: str, number: int) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    row = _Row(key.id, purpose, number, os.urandom(NONCE_BYTES), b"")
    box = AESGCM(key.key).encrypt(row.nonce, secret, row.bound)
    return _Row(row.key, purpose, number, row.nonce, box).encode()


def _unsealed(row: _Row, key: DataKey) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key.key).decrypt(row.nonce, row.box, row.bound)
    except (InvalidTag, ValueError):
        raise StoreError(f"the sealed {row.purpose} does not open with its key: it was changed") from None
