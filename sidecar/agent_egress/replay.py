"""What verified receipts say, checked: each decision again under the policy that its receipt names, and each address
that the kernel saw dialled explained by an answer and a decision. Pure; that the receipts are genuine is `receipts`'
to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent_egress.identity import CANARY_PORT, LOOPBACK4
from agent_egress.names import literal_address
from agent_egress.policy import Policy, decide_lookup, decide_name
from agent_egress.receipts import MAX_FAULTS, Fault, Fields, cut_text


def _seq(receipt: Fields) -> int:
    seq = receipt.get("seq")
    return seq if isinstance(seq, int) else 0


def _port(receipt: Fields) -> int:
    port = receipt.get("port")
    return port if isinstance(port, int) else 0


def replay(receipts: Iterable[Fields], *, policies: Mapping[str, Policy]) -> tuple[Fault, ...]:
    """Decides every `decision` and `lookup` again; `policies` is keyed by digest. Faults: replay-mismatch.

    A refusal for a reason other than the name (`why`: an SNI that differs, a path, a decoy) is stricter than the policy
    and not repeated here; an allow must always be.
    """
    by_short = {policy.short_digest: policy for policy in policies.values()}
    faults: list[Fault] = []
    for receipt in receipts:
        collapsed = receipt.get("collapsed") is True and receipt.get("action") == "deny"
        if receipt.get("kind") not in {"decision", "lookup"} or collapsed:
            continue
        problem = _replay_one(receipt, by_short)
        if problem and len(faults) < MAX_FAULTS:
            faults.append(Fault(_seq(receipt), "replay-mismatch", problem))
    return tuple(faults)


def _replay_one(receipt: Fields, by_short: Mapping[str, Policy]) -> str:
    allowed = receipt.get("action") == "allow"
    if not allowed and receipt.get("why", "name") != "name":
        return ""
    name = str(receipt.get("policy", ""))
    policy = by_short.get(name)
    if policy is None:
        return f"names policy {name[:16]!r}, which is not at hand"
    if receipt.get("kind") == "lookup":
        host = str(receipt.get("name", ""))
        again = decide_lookup(policy, host)
    else:
        host = str(receipt.get("host", ""))
        again = decide_name(policy, host, _port(receipt))
    if again.allowed != allowed or cut_text(again.rule) != receipt.get("rule", ""):
        verdict = "allows" if again.allowed else "denies"
        said = f"{receipt.get('action')} of {host[:80]!r} by {receipt.get('rule')!r}"
        return f"{said}: its policy {verdict} it by {again.rule!r}"
    return ""


def reconcile(receipts: Iterable[Fields]) -> tuple[Fault, ...]:
    """Every (address, port) that the kernel saw squid dial must come from an answer to a name that was allowed on that
    port, or be an address allowed itself. Faults: unexplained-connection. Counts are not compared: kept-alive
    connections and retries make them differ."""
    answers: dict[str, set[str]] = {}
    allowed: set[tuple[str, int]] = set()
    dialled: list[tuple[int, str, int]] = []
    for receipt in receipts:
        kind = receipt.get("kind")
        if kind == "answer":
            addresses = receipt.get("addresses")
            if isinstance(addresses, list):
                for address in addresses:
                    answers.setdefault(str(address), set()).add(str(receipt.get("name")))
        elif kind == "decision" and receipt.get("action") == "allow":
            allowed.add((str(receipt.get("host")), _port(receipt)))
        elif kind == "connection":
            dialled.append((_seq(receipt), str(receipt.get("address")), _port(receipt)))
    faults = []
    for seq, address, port in dialled:
        if (address, port) == (LOOPBACK4, CANARY_PORT) or (literal_address(address) and (address, port) in allowed):
            continue
        if not any((name, port) in allowed for name in answers.get(address, ())):
            detail = f"{address[:64]}:{port} was dialled, and no receipt says why"
            faults.append(Fault(seq, "unexplained-connection", detail))
    return tuple(faults[:MAX_FAULTS])
