"""One session's boundary, from the chain key to the seal: opens it part by part, keeps policy, cut and deadline in
force, and shuts it when a part that must not fail does. How the kernel, the daemons and the CA do their share is in
their modules; every way out of here that is not success leaves nothing allowed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_egress import ca, canaries, checkpoint, identity, kills, probes, ruleset
from agent_egress.budget import USED_UP
from agent_egress.ca import write_atomically
from agent_egress.children import log
from agent_egress.daemons import DAEMONS, START_S, Fleet, PartError
from agent_egress.enforcement import DENY_ALL, Enforcement, checked_policy, narrower, private_domains
from agent_egress.policy import Policy
from agent_egress.pulse import Pulse
from agent_egress.receipts import Fields, key_commitment
from agent_egress.ruleset import Live, RulesetError
from agent_egress.scanning import Scanning
from agent_egress.session_file import Settings
from agent_egress.swap import SecretRefused, rotated
from agent_egress.traffic import Tally
from agent_egress.wire import WireError

GATEWAY = "gateway"
SSH_TEST_S = 75.0
KILL_WAIT_S = 60.0
KILL_RETRY_S = 0.1
CHECKPOINT_S = 10
"""How often the host is told where the chain stands, while it grows."""
CHANGED_MEANWHILE = "the policy was changed meanwhile"
Answer = dict[str, object]


def now_s() -> float:
    """Seconds that also pass while the machine sleeps: a deadline must not be slept through."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Boundary:
    """The session's state. Operations come one at a time; each raises PartError."""

    def __init__(self, source: Path) -> None:
        self.state = "waiting"
        """`waiting`, `open`, `failed` or `sealed`."""
        self.failure: PartError | None = None
        self.wrong: dict[str, str] = {}
        """Parts that do not answer at present."""
        self.lock = asyncio.Lock()
        self.fleet = Fleet(self._ended)
        self._scanning = Scanning(self.fleet)
        self._held = Enforcement(source)
        self._tally = Tally()
        self._unbound_lines = ""
        self._policy = DENY_ALL
        self._commitment = ""
        self._settings: Settings | None = None
        self._deadline: float | None = None
        self._credentials: Sequence[object] = ()
        self._ssh: Mapping[str, object] | None = None
        self._used_up = ""
        self._killed = kills.Killed()
        self._pulse = Pulse()
        self._stand = checkpoint.Stand()
        self._beats = 0
        self._opened: Answer = {}
        self._sealed: Answer = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def digest(self) -> str:
        """Of the policy in force."""
        return self._held.in_force.digest

    # --- session.open ---

    async def open(self, *, session: str, chain_key: bytes, wait_s: float) -> Answer:
        """Starts what needs the key and answers when all of it is proven to work; the same key may ask again."""
        commitment = key_commitment(chain_key)
        if self._commitment and self._commitment != commitment:
            raise PartError("control", "this sidecar was opened with another chain key")
        if self.state == "open":
            return self._opened
        if self.failure is not None:
            raise self.failure
        if self.state != "waiting":
            raise PartError("control", f"the session is {self.state}")
        self._commitment = commitment
        try:
            self._opened = await self._open(session, chain_key, until=time.monotonic() + wait_s)
        except PartError as error:
            self._fail(error)
            raise
        return self._opened

    async def _open(self, session: str, chain_key: bytes, *, until: float) -> Answer:
        began = time.monotonic()
        self._settings = settings = Settings.read(Path(identity.SESSION_FILE))
        if session != settings.session:
            raise PartError("control", f"this sidecar was made for session {settings.session}, not {session}")
        self._held.verify()
        policy = self._boot_policy(settings)
        ca_pem = self._make_ca(settings)
        self._policy = policy
        self._held.apply_sets(policy)
        self._held.write(policy)
        self._unbound_lines = private_domains(policy)
        for daemon in DAEMONS:
            self.fleet.start(daemon.name, secret=chain_key if daemon.name == "audit" else None)
        left = max(1.0, until - time.monotonic())
        names = [daemon.name for daemon in DAEMONS]
        if settings.git:
            self.fleet.start(GATEWAY)
            names.append(GATEWAY)
        await asyncio.gather(*(self.fleet.ready(name, timeout_s=left) for name in names))
        self._held.set_cut(cut=False)
        self._deadline = now_s() + settings.deadline_s
        checks = await canaries.walk(self.fleet, ruleset_digest=self._held.ruleset_digest)
        self._scanning.begin(policy)
        online = bool(checks[-1]["ok"])
        await self._record([{"kind": "canary", "action": "allow", "resolvers": online}])
        self.state = "open"
        self._show_health()
        self._later(self._watch_kills())
        self._later(self._note_stand())
        counters = await self._audit({"op": "counters"})
        log("supervisor", f"session {session} open after {time.monotonic() - began:.2f} s")
        return {
            "ready": True,
            "ca_pem": ca_pem,
            "ruleset_digest": self._held.ruleset_digest,
            "checks": checks,
            "head": counters.get("head", ""),
        }

    def _boot_policy(self, settings: Settings) -> Policy:
        path = Path(identity.BOOT_POLICY_FILE)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise PartError("policy", f"{path}: {error}") from error
        return checked_policy(data, where=str(path), headers=settings.credential_headers)

    def _make_ca(self, settings: Settings) -> str:
        upstream = Path(identity.UPSTREAM_CA_FILE)
        life = datetime.timedelta(seconds=settings.deadline_s)
        now = datetime.datetime.now(datetime.UTC)
        try:
            ca_pem = ca.make_session_ca(session=settings.session, now=now, life=life)
            ca.publish(ca_pem, extra_roots=upstream.read_text() if upstream.exists() else "")
        except (ca.CaError, OSError) as error:
            raise PartError("squid", f"no session CA: {error}", getattr(error, "output", "")) from error
        return ca_pem

    # --- operations of an open session ---

    def wanted_policy(self) -> Answer:
        """The policy that holds, or that a restore would bring back."""
        self._must_be_open()
        return {"policy": json.loads(self._policy.encode()), "wanted": self._policy.digest, "cut": self._held.cut}

    async def put_policy(self, document: object, *, expect: object = None) -> None:
        """Replaces the policy, whole or not at all. A narrower one ends open connections: what was allowed must not
        outlive its rule. `expect` is the digest of the one that it was made from: where that is another's by now,
        nothing is changed."""
        self._must_be_open()
        if expect is not None and expect != self._policy.digest:
            raise PartError("policy", f"{CHANGED_MEANWHILE}: it is {self._policy.digest}")
        headers = self._settings.credential_headers if self._settings is not None else ()
        policy = checked_policy(json.dumps(document).encode(), where="policy.put", headers=headers)
        before, self._policy = self._policy, policy
        try:
            if not self._held.cut:
                await self._scanning.follow(policy)
                self._held.apply_sets(policy)
        except PartError:
            self._policy = before
            raise
        if self._held.cut:
            return
        await self._enforce(policy)
        # First what was open: a failure after it leaves nothing that the new policy refuses.
        if narrower(before, policy):
            await self.fleet.again("squid")
        await self._refresh_unbound()

    async def put_credentials(self, credentials: object, *, stored: object = None, rotate: bool = False) -> None:
        """Hands decoys and secrets to the policy process, which alone holds them; kept for its successor. `stored` are
        fingerprints of other secrets that are not to leave. To `rotate` is to put other secrets behind the decoys that
        are there, and leaves all else."""
        self._must_be_open()
        if not isinstance(credentials, list):
            raise PartError("control", "credentials: expected a list")
        if rotate:
            try:
                credentials = rotated(self._credentials, credentials)
            except SecretRefused as error:
                raise PartError("control", str(error)) from None
        await self._scanning.learn(credentials, stored)
        await self._tell_credentials(credentials)
        self._credentials = credentials

    async def put_ssh(self, keys: Mapping[str, object]) -> None:
        """Hands the project's ssh keys and the hosts' pins to the git gateway; kept for its successor."""
        self._must_be_open()
        await self._ask_gateway({"op": "ssh.put", **keys}, timeout_s=START_S)
        self._ssh = keys

    async def test_ssh(self, key: object, repository: object) -> Answer:
        """Whether a server takes one of the keys."""
        self._must_be_open()
        answer = await self._ask_gateway({"op": "ssh.test", "key": key, "repository": repository}, timeout_s=SSH_TEST_S)
        return {"taken": answer.get("taken") is True, "words": str(answer.get("words", ""))}

    async def _ask_gateway(self, message: Mapping[str, object], *, timeout_s: float) -> Answer:
        if GATEWAY not in self.fleet.children:
            raise PartError(GATEWAY, "this sandbox has no git gateway")
        try:
            answer = await probes.ask(identity.GATEWAY_CONTROL_SOCKET, message, timeout_s=timeout_s)
        except WireError as error:
            raise PartError(GATEWAY, f"the git gateway did not take {message.get('op')}") from error
        if answer.get("ok") is not True:
            raise PartError(GATEWAY, f"{message.get('op')} refused: {answer.get('error')}")
        return answer

    async def cut(self, kind: str = "cut") -> None:
        """Ends every connection and allows none until restored."""
        self._must_be_open()
        if self._held.cut and kind == "cut":
            return
        self._shut()
        await self._deny_all({"kind": kind})

    def _shut(self) -> None:
        """Nothing leaves any more, and no tunnel is left."""
        self._held.set_cut(cut=True)
        self.fleet.children["squid"].kill()

    async def _deny_all(self, receipt: Fields) -> None:
        await self._enforce(DENY_ALL)
        await self._record([receipt])

    async def restore(self) -> None:
        """Undoes a cut, and forgets why a `kill` made it."""
        self._must_be_open()
        known = self._killed.number
        if self._deadline is not None and now_s() >= self._deadline:
            raise PartError("control", "the session's deadline has passed: set a new one first")
        if not self._held.cut:
            return
        await self._scanning.follow(self._policy)
        self._held.apply_sets(self._policy)
        await self._enforce(self._policy)
        await self._refresh_unbound()
        await self._record([{"kind": "restore"}])
        await self.fleet.back("squid")
        if self._killed.number != known:
            raise PartError("control", f"{kills.KILLED}{self._killed.words}")
        self._killed.words = ""
        self._held.set_cut(cut=False)
        self._show_health()
        # What it asked while nothing left has failed: it takes its resolvers for dead, and those names for failing.
        await self.fleet.again("unbound")

    async def set_deadline(self, seconds: object) -> None:
        """Egress is cut so many seconds from now, with or without a host process."""
        self._must_be_open()
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 10**8:
            raise PartError("control", f"deadline: {seconds!r} is not a number of seconds")
        self._deadline = now_s() + seconds

    async def seal(self, outcome: object) -> Answer:
        """Ends the chain: no new decision, a last look at the kernel's counts, the seal; then everything is denied."""
        if self.state == "sealed":
            return self._sealed
        self._must_be_open()
        self._held.set_cut(cut=True)
        self.fleet.stop("squid", GATEWAY)
        with contextlib.suppress(WireError):  # bytes counted since the last receipt; the seal does not wait for them
            await probes.ask(identity.POLICY_SOCKET, {"op": "flush"}, timeout_s=identity.ANSWER_DEADLINE_S)
        self.fleet.stop("dns", "unbound", "policy", "scan")
        policy = self._held.in_force
        self._held.write(DENY_ALL)
        live = ruleset.read_back()
        await self._record(self._counted(live, policy))
        # What came in with the last request or packet: the record must not say that all went well.
        self._shut_if_killed(await self._audit({"op": "counters"}))
        await self._record([{"kind": "policy", "policy": DENY_ALL.digest}])
        said = "killed" if self._killed.words else str(outcome)[:64]
        request = {"op": "seal", "outcome": said, "totals": dict(live.counters)}
        answer = await self._audit(request)
        self._sealed = {key: answer.get(key) for key in ("head", "length", "totals")}
        self._sealed["killed"] = self._killed.words
        self.state = "sealed"
        self._show_health()
        return self._sealed

    async def counters(self) -> Answer:
        """The chain's length and totals, the kernel's counts."""
        self._must_be_open(sealed=True)
        audit = await self._audit({"op": "counters"})
        wanted = ("length", "head", "sealed", "full", "counts")
        return {**{key: audit.get(key) for key in wanted}, "kernel": dict(ruleset.read_back().counters)}

    async def posture(self, tried: int) -> None:
        """The host has tried so many ways out before it starts the agent, and none was open. What the kernel refused
        to it is written before that, so that nobody takes it for the agent's."""
        self._must_be_open()
        await self._scanning.settled()  # the agent starts next
        live = ruleset.read_back()
        await self._record([*self._tally.receipts(live), {"kind": "canary", "action": "allow", "core": tried}])

    async def hits(self) -> Answer:
        """How often each rule of a policy decided, since the session began."""
        self._must_be_open(sealed=True)
        return {"hits": (await self._audit({"op": "hits"})).get("hits")}

    def status(self) -> Answer:
        """What holds at this moment; never fails."""
        left = None if self._deadline is None else round(self._deadline - now_s(), 1)
        parts = {name: child.restarts for name, child in self.fleet.children.items()}
        failure = None if self.failure is None else {"part": self.failure.part, "message": self.failure.message}
        return {
            "state": self.state,
            "healthy": self.healthy,
            "cut": self._held.cut,
            "wanted": self._policy.digest,
            "deadline_left_s": left,
            "restarts": parts,
            "wrong": dict(self.wrong),
            "used_up": self._used_up,
            "killed": self._killed.words,
            "failure": failure,
            "ruleset_digest": self._held.ruleset_digest,
        }

    # --- what goes on by itself ---

    @property
    def healthy(self) -> bool:
        """Whether the agent may be started, or go on."""
        return self.state == "open" and not self.wrong

    async def tick(self) -> None:
        """Once a second: the rules are still ours, the counts become receipts, the deadline holds. Where nobody works,
        the rules are looked at less often: forty idle sandboxes must not keep two processors busy."""
        if self.state != "open":
            return
        counters = await self._audit({"op": "counters"})
        if self._shut_if_killed(counters):
            await self._deny_all({"kind": "cut", "why": kills.KIND})
        self._beats += 1
        if self._beats % CHECKPOINT_S == 0 and counters.get("head") != self._stand.head:
            self._later(self._note_stand())
        if self._pulse.beat(counters.get("head")):
            try:
                live = ruleset.read_back()
            except RulesetError:
                live = None
            if live is not None:
                await self._record(self._counted(live, self._held.in_force))
            if live is None or not self._held.intact(live):
                await self._reload()
        if self._deadline is not None and now_s() >= self._deadline and not self._held.cut:
            await self.cut("deadline")

    async def _note_stand(self) -> None:
        """Not under the lock: a slow disk holds up nothing, and none is no failure, only an older stand."""
        with contextlib.suppress(WireError):
            answer = await probes.ask(identity.AUDIT_SOCKET, {"id": 1, "op": "checkpoint"}, timeout_s=KILL_WAIT_S)
            stand = checkpoint.Stand.of(answer)
            if stand is not None and stand.length > self._stand.length:
                self._stand = stand
                self._show_health()

    async def _watch_kills(self) -> None:
        """Contact with what a `kill` rule names ends everything at once, however busy the rest of this process is."""
        while self.state == "open":
            question = {"id": 1, "op": "killed", "after": self._killed.number}
            try:
                answer = await probes.ask(identity.AUDIT_SOCKET, question, timeout_s=KILL_WAIT_S)
            except WireError:
                await asyncio.sleep(KILL_RETRY_S)  # nothing for a minute; or no audit, which the watch sees to
                continue
            if self._shut_if_killed(answer):
                async with self.lock:
                    with contextlib.suppress(PartError):
                        await self._deny_all({"kind": "cut", "why": kills.KIND})

    def _shut_if_killed(self, counters: Mapping[str, object]) -> bool:
        """Whether the audit knows of a kill that is new; then all is shut before anything else is done."""
        if self.state != "open" or not self._killed.learn(counters):
            return False
        log("supervisor", f"{kills.KILLED}{self._killed.words}")
        try:
            self._shut()
        except PartError as error:
            self._fail(error)
            return False
        self._show_health()
        return True

    def _counted(self, live: Live, policy: Policy) -> list[Fields]:
        """Receipts of the kernel's counts, and of contact by a packet among them."""
        found = self._tally.receipts(live, first=lambda flow: kills.ends(policy, flow.address, flow.port))
        return [*found, *kills.packets(policy, found)]

    async def watch(self) -> None:
        """Every few seconds: each daemon still answers."""
        if self.state != "open" or not self._pulse.due():
            return
        self.wrong = await self.fleet.watch(starting=self._scanning.starting)
        if self.wrong.get("audit") == probes.CHAIN_FULL:
            # What is left in it is kept for how the session ends: cut, then sealed.
            await self.cut()
        elif self.state == "open" and "audit" in self.wrong:
            # No receipt, no connection. The daemons that ask it deny by themselves; this also ends what is open.
            self._fail(PartError("audit", self.wrong["audit"]))
        elif self._settings is not None and self._settings.model.credentials:
            self._used_up = str((await self._audit({"op": "counters"})).get("used_up", ""))
        self._show_health()

    async def _reload(self) -> None:
        log("supervisor", "nftables: the rules in force are not ours: loaded again")
        try:
            self._held.reload()
            self._tally.forget()
        except PartError as error:
            self._fail(PartError("nftables", f"the rules were changed and could not be restored: {error}"))
            return
        await self._record([{"kind": "tripwire", "action": "deny", "why": "ruleset", "rule": "nftables"}])

    def stop(self) -> None:
        """Leaves nothing running and nothing allowed."""
        with contextlib.suppress(PartError):
            self._held.set_cut(cut=True)
        self.fleet.stop()

    def _fail(self, error: PartError) -> None:
        log("supervisor", f"{error.part}: {error.message}: everything is denied from here on")
        self.state, self.failure = "failed", error
        self.wrong = {error.part: error.message}
        self.stop()
        self._show_health()

    def _ended(self, name: str) -> None:
        """A daemon ended (its successor, if it has one, is on its way)."""
        if self.state == "open" and name == "audit":
            self._fail(PartError("audit", "the audit writer ended", "\n".join(self.fleet.children[name].tail)))
        if self.state == "open" and name == "policy" and self._credentials:
            self._later(self._tell_successor())
        if self.state == "open" and name == GATEWAY and self._ssh is not None:
            self._later(self._arm_gateway(self._ssh))
        if self.state == "open" and name == "scan":
            self._later(self._arm_successor())

    async def _tell_successor(self) -> None:
        with contextlib.suppress(PartError):
            await self.fleet.back("policy")
            spent = (await self._audit({"op": "counters"})).get("spent")
            # First what is used up: without credentials nothing is, and nobody starts from nothing again.
            if not isinstance(spent, dict):
                raise PartError("audit", "the audit does not say what is used up")
            await self._tell({"op": "spent", **spent})
            await self._tell_credentials(list(self._credentials))

    async def _arm_gateway(self, keys: Mapping[str, object]) -> None:
        with contextlib.suppress(PartError):  # without keys it refuses everything
            await self.fleet.back(GATEWAY)
            await self._ask_gateway({"op": "ssh.put", **keys}, timeout_s=START_S)

    async def _arm_successor(self) -> None:
        try:
            await self._scanning.again()
        except PartError as error:  # unarmed it refuses everything: with another one it may work
            log("supervisor", f"{error.part}: {error.message}")
            self.fleet.children["scan"].kill()

    def _later(self, work: object) -> None:
        assert asyncio.iscoroutine(work)  # noqa: S101 - narrows the type
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- pieces ---

    def _must_be_open(self, *, sealed: bool = False) -> None:
        if self.failure is not None:
            raise self.failure
        if self.state != "open" and not (sealed and self.state == "sealed"):
            raise PartError("control", f"the session is {self.state}")

    async def _enforce(self, policy: Policy) -> None:
        """Receipt first: no decision may name a policy that the chain does not know."""
        await self._record([{"kind": "policy", "policy": policy.digest}])
        self._held.write(policy)

    async def _refresh_unbound(self) -> None:
        lines = private_domains(self._held.in_force)
        if lines != self._unbound_lines:
            self._unbound_lines = lines
            await self.fleet.again("unbound")

    async def _tell_credentials(self, credentials: list[object]) -> None:
        await self._tell({"op": "credential.put", "credentials": credentials})

    async def _tell(self, message: Mapping[str, object]) -> None:
        """Hands something to the policy process that only root may say. Raises: PartError."""
        try:
            answer = await probes.ask(identity.POLICY_SOCKET, message, timeout_s=START_S)
        except WireError as error:
            raise PartError("policy", f"the policy process did not take {message.get('op')}") from error
        if answer.get("ok") is not True:
            raise PartError("policy", f"{message.get('op')} refused: {answer.get('error')}")

    async def _record(self, receipts: Sequence[Fields]) -> None:
        if receipts:
            await self._audit({"receipts": list(receipts)})

    async def _audit(self, message: Mapping[str, object]) -> Answer:
        try:
            answer = await probes.ask(identity.AUDIT_SOCKET, {"id": 1, **message}, timeout_s=START_S)
        except WireError as error:
            failure = PartError("audit", f"no receipt can be written: {error}")
            if self.state == "open":
                self._fail(failure)
            raise failure from error
        if answer.get("ok") is not True:
            raise PartError("audit", f"refused: {answer.get('error')}")
        return answer

    def _show_health(self) -> None:
        flag = Path(identity.HEALTHY_FILE)
        if self.healthy:
            # Its words are the health probe's output, which the host reads with the container's state.
            words = f"{USED_UP}{self._used_up}\n" if self._used_up else ""
            words = f"{kills.KILLED}{' '.join(self._killed.words.split())}\n" if self._killed.words else words
            write_atomically(flag, words + self._stand.words)  # the stand in a line of its own
        else:
            flag.unlink(missing_ok=True)
