"""The policy process: answers squid's questions, one batch at a time, each only after its receipt is on disk. It
holds the session's real credentials, in memory alone, and the canary's far end. What it answers is decided in
`verdicts`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_egress import identity
from agent_egress.budget import ModelLimits, Spending
from agent_egress.ledger import DEADLINE_S, Ledger
from agent_egress.policy_file import PolicyFile
from agent_egress.receipts import Fields
from agent_egress.resolved import Resolved
from agent_egress.rules import Policy
from agent_egress.squidline import LineRefused, Question, answer, parse_question, seen_headers
from agent_egress.swap import Secret, SecretRefused, Vault
from agent_egress.transfers import AccessLog, Transfers
from agent_egress.verdicts import WORDS_GARBLED, WORDS_NO_RECEIPT, Verdict, judge, refuse_spent
from agent_egress.wire import Peer, WireError, decode, encode, harden, parse_roles, serve_lines

ROLES: Mapping[int, frozenset[str]] = {
    identity.SQUID: frozenset({"squid"}),
    identity.DNS: frozenset({"dns"}),
    0: frozenset({"root"}),
}
CANARY_TIMEOUT_S = 5.0


class Decider:
    """The state: credentials, the canary's token, counters."""

    def __init__(
        self,
        *,
        policy_file: PolicyFile,
        ledger: Ledger,
        headers: Sequence[str],
        roles: Mapping[int, frozenset[str]],
        limits: ModelLimits,
    ) -> None:
        self._policy_file = policy_file
        self._ledger = ledger
        self._headers = tuple(headers)
        self._roles = roles
        self._vault = Vault()
        self._canary = ""
        self._resolved = Resolved()
        self._counts: Counter[str] = Counter()
        self._spending = Spending(limits)
        self.transfers = Transfers(self._write_moved, moved=self._spending.moved)

    def admits(self, uid: int) -> bool:
        """Whether a peer of this uid may speak at all."""
        return uid in self._roles

    def on_lines(self, peer: Peer, lines: list[bytes]) -> None:
        """squid's lines in one batch; root's operations one by one."""
        roles = self._roles.get(peer.uid, frozenset())
        questions = []
        for line in lines:
            if line.startswith(b"{") and roles & {"root", "dns"}:
                peer.send(encode(self._operate(line, roles)))
            elif "squid" in roles:
                questions.append(line)
            else:
                peer.close()
                return
        if questions:
            self._answer(peer, questions)

    def _answer(self, peer: Peer, lines: list[bytes]) -> None:
        policy = self._policy_file.current()
        answers: list[bytes] = []
        refusals: list[bytes] = []
        receipts: list[Fields] = []
        for line in lines:
            try:
                channel, question = parse_question(line, headers=self._headers)
            except LineRefused as error:
                answers.append(_refusal(error.channel, WORDS_GARBLED))
                refusals.append(answers[-1])
                continue
            verdict = judge(policy, question, vault=self._vault, resolved=self._resolved, canary=self._canary)
            verdict = self._within_budget(policy, question, verdict)
            answers.append(answer(channel, allowed=verdict.allowed, notes=verdict.notes))
            refusals.append(_refusal(channel, WORDS_NO_RECEIPT, closes=question.closes))
            receipts.extend(verdict.receipts)
            self._count(verdict.receipts)
        if not receipts:
            peer.send(b"".join(answers))
            return

        def written(problem: str) -> None:
            peer.send(b"".join(refusals if problem else answers))

        self._ledger.append(receipts, written)

    def _within_budget(self, policy: Policy, question: Question, verdict: Verdict) -> Verdict:
        """Counted before it goes out, so that requests at the same time cannot all be the last one."""
        limits = self._spending.limits
        # Without the key too: what the budget holds back is data to and from that host, not only what it costs.
        keys = any(receipt.get("credential") in limits.credentials for receipt in verdict.receipts)
        hosts = any(receipt.get("host") in limits.hosts for receipt in verdict.receipts)
        if not verdict.allowed or not (keys or hosts):
            return verdict
        words = self._spending.used_up()
        if words:
            return refuse_spent(policy, question, words)
        for receipt in verdict.receipts:
            self._spending.count(receipt)
        return verdict

    def _write_moved(self, receipts: list[Fields]) -> None:
        self._ledger.append(receipts, lambda _: None)

    def _count(self, receipts: Sequence[Fields]) -> None:
        for receipt in receipts:
            self._counts[f"{receipt['kind']}.{receipt.get('action', '')}".rstrip(".")] += 1
            if "credential" in receipt and receipt.get("action") == "allow":
                self._counts[f"credential.{receipt['credential']}"] += 1

    def _operate(self, line: bytes, roles: frozenset[str]) -> dict[str, object]:
        try:
            message = decode(line)
            if "answers" in message and "dns" in roles:
                self._resolved.note(message["answers"])
                done: dict[str, object] = {}
            elif "root" in roles:
                done = self._perform(message)
            else:
                raise WireError("no such operation for this peer")
        except (WireError, SecretRefused) as error:
            return {"ok": False, "error": str(error)}
        return {**({"id": message["id"]} if "id" in message else {}), "ok": True, **done}

    def _perform(self, message: dict[str, object]) -> dict[str, object]:
        op = message.get("op")
        if op == "credential.put":
            self._vault = Vault(_secrets(message.get("credentials")))
        elif op == "canary":
            token = message.get("token")
            if not isinstance(token, str) or not token.isalnum() or not 16 <= len(token) <= 128:
                raise WireError("a canary token is 16 to 128 letters and digits")
            self._canary = token
        elif op == "spent":
            self._spending.requests, self._spending.bytes = _number(message, "requests"), _number(message, "bytes")
        elif op == "flush":
            self.transfers.flush()
        elif op == "counters":
            return {"counts": dict(self._counts)}
        elif op != "ping":
            raise WireError("no such operation")
        return {"digest": self._policy_file.current().digest}

    async def serve_canary(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The canary's far end: 200 for the token's path, 404 for all else; says nothing about the token."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CANARY_TIMEOUT_S)
            words = head.split(b"\r\n", 1)[0].split(b" ")
            right = self._canary and len(words) == 3 and hmac.compare_digest(words[1], b"/" + self._canary.encode())
            status = b"200 OK" if right and words[0] == b"GET" else b"404 Not Found"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()


def _refusal(channel: str, words: str, *, closes: bool = False) -> bytes:
    notes = (("message", words), ("action_", "term" if closes else "deny"))
    return answer(channel, allowed=False, notes=notes)


def _number(message: Mapping[str, object], key: str) -> int:
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireError(f"{key}: expected a number")
    return value


def _secrets(value: object) -> list[Secret]:
    """All of the session's credentials. Raises: WireError, SecretRefused; never with a secret in the message."""
    if not isinstance(value, list):
        raise WireError("credentials: expected a list")
    found = []
    for row in value:
        if not isinstance(row, dict) or set(row) != {"name", "decoy", "secret"}:
            raise WireError("credentials: expected objects with name, decoy and secret")
        name, decoy, secret = row["name"], row["decoy"], row["secret"]
        if not isinstance(name, str) or not isinstance(decoy, str) or not isinstance(secret, str):
            raise WireError("credentials: expected texts")
        found.append(Secret(name=name, decoy=decoy, secret=secret))
    return found


async def serve(options: argparse.Namespace, *, headers: Sequence[str], limits: ModelLimits) -> None:
    """Runs until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ledger = Ledger(options.audit, deadline_s=options.deadline_s)
    ledger.start()
    decider = Decider(
        policy_file=PolicyFile(options.policy_file),
        ledger=ledger,
        headers=headers,
        roles=parse_roles(options.peer, ROLES),
        limits=limits,
    )
    access = await loop.create_server(lambda: AccessLog(decider.transfers), identity.LOOPBACK4, options.access_port)
    canary = await asyncio.start_server(decider.serve_canary, identity.LOOPBACK4, options.canary_port)
    server = await serve_lines(options.socket, on_lines=decider.on_lines, admit=decider.admits)
    await stop.wait()
    server.close()
    canary.close()
    access.close()


def main(argv: list[str] | None = None) -> None:
    """The daemon's entry; options exist for tests, the defaults are the sidecar's."""
    parser = argparse.ArgumentParser(prog="agent_egress.decider")
    parser.add_argument("--socket", default=identity.POLICY_SOCKET)
    parser.add_argument("--audit", default=identity.AUDIT_SOCKET)
    parser.add_argument("--deadline-s", type=float, default=DEADLINE_S)
    parser.add_argument("--policy-file", default=identity.POLICY_FILE)
    parser.add_argument("--session-file", default=identity.SESSION_FILE)
    parser.add_argument("--canary-port", type=int, default=identity.CANARY_PORT)
    parser.add_argument("--access-port", type=int, default=identity.ACCESS_PORT)
    parser.add_argument("--peer", action="append", default=[], metavar="UID=ROLE", help="squid, dns, root")
    options = parser.parse_args(argv)
    harden()
    settings = json.loads(Path(options.session_file).read_bytes())
    headers = seen_headers([str(name) for name in settings["credential_headers"]])
    asyncio.run(serve(options, headers=headers, limits=ModelLimits.parse(settings.get("model"))))


if __name__ == "__main__":
    main()
