"""Past the proxy: packets of every kind to addresses outside, to private ones, and to the daemons' own ports."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from .tools import (
    METADATA,
    OK4,
    OK6,
    PRIVATE,
    PUBLIC4,
    PUBLIC6,
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


@attempt
def quic() -> object:
    return udp_echo(OK4, 443) or udp_echo(OK6, 443)


@attempt
def other_transports() -> object:
    for kind, protocol in (
        (socket.SOCK_STREAM, 262),
        (socket.SOCK_DGRAM, 136),
        (socket.SOCK_STREAM, 132),
        (socket.SOCK_SEQPACKET, 132),
    ):
        for family, address in ((socket.AF_INET, PUBLIC4), (socket.AF_INET6, PUBLIC6)):  # MPTCP, UDPLITE, SCTP
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as sock:
                sock.settimeout(1)
                sock.connect((address, 9000))
                sock.send(b"hello")
                if sock.recv(100):
                    return f"protocol {protocol} to {address}"
    return False


@attempt
def ping() -> object:
    for family, protocol, kind, address in (
        (socket.AF_INET, socket.IPPROTO_ICMP, 8, PUBLIC4),
        (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, PUBLIC6),
    ):
        for style in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            with contextlib.suppress(OSError), socket.socket(family, style, protocol) as sock:
                sock.settimeout(1)
                body = struct.pack("!BBHHH", kind, 0, 0, 1, 1) + b"payload"
                total = sum(struct.unpack("!7H", body[:14])) + (body[14] << 8)
                total = (total >> 16) + (total & 0xFFFF)
                sock.sendto(body[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + body[4:], (address, 0))
                return f"echo request to {address} was taken by the kernel"
    return False


@attempt
def private_and_metadata() -> object:
    for address, port in ((METADATA, 9000), (PRIVATE, 9000), ("fd00:ec2::254", 9000), (PRIVATE, 5432)):
        with contextlib.suppress(OSError):
            if talks(address, port):
                return f"{address}:{port}"
    for address in (METADATA, PRIVATE, "fd00:ec2::254"):
        with contextlib.suppress(OSError):
            if reached_world(transparent(address, "ok.test", port=80)):
                return f"http to {address}"
    return False


@attempt
def gateways() -> object:
    """The engine's own end of the bridge, and the default gateway."""
    with Path("/proc/net/route").open() as file:
        rows = [line.split() for line in file][1:]
    via = [socket.inet_ntoa(struct.pack("<I", int(row[2], 16))) for row in rows if row[2] != "00000000"]
    for address in via:
        for port in (9000, 22, 2375):
            with contextlib.suppress(OSError), tcp(address, port, timeout_s=2):
                return f"{address}:{port}"
    return False


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


@attempt
def impersonate_a_daemon() -> object:
    """Take a daemon's port in its place, and race squid's helpers."""
    for port in (3128, 3129, 3130, 3131, 3053, 3054, 53, 80, 443):
        for address in ("127.0.0.1", "0.0.0.0", "::", "127.0.0.2"):
            if port in (3128, 3053, 3054, 3129, 3130, 3131) and address != "127.0.0.1":
                continue
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setsockopt(socket.SOL_SOCKET, 15, 1)  # SO_REUSEPORT
                sock.bind((address, port))
                return f"{address}:{port}"
    return False
