"""One squid question, judged: policy, the tunnel it came through, its SNI, its credentials; the answer's notes and
the receipts that must be on disk before it is given. Pure. Numbers in comments are those of the squid section of the
threat model."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace

from agent_egress import kills
from agent_egress.gateway_policy import decide_git_host
from agent_egress.identity import CANARY_HOST, CANARY_PORT
from agent_egress.names import NameRefused, canonical_host, literal_address
from agent_egress.paths import split_query
from agent_egress.policy import (
    Decision,
    Policy,
    decide_address,
    decide_lookup,
    decide_name,
    decide_request,
    refusal_words,
)
from agent_egress.receipts import Fields, cut_text
from agent_egress.resolved import Resolved
from agent_egress.squidline import Question, Tunnel, same_host
from agent_egress.swap import Swap, Vault, plan_swap, stray_decoy

WORDS_NO_RECEIPT = (
    "agent-container: blocked: no receipt could be written, and nothing passes without one. "
    "Its user can look with: agent-container status"
)
WORDS_GARBLED = "agent-container: blocked: the request could not be read"


@dataclass(frozen=True)
class Verdict:
    """The answer to one question."""

    allowed: bool
    notes: tuple[tuple[str, str], ...]
    receipts: tuple[Fields, ...] = ()
    """Written and acknowledged before the answer is given."""


def judge(policy: Policy, question: Question, *, vault: Vault, resolved: Resolved, canary: str = "") -> Verdict:
    """Never raises: what trips it is refused, with a receipt."""
    try:
        if question.from_gateway:
            return _judge_gateway(policy, question)
        if question.host.rstrip(".").lower() == CANARY_HOST:
            return _judge_canary(policy, question, canary)
        killed = _killed_by(policy, question)
        if killed is not None:
            return killed
        if question.method != "CONNECT":
            return _judge_request(policy, question, vault, resolved)
        if question.intercepted:
            return _judge_hello(policy, question, resolved)
        return _judge_connect(policy, question, vault)
    except Exception as error:
        return _refuse(policy, question, _no(f"could not be judged ({type(error).__name__})"), why="line")


def _judge_gateway(policy: Policy, question: Question) -> Verdict:
    """The git gateway's way out: a tunnel to a host and port of the policy's repositories, and nothing else."""
    if question.method != "CONNECT" or question.tunnel is not None:
        return _refuse(policy, question, _no("the git gateway only opens tunnels"), why="git")
    host = canonical_host(question.host)
    found = decide_git_host(policy, host, question.port)
    origin = found.repository.origin if found.repository is not None else ""
    lifted = decide_lookup(policy, host).floor_lifted if found.allowed else ()
    action = "raw" if found.allowed else "deny"
    decision = Decision(found.allowed, action, found.rule, origin, found.reason, lifted)
    if not found.allowed:
        return _refuse(policy, question, decision, why="git")
    return _allow(policy, question, decision, host=host, via="git")


def _no(reason: str, base: Decision | None = None) -> Decision:
    rule, origin = (base.rule, base.origin) if base is not None else ("", "")
    return Decision(allowed=False, action="deny", rule=rule, origin=origin, reason=reason)


def _killed_by(policy: Policy, question: Question) -> Verdict | None:
    """The refusal of whatever names or dials a host that a `kill` rule holds, in whichever of its places; before all
    else, since those places are compared first everywhere below and only refused."""
    if not policy.kills:
        return None
    dialled = question.local_address.strip("[]") if question.intercepted and question.tunnel is None else ""
    places = {
        "connect" if question.method == "CONNECT" else "request": question.host.strip("[]"),
        "sni": question.sni,
        "address": dialled,
    }
    for where, host in places.items():
        decision = decide_name(policy, host, question.port) if host else None
        if decision is not None and decision.action == "kill":
            return _refuse(policy, replace(question, host=host), decision, where=where)
    return None


def _judge_canary(policy: Policy, question: Question, token: str) -> Verdict:
    """The supervisor's own request through the whole path; who does not know the token is refused like any host."""
    plain = question.method == "GET" and question.scheme == "http" and question.tunnel is None
    path = question.raw_path.encode("utf-8", "surrogateescape")
    if plain and token and question.port == CANARY_PORT and hmac.compare_digest(path, b"/" + token.encode()):
        receipt = {"kind": "canary", "action": "allow", "policy": policy.short_digest}
        notes = (("action_", "raw"), ("rule_", "canary"), ("floor_exc_", "yes"))
        return Verdict(True, notes, (receipt,))
    return _refuse(policy, question, decide_name(policy, question.host, question.port))


