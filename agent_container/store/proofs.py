"""Proofs: what `prove` saw of one sandbox, signed with the host's key, kept for as long as their user wants."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from agent_container.store.host_key import HostKey
from agent_container.store.paths import safe_name
from agent_container.store.writer import Writer


class Proofs:
    """One file a proof, `<session>/<time>.json`: the document as it was signed, the signature, the key's public
    half."""

    def __init__(self, directory: Path, writer: Writer, host_key: HostKey) -> None:
        self._directory = directory
        self._writer = writer
        self._host_key = host_key

    def save(self, session: str, *, name: str, document: dict[str, object]) -> Path:
        """Signs and stores a document; the signature is over the exact bytes of `document` in the file."""
        body = json.dumps(document, sort_keys=True, separators=(",", ":"))
        signer = self._host_key.signer()
        signed = {
            "version": 1,
            "document": body,
            "signature": base64.b64encode(signer.sign(body.encode())).decode(),
            "host_key": base64.b64encode(signer.public).decode(),
        }
        directory = self._directory / safe_name(session, what="session")
        path = directory / f"{safe_name(name, what='proof')}.json"
        self._writer.make_dir(directory)
        self._writer.write(path, json.dumps(signed, sort_keys=True).encode() + b"\n")
        return path
