"""Attempts to reach something outside past the proxy: with packets of every kind, and with names."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from agent_egress import identity
from agent_egress.prober import Facts, LeftOut, Refused, attempt

TARGET4 = "198.51.100.254"
"""A documentation address (RFC 5737), which is nobody's: what gets through goes nowhere."""
DISCARD = 9
TARGET6 = "2001:db8:ffff::fe"
NAT64 = "64:ff9b::c633:64fe"
NEIGHBOURS6 = "ff02::1"
REFUSED_HOST = "prove.agent-container.invalid"
METADATA4 = ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192")
METADATA6 = "fd00:ec2::254"
PRIVATE4 = ("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "198.18.0.1")
TIMEOUT_S = 3.0
"""The kernel refuses at once; this long means that a packet left."""
AIMED_AT = (TARGET4, TARGET6, NAT64, NEIGHBOURS6, *METADATA4, METADATA6, *PRIVATE4)
"""Every address that packets are sent to, besides those that the host names."""
A, NS, TXT, AAAA, HTTPS, ANY = 1, 2, 16, 28, 65, 255


@contextlib.contextmanager
def tcp(address: str, port: int) -> Iterator[socket.socket]:
    """A connection, for as long as it is used."""
    with socket.create_connection((address, port), timeout=TIMEOUT_S) as sock:
        yield sock


def connects(address: str, port: int) -> str:
    """Refused by the kernel, or a way out."""
    with tcp(address, port):
        return f"a connection to {address} port {port} was made"


def sends(address: str, port: int, *, kind: int = socket.SOCK_DGRAM, protocol: int = 0) -> str:
    """A datagram: its refusal comes back as an error on the socket."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind, protocol) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect((address, port))
        sock.send(b"agent-container prove")
        sock.recv(100)
    return f"{address} port {port} answered"


def each(attempts: Iterator[str]) -> str:
    """The first that got through; Refused when none did."""
    for words in attempts:
        return words
    raise Refused("refused")


def _connecting(addresses: tuple[str, ...], ports: tuple[int, ...]) -> Iterator[str]:
    for address in addresses:
        for port in ports:
            with contextlib.suppress(Refused, ConnectionError, PermissionError):
                try:
                    yield connects(address, port)
                except TimeoutError:
                    yield f"{address} port {port}: no refusal came"
                except OSError:
                    continue


def _targets(facts: Facts, usual: str) -> tuple[str, ...]:
    """Neighbours first: the way to them is there on every network."""
    family = ":" in usual
    return facts.spare((*(address for address in facts.neighbours if (":" in address) is family), usual))


def _known(facts: Facts, hosts: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Those that may be contacted. Raises Refused, which says so, where there is nothing to aim at."""
    if not hosts:
        raise LeftOut(f"left out: there is no {what}")
    return facts.spare(hosts)


def _sending(addresses: tuple[str, ...], port: int, **how: int) -> Iterator[str]:
    for address in addresses:
        try:
            yield sends(address, port, **how)
        except TimeoutError:
            yield f"{address} port {port}: no refusal came"
        except OSError:
            continue


# --- raw ---


@attempt("raw", core=True)
def tcp_address(facts: Facts) -> str:
    """A TCP connection to an address."""
    return each(_connecting(_targets(facts, TARGET4), (DISCARD,)))


@attempt("raw")
def tcp_ssh(facts: Facts) -> str:
    """A TCP connection to an address, ssh's port."""
    return each(_connecting(_targets(facts, TARGET4), (22,)))


@attempt("raw", core=True)
def udp_address(facts: Facts) -> str:
    """UDP to an address."""
    return each(_sending(_targets(facts, TARGET4), DISCARD))


@attempt("raw", core=True)
def udp_quic(facts: Facts) -> str:
    """QUIC's port."""
    return each(_sending(_targets(facts, TARGET4), 443))


@attempt("raw", core=True)
def udplite(facts: Facts) -> str:
    """UDPLITE."""
    return each(_sending(_targets(facts, TARGET4), DISCARD, protocol=136))


@attempt("raw")
def sctp(facts: Facts) -> str:
    """SCTP."""
    return each(_sending(_targets(facts, TARGET4), DISCARD, kind=socket.SOCK_STREAM, protocol=132))


@attempt("raw")
def mptcp(facts: Facts) -> str:
    """Multipath TCP."""
    return each(_sending(_targets(facts, TARGET4), DISCARD, kind=socket.SOCK_STREAM, protocol=262))


@attempt("raw")
def ping(facts: Facts) -> str:
    """An echo request."""
    body = struct.pack("!BBHHH", 8, 0, 0xF7FD, 1, 1)
    for style in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        with contextlib.suppress(PermissionError), socket.socket(socket.AF_INET, style, socket.IPPROTO_ICMP) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.sendto(body, (_targets(facts, TARGET4)[0], 0))
            return "an echo request was taken by the kernel"
    raise Refused("no socket for it")


@attempt("raw")
def metadata(facts: Facts) -> str:
    """Cloud metadata, each of its addresses."""
    return each(_connecting(facts.spare(METADATA4), (8080,)))


@attempt("raw")
def private_networks(facts: Facts) -> str:
    """Private networks."""
    return each(_connecting(facts.spare(PRIVATE4), (22, 5432)))


@attempt("raw")
def gateway(facts: Facts) -> str:
    """The gateway, which is this machine."""
    return each(_connecting(_known(facts, facts.gateways, "gateway"), (22, 2375, 2376, 8080)))


@attempt("raw")
def resolver_other_port(facts: Facts) -> str:
    """The resolvers, another port than DNS."""
    return each(_connecting(_known(facts, facts.resolvers, "resolver"), (853, 22)))


# --- IPv6 ---


@attempt("ipv6", core=True)
def tcp6_address(facts: Facts) -> str:
    """A TCP connection to an address."""
    return each(_connecting(_targets(facts, TARGET6), (DISCARD,)))


@attempt("ipv6", core=True)
def udp6_address(facts: Facts) -> str:
    """UDP to an address."""
    return each(_sending(_targets(facts, TARGET6), DISCARD))


@attempt("ipv6")
def metadata6(facts: Facts) -> str:
    """Cloud metadata."""
    return each(_connecting(facts.spare((METADATA6,)), (8080,)))


@attempt("ipv6")
def multicast6(facts: Facts) -> str:
    """Every neighbour, by multicast."""
    return each(_sending(facts.spare((NEIGHBOURS6,)), 5353))


@attempt("ipv6")
def mapped6(facts: Facts) -> str:
    """An IPv4 address in IPv6's clothes."""
    return each(_connecting(tuple(f"::ffff:{address}" for address in _targets(facts, TARGET4)), (DISCARD,)))


@attempt("ipv6")
def nat64(facts: Facts) -> str:
    """An IPv4 address through NAT64."""
    return each(_connecting(facts.spare((NAT64,)), (DISCARD,)))


# --- DNS ---


def query(name: str, kind: int) -> bytes:
    """One question."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part)
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def ask_dns(address: str, name: str, kind: int = A, *, port: int = 53, over_tcp: bool = False) -> str:
    """The answer's words, unless it is a refusal."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    message = query(name, kind)
    with socket.socket(family, socket.SOCK_STREAM if over_tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect((address, port))
        sock.sendall(struct.pack("!H", len(message)) + message if over_tcp else message)
        data = sock.recv(4096)[2 if over_tcp else 0 :]
    if len(data) < 12:
        raise Refused("no answer")
    code, answers = data[3] & 15, int.from_bytes(data[6:8], "big")
    if code in (3, 5) and not answers:
        raise Refused("no such name" if code == 3 else "refused")
    return f"{address} answered with code {code} and {answers} records"


def _asking(addresses: tuple[str, ...], kinds: tuple[int, ...], *, port: int = 53) -> Iterator[str]:
    for address in addresses:
        for kind in kinds:
            for over_tcp in (False, True):
                with contextlib.suppress(Refused):
                    try:
                        yield ask_dns(address, REFUSED_HOST, kind, port=port, over_tcp=over_tcp)
                    except TimeoutError:
                        yield f"{address} port {port}: no refusal came"
                    except OSError:
                        continue


@attempt("dns", core=True)
def name_not_allowed(_: Facts) -> str:
    """A name that is not allowed."""
    return each(_asking(("127.0.0.1",), (A,)))


@attempt("dns")
def name_from_resolvers(facts: Facts) -> str:
    """The same, straight to the resolvers."""
    return each(_asking(_known(facts, facts.resolvers, "resolver"), (A, AAAA)))


@attempt("dns")
def name_from_engine(_: Facts) -> str:
    """The same, from the engine's resolver."""
    return each(_asking(("127.0.0.11",), (A,)))


@attempt("dns")
def other_types(_: Facts) -> str:
    """Other record types."""
    return each(_asking(("127.0.0.1",), (TXT, NS, HTTPS, ANY)))


@attempt("dns")
def resolver_behind(_: Facts) -> str:
    """The resolver behind the filter."""
    return each(_asking(("127.0.0.1",), (A,), port=identity.UNBOUND_PORT))
