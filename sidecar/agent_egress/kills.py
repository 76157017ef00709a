"""What ends a session: contact with a host that a `kill` rule names, and, where the policy says so, a decoy seen where
it does not belong. Their receipts, and the words for people. Pure; that the tunnels fall is the boundary's work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent_egress.policy import Decision, decide_name
from agent_egress.receipts import Fields, cut_text
from agent_egress.rules import Policy

KILLED = "killed: "
"""How the health probe's words begin when the session was ended so."""
KIND = "kill"
TRIPWIRE_RULE = "tripwire kill"


def contact(policy: Policy, decision: Decision, *, host: str, port: int, where: str, client: str = "") -> list[Fields]:
    """The receipt of contact with a killed host, when the decision is one; `where`: `connect`, `request`, `sni`,
    `address`, `lookup` or `packet`. `port` is 0 for a lookup."""
    if decision.action != "kill":
        return []
    who = {"client": client} if client else {}
    fields = {"kind": KIND, "host": cut_text(host), "port": port, "rule": decision.rule, "where": where}
    return [{**fields, "policy": policy.short_digest, **who}]


def tripwire(policy: Policy, *, credential: str, where: str, host: str, port: int, client: str = "") -> list[Fields]:
    """The receipts of a decoy that was found where it does not belong (`where`, in words)."""
    found: dict[str, object] = {"credential": credential, "where": where, "host": host, "port": port}
    if client:
        found["client"] = client
    receipts: list[Fields] = [{"kind": "tripwire", **found}]
    if policy.tripwire == "kill":
        receipts.append({"kind": KIND, "rule": TRIPWIRE_RULE, "policy": policy.short_digest, **found})
    return receipts


def ends(policy: Policy, host: str, port: int) -> bool:
    """Whether contact with this host, by whatever packet, ends the session."""
    return policy.kills and decide_name(policy, host, port).action == KIND


def packets(policy: Policy, found: Iterable[Fields]) -> list[Fields]:
    """The receipts of contact by a packet alone, whatever protocol it spoke, among what the kernel dropped."""
    receipts: list[Fields] = []
    for drop in found if policy.kills else ():
        host, port = str(drop.get("address")), drop.get("port")
        if drop["kind"] == "drop" and isinstance(port, int):
            receipts += contact(policy, decide_name(policy, host, port), host=host, port=port, where="packet")
    return receipts


def kill_words(receipt: Mapping[str, object]) -> str:
    """Why the session ended: one printable line of at most 300 letters that names host and rule."""
    host, port, rule = str(receipt.get("host")), receipt.get("port"), receipt.get("rule")
    place = f"{host}:{port}" if port else host
    if receipt.get("credential"):
        what = f"the placeholder of credential {receipt['credential']} was sent to {place}, in {receipt.get('where')}"
    elif receipt.get("where") == "lookup":
        what = f"{place} was looked up"
    else:
        what = f"{place} was contacted ({receipt.get('where')})"
    words = f"{what} (rule: {rule})"
    return "".join(char if 0x20 <= ord(char) < 0x7F else "?" for char in words)[:300]


class Kills:
    """How often a session was ended so, as the audit writes it down, and why the last time."""

    def __init__(self) -> None:
        self.number = 0
        self._words = ""

    def count(self, receipt: Mapping[str, object]) -> None:
        """Adds what one receipt says."""
        if receipt.get("kind") == KIND:
            self.number += 1
            self._words = kill_words(receipt)

    def answer(self) -> dict[str, object]:
        """For the supervisor."""
        return {"kills": self.number, "killed": self._words}


class Killed:
    """What the supervisor knows of it."""

    def __init__(self) -> None:
        self.number = 0
        self.words = ""
        """Why the session was ended, until its user restores it."""

    def learn(self, counters: Mapping[str, object]) -> bool:
        """Whether the audit's counters tell of a kill that is new."""
        number = counters.get("kills")
        if not isinstance(number, int) or number <= self.number:
            return False
        self.number, self.words = number, str(counters.get("killed"))
        return True
