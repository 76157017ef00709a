"""Where a secret is fetched from: a variable, a file, the keyring, or a program's output. The place, never the value.

A reference is stored in place of a secret when its user asks for that, and is followed each time a sandbox is given
the credential.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from agent_container.credential_program import fence, locate
from agent_container.errors import UsageError

Source = Literal["env", "file", "keyring", "command"]
SOURCES: tuple[Source, ...] = get_args(Source)


@dataclass(frozen=True)
class Reference:
    """One place; `words` are the variable, the path, service and user, or the program and its arguments."""

    source: Source
    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        """For people: `command: op read op://vault/item/key`."""
        return f"{self.source}: {'/'.join(self.words) if self.source == 'keyring' else shlex.join(self.words)}"

    def row(self) -> dict[str, object]:
        """As JSON."""
        return {"source": self.source, "words": list(self.words)}


def parse_reference(source: Source, text: str, *, directory: Path) -> Reference:
    """What the user wrote. A path is taken from `directory` and a program from PATH, so that they mean the same later.
    Raises UsageError."""
    if source == "command":
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise UsageError(f"the command cannot be split into words: {error}") from None
        if not words:
            raise UsageError("the command is empty")
        program = locate(words[0], os.environ, fenced=fence(directory, os.environ))
        return Reference("command", (program, *words[1:]))
    if source == "keyring":
        service, _, user = text.rpartition("/")
        if not service or not user:
            raise UsageError(f"{text!r} names no entry of the keyring", hint="--from-keyring SERVICE/USER")
        return Reference("keyring", (service, user))
    if source == "file":
        return Reference("file", (str(directory.absolute() / Path(text).expanduser()),))
    if not text or "=" in text or not text.isprintable():
        raise UsageError(f"{text!r} is no name of a variable")
    return Reference("env", (text,))


def read_reference(row: object) -> Reference:
    """What `row` wrote. Raises ValueError."""
    if not isinstance(row, dict) or row.get("source") not in SOURCES or not isinstance(row.get("words"), list):
        raise ValueError("not a reference")
    words = tuple(str(word) for word in row["words"])
    if not words:
        raise ValueError("not a reference")
    return Reference(cast("Source", row["source"]), words)
