"""The git gateway: takes the agent's fetches and pushes on a path socket, decides about repository and refs, writes the
receipt, and only then runs ssh with the project's key, which the agent never sees. It offers no signature, no tunnel
and no command but git's two. What is allowed is decided in `gateway_policy`; its ssh reaches nothing but squid, which
decides about the connection as it does about every other."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import signal
import struct
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from agent_egress import identity, kills
from agent_egress.gateway_policy import (
    GitDecision,
    Request,
    RequestRefused,
    decide_push,
    decide_repository,
    parse_request,
    refusal_words,
    server_command,
)
from agent_egress.ledger import Ledger
from agent_egress.pktline import PushHead, PushRefused
from agent_egress.policy import Policy, decide_name
from agent_egress.policy_file import PolicyFile
from agent_egress.receipts import Fields, cut_text
from agent_egress.repositories import Repository
from agent_egress.sshclient import Keys, KeysRefused, Words, ssh_argv, ssh_environment, store_keys
from agent_egress.wire import Peer, WireError, decode, encode, harden, listen_unix, peer_uid, serve_lines

SLOTS = 8
"""ssh connections at a time: forges refuse more (MaxStartups). Others wait."""
MAX_WAITING = 64
MAX_OPEN = 128
"""Connections of the agent's, those included that have not said yet what they want."""
WAIT_S = 120.0
HEADER_S = 10.0
MAX_HEADER = 8192
FIRST_S = 60.0
IDLE_S = 1800.0
LINGER_S = 5.0
CHUNK = 64 * 1024
STDOUT, STDERR, EXIT = 1, 2, 3
_FRAME = struct.Struct("!BI")
REFUSED = 128
"""What git itself ends with when something is fatal."""
NO_RECEIPT = "no receipt could be written, and nothing passes without one"


class Refused(Exception):
    """Ends a request with words for the agent; the receipt is written by then."""


def frame(channel: int, data: bytes) -> bytes:
    """One frame to the agent's client."""
    return _FRAME.pack(channel, len(data)) + data


class Job:
    """One request, from its first line to the exit of its ssh."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader, self.writer = reader, writer
        self.sent = self.received = 0
        self.told = False
        """Whether the agent got words of ssh's."""
        self.moved = asyncio.get_running_loop().time()

    async def say(self, channel: int, data: bytes) -> None:
        """To the agent. Raises: OSError when it is gone."""
        if data:
            self.writer.write(frame(channel, data))
            await self.writer.drain()

    async def tell(self, words: bytes) -> None:
        """ssh's own words."""
        self.told = self.told or bool(words)
        await self.say(STDERR, words)

    async def end(self, code: int) -> None:
        """The last frame."""
        with contextlib.suppress(OSError):
            await self.say(EXIT, struct.pack("!I", code & 0xFF))

    def touch(self) -> None:
        """Something moved."""
        self.moved = asyncio.get_running_loop().time()


