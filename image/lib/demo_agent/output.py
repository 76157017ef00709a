"""What the demo agent says: JSON lines for a program, plain lines for a person on a terminal."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any, Callable, Tuple


class Output:
    """Numbers tool calls and writes each event at once."""

    def __init__(self, *, plain: bool = False) -> None:
        self._plain = plain
        self._ids = itertools.count(1)
        self.turns = 0

    def event(self, kind: str, **fields: Any) -> None:
        """One line."""
        if self._plain:
            words = fields.get("text") or fields.get("message") or fields.get("input") or fields.get("output") or ""
            line = f"{kind}: {words}" if kind not in ("message", "result") else str(words)
        else:
            line = json.dumps({"type": kind, **fields})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def message(self, text: str) -> None:
        """The agent speaks."""
        self.turns += 1
        self.event("message", text=text)

    def tool(self, name: str, given: str, run: Callable[[], Tuple[bool, str]]) -> Tuple[bool, str]:
        """One tool call with its result: (worked, what it printed)."""
        call = f"call-{next(self._ids)}"
        self.event("tool_call", id=call, name=name, input=given)
        try:
            ok, output = run()
        except Exception as error:  # an agent's tool fails; the agent goes on
            ok, output = False, f"{type(error).__name__}: {error}"
        self.event("tool_result", id=call, name=name, ok=ok, output=output[:4000])
        return ok, output

    def result(self, ok: bool, text: str) -> None:
        """The last event of a run: what it cost and how it ended."""
        self.event("usage", tokens_in=100 * self.turns, tokens_out=25 * self.turns)
        self.event("result", ok=ok, text=text, turns=self.turns)
