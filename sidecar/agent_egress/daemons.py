"""The daemons as one fleet: what each is, when it is ready, and a watchdog that ends one that hangs, so that it is
started again. What a lost daemon means for the session is the boundary's affair."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable

from agent_egress import identity, probes
from agent_egress.children import Child, Daemon, log, reap, undemoted
from agent_egress.wire import WireError

PYTHON = ("/usr/bin/python3", "-I", "-m")
Probe = Callable[[], Awaitable[str]]

DAEMONS = (
    Daemon("audit", identity.AUDIT, (*PYTHON, "agent_egress.audit"), restart=False),
    Daemon("unbound", identity.UNBOUND, ("/usr/sbin/unbound", "-d", "-c", identity.UNBOUND_CONF)),
    Daemon("dns", identity.DNS, (*PYTHON, "agent_egress.dns")),
    Daemon("policy", identity.POLICY, (*PYTHON, "agent_egress.decider")),
    # Not `-N`: the master starts its worker again by itself. `-d 0`: its words go to stderr, there is no log file.
    Daemon("squid", identity.SQUID, ("/usr/sbin/squid", "--foreground", "-d", "0", "-f", identity.SQUID_CONF)),
)
ANSWERS: dict[str, Probe] = {
    "audit": probes.audit_answers,
    "unbound": probes.unbound_answers,
    "dns": probes.dns_answers,
    "policy": probes.policy_answers,
    "squid": probes.squid_answers,
    "scan": probes.scan_answers,
    "gateway": probes.gateway_answers,
}
LATER = (
    Daemon("scan", identity.SCAN, (*PYTHON, "agent_egress.scanner")),
    Daemon("gateway", identity.GATEWAY, (*PYTHON, "agent_egress.gateway")),
)
"""Started only where something is scanned, or git goes over ssh."""
START_S = 15.0
PROBE_S = 2.0
FIRST_PROBE_S = 0.5
RETRY_S = 0.01
RETRY_GROWTH = 1.4
LONGEST_RETRY_S = 0.2
STRIKES = 2
"""Silent probes in a row after which a daemon counts as hung."""


class PartError(Exception):
    """One part of the sidecar does not do what it must; `output` holds its last words."""

    def __init__(self, part: str, message: str, output: str = "") -> None:
        super().__init__(message)
        self.part = part
        self.message = message
        self.output = output


async def probe(ask: Probe, *, timeout_s: float) -> str:
    """What is wrong, as the probe says or as it failed; empty when nothing is."""
    try:
        async with asyncio.timeout(timeout_s):
            return await ask()
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, ssl.SSLError, WireError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


class Fleet:
    """The daemons' processes."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self.children: dict[str, Child] = {}
        self.silent: dict[str, int] = {}

    def start(self, name: str, *, secret: bytes | None = None) -> None:
        """Starts one daemon."""
        daemon = next(daemon for daemon in (*DAEMONS, *LATER) if daemon.name == name)
        child = Child(daemon, lambda _: self._on_end(name))
        self.children[name] = child
        child.start(secret=secret, secret_fd=identity.CHAIN_KEY_FD)

    async def ready(self, name: str, *, timeout_s: float = START_S) -> None:
        """Waits until a daemon that was just started answers.

        Raises:
            PartError: when it ended, or does not answer in time.
        """
        child = self.children[name]
        until = time.monotonic() + timeout_s
        pause = RETRY_S
        while True:
            problem = await probe(ANSWERS[name], timeout_s=FIRST_PROBE_S)
            if not problem:
                break
            if child.ended or child.restarts:
                raise PartError(name, "ended while starting", "\n".join(child.tail))
            if time.monotonic() > until:
                raise PartError(name, f"does not answer: {problem}", "\n".join(child.tail))
            # Asking must not cost the machine what the daemon needs to start.
            await asyncio.sleep(pause)
            pause = min(pause * RETRY_GROWTH, LONGEST_RETRY_S)
        flaw = undemoted(child.pid, child.daemon.uid) if child.pid is not None else "ended"
        if flaw:
            raise PartError(name, f"is not confined: {flaw}")

    async def again(self, name: str, *, timeout_s: float = START_S) -> None:
        """Ends a daemon with all its connections and waits until its successor answers. Raises: PartError."""
        self.children[name].kill()
        await self.back(name, timeout_s=timeout_s)

    async def back(self, name: str, *, timeout_s: float = START_S) -> None:
        """Waits until the successor of a daemon that ended answers. Raises: PartError."""
        until = time.monotonic() + timeout_s
        while problem := await probe(ANSWERS[name], timeout_s=PROBE_S):
            if time.monotonic() > until:
                raise PartError(name, f"did not come back: {problem}", "\n".join(self.children[name].tail))
            await asyncio.sleep(5 * RETRY_S)

    def stop(self, *names: str) -> None:
        """Ends daemons for good, all of them when none is named."""
        for name in names or tuple(self.children):
            if name in self.children:
                self.children[name].stop()

    def reap(self) -> None:
        """Collects ended processes."""
        reap(list(self.children.values()))

    async def watch(self, *, starting: frozenset[str] = frozenset()) -> dict[str, str]:
        """Asks every daemon whether it still answers, ends the hung ones, and returns what is wrong by part. Who is
        only `starting` is left to whoever waits for it."""
        names = tuple(name for name in self.children if name not in starting)
        answers = await asyncio.gather(*(probe(ANSWERS[name], timeout_s=PROBE_S) for name in names))
        wrong = {}
        for name, problem in zip(names, answers, strict=True):
            self.silent[name] = self.silent.get(name, 0) + 1 if problem else 0
            if self.silent[name] >= STRIKES:
                wrong[name] = problem
                if self.children[name].daemon.restart:
                    log("supervisor", f"{name} hangs ({problem}): ended, to be started again")
                    self.children[name].kill()
        return wrong
