"""The DNS filter: the only resolver inside the boundary. Names of the policy are asked of unbound, rebuilt from
scratch; all else is answered here, so that nothing an agent writes into a query leaves. Receipts come first, twice:
the lookup before it goes out, the addresses before they are given. Parsing is `dnswire`'s, deciding `policy`'s."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import socket
import struct
from collections.abc import Callable
from typing import cast

from agent_egress import dnswire, identity, kills
from agent_egress.dnswire import NOERROR, NXDOMAIN, REFUSED, SERVFAIL, TYPE_A, TYPE_AAAA, Addresses, Query
from agent_egress.ledger import DEADLINE_S, Ledger
from agent_egress.names import NameRefused, canonical_name
from agent_egress.policy import Decision, Policy, decide_lookup
from agent_egress.policy_file import PolicyFile
from agent_egress.receipts import Fields, cut_text
from agent_egress.wire import harden

UPSTREAM_TIMEOUT_S = 2.0
UPSTREAM_TRIES = 2
MAX_IN_FLIGHT = 1000
TCP_IDLE_S = 10.0
MAX_TCP = 100
MAX_KNOWN_ANSWERS = 10_000
TELL_S = 0.5
BLOCKED = "agent-container: blocked by policy"


class Upstream(asyncio.DatagramProtocol):
    """unbound, over one connected UDP socket (so nobody else's datagrams arrive), over TCP when an answer was cut."""

    def __init__(self, host: str, port: int, *, timeout_s: float = UPSTREAM_TIMEOUT_S) -> None:
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._transport: asyncio.DatagramTransport | None = None
        self._waiting: dict[int, tuple[str, int, asyncio.Future[Addresses]]] = {}

    async def start(self) -> None:
        """Opens the socket."""
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self, remote_addr=(self._host, self._port))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to ask."""
        self._transport = cast(asyncio.DatagramTransport, transport)  # Python 3.11's own is no subclass of it

    def error_received(self, exc: Exception) -> None:
        """unbound is not there (ICMP): the question's own timeout tells."""

    def datagram_received(self, data: bytes, addr: object) -> None:
        """An answer; whatever does not fit a question that waits is ignored."""
        number = int.from_bytes(data[:2], "big")
        name, kind, future = self._waiting.get(number, ("", 0, None))
        if future is None or future.done():
            return
        found = dnswire.parse_answer(data, id_=number, name=name, kind=kind)
        if found is not None:
            future.set_result(found)

    async def ask(self, name: str, kind: int) -> Addresses | None:
        """The addresses of a name; None when nobody answers."""
        for _ in range(UPSTREAM_TRIES):
            number = secrets.randbelow(65536)
            if self._transport is None or number in self._waiting:
                continue
            future: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
            self._waiting[number] = (name, kind, future)
            try:
                self._transport.sendto(dnswire.build_query(number, name, kind))
                found = await asyncio.wait_for(future, self._timeout_s)
            except TimeoutError:
                continue
            finally:
                del self._waiting[number]
            return await self._ask_tcp(name, kind) if found.truncated else found
        return None

    async def _ask_tcp(self, name: str, kind: int) -> Addresses | None:
        number = secrets.randbelow(65536)
        query = dnswire.build_query(number, name, kind)
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    writer.write(struct.pack("!H", len(query)) + query)
                    (length,) = struct.unpack("!H", await reader.readexactly(2))
                    data = await reader.readexactly(length)
                finally:
                    writer.transport.abort()
            return dnswire.parse_answer(data, id_=number, name=name, kind=kind)
        return None


