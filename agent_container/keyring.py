"""A project's ssh keys and the host keys that it trusts, as one value: the current key, the next while it is rotated
in, the previous until its user retires it. One document holds all of it, so that no crash leaves half a pair. What
`encode` gives holds private keys: for sealing alone."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime

from agent_container.errors import StoreError, UsageError

KEY_TYPES = frozenset(
    {"ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"}
    | {"sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"}
)
AUTHORITY = "@cert-authority"
MAX_PINS = 200
SSH_PORT = 22
_WORD = re.compile(r"[A-Za-z0-9.*\[\]:_-]{1,300}")


@dataclass(frozen=True)
class SshKey:
    """One ed25519 pair."""

    private: str = field(repr=False)
    """OpenSSH's own text form, without a passphrase: it is sealed as a whole."""
    public: str
    """`ssh-ed25519 AAAA... comment`."""
    created: str
    """UTC, ISO 8601."""

    @property
    def id(self) -> str:
        """16 hex digits of the public half's digest."""
        return hashlib.sha256(_blob(self.public)).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` shows it."""
        return fingerprint(self.public.split()[1])


@dataclass(frozen=True)
class Pin:
    """One line of known_hosts(5): a host, and a key that it may show."""

    place: str
    """`git.test`, or `[git.test]:2222`."""
    kind: str
    key: str
    """base64."""
    marker: str = ""
    """Empty, or `@cert-authority`: the key signs the hosts' own."""

    @property
    def line(self) -> str:
        """The line itself."""
        return " ".join(filter(None, (self.marker, self.place, self.kind, self.key)))


@dataclass(frozen=True)
class KeyRing:
    """All of one project's. `previous` still works where its server takes it."""

    project: str
    current: SshKey | None = None
    next: SshKey | None = None
    previous: SshKey | None = None
    pins: tuple[Pin, ...] = ()

    @property
    def keys(self) -> tuple[tuple[str, SshKey], ...]:
        """Those that there are, each with what it is."""
        found = (("current", self.current), ("next", self.next), ("previous", self.previous))
        return tuple((name, key) for name, key in found if key is not None)

    @property
    def known_hosts(self) -> str:
        """What ssh reads."""
        return "".join(f"{pin.line}\n" for pin in self.pins)

    def encode(self) -> bytes:
        """JSON with the private keys in it: for sealing only."""
        keys = {name: {"private": key.private, "public": key.public, "created": key.created} for name, key in self.keys}
        pins = [pin.line for pin in self.pins]
        return json.dumps({"version": 1, "project": self.project, **keys, "pins": pins}, sort_keys=True).encode("ascii")


def parse_ring(body: bytes, *, project: str) -> KeyRing:
    """What `encode` wrote. Raises: StoreError, with nothing of the content."""
    try:
        row = json.loads(body)
        if row["version"] != 1 or row["project"] != project:
            raise ValueError
        found = {
            name: SshKey(private=row[name]["private"], public=row[name]["public"], created=row[name]["created"])
            for name in ("current", "next", "previous")
            if name in row
        }
        pins = tuple(parse_pin(line) for line in row["pins"])
        return KeyRing(project=project, pins=pins, **found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError):
        raise StoreError("this project's ssh keys are not in a form that this version reads") from None


def make_key(*, comment: str, now: datetime) -> SshKey:
    """A new pair."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    form, nothing = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, form, nothing).decode("ascii")
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return SshKey(private, f"{public.decode('ascii')} {comment}", now.isoformat(timespec="seconds"))


def begin_rotation(ring: KeyRing, new: SshKey) -> KeyRing:
    """The new key beside the old. Raises: UsageError while another rotation is not over."""
    if ring.current is None or ring.next is not None or ring.previous is not None:
        raise UsageError("there is a rotation already")
    return replace(ring, next=new)


def finish_rotation(ring: KeyRing) -> KeyRing:
    """The new key in use, the old one kept. Raises: UsageError without a new one."""
    if ring.next is None:
        raise UsageError("there is no new key to switch to")
    return replace(ring, current=ring.next, next=None, previous=ring.current)


def with_pins(ring: KeyRing, pins: tuple[Pin, ...]) -> KeyRing:
    """Adds pins: while a host changes its key, both are right."""
    merged = tuple(dict.fromkeys((*ring.pins, *pins)))
    if len(merged) > MAX_PINS:
        raise UsageError(f"more than {MAX_PINS} pinned keys")
    return replace(ring, pins=merged)


def without_pins(ring: KeyRing, place: str) -> KeyRing:
    """Without the pins of a place."""
    return replace(ring, pins=tuple(pin for pin in ring.pins if pin.place != place))


def place_of(host: str, port: int = SSH_PORT) -> str:
    """How known_hosts(5) names a host."""
    return host if port == SSH_PORT else f"[{host}]:{port}"


def parse_pin(line: str) -> Pin:
    """One line of known_hosts(5), of one host. Raises: UsageError."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or marker not in ("", AUTHORITY):
        raise UsageError(f"not a line of a known_hosts file: {line[:80]!r}")
    place, kind, key = words[:3]
    if not _WORD.fullmatch(place):
        raise UsageError(f"expected one host, not hashed, at the beginning of {line[:80]!r}")
    if kind not in KEY_TYPES or _inner_type(key) != kind:
        raise UsageError(f"{line[:80]!r} holds no {kind} key")
    return Pin(place, kind, key, marker)


def fingerprint(key: str) -> str:
    """Of a public key's base64, as OpenSSH shows it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _inner_type(key: str) -> str:
    """The type that the key itself names."""
    try:
        blob = base64.b64decode(key, validate=True)
    except (ValueError, binascii.Error):
        return ""
    length = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + length].decode("ascii", "replace") if 0 < length < 64 else ""


def _blob(public: str) -> bytes:
    return base64.b64decode(public.split()[1])
