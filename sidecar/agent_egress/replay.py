"""What verified receipts say, checked: each decision again under the policy that its receipt names, and each address
that the kernel saw dialled explained by an answer and a decision. Pure; that the receipts are genuine is `receipts`'
to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent_egress.gateway_policy import GitDecision, Request, decide_git_host, decide_push, decide_repository
from agent_egress.identity import CANARY_PORT, LOOPBACK4
from agent_egress.names import literal_address
from agent_egress.pktline import Command
from agent_egress.policy import Decision, Policy, decide_lookup, decide_name
from agent_egress.receipts import MAX_FAULTS, Fault, Fields, cut_text

_DECIDED = frozenset({"decision", "lookup"})
_ENFORCING = frozenset({"open", "policy"})
MAX_KNOWN = 50_000
_Question = tuple[str, str, int | None, object, object, tuple[str, ...]]
"""Policy, host, port (None for a lookup), action, rule, and what the git gateway did: its way out (`git`), or service,
account, repository, ref and whether that was deleted."""


def _seq(receipt: Fields) -> int:
    seq = receipt.get("seq")
    return seq if isinstance(seq, int) else 0


def _port(receipt: Fields) -> int:
    port = receipt.get("port")
    return port if isinstance(port, int) else 0


class Replay:
    """Decides every `decision` and `lookup` again, one receipt after the other. Faults: replay-mismatch.

    `find` gives the policy of a digest, None where its body is not at hand. It is asked when an `open` or a `policy`
    receipt puts one in force, so nothing waits for the end: each decision is judged as it comes, or makes a fault, or
    falls under `unjudged`. A policy that no receipt named before is none that a decision can rest on.

    A refusal for a reason other than the name (`why`: an SNI that differs, a path, a decoy) is stricter than the policy
    and not repeated here; an allow must always be.
    """

    def __init__(self, find: Callable[[str], Policy | None]) -> None:
        self._find = find
        self._in_force: dict[str, Policy | None] = {}
        """By the short digest, all that ever were."""
        self._known: dict[_Question, str] = {}
        """Answers: most of what an agent asks it asks again."""
        self._faults: list[Fault] = []
        self.count = 0
        """Decisions and lookups that were looked at."""
        self.unjudged: dict[str, int] = {}
        """By the short digest of a policy that was in force and is not at hand, the first receipt under it."""

    def enforce(self, digest: str) -> None:
        """A policy is in force from here on."""
        self._in_force[digest.removeprefix("sha256:")[:16]] = self._find(digest)

    def add(self, receipt: Fields) -> None:
        """One more receipt, of any kind."""
        kind = receipt.get("kind")
        if kind not in _DECIDED and not (kind == "git" and receipt.get("action") == "allow"):
            if kind in _ENFORCING and isinstance(digest := receipt.get("policy"), str):
                self.enforce(digest)
            return
        action, short = receipt.get("action"), str(receipt.get("policy", ""))
        repeated = action == "allow" or (receipt.get("why", "name") == "name" and receipt.get("collapsed") is not True)
        policy = self._in_force.get(short)
        if policy is None and short not in self._in_force:
            if repeated or short:
                self.count += 1
                self._fault(_seq(receipt), f"names policy {short[:80]!r}, which was not in force")
                return
        elif policy is None:
            self.unjudged.setdefault(short, _seq(receipt))
            return
        self.count += 1
        if policy is None or not repeated:
            return
        question: _Question
        if kind == "lookup":
            question = (short, str(receipt.get("name", "")), None, action, receipt.get("rule", ""), ())
        else:
            host, rule = str(receipt.get("host", "")), receipt.get("rule", "")
            question = (short, host, _port(receipt), action, rule, _by_gateway(receipt))
        try:
            problem = self._known.get(question)
        except TypeError:  # a list where a text belongs
            problem, question = None, (*question[:3], str(action), str(question[4]), question[5])
        if problem is None:
            problem = self._decide(question, policy)
        if problem:
            self._fault(_seq(receipt), problem)

    def _decide(self, question: _Question, policy: Policy) -> str:
        problem = _replay_one(question, policy)
        if len(self._known) < MAX_KNOWN:
            self._known[question] = problem
        return problem

    def _fault(self, seq: int, problem: str) -> None:
        if len(self._faults) < MAX_FAULTS:
            self._faults.append(Fault(seq, "replay-mismatch", problem))

    def faults(self) -> tuple[Fault, ...]:
        """Those found so far, at most MAX_FAULTS of them."""
        return tuple(self._faults)


def replay(receipts: Iterable[Fields], *, policies: Mapping[str, Policy]) -> tuple[Fault, ...]:
    """The same over some receipts at once, under `policies`, each taken for one that was in force before them."""
    known = {policy.digest: policy for policy in policies.values()}
    state = Replay(known.get)
    for digest in known:
        state.enforce(digest)
    for receipt in receipts:
        state.add(receipt)
    missing = (
        Fault(seq, "replay-mismatch", f"names policy {short!r}, which is not at hand")
        for short, seq in state.unjudged.items()
    )
    return (*state.faults(), *missing)


def _by_gateway(receipt: Fields) -> tuple[str, ...]:
    if receipt.get("kind") != "git":
        return ("git",) if receipt.get("via") == "git" else ()
    gone = "" if str(receipt.get("new", "1")).strip("0") else "deleted"
    return (*(str(receipt.get(key, "")) for key in ("service", "user", "repo", "ref")), gone)


def _git_again(policy: Policy, host: str, port: int, git: tuple[str, ...]) -> GitDecision:
    if len(git) == 1:
        return decide_git_host(policy, host, port)
    service, user, path, ref, gone = git
    decision = decide_repository(policy, Request(host, port, user, service, path, ""))
    if not decision.allowed or decision.repository is None or not ref:
        return decision
    reason = decide_push(decision.repository, Command("1", "0" if gone else "1", ref))
    return GitDecision(not reason, reason, decision.repository)


def _replay_one(question: _Question, policy: Policy) -> str:
    _, host, port, action, rule, git = question
    allowed = action == "allow"
    again: Decision | GitDecision
    if port is None:
        again = decide_lookup(policy, host)
    else:
        again = _git_again(policy, host, port, git) if git else decide_name(policy, host, port)
    if again.allowed != allowed or cut_text(again.rule) != rule:
        verdict = "allows" if again.allowed else "denies"
        return f"{action} of {host[:80]!r} by {rule!r}: its policy {verdict} it by {again.rule!r}"
    return ""


class Reconciliation:
    """Every (address, port) that the kernel saw squid dial must come from an answer to a name that was allowed on that
    port, or be an address allowed itself. Faults: unexplained-connection. Counts are not compared: kept-alive
    connections and retries make them differ."""

    def __init__(self) -> None:
        self._answers: dict[str, set[str]] = {}
        self._allowed: set[tuple[str, int]] = set()
        self._dialled: dict[tuple[str, int], int] = {}
        """With the first receipt that says so."""

    def add(self, receipt: Fields) -> None:
        """One more receipt, of any kind."""
        kind = receipt.get("kind")
        if kind == "decision":
            if receipt.get("action") == "allow":
                self._allowed.add((str(receipt.get("host")), _port(receipt)))
        elif kind == "answer":
            addresses = receipt.get("addresses")
            if isinstance(addresses, list):
                for address in addresses:
                    self._answers.setdefault(str(address), set()).add(str(receipt.get("name")))
        elif kind == "connection":
            self._dialled.setdefault((str(receipt.get("address")), _port(receipt)), _seq(receipt))

    def faults(self) -> tuple[Fault, ...]:
        """Each destination that nothing explains, once, as all receipts have it."""
        found = []
        for (address, port), seq in self._dialled.items():
            if (address, port) == (LOOPBACK4, CANARY_PORT):
                continue
            if literal_address(address) and (address, port) in self._allowed:
                continue
            if not any((name, port) in self._allowed for name in self._answers.get(address, ())):
                detail = f"{address[:64]}:{port} was dialled, and no receipt says why"
                found.append(Fault(seq, "unexplained-connection", detail))
        return tuple(found[:MAX_FAULTS])


def reconcile(receipts: Iterable[Fields]) -> tuple[Fault, ...]:
    """The same over all receipts at once."""
    state = Reconciliation()
    for receipt in receipts:
        state.add(receipt)
    return state.faults()