class Filter:
    """Answers queries from UDP and TCP alike."""

    def __init__(
        self,
        *,
        policy_file: PolicyFile,
        ledger: Ledger,
        upstream: Upstream,
        policy_socket: str = identity.POLICY_SOCKET,
    ) -> None:
        self._policy_file = policy_file
        self._policy_process = Ledger(policy_socket, deadline_s=TELL_S, noun="answers", first=self._all_known)
        self._ledger = ledger
        self._upstream = upstream
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}

    def start(self) -> None:
        """Connects to the policy process, which must know a name's addresses when a client dials one itself."""
        self._policy_process.start()

    def _all_known(self) -> list[Fields]:
        return [{"name": name, "addresses": list(found)} for (name, _), found in self._known.items()]

    def on_query(self, data: bytes, reply: Callable[[bytes], None], *, over_tcp: bool) -> None:
        """Starts answering; what is no query is ignored, what is malformed gets FORMERR, and neither goes anywhere."""
        try:
            query = dnswire.parse_query(data)
        except dnswire.NotDns:
            return
        except dnswire.Malformed as error:
            reply(dnswire.build_error(error.id, error.flags, dnswire.FORMERR))
            return
        if self._in_flight >= MAX_IN_FLIGHT:
            reply(dnswire.build_answer(query, rcode=SERVFAIL))
            return
        self._in_flight += 1
        task = asyncio.get_running_loop().create_task(self._answer_to(query, reply, over_tcp))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_flight -= 1
        self._tasks.discard(task)

    async def _answer_to(self, query: Query, reply: Callable[[bytes], None], over_tcp: bool) -> None:
        try:
            data = await self._answer(query, over_tcp)
        except Exception:
            data = dnswire.build_answer(query, rcode=SERVFAIL)
        reply(data)

    async def _answer(self, query: Query, over_tcp: bool) -> bytes:
        if query.cls != dnswire.CLASS_IN:
            return dnswire.build_answer(query, rcode=REFUSED)
        try:
            # From the labels themselves: a dot inside one would join two of them into another name.
            name = canonical_name(query.name) if query.labels else ""
        except NameRefused:
            name = ""
        own = self._own_name(name, query)
        if own is not None:
            return own
        policy = self._policy_file.current()
        decision = decide_lookup(policy, name or query.name)
        ends = kills.contact(policy, decision, host=name, port=0, where="lookup")
        if not await self._ledger.write([_lookup(policy, query, name, decision), *ends]):
            return dnswire.build_answer(query, rcode=SERVFAIL)
        if not decision.allowed:
            # Not REFUSED: glibc then says "temporary failure" and tries again.
            return dnswire.build_answer(query, rcode=NXDOMAIN, blocked=f"{BLOCKED}: {decision.reason}")
        if query.type not in {TYPE_A, TYPE_AAAA}:
            # HTTPS and SVCB too: empty at once, so that clients go on with A and AAAA. TXT and the like carry data.
            return dnswire.build_answer(query)
        return await self._resolve(policy, query, name, over_tcp)

    def _own_name(self, name: str, query: Query) -> bytes | None:
        """Names that this sidecar knows by itself: nothing goes out for them, so there is no receipt either."""
        if name == identity.CANARY_HOST:
            return dnswire.build_answer(query, addresses=[identity.LOOPBACK4] if query.type == TYPE_A else ())
        if name == identity.HEALTH_HOST:
            return dnswire.build_answer(query, rcode=NXDOMAIN, blocked=BLOCKED)
        return None

    async def _resolve(self, policy: Policy, query: Query, name: str, over_tcp: bool) -> bytes:
        found = await self._upstream.ask(name, query.type)
        if found is None or found.rcode not in {NOERROR, NXDOMAIN}:
            return dnswire.build_answer(query, rcode=SERVFAIL)
        if found.rcode == NXDOMAIN or not found.addresses:
            return dnswire.build_answer(query, rcode=found.rcode)
        verdicts = [(address, decide_lookup(policy, name, address)) for address in found.addresses]
        given = tuple(address for address, verdict in verdicts if verdict.allowed)
        refused = [(address, verdict) for address, verdict in verdicts if not verdict.allowed]
        receipts: list[dict[str, object]] = [
            {**_lookup(policy, query, name, verdict), "why": "address", "reason": cut_text(verdict.reason, 160)}
            for _address, verdict in refused[:4]
        ]
        known = tuple(sorted(given))  # upstreams rotate the order
        new = self._known.get((name, query.type_name)) != known
        if new:
            # Long answers in parts: a receipt has 1 KiB.
            receipts += [
                {"kind": "answer", "name": name, "type": query.type_name, "addresses": list(known[at : at + 12])}
                for at in range(0, len(known), 12)
            ]
        if receipts and not await self._ledger.write(receipts):
            return dnswire.build_answer(query, rcode=SERVFAIL)
        if new:
            # Before the client can dial them. Should the policy process be away, its successor is told all of it.
            await self._policy_process.write([{"name": name, "addresses": list(known)}])
        if len(self._known) >= MAX_KNOWN_ANSWERS:
            self._known.clear()
        self._known[name, query.type_name] = known
        if not given:
            return dnswire.build_answer(query, blocked=f"{BLOCKED}: {refused[0][1].reason}")
        return dnswire.build_answer(query, addresses=given, ttl_s=found.ttl_s, over_tcp=over_tcp)


