"""squid's external_acl lines: the format that squid.conf asks for, what a line asks as a value, and how an answer is
spelled. Each field arrives percent-escaped once; notes go back quoted. What the answer is, `verdicts` decides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from agent_egress.identity import GATEWAY_LOOPBACK4, LOOPBACK4, LOOPBACK6
from agent_egress.names import NameRefused, canonical_host
from agent_egress.policy import TLS_PORTS

FIXED_FORMAT = "%master_xaction %>rm %>rd %>rP %ssl::>sni %note{clt_conn_tag} %>la %>rp %>rs %>p"
_WORD = re.compile(r"[A-Za-z0-9._:/-]+", re.ASCII)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_FIXED = 11
"""The channel and the fields of FIXED_FORMAT."""


def seen_headers(credential_headers: Sequence[str]) -> tuple[str, ...]:
    """The headers that squid shows us, in order: `%>h`, all of them, is empty in an external_acl of squid 6.13."""
    return ("Upgrade", *credential_headers, "Cookie")


def line_format(credential_headers: Sequence[str]) -> str:
    """The FORMAT words of `external_acl_type`."""
    return FIXED_FORMAT + "".join(f" %>{{{name}}}" for name in seen_headers(credential_headers))


class LineRefused(ValueError):
    """A line that squid would not have written; `channel` is who waits for an answer to it."""

    def __init__(self, message: str, channel: str) -> None:
        super().__init__(message)
        self.channel = channel


@dataclass(frozen=True)
class Tunnel:
    """The CONNECT or intercepted hello that a request came through, as its answer tagged the client's connection."""

    host: str
    port: int

    @property
    def tag(self) -> str:
        """The value of `clt_conn_tag`."""
        return f"{self.host}/{self.port}/tls"


@dataclass(frozen=True)
class Question:
    """One request, as squid describes it."""

    method: str
    host: str
    """As the client wrote it; in intercepted TLS the address dialled, until the hello was read."""
    port: int
    sni: str
    """Empty when none was seen."""
    tunnel: Tunnel | None
    local_address: str
    raw_path: str
    """Query included."""
    scheme: str
    client_port: str
    """All that tells clients apart: they share one loopback."""
    headers: tuple[tuple[str, str], ...]
    """Those of `seen_headers` that are there; squid joins repeated ones with a comma."""
    odd_escapes: bool = False
    """The path's own escapes arrived undone or doubled: it cannot be told from a plain one."""

    @property
    def intercepted(self) -> bool:
        """Whether the client dialled the address itself (nft redirected it), and did not ask the proxy."""
        return self.local_address not in {LOOPBACK4, LOOPBACK6, GATEWAY_LOOPBACK4, "[::1]", ""}

    @property
    def from_gateway(self) -> bool:
        """Whether the git gateway asks: the kernel lets nobody else connect to that address."""
        return self.local_address == GATEWAY_LOOPBACK4

    @property
    def closes(self) -> bool:
        """Whether a refusal ends the connection: TLS clients read a 403 inside TLS, ssh would wait for ever. Inside a
        tunnel there is nothing left that would end it, and the client reads what it is told."""
        return self.method == "CONNECT" and self.port not in TLS_PORTS and self.tunnel is None and not self.from_gateway


def _field(raw: str) -> str:
    if raw == "-":
        return ""
    return unquote(raw, errors="surrogateescape") if "%" in raw else raw


def parse_question(line: bytes, *, headers: Sequence[str]) -> tuple[str, Question]:
    """Channel and question; `headers` are `seen_headers`. Raises: LineRefused."""
    parts = line.decode("utf-8", "surrogateescape").rstrip("\r\n").split(" ")
    count = _FIXED + len(headers)
    # squid may append the (empty) arguments of the acl as one more field.
    if len(parts) != count and not (len(parts) == count + 1 and parts[-1] in {"-", ""}):
        raise LineRefused(f"{len(parts)} fields, expected {count}", parts[0])
    channel, _xaction, *rest = parts[:count]
    method, host, port, sni, tag, local, path, scheme, client_port, *values = (_field(raw) for raw in rest)
    lowered = rest[6].lower()
    found = tuple((name, value) for name, value in zip(headers, values, strict=True) if value)
    question = Question(
        method=method,
        host=host,
        port=_port(port),
        sni=sni,
        tunnel=_tunnel(tag),
        local_address=local,
        raw_path=path,
        scheme=scheme.lower(),
        client_port=client_port[:5],
        headers=found,
        odd_escapes="%2e" in lowered or "%2f" in lowered,
    )
    return channel, question


def _port(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536 else 0


def _tunnel(tag: str) -> Tunnel | None:
    """The tag that an earlier answer set; a garbled one is a tunnel to nowhere, which no request matches."""
    if not tag:
        return None
    host, _, rest = tag.partition("/")
    port, _, mark = rest.partition("/")
    return Tunnel(host, _port(port)) if mark == "tls" else Tunnel("", 0)


def same_host(one: str, other: str) -> bool:
    """Whether two spellings are the same canonical host."""
    try:
        return canonical_host(one) == canonical_host(other)
    except NameRefused:
        return False


def answer(channel: str, *, allowed: bool, notes: Iterable[tuple[str, str]]) -> bytes:
    """One answer line. ERR for a refusal, never BH: squid asks again after BH."""
    words = "".join(f" {key}={_quote(value)}" for key, value in notes if value)
    return f"{channel} {'OK' if allowed else 'ERR'}{words}\n".encode("ascii", "replace")


def _quote(value: str) -> str:
    if _WORD.fullmatch(value):
        return value
    clean = _UNPRINTABLE.sub("?", value)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'
