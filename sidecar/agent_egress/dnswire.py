"""DNS messages, strictly: a client's query as a value, our own query and answers as bytes, and what an upstream's
answer says about addresses (RFC 1035, 6891, 8914). Pure; nothing of a client's bytes but the parsed name, type and id
lives on."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

TYPE_A, TYPE_CNAME, TYPE_SOA, TYPE_AAAA, TYPE_OPT = 1, 5, 6, 28, 41
CLASS_IN = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, REFUSED = 0, 1, 2, 3, 5
EDE_FILTERED = 15
"""RFC 8914: Blocked, "due to an internal security policy of the operator"."""
TYPE_NAMES = {1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV", 65: "HTTPS"}
UDP_BYTES = 1232
"""Ours, both ways: no fragments (DNS flag day 2020)."""
NEGATIVE_TTL_S = 5
MAX_TTL_S = 300
_HEADER = struct.Struct("!6H")
_QR, _AA, _TC, _RD, _RA = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
_NAME_AT_QUESTION = b"\xc0\x0c"


class NotDns(ValueError):
    """Bytes to be ignored: too short for a header, or an answer where a query was expected."""


class Malformed(ValueError):
    """A query that is answered with FORMERR; `id` and `flags` are its own."""

    def __init__(self, message: str, id_: int, flags: int) -> None:
        super().__init__(message)
        self.id = id_
        self.flags = flags


@dataclass(frozen=True)
class Query:
    """A client's question."""

    id: int
    question: bytes
    """Name, type and class as the client wrote them, its letter case included; goes back to it and nowhere else."""
    labels: tuple[bytes, ...]
    type: int
    cls: int
    recursion: bool
    edns_bytes: int
    """What the client can take over UDP by EDNS; 0 without EDNS."""

    @property
    def name(self) -> str:
        """Lower case, dots between labels, everything but letters, digits, `-` and `_` as `\\DDD`."""
        return ".".join("".join(_letter(byte) for byte in label) for label in self.labels).lower()

    @property
    def type_name(self) -> str:
        """The type in letters where it is a known one."""
        return TYPE_NAMES.get(self.type, f"TYPE{self.type}")


def _letter(byte: int) -> str:
    char = chr(byte)
    return char if byte < 0x80 and (char.isalnum() or char in "-_") else f"\\{byte:03d}"


@dataclass(frozen=True)
class Addresses:
    """What an upstream's answer says: addresses of the type asked for, at the end of its chain of aliases."""

    rcode: int
    addresses: tuple[str, ...]
    ttl_s: int
    truncated: bool


def parse_query(data: bytes) -> Query:
    """One query. Raises: NotDns, Malformed (two questions, another opcode, a compressed name, records of an answer)."""
    if len(data) < _HEADER.size:
        raise NotDns("too short")
    id_, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(data)
    if flags & _QR:
        raise NotDns("an answer")
    if (flags >> 11) & 15 or questions != 1 or answers or authorities or additionals > 8:
        raise Malformed("not one plain question", id_, flags)
    try:
        labels, at = _read_plain_name(data, _HEADER.size)
        kind, cls = struct.unpack_from("!2H", data, at)
        edns_bytes = _find_edns(data, at + 4, additionals)
    except (IndexError, struct.error, ValueError) as error:
        raise Malformed(str(error), id_, flags) from error
    return Query(
        id=id_,
        question=data[_HEADER.size : at + 4],
        labels=labels,
        type=kind,
        cls=cls,
        recursion=bool(flags & _RD),
        edns_bytes=edns_bytes,
    )


def _read_plain_name(data: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    labels = []
    start = at
    while length := data[at]:
        if length > 63:
            raise ValueError("a compressed or extended label in a question")
        label = data[at + 1 : at + 1 + length]
        if len(label) != length:
            raise ValueError("cut short")
        labels.append(label)
        at += 1 + length
        if at - start > 254:
            raise ValueError("a name of more than 255 bytes")
    return tuple(labels), at + 1


def _find_edns(data: bytes, at: int, count: int) -> int:
    found = 0
    for _ in range(count):
        at = _skip_name(data, at)
        kind, size, _ttl, length = struct.unpack_from("!HHIH", data, at)
        at += 10 + length
        if at > len(data):
            raise ValueError("cut short")
        if kind == TYPE_OPT:
            if found:
                raise ValueError("EDNS twice")
            found = max(512, size)
    return found


def _skip_name(data: bytes, at: int) -> int:
    while length := data[at]:
        if length >= 0xC0:
            return at + 2
        if length > 63:
            raise ValueError("an extended label")
        at += 1 + length
    return at + 1


def _read_name(data: bytes, at: int) -> tuple[bytes, int]:
    """A possibly compressed name, lower case, in wire form; pointers only go back, so that no loop is possible."""
    out, end, limit = b"", -1, len(data)
    while True:
        length = data[at]
        if length >= 0xC0:
            pointer = ((length & 0x3F) << 8) | data[at + 1]
            end = at + 2 if end < 0 else end
            if pointer >= min(at, limit):
                raise ValueError("a pointer that does not go back")
            at = limit = pointer
            continue
        if length > 63:
            raise ValueError("an extended label")
        out += data[at : at + 1 + length]
        at += 1 + length
        if len(out) > 255:
            raise ValueError("a name of more than 255 bytes")
        if not length:
            return out.lower(), at if end < 0 else end


def encode_name(name: str) -> bytes:
    """A canonical name in wire form."""
    return b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split(".")) + b"\0"