def _lookup(policy: Policy, query: Query, name: str, decision: Decision) -> dict[str, object]:
    return {
        "kind": "lookup",
        "action": "allow" if decision.allowed else "deny",
        "name": cut_text(name or query.name),
        "type": query.type_name,
        "rule": decision.rule,
        "policy": policy.short_digest,
    }


class Udp(asyncio.DatagramProtocol):
    """One UDP socket of the filter."""

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to answer."""
        self._transport = cast(asyncio.DatagramTransport, transport)  # Python 3.11's own is no subclass of it

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """One query."""
        self._filter.on_query(data, lambda answer: self._reply(answer, addr), over_tcp=False)

    def _reply(self, answer: bytes, addr: tuple[str, int]) -> None:
        if self._transport is not None:
            self._transport.sendto(answer, addr)


class Tcp:
    """The filter over TCP (RFC 7766): several queries a connection, answered as they come."""

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""

        def reply(answer: bytes) -> None:
            if not writer.is_closing():
                writer.write(struct.pack("!H", len(answer)) + answer)

        self._open += 1
        try:
            while self._open <= MAX_TCP:
                async with asyncio.timeout(TCP_IDLE_S):
                    (length,) = struct.unpack("!H", await reader.readexactly(2))
                    data = await reader.readexactly(length)
                self._filter.on_query(data, reply, over_tcp=True)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open -= 1
            writer.close()


async def serve(options: argparse.Namespace) -> None:
    """Runs until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ledger = Ledger(options.audit, deadline_s=options.deadline_s)
    ledger.start()
    upstream = Upstream(options.upstream_host, options.upstream_port, timeout_s=options.upstream_timeout_s)
    await upstream.start()
    filter_ = Filter(
        policy_file=PolicyFile(options.policy_file), ledger=ledger, upstream=upstream, policy_socket=options.policy
    )
    filter_.start()
    tcp = Tcp(filter_)
    for host in (identity.LOOPBACK4, identity.LOOPBACK6):
        # A namespace without IPv6 has no ::1.
        with contextlib.suppress(OSError) if host == identity.LOOPBACK6 else contextlib.nullcontext():
            await loop.create_datagram_endpoint(lambda: Udp(filter_), local_addr=(host, options.port))
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            await asyncio.start_server(tcp.serve, host, options.port, family=family)
    await stop.wait()


def main(argv: list[str] | None = None) -> None:
    """The daemon's entry; options exist for tests, the defaults are the sidecar's."""
    parser = argparse.ArgumentParser(prog="agent_egress.dns")
    parser.add_argument("--port", type=int, default=identity.DNS_PORT)
    parser.add_argument("--upstream-host", default=identity.LOOPBACK4)
    parser.add_argument("--upstream-port", type=int, default=identity.UNBOUND_PORT)
    parser.add_argument("--upstream-timeout-s", type=float, default=UPSTREAM_TIMEOUT_S)
    parser.add_argument("--audit", default=identity.AUDIT_SOCKET)
    parser.add_argument("--policy", default=identity.POLICY_SOCKET)
    parser.add_argument("--deadline-s", type=float, default=DEADLINE_S)
    parser.add_argument("--policy-file", default=identity.POLICY_FILE)
    options = parser.parse_args(argv)
    harden()
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
