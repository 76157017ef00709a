"""What the kernel counted since it was last asked, as receipts: packets of the agent that were refused, and
destinations that squid dialled. Pure; the kernel's sets are read by `ruleset`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent_egress.receipts import Fields
from agent_egress.ruleset import Flow, Live

MAX_DROPS = 64
"""Refused destinations written out one by one a poll; the rest are counted together: an agent that scans must neither
fill the disk nor hide what it tried before."""


class Tally:
    """Remembers the counts of the last poll."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str, str, int], int] = {}
        self._drops = 0

    def receipts(self, live: Live, *, first: Callable[[Flow], bool] = lambda _: False) -> list[Fields]:
        """One receipt for each destination with new packets. `first`: which are written out however many others there
        are, so that nobody hides one among them."""
        connections = [
            {"kind": "connection", "address": flow.address, "port": flow.port, "packets": packets}
            for flow, packets in self._new("dialled", live.dialled())
        ]
        drops = sorted(self._new("seen", live.seen()), key=lambda row: (not first(row[0]), -row[1]))
        found: list[Fields] = [*connections]
        found += [
            {"kind": "drop", "address": f.address, "proto": f.protocol, "port": f.port, "count": packets}
            for f, packets in drops[:MAX_DROPS]
        ]
        total = live.counters.get("agent_drop", 0)
        # What no set has room for, and protocols without ports, still count.
        rest = max(0, total - self._drops - sum(packets for _, packets in drops[:MAX_DROPS]))
        if rest:
            found.append({"kind": "drop", "address": "*", "proto": "*", "port": 0, "count": rest})
        self._drops = max(total, self._drops)
        return found

    def forget(self) -> None:
        """The table was loaded anew and counts from nothing."""
        self._before.clear()
        self._drops = 0

    def _new(self, kind: str, flows: Iterable[Flow]) -> list[tuple[Flow, int]]:
        found = []
        for flow in flows:
            key = (kind, flow.address, flow.protocol, flow.port)
            before = self._before.get(key, 0)
            # An element that timed out and came back counts from nothing.
            new = flow.packets - before if flow.packets >= before else flow.packets
            self._before[key] = flow.packets
            if new:
                found.append((flow, new))
        return found
