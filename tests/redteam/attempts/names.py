"""Names that must not be asked: by the resolver, past it, and in forms that it might pass on; and addresses that must
not be answered."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from .cases import each
from .tools import ANY, HTTPS, NS, PUBLIC4, PUBLIC6, RESOLVER4, RESOLVER6, TXT, A, ask_dns, attempt, query

ENGINE = "127.0.0.11"


@each(
    {
        f"{name}_{'tcp' if over_tcp else 'udp'}": (address, over_tcp)
        for name, address in (
            ("engine", ENGINE),
            ("upstream", RESOLVER4),
            ("upstream6", RESOLVER6),
            ("loopback", "127.0.0.1"),
            ("public", PUBLIC4),
            ("public6", PUBLIC6),
        )
        for over_tcp in (False, True)
    }
)
def lookup_refused_names(how: tuple[str, bool]) -> object:
    address, over_tcp = how
    code, answers = ask_dns(address, "leak-1.evil.test", over_tcp=over_tcp)
    return f"{address} answered with code {code}" if answers or code == 0 else False


@attempt
def lookup_by_the_system() -> object:
    return bool(socket.getaddrinfo("leak-9.evil.test", 443))


@each(
    {
        "ns": NS,
        "soa": 6,
        "null": 10,
        "ptr": 12,
        "mx": 15,
        "txt": TXT,
        "srv": 33,
        "naptr": 35,
        "svcb": 64,
        "https": HTTPS,
        "axfr": 252,
        "any": ANY,
        "caa": 257,
        "private": 65280,
    }
)
def lookup_other_types(kind: int) -> object:
    return ask_dns(ENGINE, "ok.test", kind)[1] > 0


@each({"v4": "9.113.0.203.in-addr.arpa", "v6": "9." + "0." * 19 + "5.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"})
def lookup_reverse(name: str) -> object:
    return ask_dns(ENGINE, name, 12)[1] > 0


@each(
    {
        "label": "leak-2.ok.test",
        "deep": "leak.leak.leak.leak.ok.test",
        "wildcard": "*.ok.test",
        "underscore": "_leak._tcp.ok.test",
        "prefix": "leak-ok.test",
        "suffix": "ok.test.evil.test",
        "parent": "test",
        "root": "",
    }
)
def lookup_beside_allowed_names(name: str) -> object:
    return ask_dns(ENGINE, name)[1] > 0


@each({name: f"{name}.test" for name in ("lan", "metadata")})
def lookup_private_answers(name: str) -> object:
    """An allowed name whose address no rule opens: the filter takes it out."""
    return ask_dns(ENGINE, name)[1] > 0


@each({"udp": False, "tcp": True})
def lookup_past_the_filter(over_tcp: bool) -> object:
    """unbound's own port."""
    return f"unbound: {ask_dns('127.0.0.1', 'leak-3.evil.test', port=3054, over_tcp=over_tcp)}"


@each({"udp": ("/proc/net/udp", False), "tcp": ("/proc/net/tcp", True)})
def lookup_at_the_engine(how: tuple[str, bool]) -> object:
    """The ports that the engine's resolver really listens on."""
    table, over_tcp = how
    with Path(table).open() as file:
        ports = [int(line.split()[1].split(":")[1], 16) for line in file if line.split()[1].startswith("0B00007F")]
    for port in ports:
        with contextlib.suppress(OSError):
            return f"engine: {ask_dns(ENGINE, 'leak-4.evil.test', port=port, over_tcp=over_tcp)}"
    return False


def _header(*, flags: int = 0x0100, questions: int = 1, answers: int = 0, more: int = 0) -> bytes:
    return struct.pack("!6H", 9, flags, questions, answers, 0, more)


_OK, _LEAK = query("ok.test", A)[12:], query("leak-5.evil.test", A)[12:]


@each(
    {
        "two_questions": _header(questions=2) + _OK + _LEAK,
        "bytes_after": query("ok.test", A) + b"leak-6-trailing",
        "spelling": query("OK.LeAk7.tEsT", A),
        "chaos": _header() + _LEAK[:-2] + b"\0\x03",
        "update": _header(flags=0x2800) + _LEAK,
        "notify": _header(flags=0x2000) + _LEAK,
        "response": _header(flags=0x8180) + _LEAK,
        "record_instead": _header(answers=1) + _OK + _LEAK + b"\0\0\0\0\0\0",
        "additional": _header(more=1) + _OK + _LEAK[:-4] + b"\0\x10\0\x01\0\0\0\0\0\x05\x04leak",
        "pointer": _header() + b"\x04leak\x04evil\xc0\x0c\0\x01\0\x01",
        "dot_in_a_label": _header() + b"\x0cleak.ok.test\0\0\x01\0\x01",
        "zero_in_a_label": _header() + b"\x07ok\0leak\x04test\0\0\x01\0\x01",
        "no_question": _header(questions=0) + _LEAK,
    }
)
def odd_queries(message: bytes) -> object:
    """Nothing of it may travel: besides an answer, what the world was asked is looked at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        sock.connect((ENGINE, 53))
        sock.send(message)
        data = sock.recv(4096)
    return b"evil" in data and data[3] & 15 == 0 and data[6:8] != b"\0\0"
