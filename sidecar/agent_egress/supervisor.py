"""PID 1 of the sidecar, and the only process that may change the kernel's rules. Loads and verifies them before
anything else exists, then serves the control socket, reaps, and drives the boundary's clock. What the operations do is
in `boundary`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from agent_egress import identity, ruleset
from agent_egress.boundary import Answer, Boundary
from agent_egress.children import log, reserve
from agent_egress.daemons import PartError
from agent_egress.ruleset import RulesetError
from agent_egress.wire import harden, listen_unix, peer_uid

PROTOCOL = 1
MAX_REQUEST = 8 * 1024 * 1024
MAX_WAIT_S = 120.0
TICK_S = 1.0
WATCH_S = 2.0
NFTABLES_FAILED = 3
Operation = Callable[[Boundary, Mapping[str, object]], Awaitable[Answer | None]]


async def _open(boundary: Boundary, request: Mapping[str, object]) -> Answer:
    try:
        key = bytes.fromhex(str(request.get("chain_key", "")))
    except ValueError:
        key = b""
    if len(key) != 32:
        raise PartError("control", "chain_key: expected 64 hex digits")
    wait = request.get("wait_s", 20)
    wait_s = min(float(wait), MAX_WAIT_S) if isinstance(wait, int | float) else 20.0
    return await boundary.open(session=str(request.get("session", "")), chain_key=key, wait_s=wait_s)


async def _status(boundary: Boundary, _: Mapping[str, object]) -> Answer:
    return boundary.status()


async def _posture(boundary: Boundary, request: Mapping[str, object]) -> Answer:
    tried = request.get("core")
    if not isinstance(tried, int) or isinstance(tried, bool) or not 0 < tried < 10_000:
        raise PartError("control", "core: expected how many attempts were made")
    await boundary.posture(tried)
    return {}


async def _policy(boundary: Boundary, _: Mapping[str, object]) -> Answer:
    return boundary.wanted_policy()


OPERATIONS: dict[str, Operation] = {
    "session.open": _open,
    "policy.get": _policy,
    "policy.put": lambda boundary, request: boundary.put_policy(request.get("policy"), expect=request.get("expect")),
    "credential.put": lambda boundary, request: boundary.put_credentials(
        request.get("credentials"), stored=request.get("stored"), rotate=request.get("rotate") is True
    ),
    "ssh.put": lambda boundary, request: boundary.put_ssh(
        {name: request.get(name) for name in ("keys", "current", "known_hosts")}
    ),
    "ssh.test": lambda boundary, request: boundary.test_ssh(request.get("key"), request.get("repository")),
    "cut": lambda boundary, _: boundary.cut(),
    "restore": lambda boundary, _: boundary.restore(),
    "deadline": lambda boundary, request: boundary.set_deadline(request.get("seconds")),
    "counters": lambda boundary, _: boundary.counters(),
    "posture": _posture,
    "hits": lambda boundary, _: boundary.hits(),
    "seal": lambda boundary, request: boundary.seal(request.get("outcome", "")),
    "status": _status,
}


async def answer(boundary: Boundary, line: bytes) -> Answer:
    """One control request's answer; every failure names its part."""
    try:
        request = json.loads(line)
        if not isinstance(request, dict) or request.get("v") != PROTOCOL:
            raise PartError("control", f"expected a request of protocol {PROTOCOL}")
        operation = OPERATIONS.get(str(request.get("op")))
        if operation is None:
            raise PartError("control", f"no operation {request.get('op')!r:.40}")
        async with boundary.lock:
            found = await operation(boundary, request) or {}
    except PartError as error:
        return _refusal(error)
    except (ValueError, RecursionError):
        return _refusal(PartError("control", "not a JSON request"))
    except RulesetError as error:
        return _refusal(PartError("nftables", str(error), error.output))
    except Exception as error:  # a bug must not look like success, nor end PID 1
        return _refusal(PartError("control", f"internal error: {type(error).__name__}: {error}"))
    return {"v": PROTOCOL, "ok": True, "digest": boundary.digest, **found}


def _refusal(error: PartError) -> Answer:
    fields = {"part": error.part, "message": error.message, "output": error.output}
    return {"v": PROTOCOL, "ok": False, "error": fields}


async def _serve_control(boundary: Boundary) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            if peer_uid(writer.get_extra_info("socket")) == 0:
                while line := await reader.readline():
                    writer.write(json.dumps(await answer(boundary, line)).encode() + b"\n")
                    await writer.drain()
        writer.close()

    sock = listen_unix(identity.CONTROL_SOCKET, mode=0o600)
    await asyncio.start_unix_server(connection, sock=sock, limit=MAX_REQUEST)


async def _every(seconds: float, boundary: Boundary, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            async with boundary.lock:
                await work()
        except PartError as error:
            log("supervisor", f"{error.part}: {error.message}")
        except Exception as error:  # the clock must go on: it holds the deadline
            log("supervisor", f"internal error: {type(error).__name__}: {error}")


async def serve(source: Path) -> None:
    """Runs until SIGTERM."""
    boundary = Boundary(source)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, boundary.fleet.reap)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await _serve_control(boundary)
    clocks = [
        loop.create_task(_every(TICK_S, boundary, boundary.tick)),
        loop.create_task(_every(WATCH_S, boundary, boundary.watch)),
    ]
    log("supervisor", "nftables loaded and verified; waiting for the session's chain key")
    await stop.wait()
    for clock in clocks:
        clock.cancel()
    boundary.stop()


def load_rules(source: Path) -> None:
    """Raises: RulesetError, unless the rendered rules are in force as the kernel itself lists them."""
    ruleset.load(source)
    found = ruleset.problems(ruleset.read_back(), source.read_text())
    if found:
        raise RulesetError("the rules in force are not as rendered", "\n".join(found))


def main() -> None:
    """Never goes on without the rules: a sidecar without them would be an open door."""
    harden()
    reserve(identity.CHAIN_KEY_FD)
    source = Path(identity.NFTABLES_CONF)
    try:
        load_rules(source)
    except (RulesetError, OSError, ValueError) as error:
        log("supervisor", f"nftables: {error}")
        for line in getattr(error, "output", "").splitlines():
            log("nftables", line)
        sys.exit(NFTABLES_FAILED)
    os.chdir("/")
    asyncio.run(serve(source))


if __name__ == "__main__":
    main()