def _judge_connect(policy: Policy, question: Question, vault: Vault) -> Verdict:
    decision = decide_name(policy, question.host, question.port)
    if not decision.allowed:
        return _refuse(policy, question, decision)
    host = canonical_host(question.host)
    tunnel = question.tunnel
    # 1: a CONNECT inside a tunnel, or a hello that names another host than the CONNECT did. A bumped tunnel's own
    # CONNECT is asked about once; spliced ones again with the hello.
    nested = tunnel is not None and decision.action == "bump"
    if tunnel is not None and (nested or not same_host(tunnel.host, host) or tunnel.port != question.port):
        return _refuse(policy, question, _no("another host than the tunnel's", decision), why="tunnel")
    if question.sni and not same_host(question.sni, host):
        return _refuse(policy, question, _no("the TLS hello names another host", decision), why="sni")
    if tunnel is not None and not question.sni and decision.action == "splice" and literal_address(host) is None:
        # The hello is there and names nobody: whom the server takes it for, it tells inside.
        return _refuse(policy, question, _no("the TLS hello names no host", decision), why="sni")
    stray = stray_decoy(vault, question)
    if stray is not None:
        return _refuse(policy, question, _no(stray.refusal, decision), why="decoy", swap=stray)
    verdict = _allow(policy, question, decision, host=host, via="connect")
    # Asked again once the hello was read: the CONNECT left its receipt, and nothing new goes out.
    return verdict if tunnel is None else replace(verdict, receipts=())


def _judge_hello(policy: Policy, question: Question, resolved: Resolved) -> Verdict:
    """Intercepted TLS: first only the address is known, then the SNI decides."""
    dialled = question.local_address.strip("[]")
    if question.host.strip("[]") != dialled and not same_host(question.host, question.sni):
        return _refuse(policy, question, _no("a CONNECT inside a tunnel"), why="tunnel")
    if not question.sni:
        decision = decide_name(policy, dialled, question.port)
        if decision.allowed:
            verdict = _allow(policy, question, decision, host=dialled, via="intercepted")
            return verdict if question.tunnel is None else replace(verdict, receipts=())
        # The hello may be read: nothing is dialled for that, so there is no receipt either. Without an SNI no ssl_bump
        # rule matches `peek` in the next step, and squid terminates.
        return Verdict(True, (("action_", "peek"),))
    decision = decide_name(policy, question.sni, question.port)
    if not decision.allowed:
        return _refuse(policy, replace(question, host=question.sni), decision)
    named = replace(question, host=question.sni)
    host = canonical_host(question.sni)
    by_address = _decide_dialled(policy, resolved, host, dialled, question.port)
    if not by_address.allowed:
        return _refuse(policy, named, by_address, why="address")
    again = question.tunnel == Tunnel(host, question.port)
    if again and decision.action == "bump" and question.host.strip("[]") != dialled:
        return _refuse(policy, named, _no("a CONNECT inside a tunnel", decision), why="tunnel")
    verdict = _allow(policy, named, decision, host=host, via="intercepted", address=dialled)
    # squid asks twice about one hello; the first answer tagged the connection.
    return replace(verdict, receipts=()) if again else verdict


def _decide_dialled(policy: Policy, resolved: Resolved, host: str, address: str, port: int) -> Decision:
    """7: an address that a client dialled itself, naming this host, must be one of the host's. squid compares too,
    before it splices or forwards; but to terminate TLS it first copies the certificate of whoever was dialled. For a
    name that was not asked for here yet, squid's own lookup is left to tell, where it comes first."""
    decision = decide_address(policy, host, address, port)
    if not decision.allowed or host == address or resolved.has(host, address):
        return decision
    if decision.action == "bump" or resolved.knows(host):
        return _no(f"{address} is not an address that this name was resolved to here", decision)
    return decision


