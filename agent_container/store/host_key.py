"""The Ed25519 key with which this host signs its records, and the public halves of those that it had before.

One private half at a time, sealed; a rotation replaces it by one rename, and then nothing can be signed with the old
one any more. Public halves are only ever added to: what an old key signed keeps its proof.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import StoreError
from agent_container.store.datakeys import KEY_BYTES
from agent_container.store.locks import Locks
from agent_container.store.sealing import Sealer
from agent_container.store.writer import TEMP_PREFIX, Writer, read_file

MAX_PEM_BYTES = 4096


@dataclass(frozen=True)
class Signer:
    """One key pair for one signature: asked for apart, a rotation could fall between public half and signature."""

    public: bytes
    """32 bytes, raw."""
    sign: Callable[[bytes], bytes]
    """An Ed25519 signature of 64 bytes."""


@dataclass(frozen=True)
class Rotated:
    """What a rotation did."""

    former: bytes | None
    """The public half of the key that is no more; None where there was no key yet."""
    current: bytes


class HostKey:
    """The key pair in `keys/`, and its predecessors' public halves in `keys/former/`."""

    def __init__(self, keys: Path, writer: Writer, sealer: Sealer, locks: Locks) -> None:
        self._private = keys / "host.key"
        self._public = keys / "host.pub"
        self._former = keys / "former"
        self._writer = writer
        self._sealer = sealer
        self._locks = locks

    def signer(self) -> Signer:
        """Public half and signature of the same key. The first call makes the key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        with self._held():
            private = Ed25519PrivateKey.from_private_bytes(self._seed())
        return Signer(private.public_key().public_bytes_raw(), private.sign)

    def sign(self, body: bytes) -> bytes:
        """An Ed25519 signature of 64 bytes. The first call makes the key."""
        return self.signer().sign(body)

    def public(self) -> bytes:
        """The public half, 32 bytes raw. The first call makes the key."""
        return self.signer().public

    def published(self) -> bytes | None:
        """The public half if there is one; makes nothing."""
        return self._read(self._public)

    def former(self) -> tuple[bytes, ...]:
        """Public halves of the keys before, newest first."""
        current = self.published()
        found = (self._read(path) for path in reversed(self._kept()))
        return tuple(dict.fromkeys(key for key in found if key is not None and key != current))

    def all_public(self) -> tuple[bytes, ...]:
        """Every public half that vouches for records of this host: the current one first. Makes nothing."""
        current = self.published()
        return (*(() if current is None else (current,)), *self.former())

    def export(self) -> bytes:
        """The same as PEM, one block after the other. Makes nothing."""
        return b"".join(_pem(key) for key in self.all_public())

    def rotate(self) -> Rotated:
        """Makes a new key in place of the old one, whose private half is then gone. Finishes a rotation that was cut
        short, instead of making another."""
        with self._held():
            if read_file(self._private, max_bytes=MAX_PEM_BYTES) is None:
                self._seed()
                current = self.published()
                assert current is not None  # noqa: S101 - narrows the type
                return Rotated(None, current)
            said = self.published()
            old = _public_of(self._seed())  # and its public half is published now
            if said is not None and said != old:
                return Rotated(said, old)
            # In this order: the public half is kept before its private half goes, and the new private half is there
            # before it is announced. A crash in between leaves a key that signs, and every public half that did.
            self._keep(old)
            self._write_seed(seed := os.urandom(KEY_BYTES))
            self._publish(seed)
            return Rotated(old, _public_of(seed))

    def _held(self) -> AbstractContextManager[None]:
        return self._locks.hold("host-key", what="the host's signing key", wait_s=10)

    def _seed(self) -> bytes:
        """The private half; its public half is published then."""
        opened = self._sealer.read(self._private, purpose="host-key")
        if opened is None:
            self._write_seed(seed := os.urandom(KEY_BYTES))
        else:
            seed = opened.secret
        # Private before public: a crash between them leaves a key whose public half is made again here.
        self._publish(seed)
        return seed

    def _write_seed(self, seed: bytes) -> None:
        self._sealer.write(self._private, seed, purpose="host-key")

    def _publish(self, seed: bytes) -> None:
        pem = _pem(_public_of(seed))
        if read_file(self._public, max_bytes=MAX_PEM_BYTES) == pem:
            return
        before = self.published()
        if before is not None:
            self._keep(before)  # its private half was lost, or replaced: records that it signed are there
        self._writer.write(self._public, pem)

    def _keep(self, public: bytes) -> None:
        kept = self._kept()
        if any(self._read(path) == public for path in kept):
            return
        number = int(kept[-1].stem) + 1 if kept else 1
        self._writer.write(self._former / f"{number:06}.pub", _pem(public))

    def _kept(self) -> list[Path]:
        if not self._former.is_dir():
            return []
        return sorted(
            path for path in self._former.iterdir() if path.stem.isdecimal() and not path.name.startswith(TEMP_PREFIX)
        )

    def _read(self, path: Path) -> bytes | None:
        body = read_file(path, max_bytes=MAX_PEM_BYTES)
        if body is None:
            return None
        keys = read_public_keys(body, origin=str(path))
        return keys[0]


def read_public_keys(body: bytes, *, origin: str) -> tuple[bytes, ...]:
    """The Ed25519 public keys of a PEM file, 32 bytes each; words between the blocks do not matter. Raises StoreError
    when there is none, or one of another kind."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    hint = f"is it what `agent-container host-key export` wrote? {origin}"
    found = []
    for block in body.split(b"-----BEGIN ")[1:]:
        try:
            key = serialization.load_pem_public_key(b"-----BEGIN " + block)
        except (ValueError, UnsupportedAlgorithm) as bad:
            raise StoreError(f"{origin} is not a public key in PEM", hint=hint) from bad
        if not isinstance(key, Ed25519PublicKey):
            raise StoreError(f"{origin} is not an Ed25519 key", hint=hint)
        found.append(key.public_bytes_raw())
    if not found:
        raise StoreError(f"{origin} is not a public key in PEM", hint=hint)
    return tuple(found)


def _public_of(seed: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def _pem(public: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(public)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
