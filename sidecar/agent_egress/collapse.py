"""Repeated refusals become one counted receipt a second: an agent that hammers a closed door must neither fill the
disk nor hide the one refusal that matters. The first of each kind in a window is written as it is. Pure: the clock is
a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from agent_egress.receipts import Fields

WINDOW_S = 1.0
MAX_DISTINCT = 100
"""Different refusals written out a window; beyond it they are counted together by kind."""


class Collapser:
    """Holds back repeats of refusals within a window, and gives them back as counted receipts when it is over."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], Fields] = {}
        self._repeats: dict[tuple[object, ...], int] = {}
        self._others: dict[str, int] = {}
        self._ends_at = 0.0

    @property
    def pending(self) -> bool:
        """Whether something is held back."""
        return bool(self._repeats or self._others)

    def sift(self, receipts: Sequence[Fields], *, now_s: float) -> list[Fields]:
        """The receipts to write now, those of the window that is over first."""
        found = self.flush() if now_s >= self._ends_at else []
        for receipt in receipts:
            if receipt.get("action") != "deny" or receipt.get("kind") not in {"decision", "lookup"}:
                found.append(receipt)
                continue
            if not self._seen:
                self._ends_at = now_s + WINDOW_S
            key = tuple(sorted((k, str(v)) for k, v in receipt.items() if k not in {"client", "xaction"}))
            kind = str(receipt["kind"])
            if key in self._seen:
                self._repeats[key] = self._repeats.get(key, 0) + 1
            elif len(self._seen) < MAX_DISTINCT:
                self._seen[key] = receipt
                found.append(receipt)
            else:
                self._others[kind] = self._others.get(kind, 0) + 1
        return found

    def flush(self) -> list[Fields]:
        """The counted receipts of what was held back; the window is over."""
        found: list[Fields] = [{**self._seen[key], "count": count} for key, count in self._repeats.items()]
        found.extend(
            {"kind": kind, "action": "deny", "collapsed": True, "count": count, "rule": "", "why": "many"}
            for kind, count in self._others.items()
        )
        self._seen, self._repeats, self._others = {}, {}, {}
        return found