def build_query(id_: int, name: str, kind: int) -> bytes:
    """Our own question: lower case, our own EDNS, nothing else. A client's letter case would be a covert channel."""
    header = _HEADER.pack(id_, _RD, 1, 0, 0, 1)
    return header + encode_name(name) + struct.pack("!2H", kind, CLASS_IN) + _opt(b"")


def _opt(options: bytes) -> bytes:
    return b"\0" + struct.pack("!HHIH", TYPE_OPT, UDP_BYTES, 0, len(options)) + options


def parse_answer(data: bytes, *, id_: int, name: str, kind: int) -> Addresses | None:
    """The upstream's answer to `build_query`; None when it is another one's, or malformed."""
    question = encode_name(name) + struct.pack("!2H", kind, CLASS_IN)
    try:
        got_id, flags, questions, answers, _, _ = _HEADER.unpack_from(data)
        end = _HEADER.size + len(question)
        if got_id != id_ or not flags & _QR or questions != 1 or data[_HEADER.size : end].lower() != question:
            return None
        return _read_answers(data, end, answers, flags=flags, owner=encode_name(name), kind=kind)
    except (IndexError, struct.error, ValueError):
        return None


def _read_answers(data: bytes, at: int, count: int, *, flags: int, owner: bytes, kind: int) -> Addresses:
    found: dict[str, None] = {}
    ttl_s = MAX_TTL_S
    for _ in range(count):
        name, at = _read_name(data, at)
        got, cls, ttl, length = struct.unpack_from("!HHIH", data, at)
        at += 10
        rdata = data[at : at + length]
        if len(rdata) != length:
            raise ValueError("cut short")
        if name == owner and cls == CLASS_IN and got == TYPE_CNAME:
            owner, _end = _read_name(data, at)
            ttl_s = min(ttl_s, ttl)
        elif name == owner and cls == CLASS_IN and got == kind:
            found[str(IPv4Address(rdata) if kind == TYPE_A else IPv6Address(rdata))] = None
            ttl_s = min(ttl_s, ttl)
        at += length
    return Addresses(flags & 15, tuple(found), ttl_s, bool(flags & _TC))


def build_answer(
    query: Query,
    *,
    rcode: int = NOERROR,
    addresses: Sequence[str] = (),
    ttl_s: int = NEGATIVE_TTL_S,
    blocked: str = "",
    over_tcp: bool = False,
) -> bytes:
    """The answer to a client, its own question repeated. Without addresses an SOA says how briefly that holds;
    `blocked` becomes an EDE 15 text for clients that speak EDNS. Too long for UDP: truncated, and the client comes
    back over TCP."""
    records = b""
    for text in addresses:
        packed = (IPv6Address(text) if ":" in text else IPv4Address(text)).packed
        kind = TYPE_AAAA if len(packed) == 16 else TYPE_A
        records += _NAME_AT_QUESTION + struct.pack("!HHIH", kind, CLASS_IN, ttl_s, len(packed)) + packed
    authority = b"" if addresses or rcode not in {NOERROR, NXDOMAIN} else _SOA
    options = b""
    if blocked:
        text_bytes = blocked.encode("ascii", "replace")[:120]
        options = struct.pack("!HHH", EDE_FILTERED, len(text_bytes) + 2, EDE_FILTERED) + text_bytes
    additional = _opt(options) if query.edns_bytes else b""
    flags = _QR | _RA | (_RD if query.recursion else 0) | rcode
    counts = (len(addresses), 1 if authority else 0, 1 if additional else 0)
    body = query.question + records + authority + additional
    limit = 65535 if over_tcp else min(UDP_BYTES, query.edns_bytes or 512)
    if _HEADER.size + len(body) > limit:
        flags |= _TC
        counts, body = (0, 0, counts[2]), query.question + additional
    return _HEADER.pack(query.id, flags, 1, *counts) + body


_SOA_RDATA = b"\0\0" + struct.pack("!5I", 1, 3600, 600, 86400, NEGATIVE_TTL_S)
_SOA = b"\0" + struct.pack("!HHIH", TYPE_SOA, CLASS_IN, NEGATIVE_TTL_S, len(_SOA_RDATA)) + _SOA_RDATA


def build_error(id_: int, flags: int, rcode: int) -> bytes:
    """An answer to what could not be read: no question in it."""
    return _HEADER.pack(id_, _QR | _RA | (flags & (_RD | 0x7800)) | rcode, 0, 0, 0, 0)
