"""Questions that the supervisor asks the other parts, to learn whether each one still answers, and the canaries that
walk the whole way through. Each returns an empty string, or what was wrong; none changes anything."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from agent_egress import identity
from agent_egress.wire import MAX_LINE, WireError, decode, encode

REFUSED_HOST = "refused.agent-container.invalid"
CHAIN_FULL = "the chain is full"
TYPE_A = 1
TYPE_NS = 2
_HEADER = struct.Struct("!6H")
NXDOMAIN = 3
REFUSED = 403
MAX_WORDS = 300


@asynccontextmanager
async def _tcp(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(identity.LOOPBACK4, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(path: str, message: Mapping[str, object], *, timeout_s: float) -> dict[str, object]:
    """One message to a daemon's socket, and its answer. Raises: WireError."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
            try:
                writer.write(encode(message))
                return decode((await reader.readline()).rstrip(b"\n"))
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, ValueError) as error:
        raise WireError(f"{path}: {type(error).__name__} {error}".rstrip()) from error


async def _status(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    parts = line.split()
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


async def _get(url: str) -> tuple[int, str]:
    """Status, and the first words of a refusal's page."""
    async with _tcp(identity.PROXY_PORT) as (reader, writer):
        host = url.split("/")[2]
        writer.write(f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        status = await _status(reader)
        if status != REFUSED:
            return status, ""
        while (await reader.readline()).strip():
            pass
        words = (await reader.readline())[:MAX_WORDS].decode("ascii", "replace")
        return status, " ".join(words.split())


async def squid_answers() -> str:
    """Whether squid answers at all: a host that it refuses by itself, so that no receipt comes of it."""
    status, _ = await _get(f"http://{identity.HEALTH_HOST}/")
    return "" if status == REFUSED else f"squid answered its own refusal with {status}"


async def allowed_canary() -> str:
    """An allowed request, through squid, the policy process, the audit, both resolvers and the kernel's rules. The
    policy process lets it pass for the token alone, so that the agent cannot use this way."""
    token = secrets.token_hex(16)
    told = await ask(identity.POLICY_SOCKET, {"op": "canary", "token": token}, timeout_s=identity.ANSWER_DEADLINE_S)
    if told.get("ok") is not True:
        return f"the policy process refused the canary's token: {told.get('error')}"
    status, words = await _get(f"http://{identity.CANARY_HOST}:{identity.CANARY_PORT}/{token}")
    return "" if status == 200 else f"the allowed canary was answered with {status} {words}".rstrip()


async def refused_canary() -> str:
    """A refused CONNECT: the 403 must come inside TLS that this session's CA vouches for."""
    context = ssl.create_default_context(cafile=identity.CA_FILE)
    async with _tcp(identity.PROXY_PORT) as (reader, writer):
        writer.write(f"CONNECT {REFUSED_HOST}:443 HTTP/1.1\r\nHost: {REFUSED_HOST}:443\r\n\r\n".encode())
        status = await _status(reader)
        while (await reader.readline()).strip():
            pass
        if status != 200:
            return "" if status == REFUSED else f"the refused canary was answered with {status}"
        await writer.start_tls(context, server_hostname=REFUSED_HOST)
        writer.write(f"GET / HTTP/1.1\r\nHost: {REFUSED_HOST}\r\nConnection: close\r\n\r\n".encode())
        status = await _status(reader)
    return "" if status == REFUSED else f"the refused canary was answered with {status}"


class _Answer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.got.done():
            self.got.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.got.done():
            self.got.set_exception(exc)


async def _lookup(name: str, kind: int, *, port: int) -> tuple[int, int]:
    """Response code and number of answers."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
    query = _HEADER.pack(secrets.randbits(16), 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(_Answer, remote_addr=(identity.LOOPBACK4, port))
    try:
        transport.sendto(query)
        data = await protocol.got
    finally:
        transport.close()
    if len(data) < _HEADER.size or data[:2] != query[:2]:
        return -1, 0
    _, flags, _, answers, _, _ = _HEADER.unpack(data[: _HEADER.size])
    return flags & 15, answers


async def dns_answers() -> str:
    """Whether the filter answers: the canary's name, which it knows by itself."""
    code, answers = await _lookup(identity.CANARY_HOST, TYPE_A, port=identity.DNS_PORT)
    return "" if code == 0 and answers else f"the filter answered its own name with code {code}"


async def dns_refuses() -> str:
    """Whether the filter refuses a name that no policy can allow."""
    code, _ = await _lookup(REFUSED_HOST, TYPE_A, port=identity.DNS_PORT)
    return "" if code == NXDOMAIN else f"the filter answered a refused name with code {code}"


async def unbound_answers() -> str:
    """Whether unbound answers: a name of its own configuration."""
    code, answers = await _lookup(identity.HEALTH_HOST, TYPE_A, port=identity.UNBOUND_PORT)
    return "" if code == 0 and answers else f"unbound answered its own name with code {code}"


async def resolver_answers() -> str:
    """Whether the resolvers behind unbound answer: the only probe that leaves the sidecar."""
    code, _ = await _lookup("", TYPE_NS, port=identity.UNBOUND_PORT)
    return "" if code in {0, NXDOMAIN} else f"no answer from the resolvers (code {code})"


async def policy_answers() -> str:
    """Whether the policy process answers."""
    answer = await ask(identity.POLICY_SOCKET, {"op": "ping"}, timeout_s=identity.ANSWER_DEADLINE_S)
    return "" if answer.get("ok") is True else f"the policy process answered {answer.get('error')}"


async def scan_answers() -> str:
    """Whether the body scanner answers."""
    answer = await ask(identity.SCAN_SOCKET, {"op": "ping"}, timeout_s=identity.ANSWER_DEADLINE_S)
    return "" if answer.get("ok") is True else f"the body scanner answered {answer.get('error')}"


async def gateway_answers() -> str:
    """Whether the git gateway answers."""
    answer = await ask(identity.GATEWAY_CONTROL_SOCKET, {"op": "ping"}, timeout_s=identity.ANSWER_DEADLINE_S)
    return "" if answer.get("ok") is True else f"the git gateway answered {answer.get('error')}"


async def audit_answers() -> str:
    """Whether the audit writer answers and can still write."""
    answer = await ask(identity.AUDIT_SOCKET, {"id": 0, "op": "counters"}, timeout_s=identity.ANSWER_DEADLINE_S)
    if answer.get("full") is True:
        return CHAIN_FULL
    return "" if answer.get("ok") is True else f"the audit writer answered {answer.get('error')}"
