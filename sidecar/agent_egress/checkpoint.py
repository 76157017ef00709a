"""Where the chain stands, as the sidecar tells it and the host reads it: one line among the words of the health probe,
which the engine makes anyway and the host reads anyway. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent_egress.receipts import ZERO_MAC

_LINE = re.compile(r"^chain ([1-9][0-9]{0,8}) ([0-9a-f]{64})$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class Stand:
    """A receipt that is on stable storage, with all before it."""

    length: int = 0
    head: str = ZERO_MAC
    """Its MAC, hex."""

    @classmethod
    def of(cls, answer: Mapping[str, object]) -> Stand | None:
        """What the audit writer answered; None when it did not."""
        length, head = answer.get("length"), answer.get("head")
        found = isinstance(length, int) and isinstance(head, str) and answer.get("ok") is True
        return cls.read(f"chain {length} {head}") if found else None

    @classmethod
    def read(cls, words: str) -> Stand | None:
        """The stand that health words tell of; None when they tell of none."""
        found = _LINE.search(words)
        return cls(int(found[1]), found[2]) if found else None

    @property
    def words(self) -> str:
        """The same as a line of them; empty as long as nothing is there."""
        return f"chain {self.length} {self.head}\n" if self.length else ""
