"""The manifest of a run's record: the digest of every file, the chain's head, and the host's signature over both.

Pure: signing and checking take keys as bytes. Once the chain is sealed its key is part of the manifest, so that
anybody can check the chain; to forge it then needs the host's signing key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MANIFEST = "manifest.json"


class FileDigest(BaseModel):
    """One file of the record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    bytes: int


class Chain(BaseModel):
    """Where the session's chain of receipts ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str
    head: str | None = None
    """MAC of the last receipt, hex; `None` when there is not one."""
    length: int = 0
    sealed: bool = False
    key: str | None = None
    """The chain key, hex, once sealed."""


class Manifest(BaseModel):
    """The content of manifest.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, serialize_by_alias=True)

    schema_: Literal["agent-container/manifest/1"] = Field(default="agent-container/manifest/1", alias="schema")
    run: str
    project_id: str
    files: dict[str, FileDigest]
    policies: tuple[str, ...] = ()
    """Digests of the policies that receipts name; each is a file of the record too."""
    chain: Chain
    host_key: str
    """The public half of the key that signed, 32 bytes in base64."""
    signature: str = ""
    """Ed25519 over the canonical JSON of everything else, base64."""

    def signed_bytes(self) -> bytes:
        """What the signature is over: sorted keys, no spaces, ASCII, without `signature`."""
        row = self.model_dump(mode="json", exclude={"signature"})
        return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    def encode(self) -> bytes:
        """The content of manifest.json."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=True).encode() + b"\n"


def sign_manifest(manifest: Manifest, sign: Callable[[bytes], bytes]) -> Manifest:
    """The manifest with a signature; `sign` holds the private half of `manifest.host_key`."""
    return manifest.model_copy(update={"signature": base64.b64encode(sign(manifest.signed_bytes())).decode("ascii")})


def signature_fits(manifest: Manifest) -> bool:
    """Whether the manifest is signed by the key that it names. Whose key that is, is another question."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(_unbase64(manifest.host_key))
        public.verify(_unbase64(manifest.signature), manifest.signed_bytes())
    except (InvalidSignature, ValueError):
        return False
    return True


def _unbase64(text: str) -> bytes:
    """The bytes; of their spellings the one that an encoder writes. Raises ValueError for any other."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode("ascii") != text:
        raise ValueError("not as an encoder writes it")  # unused bits in the last letter
    return data


def parse_manifest(body: bytes) -> Manifest:
    """The manifest that `encode` wrote. Raises ValueError in words.

    Takes other spellings of the same values too (spaces, a default left out); whether `body` is the one that was
    written is for who verifies: `manifest.encode() == body`.
    """
    try:
        return Manifest.model_validate_json(body)
    except ValidationError as bad:
        rows = "; ".join(f"{'.'.join(map(str, row['loc'])) or 'file'}: {row['msg']}" for row in bad.errors()[:5])
        raise ValueError(rows) from bad


def digest_of(body: bytes) -> FileDigest:
    """The digest of a file's content."""
    return FileDigest(sha256=hashlib.sha256(body).hexdigest(), bytes=len(body))


def key_fingerprint(public: bytes) -> str:
    """A public key's short name."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode("ascii").rstrip("=")
