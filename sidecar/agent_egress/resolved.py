"""Which addresses the DNS filter gave for which names. A client that dials an address itself and names an allowed
host in its hello must have dialled one of these: squid, terminating its TLS, would connect to the address before it
compares."""

from __future__ import annotations

from collections import OrderedDict

MAX_NAMES = 10_000
MAX_ADDRESSES = 512


class Resolved:
    """Names and the newest of their addresses, bounded."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def note(self, rows: object) -> None:
        """Takes in rows of `name` and `addresses`; what is none is left out."""
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("addresses"), list):
                self.add(row["name"], [address for address in row["addresses"] if isinstance(address, str)])

    def add(self, name: str, addresses: list[str]) -> None:
        """An answer that a client is about to get."""
        known = self._names.setdefault(name, OrderedDict())
        self._names.move_to_end(name)
        for address in addresses:
            known[address] = None
            known.move_to_end(address)
        while len(known) > MAX_ADDRESSES:
            known.popitem(last=False)
        while len(self._names) > MAX_NAMES:
            self._names.popitem(last=False)

    def knows(self, name: str) -> bool:
        """Whether the name was asked for at all."""
        return name in self._names

    def has(self, name: str, address: str) -> bool:
        """Whether the address was given for the name."""
        return address in self._names.get(name, ())
