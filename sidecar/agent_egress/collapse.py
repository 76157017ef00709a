"""Repeated refusals become one counted receipt a second: an agent that hammers a closed door must neither fill the disk
nor hide the one refusal that matters. The first of each kind in a window is written as it is. Pure: the clock is a
parameter."""

from __future__ import annotations

from collections.abc import Sequence

from agent_egress.receipts import Fields

WINDOW_S = 1.0
MAX_DISTINCT = 100
"""Different refusals written out a window; beyond it they are counted together by kind."""
RESERVED = 5
"""But so many of each rule and each cause are written all the same: an agent invents names and paths, and no rules."""
_COLLAPSED_KINDS = frozenset({"decision", "lookup", "git"})
_Key = tuple[tuple[str, str], ...]


class Collapser:
    """Holds back repeats of refusals within a window, and gives them back as counted receipts when it is over."""

    def __init__(self) -> None:
        self._seen: set[_Key] = set()
        self._written: dict[tuple[str, ...], int] = {}
        self._repeats: dict[_Key, tuple[Fields, int]] = {}
        self._others: dict[str, int] = {}
        self._ends_at_s = 0.0
        self._undo = (self._seen, self._written, self._repeats, self._others)

    @property
    def pending(self) -> bool:
        """Whether something is held back."""
        return bool(self._repeats or self._others)

    def over(self, now_s: float) -> bool:
        """Whether the window has ended, so that `flush` is due."""
        return bool(self._seen) and now_s >= self._ends_at_s

    def sift(self, receipts: Sequence[Fields], *, now_s: float) -> list[Fields]:
        """The receipts of a batch that are to be written now."""
        self._undo = (self._seen, self._written, self._repeats, self._others)
        if not any(_is_refusal(receipt) for receipt in receipts):
            return list(receipts)
        self._seen, self._written = set(self._seen), dict(self._written)
        self._repeats, self._others = dict(self._repeats), dict(self._others)
        if not self._seen:
            self._ends_at_s = now_s + WINDOW_S
        return [receipt for receipt in receipts if not _is_refusal(receipt) or self._is_new(receipt)]

    def _is_new(self, receipt: Fields) -> bool:
        key = tuple(sorted((name, str(value)) for name, value in receipt.items() if name != "client"))
        if key in self._seen:
            first, count = self._repeats.get(key, (receipt, 0))
            self._repeats[key] = (first, count + 1)
            return False
        cause = tuple(str(receipt.get(name, "")) for name in ("kind", "rule", "why"))
        written = self._written.get(cause, 0)
        if len(self._seen) < MAX_DISTINCT or written < RESERVED:
            self._seen.add(key)
            self._written[cause] = written + 1
            return True
        kind = str(receipt["kind"])
        self._others[kind] = self._others.get(kind, 0) + 1
        return False

    def undo(self) -> None:
        """The batch that was sifted last did not reach the disk, so it counts for nothing."""
        self._seen, self._written, self._repeats, self._others = self._undo

    def flush(self) -> list[Fields]:
        """The counted receipts of what was held back; the window is over."""
        found: list[Fields] = [{**first, "count": count} for first, count in self._repeats.values()]
        found.extend(
            {"kind": kind, "action": "deny", "collapsed": True, "count": count} for kind, count in self._others.items()
        )
        self._seen, self._written, self._repeats, self._others = set(), {}, {}, {}
        self._undo = (self._seen, self._written, self._repeats, self._others)
        return found


def _is_refusal(receipt: Fields) -> bool:
    return receipt.get("action") == "deny" and receipt.get("kind") in _COLLAPSED_KINDS
