"""Secrets at rest: the key file that seals them, and what a sealed file looks like.

AES-256-GCM under a 32-byte key file of mode 0600. The name of what is sealed is authenticated with it, so that one
sealed file cannot be put in another's place. A sealed file names its key by id: a key that is gone reads as
"cannot", never as "tampered".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import stat
from pathlib import Path

from agent_container.errors import StoreError, Unverifiable
from agent_container.store.writer import Writer, explained, read_file

KEY_BYTES = 32
NONCE_BYTES = 12


class Sealer:
    """Seals and opens with the key file of one data directory."""

    def __init__(self, keys: Path, writer: Writer) -> None:
        self._path = keys / "kek"
        self._writer = writer

    def seal(self, secret: bytes, *, purpose: str) -> bytes:
        """A sealed file's content. The first call makes the key file."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._key(create=True)
        nonce = os.urandom(NONCE_BYTES)
        box = AESGCM(key).encrypt(nonce, secret, purpose.encode())
        return _encode(key_id(key), purpose, nonce, box)

    def unseal(self, body: bytes, *, purpose: str) -> bytes:
        """What `seal` was given. Raises Unverifiable when the key is gone, StoreError when the content is not ours."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            row = json.loads(body)
            named, nonce, box = str(row["key"]), base64.b64decode(row["nonce"]), base64.b64decode(row["box"])
        except (ValueError, KeyError, TypeError, binascii.Error) as bad:
            raise StoreError(f"the sealed {purpose} is damaged") from bad
        if _encode(named, purpose, nonce, box) != body:
            raise StoreError(f"the sealed {purpose} is damaged, or belongs elsewhere")
        key = self._key(create=False, wanted=named)
        if key_id(key) != named:
            raise Unverifiable(
                f"the {purpose} is sealed under key {named}, but {self._path} holds key {key_id(key)}",
                hint=f"put the key file {named} back from a backup",
            )
        try:
            return AESGCM(key).decrypt(nonce, box, purpose.encode())
        except (InvalidTag, ValueError) as bad:
            raise StoreError(f"the sealed {purpose} does not open with its key: it was changed") from bad

    def _key(self, *, create: bool, wanted: str = "") -> bytes:
        key = read_file(self._path, max_bytes=4096)
        if key is None and create:
            # Exclusive: of two first calls one key wins, and both use it.
            self._writer.create(self._path, os.urandom(KEY_BYTES))
            key = read_file(self._path, max_bytes=4096)
        if key is None:
            raise Unverifiable(
                f"key {wanted} is missing: there is no {self._path}", hint="put the key file back from a backup"
            )
        if len(key) != KEY_BYTES:
            raise StoreError(
                f"{self._path} holds {len(key)} bytes, expected {KEY_BYTES}", hint="put the key file back from a backup"
            )
        with explained(self._path, "read"):
            mode = stat.S_IMODE(self._path.stat().st_mode)
        if mode & 0o077:
            raise StoreError(
                f"{self._path} has mode {mode:04o}: others can read the key",
                hint=f"chmod 600 {self._path}, and rotate what was sealed with it",
            )
        return key


def key_id(key: bytes) -> str:
    """A short public name of a key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(b"agent-container key id\0" + key).hexdigest()[:16]


def _encode(key: str, purpose: str, nonce: bytes, box: bytes) -> bytes:
    row = {
        "version": 1,
        "cipher": "AES-256-GCM",
        "key": key,
        "purpose": purpose,
        "nonce": _text(nonce),
        "box": _text(box),
    }
    return json.dumps(row, sort_keys=True).encode() + b"\n"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
