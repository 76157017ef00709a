"""The audit writer: the one process that holds the chain key and the receipts file. Others send receipts and wait for
the acknowledgement, which means that write(2) returned. It opens, links, caps and seals the chain; it judges
nothing."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent_egress import identity
from agent_egress.budget import ModelLimits, Spending
from agent_egress.collapse import WINDOW_S, Collapser
from agent_egress.kills import KIND, Kills
from agent_egress.receipts import Fields, ReceiptRefused, Writer, open_receipt, seal_receipt
from agent_egress.rules import Policy, PolicyError
from agent_egress.wire import Peer, WireError, decode, encode, harden, parse_roles, serve_lines

MAX_BATCH = 5000
MAX_HITS = 5_000
"""Rules whose decisions are counted, so that the answer stays one line."""
MAX_MORE = 300
"""Totals of the supervisor's own in the seal; longer ones are left out rather than leave the chain unsealed."""
ROLES: Mapping[int, frozenset[str]] = {
    identity.POLICY: frozenset({"policy"}),
    identity.DNS: frozenset({"dns"}),
    identity.SCAN: frozenset({"scan"}),
    identity.GATEWAY: frozenset({"gateway"}),
    0: frozenset({"root"}),
}
KINDS_OF_ROLE: Mapping[str, frozenset[str]] = {
    "policy": frozenset({"decision", "transfer", "tripwire", "kill", "canary"}),
    "dns": frozenset({"lookup", "answer", "kill"}),
    "scan": frozenset({"dlp", "tripwire", "kill"}),
    "gateway": frozenset({"git", "kill"}),
    "root": frozenset({"policy", "connection", "drop", "tripwire", "kill", "cut", "restore", "deadline", "canary"}),
}
"""What each peer may say: a process that is taken over cannot forge another's receipts."""


