"""The body scanner: squid's ICAP server, in a process and under a uid of its own, so that a large body delays nobody's
decision. It knows fingerprints, never a secret. Until it is armed with them it does not listen, and what it cannot do
it refuses: squid then refuses the request. What is looked for stands in `scan`, what follows from it in `findings`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from agent_egress import icap, identity
from agent_egress.findings import Armed, Transaction
from agent_egress.fingerprints import MODES, FingerprintRefused, parse_rows
from agent_egress.icap import Chunks, HttpHead, IcapError, IcapHead
from agent_egress.ledger import DEADLINE_S, Ledger
from agent_egress.policy_file import PolicyFile
from agent_egress.sieve import Sieve
from agent_egress.wire import Peer, WireError, decode, encode, harden, parse_roles, serve_lines

HOLD_BYTES = 1024 * 1024
"""Of a request's body, kept until all of it was seen: within it a refusal can still be read."""
ANSWER_HOLD_BYTES = 64 * 1024
"""The same of an answer, and only of one that says its length: streamed answers go as they come."""
MAX_HELD = 64 * 1024 * 1024
"""Of all bodies together; past it nothing more is kept for the sake of a readable refusal."""
READ_BYTES = 64 * 1024
ROLES: Mapping[int, frozenset[str]] = {0: frozenset({"root"})}


class Service:
    """What all connections share."""

    def __init__(self, *, policy_file: PolicyFile, ledger: Ledger, mode: str, port: int) -> None:
        self.policy_file = policy_file
        self.ledger = ledger
        self.held = 0
        self.armed = Armed((), mode=mode)
        self._mode = mode
        self._port = port
        self._server: asyncio.AbstractServer | None = None

    def on_lines(self, peer: Peer, lines: list[bytes]) -> None:
        """Root's operations."""
        for line in lines:
            try:
                message = decode(line)
                if message.get("op") == "arm":
                    self.armed = Armed(parse_rows(message.get("fingerprints")), mode=self._mode)
                    asyncio.get_running_loop().create_task(self._listen(peer))
                elif message.get("op") == "ping":
                    peer.send(encode({"ok": True, "armed": self._server is not None}))
                else:
                    raise WireError("no such operation")
            except (WireError, FingerprintRefused) as error:
                peer.send(encode({"ok": False, "error": str(error)}))

    async def _listen(self, peer: Peer) -> None:
        try:
            if self._server is None:
                self._server = await asyncio.start_server(self._connection, identity.LOOPBACK4, self._port)
            peer.send(encode({"ok": True}))
        except OSError as error:
            peer.send(encode({"ok": False, "error": str(error)}))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        try:
            while await connection.request():
                pass
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        except (IcapError, ValueError):
            writer.write(icap.failure(400, "Bad request"))
        # Closed in the middle of an answer, squid gives what it was part of up.
        with contextlib.suppress(OSError):
            writer.close()


