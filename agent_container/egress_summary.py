"""What a session's receipts amount to: the egress half of a record, and the events that a reader wants to see.

Pure. Whether the receipts are genuine is for `agent_egress.receipts.verify_chain`; this counts whatever is there and
raises nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from agent_container.events import EgressDenied, EgressFinding, EgressTripwire, Event
from agent_container.records import Egress, HostCount, Refusal, ScanFinding, Tripwire
from agent_egress.kills import KIND, kill_words
from agent_egress.receipts import ChainReport, parse_receipt

TOP_HOSTS = 20
MAX_REFUSALS = 100
MAX_TRACKED = 5_000
"""Distinct hosts and refusals that are counted one by one: an agent can invent names without end."""
LEAST = 2
OTHERS = "(others)"
_ALARMS = frozenset({"tripwire", KIND})
SCANNED = "dlp"
MAX_CORE = 500
"""Receipts that may stand before the end of the core."""
OWN_HOSTS = ".agent-container.invalid"

Receipt = dict[str, object]


@dataclass
class _Counts:
    receipts: int = 0
    allowed: int = 0
    denied: int = 0
    lookups_denied: int = 0
    dropped: int = 0
    bytes: int = 0
    named: frozenset[str] = frozenset()
    hosts: dict[str, list[int]] = field(default_factory=dict)
    """Allowed, denied, bytes up, bytes down."""
    refusals: dict[tuple[str, int | None, str, str], list[int]] = field(default_factory=dict)
    """Rank, count."""
    tripwires: list[Tripwire] = field(default_factory=list)
    findings: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    """By host, direction, what and action."""


def summarise(lines: Iterable[bytes], *, report: ChainReport | None = None, hosts: Collection[str] = ()) -> Egress:
    """The egress object of a record; `report` is what the chain's verification said. `hosts` are counted and listed
    whatever else there was, and so are refusals for the session's budget: why a run ended is not for its agent to hide
    behind noise."""
    counts = _Counts(named=frozenset(hosts))
    for line in lines:
        receipt = parse_receipt(line.removesuffix(b"\n"))
        if receipt is None:
            continue
        if _ends_core(receipt):
            counts = _Counts(receipts=counts.receipts, named=counts.named)
        _count(counts, receipt)
    by_count = sorted(counts.hosts.items(), key=lambda row: (-sum(row[1][:2]), row[0]))
    top = sorted(by_count, key=lambda row: row[0] not in counts.named)[:TOP_HOSTS]
    ranked = sorted(counts.refusals.items(), key=lambda row: (row[1][0], -row[1][1], str(row[0])))[:MAX_REFUSALS]
    refusals = sorted(ranked, key=lambda row: -row[1][1])
    return Egress(
        receipts=counts.receipts,
        decisions=counts.allowed + counts.denied,
        allowed=counts.allowed,
        denied=counts.denied,
        lookups_denied=counts.lookups_denied,
        packets_dropped=counts.dropped,
        bytes=counts.bytes or None,
        top_hosts=tuple(
            HostCount(host=host, allowed=yes, denied=no, bytes_up=up, bytes_down=down)
            for host, (yes, no, up, down) in sorted(top, key=by_count.index)
        ),
        refusals=tuple(
            Refusal(host=host, port=port, rule=rule, layer=layer, count=count)
            for (host, port, rule, layer), (_, count) in refusals
        ),
        tripwires=tuple(counts.tripwires),
        findings=tuple(
            ScanFinding(host=host, direction=direction, what=what, action=action, count=count)
            for (host, direction, what, action), count in sorted(counts.findings.items())[:MAX_REFUSALS]
        ),
        chain_head=report.head if report and report.length else None,
        chain_length=report.length if report else 0,
        sealed=bool(report and report.sealed),
        verified=_verified(report),
    )


def egress_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """An event for every refusal, tripwire and finding of the scanner among the receipts, in their order."""
    for receipt in _the_agents(filter(None, (parse_receipt(line.removesuffix(b"\n")) for line in lines))):
        if _is_own(receipt):
            continue
        at = _when(receipt)
        refused = _refusal(receipt)
        if refused is not None:
            host, port, rule, layer = refused
            yield EgressDenied(at=at, host=host, port=port, rule=rule, layer=layer, count=_number(receipt, "count", 1))
        elif receipt["kind"] == SCANNED:
            host, direction, what, action = _finding(receipt)
            count = _number(receipt, "count", 1)
            yield EgressFinding(at=at, host=host, direction=direction, what=what, action=action, count=count)
        elif receipt["kind"] in _ALARMS:
            wire = _tripwire(receipt)
            yield EgressTripwire(at=at, host=wire.host, detail=wire.detail)


def _ends_core(receipt: Receipt) -> bool:
    """Whether the tool's own attempts to get out end here: what stands before it was refused to no agent, since there
    was none."""
    return receipt.get("kind") == "canary" and "core" in receipt


def _the_agents(receipts: Iterable[Receipt]) -> Iterator[Receipt]:
    """Without what the tool tried itself before the agent was started."""
    held: list[Receipt] | None = []
    for receipt in receipts:
        if held is None:
            yield receipt
        elif _ends_core(receipt):
            held = None
        else:
            held.append(receipt)
            if len(held) > MAX_CORE:  # a session that began without
                yield from held
                held = None
    yield from held or ()


def _is_own(receipt: Receipt) -> bool:
    """Whether it is the sidecar's own check of itself: part of the chain, and not of what the agent did."""
    host = _text(receipt, "host") or _text(receipt, "name")
    return host.endswith(OWN_HOSTS)