class Gateway:
    """The daemon's state: keys in memory, slots, the way to the audit."""

    def __init__(self, *, policy_file: PolicyFile, ledger: Ledger, agent_uid: int, directory: Path) -> None:
        self._policy_file = policy_file
        self._ledger = ledger
        self._agent_uid = agent_uid
        self._keys = Keys(directory)
        self._slots = asyncio.Semaphore(SLOTS)
        self._waiting = self._open = 0
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- the agent's side ---

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the agent's client."""
        job = Job(next(self._numbers), reader, writer)
        self._open += 1
        try:
            mine = peer_uid(writer.get_extra_info("socket")) == self._agent_uid
            if mine and self._open <= MAX_OPEN:
                await self._answer(job)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # the agent is gone
        finally:
            self._open -= 1
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _answer(self, job: Job) -> None:
        try:
            request = await self._read(job)
            async with self._slot(request):
                repository = await self._admit(job, request)
                await self._carry_out(job, request, repository)
        except Refused as refusal:
            await job.say(STDERR, f"{refusal}\n".encode("ascii", "replace"))
            await job.end(REFUSED)

    async def _read(self, job: Job) -> Request:
        reason = "the request could not be read"
        with contextlib.suppress(ValueError, RecursionError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            try:
                line = await asyncio.wait_for(job.reader.readuntil(b"\n"), HEADER_S)
                return parse_request(json.loads(line))
            except RequestRefused as error:
                reason = str(error)
            except TimeoutError:
                reason = "no request came"
        return await self._refuse({"why": "request"}, reason, what="a request")

    @asynccontextmanager
    async def _slot(self, request: Request) -> AsyncIterator[None]:
        if self._waiting >= MAX_WAITING:
            await self._refuse(_named(request) | {"why": "slots"}, "too many at a time", what=request.host)
        self._waiting += 1
        try:
            await asyncio.wait_for(self._slots.acquire(), WAIT_S)
        except TimeoutError:
            await self._refuse(_named(request) | {"why": "slots"}, "too many at a time", what=request.host)
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    async def _admit(self, job: Job, request: Request) -> Repository:
        """The repository, once the receipt of its use is on disk. Raises: Refused."""
        policy = self._policy_file.current()
        decision = decide_repository(policy, request)
        what = f"{request.service} of {request.host}:{request.path}"
        named = _named(request) | _judged(policy, decision)
        repository = decision.repository
        if not decision.allowed or repository is None:
            by_name = decide_name(policy, request.host, request.port)
            contact = kills.contact(policy, by_name, host=request.host, port=request.port, where="git")
            await self._refuse(named, decision.reason, what=what, more=contact)
        if not self._keys.current:
            await self._refuse(named | {"why": "key"}, "this sandbox was given no ssh key", what=what)
        await self._allow(job, [named], what=what)
        return repository

    async def _allow(self, job: Job, rows: list[dict[str, object]], *, what: str) -> None:
        receipts: list[Fields] = [{"kind": "git", "action": "allow", **row, "job": job.number} for row in rows]
        if not await self._ledger.write(receipts):
            raise Refused(refusal_words(NO_RECEIPT, what=what))

    async def _refuse(self, row: dict[str, object], reason: str, *, what: str, more: Sequence[Fields] = ()) -> NoReturn:
        """Raises: Refused, once the receipt is written."""
        receipt = {"kind": "git", "action": "deny", **row, "reason": cut_text(reason, 160)}
        await self._ledger.write([receipt, *more])
        raise Refused(refusal_words(reason, what=what))

    async def _carry_out(self, job: Job, request: Request, repository: Repository) -> None:
        protocol = request.protocol if request.service == "fetch" else ""
        argv = ssh_argv(repository, server_command(repository, request.service), self._keys, protocol=protocol)
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=ssh_environment(protocol), limit=CHUNK
        )
        loop, words = asyncio.get_running_loop(), Words(repository)
        upward = loop.create_task(self._upward(job, request, process))
        downward = [
            loop.create_task(self._downward(job, process)),
            loop.create_task(self._words(job, process, words)),
        ]
        code = REFUSED
        try:
            code = await self._until_over(job, process, upward, downward)
            if code and not job.received and not job.told:
                await job.say(STDERR, words.nothing())
        finally:
            for task in (upward, *downward):
                task.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()
            self._note_exit(job, request, code)
        await job.end(code)

    async def _until_over(
        self, job: Job, process: Process, upward: asyncio.Task[None], downward: list[asyncio.Task[None]]
    ) -> int:
        """The exit status of ssh, once all that it said has been handed on. Raises: Refused for a push; OSError."""
        loop = asyncio.get_running_loop()
        began, waits = loop.time(), {upward, *downward}
        while any(not task.done() for task in downward):
            done, _ = await asyncio.wait(waits, timeout=LINGER_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                waits.discard(task)
                task.result()  # what went wrong in one ends all
            if process.returncode is not None and loop.time() - job.moved > LINGER_S:
                break  # something of the server's keeps the pipes open
            if not job.received and loop.time() - began > FIRST_S:
                raise Refused(refusal_words(f"nothing came back within {FIRST_S:g} s", what="the server"))
            if loop.time() - job.moved > IDLE_S:
                raise Refused(refusal_words(f"nothing moved for {IDLE_S:g} s", what="the connection"))
        return await asyncio.wait_for(process.wait(), LINGER_S)

    async def _upward(self, job: Job, request: Request, process: Process) -> None:
        """From the agent to ssh; of a push, nothing before all its refs are allowed."""
        assert process.stdin is not None  # noqa: S101 - narrows the type
        if request.service == "push":
            data = await self._push_head(job, request)
        else:
            data = await job.reader.read(CHUNK)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while data:
                process.stdin.write(data)
                await process.stdin.drain()
                job.sent += len(data)
                job.touch()
                data = await job.reader.read(CHUNK)
            process.stdin.close()

    async def _push_head(self, job: Job, request: Request) -> bytes:
        """The push's commands as they came, once their receipts are on disk; empty when the agent left before. Raises:
        Refused."""
        head = PushHead()
        named, what = _named(request), f"push to {request.host}:{request.path}"
        try:
            while not head.complete:
                data = await job.reader.read(CHUNK)
                if not data:
                    return b""
                head.feed(data)
        except PushRefused as error:
            await self._refuse(named | {"why": "push"}, str(error), what=what)
        # Asked again: between the connection and its commands the policy may have become another.
        policy = self._policy_file.current()
        decision = decide_repository(policy, request)
        named |= _judged(policy, decision)
        rows = []
        for command in head.commands:
            repository = decision.repository
            reason = decide_push(repository, command) if decision.allowed and repository else decision.reason
            row = named | {"ref": cut_text(command.ref, 200), "old": command.old[:16], "new": command.new[:16]}
            if reason:
                await self._refuse(row | {"why": "ref"}, reason, what=what)
            rows.append(row)
        if rows:
            await self._allow(job, rows, what=what)
        return bytes(head.raw)

    async def _downward(self, job: Job, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101 - narrows the type
        while data := await process.stdout.read(CHUNK):
            job.received += len(data)
            job.touch()
            await job.say(STDOUT, data)

    async def _words(self, job: Job, process: Process, words: Words) -> None:
        assert process.stderr is not None  # noqa: S101 - narrows the type
        while data := await process.stderr.read(CHUNK):
            await job.tell(words.feed(data))
        await job.tell(words.end())

    def _note_exit(self, job: Job, request: Request, code: int) -> None:
        moved = {"code": code, "sent": job.sent, "received": job.received, "job": job.number}
        self._ledger.append([{"kind": "git", "action": "exit", **_named(request), **moved}], lambda _: None)

    # --- the supervisor's side ---

    def on_lines(self, peer: Peer, lines: list[bytes]) -> None:
        """Root's operations."""
        for line in lines:
            task = asyncio.get_running_loop().create_task(self._operate(peer, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _operate(self, peer: Peer, line: bytes) -> None:
        try:
            message = decode(line)
            op = message.get("op")
            done: Mapping[str, object] = {}
            if op == "ssh.put":
                self._keys = store_keys(self._keys.directory, message)
            elif op == "ssh.test":
                done = await self._try_key(message)
            elif op != "ping":
                raise WireError("no such operation")
            peer.send(encode({"ok": True, **done}))
        except (WireError, KeysRefused, OSError) as error:
            peer.send(encode({"ok": False, "error": str(error)}))

    async def _try_key(self, message: Mapping[str, object]) -> Mapping[str, object]:
        """Whether a server takes a key for a repository: it shows its refs, and nothing is asked of it."""
        key, text = message.get("key"), message.get("repository")
        policy = self._policy_file.current()
        repository = next((row for row in policy.git if row.text == text), None)
        if repository is None or key not in self._keys.known:
            raise WireError("no such key or repository")
        request = Request(repository.host, repository.port, repository.user, "fetch", repository.path, "")
        decision = decide_repository(policy, request)
        row = {"kind": "git", "action": "allow", **_named(request), **_judged(policy, decision), "test": str(key)}
        if not decision.allowed or not await self._ledger.write([row]):
            raise WireError(decision.reason or NO_RECEIPT)
        process = await asyncio.create_subprocess_exec(
            *ssh_argv(repository, server_command(repository, "fetch"), self._keys, key=str(key)),
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=ssh_environment(),
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(b"0000"), FIRST_S)
        except TimeoutError:
            process.kill()
            return {"taken": False, "words": f"no answer within {FIRST_S:g} s"}
        words = Words(repository)
        said = (words.feed(err) + words.end()).decode("ascii", "replace").strip()
        taken = process.returncode == 0 and len(out) > 4 and out[:4].isalnum()
        return {"taken": taken, "words": said or ("" if taken else "no repository was shown")}


def _named(request: Request) -> dict[str, object]:
    place = {"host": cut_text(request.host), "port": request.port, "repo": cut_text(request.path, 200)}
    return {**place, "user": request.user, "service": request.service}


def _judged(policy: Policy, decision: GitDecision) -> dict[str, object]:
    return {"rule": cut_text(decision.rule), "policy": policy.short_digest}


async def serve(options: argparse.Namespace, *, agent_uid: int) -> None:
    """Runs until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ledger = Ledger(options.audit)
    ledger.start()
    directory = Path(options.directory)
    gateway = Gateway(
        policy_file=PolicyFile(options.policy_file), ledger=ledger, agent_uid=agent_uid, directory=directory
    )
    # The keys of a gateway before this one: the supervisor hands them over again.
    for left in directory.glob("key-*"):
        left.unlink()
    agents = await asyncio.start_unix_server(gateway.serve, sock=listen_unix(options.socket), limit=MAX_HEADER)
    control = await serve_lines(options.control, on_lines=gateway.on_lines, admit=lambda uid: uid == 0)
    await stop.wait()
    agents.close()
    control.close()


def main(argv: list[str] | None = None) -> None:
    """The daemon's entry; options exist for tests, the defaults are the sidecar's."""
    parser = argparse.ArgumentParser(prog="agent_egress.gateway")
    parser.add_argument("--socket", default=identity.GIT_SOCKET)
    parser.add_argument("--control", default=identity.GATEWAY_CONTROL_SOCKET)
    parser.add_argument("--directory", default=identity.GATEWAY_DIR)
    parser.add_argument("--audit", default=identity.AUDIT_SOCKET)
    parser.add_argument("--policy-file", default=identity.POLICY_FILE)
    parser.add_argument("--session-file", default=identity.SESSION_FILE)
    options = parser.parse_args(argv)
    harden()
    settings = json.loads(Path(options.session_file).read_bytes())
    asyncio.run(serve(options, agent_uid=int(settings["agent_uid"])))


if __name__ == "__main__":
    main()
