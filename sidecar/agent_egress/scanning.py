"""The body scanner from the supervisor's side: started when something is to be scanned for the first time, told what to
look for, told again when it was started again. The session's own secrets become fingerprints here; those of the host's
other secrets come as such. What is scanned, the policy says; what a finding means, the scanner."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence

from agent_egress import identity, probes
from agent_egress.daemons import START_S, Fleet, PartError
from agent_egress.fingerprints import FingerprintRefused, fingerprint, new_key, parse_rows
from agent_egress.policy import Policy, scans
from agent_egress.wire import WireError

NAME = "scan"
MAX_FORMER = 64
"""Former secrets that are still looked for, the latest ones."""


class Scanning:
    """What the scanner of this session knows, and whether there is one."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._key = new_key()
        self._policy = Policy(rules=())
        self._credentials: Sequence[object] = ()
        self._stored: Sequence[object] = ()
        self._former: list[dict[str, object]] = []
        self._starting: asyncio.Task[PartError | None] | None = None
        self._held: socket.socket | None = None

    @property
    def started(self) -> bool:
        """Whether there is a scanner."""
        return NAME in self._fleet.children

    @property
    def starting(self) -> frozenset[str]:
        """Its name, while it is not there yet."""
        return frozenset({NAME} if self._starting is not None and not self._starting.done() else ())

    def begin(self, policy: Policy) -> None:
        """Starts it beside whatever else goes on, if the policy needs one; `settled` waits for it. Until it is there
        squid refuses what it was to scan."""
        self._policy = policy
        if not scans(policy):
            self._hold_port()
            return
        self._fleet.start(NAME)
        self._starting = asyncio.get_running_loop().create_task(self._first())

    async def _first(self) -> PartError | None:
        try:
            await self._fleet.ready(NAME, timeout_s=START_S)
            await self.arm()
        except PartError as error:
            return error
        return None

    async def settled(self) -> None:
        """Waits until a scanner that was begun works. Raises: PartError."""
        starting, self._starting = self._starting, None
        error = await starting if starting is not None else None
        if error is not None:
            raise error

    async def follow(self, policy: Policy) -> None:
        """Before a policy is in force: a scanner that knows it. Raises: PartError."""
        await self.settled()
        self._policy = policy
        if not scans(policy):
            return
        if not self.started:
            self._release_port()
            self._fleet.start(NAME)
        await self._fleet.ready(NAME, timeout_s=START_S)
        await self.arm()

    def _hold_port(self) -> None:
        """While nobody scans, nobody else sits on the scanner's port either: a policy that scans must find it free."""
        held = socket.socket()
        try:
            held.bind((identity.LOOPBACK4, identity.SCAN_PORT))
        except OSError as error:
            held.close()
            raise PartError(NAME, f"port {identity.SCAN_PORT} is taken: {error}") from error
        self._held = held

    def _release_port(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    async def learn(self, credentials: Sequence[object] | None = None, stored: object = None) -> None:
        """The session's credentials as they were put, or fingerprints of other secrets. Raises: PartError."""
        if stored is not None:
            try:
                parse_rows(stored)
            except FingerprintRefused as error:
                raise PartError(NAME, str(error)) from error
            assert isinstance(stored, list)  # noqa: S101 - narrows the type
            self._stored = stored
        if credentials is not None:
            # A service takes the former secret for a while yet, so it is looked for as long as the session lives.
            known = [*self._former, *(row for row in self._own() if row["role"] == "own")]
            self._former = [row for index, row in enumerate(known) if row not in known[:index]][-MAX_FORMER:]
            self._credentials = credentials
        await self.settled()
        if self.started:
            await self._fleet.back(NAME)
            await self.arm()

    async def arm(self) -> None:
        """Hands it all that it looks for. Raises: PartError."""
        rows = self.rows()
        try:
            answer = await probes.ask(identity.SCAN_SOCKET, {"op": "arm", "fingerprints": rows}, timeout_s=START_S)
        except WireError as error:
            raise PartError(NAME, "the body scanner did not take what it is to look for") from error
        if answer.get("ok") is not True:
            raise PartError(NAME, f"the body scanner refused what it is to look for: {answer.get('error')}")

    def rows(self) -> list[object]:
        """All that is looked for, as fingerprints."""
        own = list(self._own())
        return [*own, *(row for row in self._former if row not in own), *self._stored]

    async def again(self) -> None:
        """For a successor: it listens only once it knows what to look for. Raises: PartError."""
        await self._fleet.back(NAME)
        await self.arm()

    def _own(self) -> Iterable[dict[str, object]]:
        for row in self._credentials:
            if not isinstance(row, Mapping):
                continue
            name = str(row.get("name"))
            hosts = sorted({binding.host for binding in self._policy.credentials if binding.name == name})
            for role, text in (("own", row.get("secret")), ("decoy", row.get("decoy"))):
                found = fingerprint(str(text).encode("latin-1"), name=name, role=role, key=self._key, hosts=hosts)
                if found is not None:
                    yield found.row()
