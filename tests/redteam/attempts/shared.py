"""The network namespace that the agent shares with the sidecar: loopback ports, ports to be taken, sockets without a
path, answers to others' questions."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from pathlib import Path

from .cases import each
from .tools import EVIL4, A, attempt, proxy_get, query, tcp, udp_echo

PORTS = {"http": 3129, "tls": 3130, "canary": 3131, "access": 3132, "unbound": 3054}


@each(
    {
        f"{name}_{words}": (address, port)
        for name, port in PORTS.items()
        for words, address in (
            ("v4", "127.0.0.1"),
            ("v6", "::1"),
            ("mapped", "::ffff:127.0.0.1"),
            ("other", "127.8.8.8"),
        )
    }
)
def daemon_port(where: tuple[str, int]) -> object:
    with tcp(*where, timeout_s=1):
        return "connected"


@each({"unbound": 3054, "canary": 3131})
def daemon_port_udp(port: int) -> object:
    return udp_echo("127.0.0.1", port)


def _rows(table: str) -> list[list[str]]:
    with Path(table).open() as file:
        return [line.split() for line in file][1:]


def _port(row: list[str]) -> int:
    return int(row[1].split(":")[1], 16)


@attempt
def squids_helpers() -> object:
    """They listen on a port of the loopback until squid has called them."""
    for row in _rows("/proc/net/tcp"):
        if (
            row[3] == "0A"
            and row[7] in ("64101", "64102", "64103", "64104", "64105")
            and _port(row) not in (3128, 3053)
        ):
            with contextlib.suppress(OSError), tcp("127.0.0.1", _port(row), timeout_s=1):
                return f"port {_port(row)} of uid {row[7]}"
    return False


@each(
    {
        **{f"proxy_{words}": (address, 3128) for words, address in (("v4", "127.0.0.1"),)},
        **{name: ("127.0.0.1", port) for name, port in PORTS.items()},
        "filter": ("127.0.0.1", 3053),
        "filter6": ("::1", 3053),
        **{f"http6_{name}": ("::1", PORTS[name]) for name in ("http", "tls")},
        **{
            f"low_{port}_{words}": (address, port)
            for port in (53, 80, 443)
            for words, address in (("v4", "127.0.0.1"), ("any", "0.0.0.0"), ("any6", "::"), ("other", "127.0.0.2"))
        },
    }
)
def impersonate(where: tuple[str, int]) -> object:
    """Take a daemon's port in its place, beside it, or one that clients take for a service."""
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, 15, 1)  # SO_REUSEPORT
        sock.bind(where)
        return "bound"


@each({"filter": ("127.0.0.1", 3053), "unbound": ("127.0.0.1", 3054), "low": ("127.0.0.1", 53)})
def impersonate_udp(where: tuple[str, int]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 15, 1)
        sock.bind(where)
        return "bound"


@attempt
def abstract_sockets() -> object:
    """They are shared across the namespace and no rule sees them."""
    with Path("/proc/net/unix").open() as file:
        return [line.split()[-1] for line in file if line.split()[-1].startswith("@")]


def _forge(target: int, name: str, address: str, stop: threading.Event) -> None:
    """An answer with each number that a question may have."""
    question = query(name, A)[12:]
    record = b"\xc0\x0c" + struct.pack("!HHIH", A, 1, 600, 4) + socket.inet_aton(address)
    rest = struct.pack("!5H", 0x8180, 1, 1, 0, 0) + question + record
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", target))
        for number in itertools.cycle(range(1 << 16)):
            if stop.is_set():
                return
            with contextlib.suppress(OSError):
                sock.send(struct.pack("!H", number) + rest)


@attempt
def forged_answers() -> object:
    """squid asks from a port that anybody on the loopback can write to; it must take no answer but from where it
    asked, which is a port that the agent cannot have."""
    asking = [_port(row) for row in _rows("/proc/net/udp") if row[7] == "64101"]
    stop = threading.Event()
    threads = [threading.Thread(target=_forge, args=(port, "slow-1.test", EVIL4, stop)) for port in asking]
    for thread in threads:
        thread.start()
    try:
        answer = proxy_get("http://slow-1.test:8080/")
    finally:
        stop.set()
    return f'"address": "{EVIL4}"'.encode() in answer
