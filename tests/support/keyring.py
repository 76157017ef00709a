"""Keyrings with the behaviour of a real one: texts by name, and one can be locked or gone. In memory, or in a file for
processes that are killed: each change of it is one rename, as a daemon's would be one message."""

from __future__ import annotations

import json
from pathlib import Path

from agent_container.errors import Unverifiable


class MemoryKeyring:
    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}
        self.trouble = ""

    def get(self, name: str, *, service: str = "agent-container") -> str | None:
        self._check()
        return self.entries.get((service, name))

    def put(self, name: str, text: str) -> None:
        self._check()
        self.entries["agent-container", name] = text

    def drop(self, name: str) -> None:
        self._check()
        self.entries.pop(("agent-container", name), None)

    def _check(self) -> None:
        if self.trouble:
            raise Unverifiable(self.trouble)


class FileKeyring(MemoryKeyring):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def get(self, name: str, *, service: str = "agent-container") -> str | None:
        return self._read().get(name)

    def put(self, name: str, text: str) -> None:
        self._write({**self._read(), name: text})

    def drop(self, name: str) -> None:
        self._write({key: text for key, text in self._read().items() if key != name})

    def _read(self) -> dict[str, str]:
        return json.loads(self._path.read_bytes()) if self._path.exists() else {}

    def _write(self, rows: dict[str, str]) -> None:
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(rows))
        beside.rename(self._path)