def _judge_request(policy: Policy, question: Question, vault: Vault, resolved: Resolved) -> Verdict:
    tunnel = question.tunnel
    if tunnel is not None:
        # 1: CONNECT evil, then Host: api inside it, carried api's real token to evil.
        if not same_host(tunnel.host, question.host) or tunnel.port != question.port:
            base = decide_name(policy, question.host, question.port)
            refusal = _no("another host than the tunnel's", base)
            return _refuse(policy, question, refusal, why="tunnel", swap=stray_decoy(vault, question))
        if question.sni and not same_host(question.sni, tunnel.host):
            return _refuse(policy, question, _no("the TLS hello names another host"), why="sni")
    by_name = decide_name(policy, question.host, question.port)
    if not by_name.allowed:
        return _refuse(policy, question, by_name)
    decision = decide_request(
        policy,
        host=question.host,
        port=question.port,
        method=question.method,
        raw_path="" if question.odd_escapes else question.raw_path,
        scheme=question.scheme,
        tunnelled=tunnel is not None,
    )
    if not decision.allowed:
        # 12: and a decoy in what is refused here is still a tripwire.
        return _refuse(policy, question, decision, why="request", swap=stray_decoy(vault, question))
    host = canonical_host(question.host)
    address = ""
    if question.intercepted and tunnel is None:
        address = question.local_address.strip("[]")
        by_address = _decide_dialled(policy, resolved, host, address, question.port)
        if not by_address.allowed:
            return _refuse(policy, question, by_address, why="address")
    if decision.scanned and not policy.bindings.get(host) and _upgrades(question):
        # Nobody scans its frames. Where a credential is sent its user's own agent may need them.
        refusal = _no("a WebSocket's frames are not scanned, so an inspected host gets none", decision)
        return _refuse(policy, question, refusal, why="upgrade")
    swap = plan_swap(policy, vault, question, host=host)
    if swap.refusal:
        why = "decoy" if swap.tripwire else "credential"
        return _refuse(policy, question, _no(swap.refusal, decision), why=why, swap=swap)
    via = "tls" if tunnel is not None else ("intercepted" if address else "http")
    return _allow(policy, question, decision, host=host, via=via, address=address, swap=swap)


def _upgrades(question: Question) -> bool:
    """Whether the request asks for a protocol that squid would let through."""
    given = next((value for name, value in question.headers if name == "Upgrade"), "")
    return "websocket" in given.lower()


def refuse_spent(policy: Policy, question: Question, words: str) -> Verdict:
    """The refusal of what may pass but for the session's budget."""
    return _refuse(policy, question, _no(words), why="budget")


def _allow(
    policy: Policy,
    question: Question,
    decision: Decision,
    *,
    host: str,
    via: str,
    address: str = "",
    swap: Swap | None = None,
) -> Verdict:
    notes = [("action_", decision.action), ("rule_", cut_text(decision.rule, 120))]
    if decision.scanned:
        notes.append(("scan_", "yes"))
    if decision.floor_lifted:
        notes.append(("floor_exc_", "yes"))
    if question.method == "CONNECT" and decision.action in {"bump", "splice"}:
        notes.append(("clt_conn_tag", Tunnel(host, question.port).tag))
    receipt = _receipt(policy, question, decision, host=host)
    receipt["via"] = via
    if address:
        receipt["address"] = address
    if swap is not None and policy.bindings.get(host):
        # What squid does not show (a header given twice, one that it makes of a URL's userinfo) is stripped unseen.
        notes.append(("bound_", "yes"))
    if swap is not None and swap.header:
        notes += [("auth_", swap.value), ("cred_", swap.header)]
        receipt["credential"] = swap.credential
    return Verdict(True, tuple(notes), (receipt,))


def _refuse(
    policy: Policy, question: Question, decision: Decision, *, why: str = "", where: str = "", swap: Swap | None = None
) -> Verdict:
    """The refusal, its words and receipts. `why` is empty when the name alone was refused, as the replay can repeat;
    `where` a killed host was named."""
    try:
        host = canonical_host(question.host)
    except NameRefused:
        host = question.host
    receipt = _receipt(policy, question, decision, host=host)
    receipt["reason"] = cut_text(decision.reason, 120)
    if why:
        receipt["why"] = why
    receipts: list[Fields] = [receipt]
    client = question.client_port
    receipts += kills.contact(policy, decision, host=host, port=question.port, where=where, client=client)
    if swap is not None and swap.tripwire:
        receipts += kills.tripwire(
            policy, credential=swap.credential, where=swap.tripwire, host=host, port=question.port, client=client
        )
    notes = (
        ("message", refusal_words(decision, host, question.port)),
        ("action_", "term" if question.closes else "deny"),
        ("rule_", cut_text(decision.rule, 120)),
    )
    return Verdict(False, notes, tuple(receipts))


def _receipt(policy: Policy, question: Question, decision: Decision, *, host: str) -> dict[str, object]:
    receipt: dict[str, object] = {
        "kind": "decision",
        "action": "allow" if decision.allowed else "deny",
        "host": cut_text(host),
        "port": question.port,
        "method": cut_text(question.method, 32),
        "rule": decision.rule,
        "policy": policy.short_digest,
        "client": question.client_port,
    }
    if question.method != "CONNECT" and question.raw_path and host != CANARY_HOST:
        # A query may hold secrets: it is in the hash alone.
        receipt["path"] = cut_text(split_query(question.raw_path), 160)
        raw = question.raw_path.encode("utf-8", "surrogateescape")
        receipt["path_hash"] = hashlib.sha256(raw).hexdigest()[:16]
    return receipt
