"""The floors: address ranges that nothing inside the boundary may dial unless a rule names them, and those that no
rule can lift. The one source: nftables' sets, squid's `dst` list and unbound's `private-address` lines are generated
from it. IPv4-mapped IPv6 (`::ffff:0:0/96`) is left out on purpose, since squid reads it as 0.0.0.0/0;
`decide_address` refuses it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NAT64 = IPv6Network("64:ff9b::/96")
"""The well-known prefix (RFC 6052): 64:ff9b::10.0.0.1 reaches 10.0.0.1. What is closed in IPv4 is closed behind it; a
public address behind it is open, as it is the only way of a network without IPv4."""


def nat64(address: IPv4Address) -> IPv6Address:
    """The address that reaches an IPv4 one through NAT64."""
    return IPv6Address(int(NAT64.network_address) | int(address))


def nat64_network(network: IPv4Network) -> IPv6Network:
    """The same for a range."""
    return IPv6Network((nat64(network.network_address), 96 + network.prefixlen))


def behind_nat64(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an address reaches through NAT64; none when it is no such address."""
    if isinstance(address, IPv6Address) and address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


METADATA4: tuple[IPv4Network, ...] = (
    IPv4Network("100.100.100.200/32"),  # Alibaba
    IPv4Network("168.63.129.16/32"),  # Azure's wire server: a public address
    IPv4Network("169.254.0.0/16"),  # link-local; every other cloud
    IPv4Network("192.0.0.192/32"),  # Oracle
)
METADATA6: tuple[IPv6Network, ...] = (
    *(nat64_network(network) for network in METADATA4),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fd20:ce::254/128"),
    IPv6Network("fe80::/10"),
)
METADATA: tuple[Network, ...] = METADATA4 + METADATA6
"""Needs `allow_metadata` besides a rule that names it."""

NEVER4: tuple[IPv4Network, ...] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("127.0.0.0/8"),  # in this namespace: our own daemons
    IPv4Network("224.0.0.0/4"),
    IPv4Network("240.0.0.0/4"),
)
NEVER6: tuple[IPv6Network, ...] = (
    IPv6Network("::/127"),  # unspecified and loopback
    *(nat64_network(network) for network in NEVER4),
    IPv6Network("2001::/32"),  # Teredo
    IPv6Network("2002::/16"),  # 6to4: an IPv4 address in disguise
    IPv6Network("ff00::/8"),
)
NEVER: tuple[Network, ...] = NEVER4 + NEVER6
"""No rule lifts these."""

FLOOR4: tuple[IPv4Network, ...] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("10.0.0.0/8"),
    IPv4Network("100.64.0.0/10"),
    IPv4Network("127.0.0.0/8"),
    IPv4Network("168.63.129.16/32"),
    IPv4Network("169.254.0.0/16"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("192.168.0.0/16"),
    IPv4Network("198.18.0.0/15"),
    IPv4Network("224.0.0.0/4"),
    IPv4Network("240.0.0.0/4"),
)


FLOOR6: tuple[IPv6Network, ...] = (
    IPv6Network("::/96"),  # unspecified, loopback, and the old IPv4-compatible form
    *(nat64_network(network) for network in FLOOR4),
    IPv6Network("64:ff9b:1::/48"),
    IPv6Network("100::/64"),
    IPv6Network("2001::/32"),
    IPv6Network("2002::/16"),
    IPv6Network("fc00::/7"),
    IPv6Network("fe80::/10"),
    IPv6Network("fec0::/10"),
    IPv6Network("ff00::/8"),
)


def in_any(address: Address, networks: tuple[Network, ...]) -> bool:
    """Whether the address lies in one of the networks (those of the other family never match)."""
    return any(address.version == network.version and address in network for network in networks)


def in_floor(address: Address) -> bool:
    """Whether the address is refused unless a rule names it."""
    floor: tuple[Network, ...] = FLOOR4 if address.version == 4 else FLOOR6
    return in_any(address, floor)


def subnet(inner: Network, outer: Network) -> bool:
    """Whether `inner` lies within `outer`, whatever their families."""
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)


def parse_network(text: str) -> Network:
    """A network in its one canonical spelling; a bare address is a /32 or /128.

    Raises:
        ValueError: for every other spelling, with the canonical one where there is one.
    """
    if "%" in text:
        raise ValueError("a zone is no part of an address")
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.overlaps(IPv6Network("::ffff:0:0/96")):
        raise ValueError("an IPv4 address inside IPv6: write the IPv4 address")
    canonical = str(network) if "/" in text else str(network.network_address)
    if canonical != text:
        raise ValueError(f"write it as {canonical}")
    return network