class Chain:
    """The receipts file and the writer's state, kept in step: what is not on disk is not in the chain."""

    def __init__(self, path: Path, *, writer: Writer) -> None:
        self.writer = writer
        self.broken = ""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # one writer: a second would fork the chain
        self._size = os.fstat(self._fd).st_size
        if self._size:
            with path.open("rb") as stream:
                writer.resume(stream)

    def append(self, receipts: list[Fields]) -> None:
        """Writes a batch, all or nothing. Raises: ReceiptRefused, OSError."""
        if self.broken:
            raise ReceiptRefused(self.broken)
        data = self.writer.append(receipts, t_ms=time.time_ns() // 1_000_000)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            self.writer.rollback()
            self._cut_back()
            raise
        self._size += len(data)
        self.writer.commit()

    def _cut_back(self) -> None:
        """Half a batch on disk would break the chain for good: it goes, or nothing more is written."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError as error:
            self.broken = f"half a receipt is stuck on disk: {error}"

    def sync(self) -> None:
        """To stable storage."""
        os.fsync(self._fd)


@dataclass
class Request:
    """A batch that waits to be written."""

    peer: Peer
    id: object
    receipts: list[Fields] = field(default_factory=list)


class Auditor:
    """Answers the peers; batches of one turn of the loop go to disk together."""

    def __init__(self, chain: Chain, *, roles: Mapping[int, frozenset[str]], limits: ModelLimits) -> None:
        self._chain = chain
        self._spending = Spending(limits)
        self._collapser = Collapser()
        self._kills = Kills()
        self._kill_waiter: tuple[Peer, object] | None = None
        self._hits: Counter[tuple[str, str]] = Counter()
        self._kinds = {
            uid: frozenset().union(*(KINDS_OF_ROLE.get(role, frozenset()) for role in names))
            for uid, names in roles.items()
        }
        self._roles = roles
        self._waiting: list[Request] = []
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, uid: int) -> bool:
        """Whether a peer of this uid may speak at all."""
        return uid in self._roles

    def on_lines(self, peer: Peer, lines: list[bytes]) -> None:
        """Takes requests in; operations are answered at once, receipts with the next write."""
        for line in lines:
            try:
                message = decode(line)
            except WireError:
                peer.close()
                return
            if message.get("op") == "killed":
                self._await_kill(peer, message)
            elif message.get("op") == "checkpoint":
                self._checkpoint(peer, message)
            elif "op" in message:
                self._write_waiting()
                peer.send(encode({"id": message.get("id"), **self._operate(peer, message)}))
            else:
                self._take(peer, message)

    def _take(self, peer: Peer, message: dict[str, object]) -> None:
        receipts = message.get("receipts")
        allowed = self._kinds.get(peer.uid, frozenset())
        if (
            not isinstance(receipts, list)
            or len(receipts) > MAX_BATCH
            or not all(isinstance(receipt, dict) and receipt.get("kind") in allowed for receipt in receipts)
        ):
            peer.send(encode({"id": message.get("id"), "ok": False, "error": "not receipts that this peer may write"}))
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write_waiting)
        self._waiting.append(Request(peer, message.get("id"), receipts))

    def _write_waiting(self) -> None:
        requests, self._waiting = self._waiting, []
        if not requests:
            return
        everything = [receipt for request in requests for receipt in request.receipts]
        problem = self._write(everything)
        if problem is not None and len(requests) > 1:
            # One bad receipt must not deny the others: each on its own.
            for request in requests:
                self._answer(request, self._write(request.receipts))
            return
        for request in requests:
            self._answer(request, problem)

    def _answer(self, request: Request, problem: str | None) -> None:
        if problem is None:
            request.peer.send(encode({"id": request.id, "ok": True, "seq": self._chain.writer.length}))
        else:
            request.peer.send(encode({"id": request.id, "ok": False, "error": problem}))

    def _write(self, receipts: list[Fields]) -> str | None:
        """Writes what is not a repeat; what went wrong, or None."""
        now_s = time.monotonic()
        if self._collapser.over(now_s):
            self.flush()
        due = self._collapser.sift(receipts, now_s=now_s)
        try:
            if due:
                self._chain.append(due)
        except (ReceiptRefused, OSError) as error:
            self._collapser.undo()
            return str(error)
        for receipt in due:
            self._spending.count(receipt)
            self._kills.count(receipt)
        if any(receipt["kind"] == KIND for receipt in due):
            self._answer_kill_waiter()
        for receipt in receipts:
            self._hit(receipt)
        if self._collapser.pending and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self.flush)
        return None

    def _await_kill(self, peer: Peer, message: Mapping[str, object]) -> None:
        """The supervisor's question that waits for its answer: a kill must not wait for the next look at the counters.
        `after` is the number that it knows of."""
        if "root" not in self._roles.get(peer.uid, frozenset()):
            peer.close()
            return
        self._kill_waiter = (peer, message.get("id"))
        if message.get("after") != self._kills.number:
            self._answer_kill_waiter()

    def _checkpoint(self, peer: Peer, message: Mapping[str, object]) -> None:
        """Where the chain stands, once that is on stable storage: who keeps it will miss what is gone later, and a
        power cut must not look like that. Receipts go on being written meanwhile: a disk may take its time."""
        if "root" not in self._roles.get(peer.uid, frozenset()):
            peer.close()
            return
        self._write_waiting()
        writer, number = self._chain.writer, message.get("id")
        where = {"length": writer.length, "head": writer.head, "sealed": writer.sealed}

        def answer(done: asyncio.Future[None]) -> None:
            problem = done.exception()
            told = {"ok": False, "error": str(problem)} if problem is not None else {"ok": True, **where}
            peer.send(encode({"id": number, **told}))

        asyncio.get_running_loop().run_in_executor(None, self._chain.sync).add_done_callback(answer)

    def _answer_kill_waiter(self) -> None:
        if self._kill_waiter is not None:
            peer, number = self._kill_waiter
            self._kill_waiter = None
            peer.send(encode({"id": number, "ok": True, **self._kills.answer()}))

    def _hit(self, receipt: Fields) -> None:
        """By rule and action; what no rule decided counts under an empty one."""
        if receipt["kind"] in {"decision", "lookup"}:
            key = (str(receipt.get("rule", "")), str(receipt.get("action", "")))
            if key in self._hits or len(self._hits) < MAX_HITS:
                self._hits[key] += 1

    def flush(self) -> None:
        """Writes the counted receipts of refusals that repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._collapser.flush()
        if due:
            with contextlib.suppress(ReceiptRefused, OSError):
                self._chain.append(due)

    def _operate(self, peer: Peer, message: dict[str, object]) -> dict[str, object]:
        op = message["op"]
        writer = self._chain.writer
        if op == "counters":
            return {
                "ok": not self._chain.broken,
                "length": writer.length,
                "head": writer.head,
                "sealed": writer.sealed,
                "full": writer.length >= writer.max_receipts,
                "counts": dict(writer.counts),
                "spent": {"requests": self._spending.requests, "bytes": self._spending.bytes},
                "used_up": self._spending.used_up(),
                **self._kills.answer(),
            }
        if op == "hits":
            rows = [{"rule": rule, "action": action, "count": n} for (rule, action), n in self._hits.items()]
            return {"ok": True, "hits": rows}
        if op == "seal" and "root" in self._roles.get(peer.uid, frozenset()):
            return self._seal(message)
        return {"ok": False, "error": "no such operation for this peer"}

    def _seal(self, message: dict[str, object]) -> dict[str, object]:
        writer = self._chain.writer
        if not writer.sealed:
            self.flush()
            outcome = message.get("outcome", "")
            totals = message.get("totals")
            receipt = seal_receipt(writer, outcome=outcome if isinstance(outcome, str) else "")
            more = {"more": totals} if isinstance(totals, dict) and len(str(totals)) < MAX_MORE else {}
            try:
                self._chain.append([{**receipt, **more}])
                self._chain.sync()
            except (ReceiptRefused, OSError) as error:
                return {"ok": False, "error": str(error)}
        length, counts = writer.length, dict(writer.counts)
        return {"ok": True, "seq": length, "head": writer.head, "length": length, "totals": counts}


async def serve(chain: Chain, *, socket_path: str, roles: Mapping[int, frozenset[str]], limits: ModelLimits) -> None:
    """Runs until SIGTERM; then writes what is held back and leaves. Sealing is the supervisor's decision."""
    auditor = Auditor(chain, roles=roles, limits=limits)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await serve_lines(socket_path, on_lines=auditor.on_lines, admit=auditor.admits)
    await stop.wait()
    server.close()
    auditor.flush()
    chain.sync()


def read_key(fd: int) -> bytes:
    """The chain key, from a descriptor that is closed at once; it never stands in argv, environment or on disk."""
    with os.fdopen(fd, "rb", buffering=0) as stream:
        key = b""
        while len(key) < 32 and (chunk := stream.read(32 - len(key))):
            key += chunk
    if len(key) != 32:
        raise SystemExit("audit: no chain key of 32 bytes on its descriptor")
    return key


def _digest_of(path: str) -> str:
    try:
        return Policy.parse(Path(path).read_bytes()).digest
    except (OSError, PolicyError):
        return "none"


def main(argv: list[str] | None = None) -> None:
    """The daemon's entry; options exist for tests and for the supervisor, the defaults are the sidecar's."""
    parser = argparse.ArgumentParser(prog="agent_egress.audit")
    parser.add_argument("--session", default="")
    parser.add_argument("--policy-digest", default="")
    parser.add_argument("--previous-head", default="")
    parser.add_argument("--session-file", default=identity.SESSION_FILE)
    parser.add_argument("--policy-file", default=identity.POLICY_FILE)
    parser.add_argument("--receipts", default=identity.RECEIPTS_FILE)
    parser.add_argument("--socket", default=identity.AUDIT_SOCKET)
    parser.add_argument("--key-fd", type=int, default=identity.CHAIN_KEY_FD)
    parser.add_argument("--max-receipts", type=int, default=0)
    parser.add_argument("--peer", action="append", default=[], metavar="UID=ROLE", help="policy, dns, root")
    options = parser.parse_args(argv)
    harden()
    key = read_key(options.key_fd)
    settings = json.loads(Path(options.session_file).read_bytes())
    session = options.session or str(settings["session"])
    cap = options.max_receipts or int(settings["max_receipts"])
    limits = ModelLimits.parse(settings.get("model"))
    try:
        chain = Chain(Path(options.receipts), writer=Writer(key=key, max_receipts=cap))
        if not chain.writer.length:
            digest = options.policy_digest or _digest_of(options.policy_file)
            first = open_receipt(session=session, policy_digest=digest, key=key, previous_head=options.previous_head)
            chain.append([first])
            chain.sync()
    except (ReceiptRefused, OSError) as error:
        sys.exit(f"audit: {options.receipts}: {error}")
    del key
    roles = parse_roles(options.peer, ROLES)
    asyncio.run(serve(chain, socket_path=options.socket, roles=roles, limits=limits))


if __name__ == "__main__":
    main()
