"""Past the proxy: packets of every kind to addresses outside, to private ones, and to the daemons' own ports."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from .cases import each
from .tools import (
    METADATA,
    OK4,
    OK6,
    PRIVATE,
    PUBLIC4,
    PUBLIC6,
    RESOLVER4,
    attempt,
    reached_world,
    talks,
    tcp,
    transparent,
    udp_echo,
)


@attempt
def raw_tcp4() -> object:
    return talks(PUBLIC4, 9000)


@attempt
def raw_tcp6() -> object:
    return talks(PUBLIC6, 9000)


@attempt
def raw_tcp_ssh() -> object:
    return talks(OK4, 22)


@attempt
def raw_udp4() -> object:
    return udp_echo(PUBLIC4, 9000)


@attempt
def raw_udp6() -> object:
    return udp_echo(PUBLIC6, 9000)


@each(
    {
        "smtp": (PUBLIC4, 25),
        "postgres": (PUBLIC4, 5432),
        "http_elsewhere": (OK4, 8080),
        "https_elsewhere": (OK4, 8443),
        "dns_over_tls": (RESOLVER4, 853),
    }
)
def raw_tcp(where: tuple[str, int]) -> object:
    """Ports that nothing intercepts, at hosts that are allowed on others."""
    return talks(*where)


@each({"v4": OK4, "v6": OK6})
def quic(address: str) -> object:
    return udp_echo(address, 443)


@each({"mdns": (PUBLIC4, 5353), "mdns6": (PUBLIC6, 5353)})
def raw_udp(where: tuple[str, int]) -> object:
    return udp_echo(*where)


@each(
    {
        f"{name}{version}": (kind, protocol, family)
        for name, kind, protocol in (
            ("mptcp", socket.SOCK_STREAM, 262),
            ("udplite", socket.SOCK_DGRAM, 136),
            ("sctp_stream", socket.SOCK_STREAM, 132),
            ("sctp", socket.SOCK_SEQPACKET, 132),
        )
        for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6))
    }
)
def other_transports(how: tuple[int, int, int]) -> object:
    kind, protocol, family = how
    with socket.socket(family, kind, protocol) as sock:
        sock.settimeout(1)
        sock.connect((PUBLIC4 if family == socket.AF_INET else PUBLIC6, 9000))
        sock.send(b"hello")
        return bool(sock.recv(100))


@each(
    {
        f"{name}_{words}": (family, protocol, kind, address, style)
        for name, family, protocol, kind, address in (
            ("v4", socket.AF_INET, socket.IPPROTO_ICMP, 8, PUBLIC4),
            ("v6", socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, PUBLIC6),
        )
        for words, style in (("unprivileged", socket.SOCK_DGRAM), ("raw", socket.SOCK_RAW))
    }
)
def ping(how: tuple[int, int, int, str, int]) -> object:
    """An echo request carries what one likes."""
    family, protocol, kind, address, style = how
    with socket.socket(family, style, protocol) as sock:
        sock.settimeout(1)
        body = struct.pack("!BBHHH", kind, 0, 0, 1, 1) + b"payload"
        total = sum(struct.unpack("!7H", body[:14])) + (body[14] << 8)
        total = (total >> 16) + (total & 0xFFFF)
        sock.sendto(body[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + body[4:], (address, 0))
        return f"echo request to {address} was taken by the kernel"


@each(
    {
        "metadata": (METADATA, 9000),
        "private": (PRIVATE, 9000),
        "metadata6": ("fd00:ec2::254", 9000),
        "database": (PRIVATE, 5432),
    }
)
def private_direct(where: tuple[str, int]) -> object:
    return talks(*where)


@each({"metadata": METADATA, "private": PRIVATE, "metadata6": "fd00:ec2::254"})
def private_intercepted(address: str) -> object:
    """The name of an allowed host, sent to an address of the floor."""
    return reached_world(transparent(address, "ok.test", port=80))


def _gateway() -> str:
    with Path("/proc/net/route").open() as file:
        rows = [line.split() for line in file][1:]
    return next(socket.inet_ntoa(struct.pack("<I", int(row[2], 16))) for row in rows if row[2] != "00000000")


def _engine() -> str:
    """The engine's own end of the bridge: the first address of the subnet."""
    with Path("/proc/net/route").open() as file:
        rows = [line.split() for line in file][1:]
    subnet = next(int(row[1], 16) for row in rows if row[2] == "00000000")
    return socket.inet_ntoa(struct.pack("<I", subnet + (1 << 24)))


@each({f"port_{port}": port for port in (22, 2375, 9000)})
def gateways(port: int) -> object:
    """The way out of the network, and the engine's host."""
    for address in (_gateway(), _engine()):
        with contextlib.suppress(OSError), tcp(address, port, timeout_s=2):
            return f"{address}:{port}"
    return False


@each(
    {
        "broadcast": ("255.255.255.255", 9000),
        "multicast": ("224.0.0.251", 5353),
        "discovery": ("239.255.255.250", 1900),
        "all_hosts": ("224.0.0.1", 9000),
    }
)
def to_many(where: tuple[str, int]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(b"leak", where)
    return "the kernel took it"


@attempt
def data_in_the_first_packet() -> object:
    """TCP fast open: a SYN that carries data."""
    with socket.socket() as sock:
        sock.settimeout(2)
        sock.sendto(b"hello\r\n\r\n", socket.MSG_FASTOPEN, (PUBLIC4, 9000))
        return bool(sock.recv(100))


@attempt
def large_datagram() -> object:
    """In fragments, of which all but the first have no ports."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1)
        sock.sendto(b"x" * 20000, (PUBLIC4, 9000))
        return bool(sock.recv(32768))


@attempt
def loose_source_route() -> object:
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\x83\x07\x04" + socket.inet_aton(OK4) + b"\0")
        sock.settimeout(2)
        sock.connect((PUBLIC4, 9000))
        return True


@each({"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM})
def foreign_source(kind: int) -> object:
    """IP_FREEBIND needs no capability: an address that is another's, or nobody's."""
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.setsockopt(socket.IPPROTO_IP, 15, 1)
        sock.bind((RESOLVER4, 0))
        sock.settimeout(1)
        sock.connect((PUBLIC4, 9000))
        sock.send(b"hello")
        return "sent" if kind == socket.SOCK_DGRAM else bool(sock.recv(10))


@attempt
def private_ports() -> object:
    """squid's intercept ports, the canary, and its helpers, straight."""
    with Path("/proc/net/tcp").open() as file:
        rows = [line.split() for line in file][1:]
    helpers = [
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == "0A" and row[7] in ("64101", "64104", "64105", "64106")
    ]
    for port in {3129, 3130, 3131, 3132, 3133, 3054, *helpers} - {3128, 3053}:
        for address in ("127.0.0.1", "::1"):
            with contextlib.suppress(OSError), tcp(address, port, timeout_s=1):
                return f"{address}:{port}"
    return False


@attempt
def forge_transfers() -> object:
    """Bytes that nobody moved, told to the policy process in squid's place."""
    with contextlib.suppress(OSError), tcp("127.0.0.1", 3132, timeout_s=1) as sock:
        sock.sendall(b"GET TCP_MISS forged.test 443 1 99999999\n")
        return "sent"
    return False
