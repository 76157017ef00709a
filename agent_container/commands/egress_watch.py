"""`egress watch`: refusals as they happen, grouped by what was refused. A row keeps its number and its place for as
long as the board lives, so that what a user selects is what they saw."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_container.commands.egress_log import Receipt, is_refusal, shown, subject

MAX_ROWS = 200
"""An agent can ask for names without end; what comes after these is counted and not listed."""
OWN_HOSTS = ".agent-container.invalid"


@dataclass(frozen=True)
class Row:
    """One thing that was refused, and how often."""

    number: int
    host: str
    port: int | None
    what: str
    why: str
    count: int
    allowable: bool
    """Whether a rule could open it: it was refused by name, for want of one."""


class Board:
    """The rows so far, in the order in which they appeared."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int | None, str], Row] = {}
        self.unlisted = 0

    @property
    def rows(self) -> tuple[Row, ...]:
        """All of them; numbers begin with 1."""
        return tuple(self._rows.values())

    def row(self, number: int) -> Row | None:
        """The row of that number."""
        rows = self.rows
        return rows[number - 1] if 0 < number <= len(rows) else None

    def add(self, receipt: Receipt) -> Row | None:
        """Takes a receipt in; the row that it made or raised, None for what is no refusal or is not listed."""
        if receipt.get("kind") == "canary" and "core" in receipt:
            self._rows.clear()  # so far the tool itself has tried the ways out: no agent was there
            self.unlisted = 0
        host = subject(receipt)
        if not is_refusal(receipt) or host.endswith(OWN_HOSTS):
            return None
        port, times = _number(receipt, "port"), _number(receipt, "count") or 1
        _, what, why = shown({**receipt, "count": 1, "path": ""})
        lookup = receipt.get("kind") == "lookup"
        # A name that is refused is refused again and again: by every type, and again by the proxy.
        key = (host, None if lookup else port, "" if _by_name(receipt) else f"{receipt.get('kind')} {why}")
        if lookup:
            key = next((there for there in self._rows if there[0] == host and there[2] == key[2]), key)
        elif (host, None, key[2]) in self._rows and key not in self._rows:
            row = self._rows[host, None, key[2]]
            if row.port is None and row.what.startswith("lookup"):
                self._rows[host, None, key[2]] = replace(row, port=port, what=what, count=row.count + times)
                return self._rows[host, None, key[2]]
        there = self._rows.get(key)
        if there is not None:
            self._rows[key] = replace(there, count=there.count + times)
        elif len(self._rows) >= MAX_ROWS:
            self.unlisted += times
            return None
        else:
            allowable = _by_name(receipt) and not receipt.get("rule") and bool(host)
            self._rows[key] = Row(len(self._rows) + 1, host, port, what, why, times, allowable)
        return self._rows[key]


def _by_name(receipt: Receipt) -> bool:
    return receipt.get("kind") in ("decision", "lookup") and not receipt.get("why")


def _number(receipt: Receipt, key: str) -> int | None:
    value = receipt.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
