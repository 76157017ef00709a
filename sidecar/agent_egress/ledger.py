"""The daemons' side of the audit: receipts handed to the writer in groups, and the word that they are on disk. Late,
refused and lost all mean the same to who asks: not written, so not allowed. The DNS filter tells the policy process its
answers in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence

from agent_egress.receipts import Fields
from agent_egress.wire import LineSplitter, WireError, decode, encode

DEADLINE_S = 1.5
"""Below squid's helper deadline of 2 s, so that a refusal still arrives."""
RETRY_S = 0.05
MAX_GROUP = 2000
MAX_HELD = 1000
Done = Callable[[str], None]
"""Called once, with what went wrong; empty when the receipts are on disk."""


class Ledger(asyncio.Protocol):
    """A connection to the audit writer that is made anew whenever it is lost."""

    def __init__(
        self,
        path: str,
        *,
        deadline_s: float = DEADLINE_S,
        noun: str = "receipts",
        first: Callable[[], Sequence[Fields]] = tuple,
    ) -> None:
        self._path = path
        self._noun = noun
        self._first = first
        """What a new connection begins with: what a successor must know."""
        self._deadline_s = deadline_s
        self._transport: asyncio.Transport | None = None
        self._splitter = LineSplitter()
        self._ids = itertools.count(1)
        self._receipts: list[Fields] = []
        self._waiting: list[Done] = []
        self._sent: dict[int, tuple[list[Done], asyncio.TimerHandle]] = {}
        self._held: list[bytes] = []
        """Written as soon as there is a connection: a writer that has just started, or was lost, is no reason to refuse
        before the deadline."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connects, and keeps at it."""
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        while self._transport is None:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().create_unix_connection(lambda: self, self._path)
                return
            await asyncio.sleep(RETRY_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to write."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._splitter = LineSplitter()
            rows = self._first()
            for at in range(0, len(rows), MAX_GROUP):
                self.append(rows[at : at + MAX_GROUP], lambda _: None)
            held, self._held = self._held, []
            self._transport.write(b"".join(held))

    def connection_lost(self, exc: Exception | None) -> None:
        """What was on its way counts as not written."""
        self._transport = None
        sent, self._sent = self._sent, {}
        for waiting, timer in sent.values():
            timer.cancel()
            _tell(waiting, "the audit writer is gone")
        self.start()

    def append(self, receipts: Sequence[Fields], done: Done) -> None:
        """Writes receipts; those of one turn of the loop travel together."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)
        self._receipts.extend(receipts)
        self._waiting.append(done)
        if len(self._receipts) > MAX_GROUP:
            self._send()

    async def write(self, receipts: Sequence[Fields]) -> bool:
        """The same for who can wait: whether the receipts are on disk."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.append(receipts, lambda problem: None if future.done() else future.set_result(problem))
        return not await future

    def _send(self) -> None:
        receipts, waiting = self._receipts, self._waiting
        self._receipts, self._waiting = [], []
        if not waiting:
            return
        if self._transport is None and len(self._held) >= MAX_HELD:
            _tell(waiting, "the audit writer cannot be reached")
            return
        number = next(self._ids)
        timer = asyncio.get_running_loop().call_later(self._deadline_s, self._late)
        self._sent[number] = (waiting, timer)
        line = encode({"id": number, self._noun: receipts})
        if self._transport is None:
            self._held.append(line)
        else:
            self._transport.write(line)

    def _late(self) -> None:
        """A writer that hangs: the connection goes, and with it whatever it may still say."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._held = []
        sent, self._sent = self._sent, {}
        for waiting, timer in sent.values():
            timer.cancel()
            _tell(waiting, "the audit writer is too slow")

    def data_received(self, data: bytes) -> None:
        """Acknowledgements."""
        try:
            for line in self._splitter.feed(data):
                message = decode(line)
                number = message.get("id")
                waiting, timer = self._sent.pop(number) if isinstance(number, int) else ([], None)
                if timer is not None:
                    timer.cancel()
                _tell(waiting, "" if message.get("ok") is True else str(message.get("error", "refused")))
        except (WireError, KeyError):
            self._late()


def _tell(waiting: list[Done], problem: str) -> None:
    for done in waiting:
        done(problem)
