"""The other family, and the addresses in it that stand for one of the first: mapped, translated, tunnelled."""

from __future__ import annotations

import socket
import struct

from .cases import each
from .tools import EVIL4, METADATA, PRIVATE, PUBLIC4, attempt, over, proxy_get, reached_world, request, talks, tunnel


def _tail(address: str) -> str:
    high, low = struct.unpack("!2H", socket.inet_aton(address))
    return f"{high:x}:{low:x}"


@each(
    {
        "mapped": f"::ffff:{PUBLIC4}",
        "compatible": f"::{PUBLIC4}",
        "nat64": f"64:ff9b::{_tail(PUBLIC4)}",
        "nat64_local": f"64:ff9b:1::{_tail(PUBLIC4)}",
        "6to4": f"2002:{_tail(PUBLIC4)}::1",
        "teredo": f"2001:0:{_tail(PUBLIC4)}::1",
        "unique_local": "fd00::9",
        "site_local": "fec0::9",
        "mapped_private": f"::ffff:{PRIVATE}",
        "mapped_metadata": f"::ffff:{METADATA}",
    }
)
def direct6(address: str) -> object:
    return talks(address, 9000)


@each({"nodes": ("ff02::1", 9000), "mdns": ("ff02::fb", 5353), "routers": ("ff02::2", 9000), "site": ("ff05::2", 9000)})
def multicast6(where: tuple[str, int]) -> object:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"leak", (*where, 0, socket.if_nametoindex("eth0")))
    return "the kernel took it"


@each({"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM})
def link_local6(kind: int) -> object:
    with socket.socket(socket.AF_INET6, kind) as sock:
        sock.settimeout(1)
        sock.connect(("fe80::1", 9000, 0, socket.if_nametoindex("eth0")))
        sock.send(b"leak")
        return "sent"


@each(
    {"routing": (57, b"\0\0\0\0\0\0\0\0"), "hop_by_hop": (54, b"\0\0\x01\x04\0\0\0\0"), "destination": (59, b"\0" * 8)}
)
def extension_header6(how: tuple[int, bytes]) -> object:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, *how)
        sock.sendto(b"leak", ("2001:db8:5::9", 9000))
    return "the kernel took it"


FLOORED = {
    "mapped_private": f"[::ffff:{PRIVATE}]",
    "mapped_private_hex": f"[::ffff:{_tail(PRIVATE)}]",
    "mapped_metadata": f"[::ffff:{METADATA}]",
    "nat64_private": f"[64:ff9b::{_tail(PRIVATE)}]",
    "6to4_private": f"[2002:{_tail(PRIVATE)}::1]",
    "metadata": "[fd00:ec2::254]",
    "unique_local": "[fd00::9]",
    "link_local": "[fe80::1%25eth0]",
    "multicast": "[ff02::1]",
    "unspecified": "[::]",
    "mapped_public": f"[::ffff:{EVIL4}]",
}


@each(FLOORED)
def proxy_literal6(host: str) -> object:
    return reached_world(proxy_get(f"http://{host}:8080/"))


@each({name: FLOORED[name] for name in ("mapped_private", "nat64_private", "metadata", "mapped_public")})
def connect_literal6(host: str) -> object:
    with tunnel(host, sni="ok.test", verify=False) as wrapped:
        return reached_world(over(wrapped, request("/x", "ok.test")))


@attempt
def scoped_name6() -> object:
    """A zone behind an allowed name is no part of it."""
    return reached_world(proxy_get("http://ok.test%25eth0/"))