def _count(counts: _Counts, receipt: Receipt) -> None:
    counts.receipts += 1
    if _is_own(receipt):
        return
    kind, times = receipt["kind"], _number(receipt, "count", 1)
    if kind == "decision":
        allowed = receipt.get("action") == "allow"
        counts.allowed += times if allowed else 0
        counts.denied += 0 if allowed else times
        _host(counts, receipt)[0 if allowed else 1] += times
    elif kind == "transfer":
        row, up, down = _host(counts, receipt), _number(receipt, "up", 0), _number(receipt, "down", 0)
        row[2], row[3] = row[2] + up, row[3] + down
        counts.bytes += up + down
    elif kind == "lookup" and receipt.get("action") == "deny":
        counts.lookups_denied += times
    elif kind == "drop":
        counts.dropped += times
    elif kind == SCANNED:
        found = _finding(receipt)
        if found in counts.findings or len(counts.findings) < MAX_TRACKED:
            counts.findings[found] = counts.findings.get(found, 0) + times
    elif kind == KIND or (kind == "tripwire" and len(counts.tripwires) < MAX_REFUSALS):
        counts.tripwires.append(_tripwire(receipt))
    refused = _refusal(receipt)
    if refused is not None:
        rank = _rank(counts, receipt, refused)
        room = MAX_TRACKED * (LEAST - rank + 1)
        key = refused if refused in counts.refusals or len(counts.refusals) < room else (OTHERS, None, "", refused[3])
        counts.refusals.setdefault(key, [rank, 0])[1] += times


def _rank(counts: _Counts, receipt: Receipt, refused: tuple[str, int | None, str, str]) -> int:
    """How much a reader needs it: those that the agent can invent come last."""
    if receipt.get("why") == "budget":
        return 0
    return 1 if refused[0] in counts.named else LEAST


def _host(counts: _Counts, receipt: Receipt) -> list[int]:
    host = _text(receipt, "host") or OTHERS
    if host not in counts.hosts and len(counts.hosts) >= MAX_TRACKED and host not in counts.named:
        host = OTHERS
    return counts.hosts.setdefault(host, [0, 0, 0, 0])


def _refusal(receipt: Receipt) -> tuple[str, int | None, str, str] | None:
    kind = receipt["kind"]
    if kind == "drop":
        port = receipt.get("port")
        return (
            _text(receipt, "address") or OTHERS,
            port if isinstance(port, int) else None,
            _text(receipt, "proto"),
            "drop",
        )
    if kind not in ("decision", "lookup", "git") or receipt.get("action") != "deny":
        return None
    port = receipt.get("port")
    # The rule decided by name; what was refused for something else (a path, a decoy) says so in its reason.
    # A rule that allows the host on other ports has not refused it either, nor has one that opens a repository.
    opens = _text(receipt, "rule").startswith(("allow ", "git "))
    rule = "" if receipt.get("why") or opens else _text(receipt, "rule")
    why = rule or _text(receipt, "reason") or _text(receipt, "why")
    host = _text(receipt, "name" if kind == "lookup" else "host") or OTHERS
    return host, port if isinstance(port, int) else None, why, str(kind)


def _finding(receipt: Receipt) -> tuple[str, str, str, str]:
    coding = _text(receipt, "coding")
    what = f"{_text(receipt, 'what')}{f' in {coding}' if coding else ''}"
    return _text(receipt, "host"), _text(receipt, "direction"), what, _text(receipt, "action")


def _tripwire(receipt: Receipt) -> Tripwire:
    known = {"seq", "t", "kind", "mac", "host", "prev"}
    rest = "; ".join(f"{key} {value}" for key, value in receipt.items() if key not in known)
    detail = f"session ended: {kill_words(receipt)}" if receipt["kind"] == KIND else rest
    return Tripwire(host=_text(receipt, "host"), detail=detail[:512])


def killed_by(lines: Iterable[bytes]) -> str:
    """Why the session was ended by a `kill`, in words; empty when it was not, or its user restored it since."""
    words = ""
    for line in lines:
        if b'"kill"' not in line and b'"restore"' not in line:
            continue
        receipt = parse_receipt(line.removesuffix(b"\n"))
        if receipt is not None and receipt["kind"] in {KIND, "restore"}:
            words = kill_words(receipt) if receipt["kind"] == KIND else ""
    return words


def _verified(report: ChainReport | None) -> Literal["verified", "tampered", "unverifiable", "not-checked"]:
    if report is None:
        return "not-checked"
    if report.status == "verified":
        return "verified"
    return "tampered" if report.status == "tampered" else "unverifiable"


def _when(receipt: Receipt) -> datetime | None:
    moment = receipt.get("t")
    try:
        return datetime.fromtimestamp(moment / 1000, UTC) if isinstance(moment, int) else None
    except (OverflowError, OSError, ValueError):
        return None


def _text(receipt: Receipt, key: str) -> str:
    value = receipt.get(key)
    return value[:512] if isinstance(value, str) else ""


def _number(receipt: Receipt, key: str, default: int) -> int:
    value = receipt.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else default
