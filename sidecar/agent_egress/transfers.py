"""squid's access log, one datagram a finished transaction, as counted receipts: bytes to and from each host. What is
lost of it (a full socket, a squid that was killed) makes the counts too small and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from agent_egress.identity import CANARY_HOST, HEALTH_HOST
from agent_egress.names import NameRefused, canonical_host
from agent_egress.receipts import Fields, cut_text

FLUSH_S = 1.0
MAX_HOSTS = 1000
"""Distinct hosts between two flushes; past it they are counted under one name."""
OTHERS = "(others)"
_LINE = re.compile(rb"([A-Z_a-z-]{1,32}) ([A-Z_]{1,64}) (\S{1,512}) ([0-9]{1,5}|-) ([0-9]{1,15}) ([0-9]{1,15})\s*")
OWN = frozenset({CANARY_HOST, HEALTH_HOST})


@dataclass
class Count:
    """Of one host and port."""

    requests: int = 0
    up: int = 0
    down: int = 0


class Transfers(asyncio.DatagramProtocol):
    """Counts datagrams and hands them on as receipts once a second while there are any."""

    def __init__(self, write: Callable[[list[Fields]], None]) -> None:
        self._write = write
        self._counts: dict[tuple[str, int], Count] = {}
        self._timer: asyncio.TimerHandle | None = None

    def datagram_received(self, data: bytes, addr: object) -> None:
        """One datagram may hold several lines."""
        for line in data.splitlines():
            self._take(line)
        if self._counts and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def _take(self, line: bytes) -> None:
        match = _LINE.fullmatch(line)
        if match is None:
            return
        method, status, host, port, up, down = match.groups()
        if method == b"CONNECT" and status != b"TCP_TUNNEL":
            return  # terminated here: its requests are counted one by one
        try:
            name = canonical_host(host.decode("ascii", "replace"))
        except NameRefused:
            return
        if name in OWN:
            return
        key = (name, int(port) if port != b"-" else 0)
        if key not in self._counts and len(self._counts) >= MAX_HOSTS:
            key = (OTHERS, 0)
        count = self._counts.setdefault(key, Count())
        count.requests += 1
        count.up += int(up)
        count.down += int(down)

    def flush(self) -> None:
        """Writes what was counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        if counts:
            self._write([_receipt(host, port, count) for (host, port), count in sorted(counts.items())])


def _receipt(host: str, port: int, count: Count) -> Fields:
    where = {"host": cut_text(host), "port": port}
    return {"kind": "transfer", **where, "requests": count.requests, "up": count.up, "down": count.down}
