"""Attempts to reach through the proxy what no rule allows, and what must work so that refusals mean something."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agent_egress import identity
from agent_egress.attempts_outward import (
    METADATA4,
    METADATA6,
    PRIVATE4,
    REFUSED_HOST,
    TARGET4,
    TARGET6,
    ask_dns,
    each,
    tcp,
)
from agent_egress.prober import Facts, LeftOut, Refused, attempt

LOOPBACKS = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "127.1", "2130706433", "0x7f000001", "::ffff:127.0.0.1")  # noqa: S104 - asked for, not bound
PROXIED = (REFUSED_HOST, TARGET4, TARGET6, *METADATA4, METADATA6, *PRIVATE4, *LOOPBACKS)
"""All that the proxy is asked for, besides the gateways."""
PORTS = (22, 80, 8080)


def through_proxy(data: bytes, *, refusals: tuple[bytes, ...] = (b"403", b"400", b"426", b"405", b"501")) -> str:
    """The first line of the proxy's answer, unless it refuses."""
    with tcp(identity.LOOPBACK4, identity.PROXY_PORT) as sock:
        sock.sendall(data)
        received = b""
        while b"\r\n" not in received and (chunk := sock.recv(4096)):
            received += chunk
    line = received.split(b"\r\n", 1)[0]
    words = line.split(b" ")
    if not line:
        raise Refused("closed")
    if len(words) > 1 and words[1] in refusals:
        raise Refused(f"status {words[1].decode()}")
    return line.decode("latin-1")


def get(url: str) -> str:
    """One plain request."""
    host = url.split("/")[2]
    return through_proxy(f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


def _getting(facts: Facts, hosts: tuple[str, ...], *ports: int, path: str = "/") -> Iterator[str]:
    for host in hosts:
        if host in facts.leave_out or host in facts.kills:
            continue
        shown = f"[{host}]" if ":" in host else host
        for url in (f"http://{shown}:{port}{path}" for port in ports):
            with contextlib.suppress(Refused):
                yield f"{url}: {get(url)}"


@attempt("proxy", core=True)
def host_not_allowed(_: Facts) -> str:
    """A host that is not allowed."""
    return get(f"http://{REFUSED_HOST}/")


@attempt("proxy")
def tunnel_not_allowed(_: Facts) -> str:
    """A tunnel to ssh of a host that is not allowed."""
    return through_proxy(f"CONNECT {REFUSED_HOST}:22 HTTP/1.1\r\nHost: {REFUSED_HOST}:22\r\n\r\n".encode())


@attempt("proxy")
def address_not_allowed(facts: Facts) -> str:
    """An address that is not allowed."""
    return each(_getting(facts, (TARGET4, TARGET6), 80))


@attempt("proxy")
def metadata_by_proxy(facts: Facts) -> str:
    """Cloud metadata."""
    return each(_getting(facts, (*METADATA4, METADATA6), 80, path="/latest/"))


@attempt("proxy")
def private_by_proxy(facts: Facts) -> str:
    """Private networks and the gateway."""
    return each(_getting(facts, (*PRIVATE4, *facts.gateways), 8080))


@attempt("proxy")
def loopback_by_proxy(facts: Facts) -> str:
    """This namespace, in every spelling of loopback."""
    return each(_getting(facts, LOOPBACKS, identity.PROXY_PORT, identity.CANARY_PORT, identity.UNBOUND_PORT))


@attempt("proxy")
def manager(_: Facts) -> str:
    """Its own manager."""
    return get("http://localhost:3128/squid-internal-mgr/info")


@attempt("proxy")
def pipelined(_: Facts) -> str:
    """A request hidden behind another."""
    one = f"GET http://{REFUSED_HOST}/ HTTP/1.1\r\nHost: {REFUSED_HOST}\r\n"
    return through_proxy(
        (one + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + one + "\r\n").encode()
    )


@attempt("proxy")
def two_hosts(_: Facts) -> str:
    """Two hosts in one request."""
    return through_proxy(f"GET http://{REFUSED_HOST}/ HTTP/1.1\r\nHost: a.invalid\r\nHost: b.invalid\r\n\r\n".encode())


@attempt("proxy")
def trace(_: Facts) -> str:
    """TRACE."""
    return through_proxy(f"TRACE http://{REFUSED_HOST}/ HTTP/1.1\r\nHost: {REFUSED_HOST}\r\n\r\n".encode())


@attempt("proxy")
def intercepted_http(facts: Facts) -> str:
    """Plain http to the address of nobody, unasked."""
    if TARGET4 in facts.leave_out:
        raise LeftOut("left out: this sandbox's policy names it")
    with tcp(facts.spare((*facts.neighbours, TARGET4))[0], 80) as sock:
        sock.sendall(f"GET / HTTP/1.1\r\nHost: {REFUSED_HOST}\r\nConnection: close\r\n\r\n".encode())
        line = sock.recv(4096).split(b"\r\n", 1)[0]
    words = line.split(b" ")
    if not line or (len(words) > 1 and words[1] in (b"403", b"409", b"400")):
        raise Refused(line.decode("latin-1") or "closed")
    return line.decode("latin-1")


# --- what must work ---


@attempt("control", core=True)
def proxy_answers(_: Facts) -> str:
    """The proxy answers."""
    return through_proxy(f"GET http://{REFUSED_HOST}/ HTTP/1.1\r\nHost: {REFUSED_HOST}\r\n\r\n".encode(), refusals=())


@attempt("control", core=True)
def dns_answers(_: Facts) -> str:
    """The DNS filter answers."""
    with contextlib.suppress(Refused):
        return ask_dns("127.0.0.1", REFUSED_HOST)
    return "it knows no such name"
