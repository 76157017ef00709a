"""What a secret looks like to the body scanner, which never gets the secret itself: its first bytes, its length, and a
keyed digest of it. The first bytes find a candidate at any place of a stream, at the speed of a search; the digest says
whether it is the one. Host and sidecar make them alike."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MIN_SECRET = 12
"""Shorter secrets are not looked for: their first bytes would say too much, and chance would find them."""
ANCHOR = 3
"""Bytes that are told as they are. Of the known kinds of key they are the same in every key."""
MAX_WINDOW = 256
"""Bytes of the secret that are digested; the rest of a longer one is not looked at."""
KEY_BYTES = 32
DIGEST_BYTES = 16
MAX_ROWS = 2000
MODES = ("enforce", "log", "off")
"""What follows from a key in a body: refused or noted, only noted, or not looked for."""
ROLES = ("own", "decoy", "stored")


class FingerprintRefused(ValueError):
    """Rows that are no fingerprints."""


@dataclass(frozen=True)
class Fingerprint:
    """One secret, as the scanner knows it."""

    name: str
    """Of the credential."""
    role: str
    """`own`: a real secret of this session; `decoy`: what stands for it; `stored`: another of the host's store."""
    anchor: bytes
    length: int
    digest: bytes = field(repr=False)
    key: bytes = field(repr=False)
    hosts: tuple[str, ...] = ()
    """Of a decoy: where it belongs."""

    def matches(self, window: bytes) -> bool:
        """Whether these `length` bytes are the secret's."""
        return hmac.compare_digest(_digest(window, self.key), self.digest)

    def row(self) -> dict[str, object]:
        """As JSON."""
        return {
            "name": self.name,
            "role": self.role,
            "anchor": self.anchor.hex(),
            "length": self.length,
            "digest": self.digest.hex(),
            "key": self.key.hex(),
            "hosts": list(self.hosts),
        }


def _digest(window: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(window, key=key, digest_size=DIGEST_BYTES).digest()


def new_key() -> bytes:
    """A key for the digests of one session."""
    return secrets.token_bytes(KEY_BYTES)


def fingerprint(secret: bytes, *, name: str, role: str, key: bytes, hosts: Iterable[str] = ()) -> Fingerprint | None:
    """The fingerprint of a secret; None when it is too short to be looked for."""
    if len(secret) < MIN_SECRET:
        return None
    window = secret[:MAX_WINDOW]
    return Fingerprint(name, role, window[:ANCHOR], len(window), _digest(window, key), key, tuple(hosts))


def parse_rows(value: object) -> tuple[Fingerprint, ...]:
    """What `row` wrote. Raises: FingerprintRefused."""
    if not isinstance(value, list) or len(value) > MAX_ROWS:
        raise FingerprintRefused("fingerprints: expected a list")
    return tuple(_parse(row) for row in value)


def _parse(row: object) -> Fingerprint:
    try:
        if not isinstance(row, Mapping) or not isinstance(row["hosts"], list):
            raise TypeError
        found = Fingerprint(
            name=str(row["name"])[:64],
            role=str(row["role"]),
            anchor=bytes.fromhex(row["anchor"]),
            length=int(row["length"]),
            digest=bytes.fromhex(row["digest"]),
            key=bytes.fromhex(row["key"]),
            hosts=tuple(map(str, row["hosts"])),
        )
    except (KeyError, TypeError, ValueError):
        raise FingerprintRefused("fingerprints: a row is none") from None
    sizes = (len(found.anchor), len(found.digest), len(found.key))
    if sizes != (ANCHOR, DIGEST_BYTES, KEY_BYTES) or not MIN_SECRET <= found.length <= MAX_WINDOW:
        raise FingerprintRefused("fingerprints: a row has the wrong size")
    if found.role not in ROLES:
        raise FingerprintRefused("fingerprints: a row has no such role")
    return found
