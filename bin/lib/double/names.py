"""The demo's DNS server: answers A for the names it is given, and knows nothing else. Standard library only.

    names.py ADDRESS NAME...

Stands for the resolver that a real sidecar asks; runs in a container of an internal network, never on the host.
"""

from __future__ import annotations

import socket
import struct
import sys

TTL_S = 5
NXDOMAIN = 3
TYPE_A = 1


def question(query: bytes) -> tuple[str, int, bytes]:
    """Name in lower case, type, and the question section as it came. Raises: ValueError, IndexError, struct.error."""
    at, labels = 12, []
    while size := query[at]:
        if size > 63:
            raise ValueError("a compressed name in a question")
        labels.append(query[at + 1 : at + 1 + size].decode("ascii"))
        at += 1 + size
    kind, _ = struct.unpack_from(">HH", query, at + 1)
    return ".".join(labels).lower(), kind, query[12 : at + 5]


def answer(query: bytes, *, names: frozenset[str], address: str) -> bytes:
    """The reply to one query: an address, nothing (another type of a known name), or NXDOMAIN."""
    name, kind, section = question(query)
    known = name in names
    record = b""
    if known and kind == TYPE_A:
        record = struct.pack(">HHHIH", 0xC00C, TYPE_A, 1, TTL_S, 4) + socket.inet_aton(address)
    flags = 0x8180 | (0 if known else NXDOMAIN)
    return query[:2] + struct.pack(">HHHHH", flags, 1, 1 if record else 0, 0, 0) + section + record


def main(address: str, names: frozenset[str]) -> None:
    """Serves for as long as the container lives."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 53))
        while True:
            query, client = server.recvfrom(4096)
            try:
                reply = answer(query, names=names, address=address)
            except (ValueError, IndexError, struct.error):
                continue
            server.sendto(reply, client)


if __name__ == "__main__":
    main(sys.argv[1], frozenset(name.lower() for name in sys.argv[2:]))
