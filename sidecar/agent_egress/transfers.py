"""squid's access log, one line a finished transaction, as counted receipts: bytes to and from each host. What is lost
of it (squid was killed, or wrote while nobody listened) makes the counts too small and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from agent_egress.identity import CANARY_HOST, HEALTH_HOST
from agent_egress.names import NameRefused, canonical_host
from agent_egress.receipts import Fields, cut_text
from agent_egress.wire import LineSplitter, WireError

FLUSH_S = 1.0
MAX_HOSTS = 1000
"""Distinct hosts between two flushes; past it they are counted under one name."""
OTHERS = "(others)"
# Method, squid's own status, host, port, bytes from the client, bytes to it: squid.conf's `moved`.
_LINE = re.compile(rb"([A-Z_a-z-]{1,32}) ([A-Z_]{1,64}) (\S{1,512}) ([0-9]{1,5}|-) ([0-9]{1,15}) ([0-9]{1,15})\s*")
OWN = frozenset({CANARY_HOST, HEALTH_HOST})


@dataclass
class Count:
    """Of one host and port."""

    requests: int = 0
    up: int = 0
    down: int = 0


class Transfers:
    """Counts lines, tells `moved` of each at once (host, bytes), and hands them on as receipts once a second."""

    def __init__(self, write: Callable[[list[Fields]], None], *, moved: Callable[[str, int], None]) -> None:
        self._write = write
        self._moved = moved
        self._counts: dict[tuple[str, int], Count] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take(self, line: bytes) -> None:
        """One transaction; a line of another form is none."""
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
        self._moved(name, int(up) + int(down))
        key = (name, int(port) if port != b"-" else 0)
        if key not in self._counts and len(self._counts) >= MAX_HOSTS:
            key = (OTHERS, 0)
        count = self._counts.setdefault(key, Count())
        count.requests += 1
        count.up += int(up)
        count.down += int(down)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Writes what was counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        if counts:
            self._write([_receipt(host, port, count) for (host, port), count in sorted(counts.items())])


class AccessLog(asyncio.Protocol):
    """One connection of squid's."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._splitter = LineSplitter()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """squid is there."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Lines, cut anywhere."""
        try:
            for line in self._splitter.feed(data):
                self._transfers.take(line)
        except WireError:  # a line without an end: not squid's
            if self._transport is not None:
                self._transport.close()


def _receipt(host: str, port: int, count: Count) -> Fields:
    where = {"host": cut_text(host), "port": port}
    return {"kind": "transfer", **where, "requests": count.requests, "up": count.up, "down": count.down}