class Connection:
    """One of squid's: one request after the other; what is sent ahead waits in the buffer."""

    def __init__(self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._service = service
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()

    async def request(self) -> bool:
        """One ICAP request; whether another may follow. Raises: IcapError, OSError, EOFError."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > icap.MAX_HEAD:
                raise IcapError("a head without an end")
            if not await self._more():
                return False
        head = icap.parse_head(bytes(self._buffer[: end + 4]))
        del self._buffer[: end + 4]
        while len(self._buffer) < head.header_bytes:
            if not await self._more():
                return False
        headers = icap.split_headers(head, bytes(self._buffer[: head.header_bytes]))
        del self._buffer[: head.header_bytes]
        if head.method == "OPTIONS":
            self._writer.write(icap.options(head.service))
            return True
        return await self._scan(head, headers)

    async def _more(self) -> bool:
        data = await self._reader.read(READ_BYTES)
        self._buffer += data
        return bool(data)

    async def _scan(self, head: IcapHead, headers: Mapping[str, bytes]) -> bool:
        service = self._service
        section = "req-hdr" if head.method == "REQMOD" else "res-hdr"
        if section not in headers:
            raise IcapError(f"no {section}")
        http = icap.parse_http(headers[section])
        asked = http if section == "req-hdr" else icap.parse_http(headers.get("req-hdr", b""))
        host, port = asked.place
        policy = service.policy_file.current()
        answers = section == "res-hdr"
        scan = Transaction(service.armed, policy, host=host, port=port, answers=answers)
        if answers:
            scan.look_at_header(headers[section])
        nothing = not (head.has_body and scan.patterns)
        if nothing and not scan.refusal and head.may_skip:
            self._writer.write(icap.unchanged())
            return await self._drop_preview(head)
        body = _Passage(self, head, http, scan, header=headers[section], section=section)
        try:
            return await body.run()
        finally:
            service.held -= body.held
            if not scan.written:  # it was broken off
                await self.write_receipts(scan)

    async def _drop_preview(self, head: IcapHead) -> bool:
        """After a 204 in a preview's place the rest never comes."""
        if head.has_body:
            async for _ in self.chunks(Chunks()):
                pass
        return True

    async def chunks(self, chunks: Chunks) -> AsyncIterator[bytes]:
        """The bytes of a chunked body as they come. Raises: EOFError."""
        while True:
            data = chunks.feed(self._buffer)
            if data:
                yield data
            if chunks.done:
                return
            if not await self._more():
                raise EOFError

    def write(self, data: bytes) -> None:
        """To squid."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Waits until squid takes what was written: memory stays flat."""
        await self._writer.drain()

    def keep(self, more: int) -> bool:
        """Whether so many bytes more may be kept; counts them."""
        self._service.held += more
        return self._service.held <= MAX_HELD

    async def write_receipts(self, scan: Transaction) -> bool:
        """Whether what was found is on disk."""
        scan.written = True
        found = scan.receipts()
        return not found or await self._service.ledger.write(found)


class _Passage:
    """One message through the scan, and back to squid."""

    def __init__(
        self, connection: Connection, head: IcapHead, http: HttpHead, scan: Transaction, *, header: bytes, section: str
    ) -> None:
        self.held = 0
        self._connection = connection
        self._head = head
        self._scan = scan
        self._header = header
        self._section = section
        self._started = False
        self._over = False
        hold = HOLD_BYTES
        if section == "res-hdr":
            length = http.headers.get("content-length", "")
            hold = int(length) if length.isdigit() and int(length) <= ANSWER_HOLD_BYTES else 0
        if not connection.keep(0):
            hold = 0
        self._sieve = Sieve(scan.patterns, http.headers.get("content-encoding", ""), hold=hold)
        self._streams = hold == 0 and section == "res-hdr"

    async def run(self) -> bool:
        """Whether the connection may be used again."""
        connection, scan = self._connection, self._scan
        if self._head.has_body and self._sieve.problem:
            scan.unseen(self._sieve.problem)
        if scan.refusal:
            return await self._refuse()
        if not self._head.has_body:
            self._start()
            return True
        if self._head.previews:
            preview = Chunks()
            if not await self._pass(preview):
                return await self._refuse()
            if preview.whole:
                return await self._finish()
            connection.write(icap.CONTINUE)
        if self._streams:
            self._start()
        if not await self._pass(Chunks()):
            return await self._refuse()
        return await self._finish()

    async def _pass(self, chunks: Chunks) -> bool:
        """Lets through what may pass, until the chunks end; False when the transaction is refused."""
        async for raw in self._connection.chunks(chunks):
            if not await self._take(raw):
                return False
        return True

    async def _take(self, raw: bytes) -> bool:
        sieve, scan = self._sieve, self._scan
        for count, findings in enumerate(sieve.take(raw)):
            scan.add(findings)
            if count:
                await asyncio.sleep(0)
        if sieve.problem:
            scan.unseen(sieve.problem)
        if scan.refusal:
            return False
        self._send(sieve.give())
        self._connection.keep(sieve.waiting - self.held)
        self.held = sieve.waiting
        await self._connection.drain()
        return True

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._connection.write(icap.echo(self._section, self._header, body=self._head.has_body))

    def _send(self, data: bytes) -> None:
        if data:
            self._start()
            self._connection.write(icap.chunk(data))

    async def _finish(self) -> bool:
        self._over = True
        self._scan.add(self._sieve.end())
        if self._scan.refusal:
            return await self._refuse()
        # Before the end of the body is told: without its receipt nothing becomes whole.
        if not await self._connection.write_receipts(self._scan):
            return False
        self._start()
        self._send(self._sieve.give())
        self._connection.write(icap.LAST_CHUNK)
        await self._connection.drain()
        return True

    async def _refuse(self) -> bool:
        await self._connection.write_receipts(self._scan)
        if self._started:
            return False  # too late for words: squid breaks the transfer off when this connection closes
        over = self._over or not self._head.has_body
        self._connection.write(icap.refusal(self._scan.refusal, close=not over))
        await self._connection.drain()
        return over


async def serve(options: argparse.Namespace, *, mode: str) -> None:
    """Runs until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ledger = Ledger(options.audit, deadline_s=options.deadline_s)
    ledger.start()
    service = Service(policy_file=PolicyFile(options.policy_file), ledger=ledger, mode=mode, port=options.port)
    roles = parse_roles(options.peer, ROLES)
    server = await serve_lines(options.socket, on_lines=service.on_lines, admit=lambda uid: uid in roles)
    await stop.wait()
    server.close()


def main(argv: list[str] | None = None) -> None:
    """The daemon's entry; options exist for tests, the defaults are the sidecar's."""
    parser = argparse.ArgumentParser(prog="agent_egress.scanner")
    parser.add_argument("--socket", default=identity.SCAN_SOCKET)
    parser.add_argument("--audit", default=identity.AUDIT_SOCKET)
    parser.add_argument("--deadline-s", type=float, default=DEADLINE_S)
    parser.add_argument("--policy-file", default=identity.POLICY_FILE)
    parser.add_argument("--session-file", default=identity.SESSION_FILE)
    parser.add_argument("--port", type=int, default=identity.SCAN_PORT)
    parser.add_argument("--peer", action="append", default=[], metavar="UID=ROLE", help="root")
    options = parser.parse_args(argv)
    harden()
    mode = json.loads(Path(options.session_file).read_bytes())["dlp"]
    if mode not in MODES:
        raise SystemExit(f"scanner: dlp: {mode!r:.40} is not one of {', '.join(MODES)}")
    asyncio.run(serve(options, mode=mode))


if __name__ == "__main__":
    main()
