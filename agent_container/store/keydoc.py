"""The key document: which key the store is sealed under, and what that key itself is locked with.

A random data key seals the files; the document holds it, encrypted under the lock: a key in the OS keyring, one made
from a passphrase, or a 0600 key file. While a lock is changed it holds the former data key too, so that at every
moment one document opens everything.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from agent_container.errors import StoreError
from agent_container.store.passphrase import Stretching, read_stretching

LockKind = Literal["keyring", "passphrase", "file"]
LOCKS: tuple[LockKind, ...] = get_args(LockKind)
PROTECTS: dict[LockKind, str] = {
    "keyring": "opens while you are logged in; a copy of the disk or a backup does not open, "
    "and an old file put back is noticed",
    "passphrase": "opens when you type it; a copy does not open, whoever runs as you has to wait until you do",
    "file": "opens by itself, in cron too; keeps other users of this machine out, "
    "but who copies your whole home has the key with it",
}
"""One sentence a lock: what it protects against, and what not."""
NONCE_BYTES = 12


def key_id(key: bytes) -> str:
    """A short public name of a key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(b"agent-container key id\0" + key).hexdigest()[:16]


@dataclass(frozen=True)
class Wrapped:
    """One data key as the document holds it."""

    id: str
    nonce: bytes
    box: bytes


@dataclass(frozen=True)
class KeyDocument:
    """What `keys/lock.json` says."""

    store: str
    """A random name of this store: what its entries in the keyring are called by."""
    lock: LockKind
    lock_key: str
    """The id of the key that the data keys are encrypted under; empty for a passphrase."""
    slot: str
    """Which of two keyring entries or which key file holds it."""
    stretching: Stretching | None
    keys: tuple[Wrapped, ...]
    """The data key in force first, then those that a change of the lock has still to leave behind."""

    def encode(self) -> bytes:
        """JSON."""
        row: dict[str, object] = {
            "version": 1,
            "store": self.store,
            "lock": self.lock,
            "lock_key": self.lock_key,
            "slot": self.slot,
            "kdf": None if self.stretching is None else self.stretching.row(),
            "keys": [{"id": one.id, "nonce": _text(one.nonce), "box": _text(one.box)} for one in self.keys],
        }
        return json.dumps(row, sort_keys=True).encode() + b"\n"

    def wrap(self, lock: bytes, key: bytes) -> Wrapped:
        """A data key, encrypted for this document."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(NONCE_BYTES)
        return Wrapped(key_id(key), nonce, AESGCM(lock).encrypt(nonce, key, self._bound(key_id(key))))

    def unwrap(self, lock: bytes, wrapped: Wrapped) -> bytes | None:
        """The data key; None when `lock` is not what it was encrypted under, or the document was changed."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            key = AESGCM(lock).decrypt(wrapped.nonce, wrapped.box, self._bound(wrapped.id))
        except (InvalidTag, ValueError):
            return None
        return key if key_id(key) == wrapped.id else None

    def _bound(self, key: str) -> bytes:
        kdf = None if self.stretching is None else self.stretching.row()
        return json.dumps([self.store, self.lock, self.slot, kdf, key], sort_keys=True).encode()


def parse_document(body: bytes, *, where: Path) -> KeyDocument:
    """The document that `encode` wrote. Raises StoreError naming the file."""
    try:
        row = json.loads(body)
        if row["version"] != 1 or row["lock"] not in LOCKS:
            raise ValueError
        lock = cast("LockKind", row["lock"])
        stretching = read_stretching(row["kdf"], where=where) if lock == "passphrase" else None
        keys = tuple(
            Wrapped(
                str(one["id"]),
                base64.b64decode(one["nonce"], validate=True),
                base64.b64decode(one["box"], validate=True),
            )
            for one in row["keys"]
        )
        document = KeyDocument(str(row["store"]), lock, str(row["lock_key"]), str(row["slot"]), stretching, keys)
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise StoreError(
            f"{where} is damaged: what the store is locked with cannot be read", hint=f"put {where} back from a backup"
        ) from None
    names = (document.store, document.slot, document.lock_key, *(one.id for one in keys))
    if not keys or document.encode() != body or any(name and not name.isalnum() for name in names):
        raise StoreError(f"{where} is damaged or was changed", hint=f"put {where} back from a backup")
    return document


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
