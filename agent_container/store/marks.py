"""What this host notes about a record beside it: that it is held, that its work was brought over, where it came from.

A record is signed and never changes; these are the host's own words about it, one small file a run, and lost with it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent_container.errors import StoreError
from agent_container.store.paths import safe_name
from agent_container.store.writer import Writer, read_file

IMPORTED = "imported-"
"""How the directories of records begin that came from elsewhere: none is ever taken for a project of this host."""
MAX_BYTES = 16 * 1024


@dataclass(frozen=True)
class Origin:
    """Where an imported record came from."""

    at: str
    """When it was imported, ISO 8601 in UTC."""
    file: str
    signer: str
    """Fingerprint of the key in its manifest."""
    key: str | None
    """The exporter's public key that its user gave, base64; None when nobody vouched for the signer."""


@dataclass(frozen=True)
class Mark:
    """What is noted of one run; nothing, when there is no file."""

    held: str | None = None
    """Why it is not to be removed; empty for no reason."""
    applied: str | None = None
    """When its work was brought to the project."""
    origin: Origin | None = None


class Marks:
    """`marks/<run>.json`."""

    def __init__(self, directory: Path, writer: Writer) -> None:
        self._directory = directory
        self._writer = writer

    def load(self, run: str) -> Mark:
        """What is noted. Raises StoreError for a damaged file: a hold that is not seen is a record lost."""
        path = self._path(run)
        body = read_file(path, max_bytes=MAX_BYTES)
        if body is None:
            return Mark()
        try:
            row = json.loads(body)
            origin = row.get("origin")
            return Mark(
                held=_text(row.get("held")),
                applied=_text(row.get("applied")),
                origin=None if origin is None else Origin(**{name: _text(origin[name]) for name in _ORIGIN}),  # type: ignore[arg-type]
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as bad:
            raise StoreError(f"{path} cannot be read", hint=f"look at it, then remove {path}") from bad

    def change(self, run: str, **changes: Any) -> Mark:
        """Notes something more, or takes it back."""
        after = replace(self.load(run), **changes)
        self._writer.write(self._path(run), json.dumps(asdict(after), sort_keys=True).encode() + b"\n")
        return after

    def forget(self, run: str) -> None:
        """With the record goes what was noted of it."""
        self._writer.remove(self._path(run))

    def _path(self, run: str) -> Path:
        return self._directory / f"{safe_name(run, what='run')}.json"


_ORIGIN = ("at", "file", "signer", "key")


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(value)
    return value
