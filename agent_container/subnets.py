"""Small subnets for the sandboxes' networks, planned so that neither the host's routes nor other networks are hit.

Docker's default pools hold about thirty networks; a /28 from a range of our own holds a sidecar and what may join it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from agent_container.errors import EngineError

PREFIX4 = 28
DEFAULT_POOL = IPv4Network("10.213.0.0/16")


def plan_subnet4(pool: IPv4Network, *, used: Sequence[IPv4Network], seed: str, attempt: int = 0) -> str:
    """A free /28 of `pool`. The search starts at a place that `seed` gives, so that concurrent callers rarely meet.

    Raises:
        EngineError: every subnet of the pool is taken, or the pool is smaller than one.
    """
    if pool.prefixlen > PREFIX4:
        raise EngineError(
            f"the network pool {pool} is smaller than one /{PREFIX4}", hint="set network.pool to a wider range"
        )
    count = 2 ** (PREFIX4 - pool.prefixlen)
    size = 2 ** (32 - PREFIX4)
    first = int.from_bytes(hashlib.sha256(f"{seed}/{attempt}".encode()).digest()[:4], "big") % count
    base = int(pool.network_address)
    for step in range(count):
        candidate = IPv4Network((base + ((first + step) % count) * size, PREFIX4))
        if not any(candidate.overlaps(other) for other in used):
            return str(candidate)
    raise EngineError(
        f"every subnet of the network pool {pool} is in use",
        hint="`agent-container ls` shows environments to take down; or set network.pool to another range",
    )


def plan_subnet6(seed: str) -> str:
    """A /64 of a locally assigned range (RFC 4193), from 40 bits of `seed`'s hash."""
    digest = hashlib.sha256(seed.encode()).digest()
    return str(IPv6Network((b"\xfd" + digest[:5] + b"\0\0" + bytes(8), 64)))


def host_routes4(route_file: Path = Path("/proc/net/route")) -> list[IPv4Network]:
    """The host's IPv4 routes but the default one (proc(5): little-endian hex)."""
    try:
        lines = route_file.read_text().splitlines()[1:]
    except OSError:
        return []
    routes = []
    for line in lines:
        fields = line.split()
        if len(fields) < 8:
            continue
        address = int.from_bytes(bytes.fromhex(fields[1]), "little")
        mask = int.from_bytes(bytes.fromhex(fields[7]), "little")
        if mask:
            routes.append(IPv4Network((address & mask, bin(mask).count("1"))))
    return routes


def parse_networks4(texts: Sequence[str]) -> list[IPv4Network]:
    """The IPv4 networks among `texts`; what is none is left out."""
    networks = []
    for text in texts:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            continue
        if isinstance(network, IPv4Network):
            networks.append(network)
    return networks
