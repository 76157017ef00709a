"""The audit chain: how a receipt is encoded and linked, the writer's state, and the verification of a whole chain.

A receipt is one line of JSON, at most 1 KiB: `seq` (from 1), `t` (UTC, ms), `kind`, the kind's own fields, and last
`mac`. The MAC is HMAC-SHA256, keyed by this receipt's key, over the previous receipt's MAC (hex; 64 zeros before the
first) and the line's bytes without `,"mac":"..."`. Receipt n+1's key is SHA256("ratchet" || key n), and the writer
forgets key n, so that who takes the writer over later cannot rewrite what it wrote before. The host keeps the first
key. Files, sockets and clocks are `audit`'s; what the receipts say is checked in `replay`."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from agent_egress.identity import MAX_RECEIPT_BYTES

Fields = Mapping[str, object]

KINDS = frozenset(
    {
        "open",
        "policy",
        "decision",
        "git",
        "lookup",
        "answer",
        "connection",
        "transfer",
        "drop",
        "tripwire",
        "kill",
        "dlp",
        "cut",
        "restore",
        "deadline",
        "canary",
        "seal",
    }
)
ZERO_MAC = "0" * 64
RESERVE = 200
"""Receipts past the cap that are kept for how the session ends."""
MAX_FAULTS = 200
MAX_GAP = 5_000_000
_RESERVED_KINDS = frozenset({"policy", "connection", "drop", "tripwire", "kill", "cut", "restore", "deadline", "seal"})
_OWN_KEYS = frozenset({"seq", "t", "kind", "mac"})
_REPLAYED = frozenset({"action", "host", "name", "rule", "policy", "address", "service", "user", "repo", "ref"})
"""Texts that a verification decides by: cut short, what was written truly would read as a lie."""
_MAC_TAIL = re.compile(rb',"mac":"([0-9a-f]{64})"\}\Z')
_TAIL_BYTES = 74
_BLOCK = 64
_INNER, _OUTER = bytes(byte ^ 0x36 for byte in range(256)), bytes(byte ^ 0x5C for byte in range(256))
_MAX_TEXT = 256
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # made once: half the cost of `json.dumps`
_scan = json.JSONDecoder().raw_decode


class ReceiptRefused(ValueError):
    """A receipt that cannot be written as asked."""


class ChainFull(ReceiptRefused):
    """The chain's cap is reached: from here on nothing may be allowed."""


class ChainSealed(ReceiptRefused):
    """Nothing follows a seal."""


@dataclass(frozen=True)
class Checkpoint:
    """The last chain head that the host has verified."""

    length: int
    head: str


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a chain."""

    line: int
    """From 1; 0 when it concerns the chain as a whole."""
    kind: str
    detail: str


@dataclass(frozen=True)
class ChainReport:
    """What can be said of a chain."""

    status: str
    """`verified`, `tampered`, or `unverifiable` (unsealed, another key, nothing there)."""
    length: int
    """Receipts from the first on, without a gap, that are vouched for."""
    head: str
    """The MAC of the last of them; 64 zeros when there is none."""
    sealed: bool
    faults: tuple[Fault, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Receipts by kind, and events by `kind.action` (a collapsed receipt counts for all that it stands for)."""
    digests: tuple[str, ...] = ()
    """Policies that were in force, in order."""

    @property
    def checkpoint(self) -> Checkpoint:
        """What the host keeps for the next verification."""
        return Checkpoint(length=self.length, head=self.head)


def key_commitment(key: bytes) -> str:
    """The public name of a chain key, in the chain's first receipt."""
    return hashlib.sha256(b"commit" + key).hexdigest()


def next_key(key: bytes) -> bytes:
    """The key of the next receipt."""
    return hashlib.sha256(b"ratchet" + key).digest()


def _mac(key: bytes, previous: str, body: bytes) -> str:
    """HMAC-SHA256 as RFC 2104 has it, of a key of at most one block: a third of what `hmac.digest` takes."""
    block = key.ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(block.translate(_INNER) + previous.encode("ascii") + body).digest()
    return hashlib.sha256(block.translate(_OUTER) + inner).hexdigest()


def cut_text(text: str, limit: int = _MAX_TEXT) -> str:
    """The text, or its beginning and the first 16 hex digits of its SHA-256: a receipt has a bound, and hides no
    rest."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{text[: limit - 26]}...sha256:{digest}"


def encode_body(seq: int, t_ms: int, fields: Fields) -> bytes:
    """The line without its MAC and newline. Control bytes and all beyond ASCII are escaped by JSON.

    Raises:
        ReceiptRefused: an unknown kind, a reserved key, or more than 1 KiB even with texts cut.
    """
    kind = fields.get("kind")
    if kind not in KINDS:
        raise ReceiptRefused(f"unknown kind {kind!r:.40}")
    document: dict[str, object] = {"seq": seq, "t": t_ms, "kind": kind}
    for key, value in fields.items():
        if key not in _OWN_KEYS:
            document[key] = cut_text(value) if isinstance(value, str) else value
        elif key != "kind":
            raise ReceiptRefused(f"{key!r} is the writer's own")
    body = _dump(document)
    # No name that a policy can allow is too long for the second try; the third is for those that none can.
    for kept in (_REPLAYED, frozenset[str]()):
        if len(body) + _TAIL_BYTES <= MAX_RECEIPT_BYTES:
            return body
        for key, value in document.items():
            if isinstance(value, str) and key not in kept:
                document[key] = cut_text(value.encode("ascii", "backslashreplace").decode("ascii"), 64)
        body = _dump(document)
    if len(body) + _TAIL_BYTES > MAX_RECEIPT_BYTES:
        raise ReceiptRefused(f"a {kind} receipt of more than {MAX_RECEIPT_BYTES} bytes")
    return body


def _dump(document: dict[str, object]) -> bytes:
    try:
        return _ENCODER.encode(document).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ReceiptRefused(f"not JSON: {error}") from error


def tally(counts: dict[str, int], fields: Fields) -> None:
    """Adds one receipt to the totals, as writer and verifier both count them."""
    kind = str(fields.get("kind"))
    counts[kind] = counts.get(kind, 0) + 1
    action = fields.get("action")
    if isinstance(action, str):
        count = fields.get("count", 1)
        events = count if isinstance(count, int) and not isinstance(count, bool) else 1
        name = f"{kind}.{action}"
        counts[name] = counts.get(name, 0) + events


class Writer:
    """The chain's growing end: numbers, links and counts receipts. Writes nothing itself, so `rollback` can undo a
    batch that did not reach the disk."""

    def __init__(self, *, key: bytes, max_receipts: int = 2_000_000) -> None:
        if len(key) != 32:
            raise ReceiptRefused("a chain key has 32 bytes")
        self.max_receipts = max_receipts
        self.length = 0
        self.head = ZERO_MAC
        self.sealed = False
        self.counts: dict[str, int] = {}
        self._key = key
        self._before = (0, ZERO_MAC, False, self.counts, key)

    def append(self, receipts: Sequence[Fields], *, t_ms: int) -> bytes:
        """The lines of a batch, newlines included; all of it or none.

        Raises:
            ReceiptRefused: see `encode_body`; ChainSealed; ChainFull.
        """
        if self.sealed:
            raise ChainSealed("the chain is sealed")
        length, head, key, counts, sealed = self.length, self.head, self._key, dict(self.counts), False
        lines = []
        for fields in receipts:
            if length >= self.max_receipts and (
                fields.get("kind") not in _RESERVED_KINDS or length >= self.max_receipts + RESERVE
            ):
                raise ChainFull(f"the chain is full at {length} receipts")
            if sealed:
                raise ChainSealed("nothing follows a seal")
            length += 1
            body = encode_body(length, t_ms, fields)
            head = _mac(key, head, body)
            lines.append(body[:-1] + b',"mac":"' + head.encode("ascii") + b'"}\n')
            key = next_key(key)
            tally(counts, fields)
            sealed = fields.get("kind") == "seal"
        self._before = (self.length, self.head, self.sealed, self.counts, self._key)
        self.length, self.head, self.sealed, self.counts, self._key = length, head, sealed, counts, key
        return b"".join(lines)

    def commit(self) -> None:
        """Forgets the key of what is written now (Python cannot promise to wipe it: it drops the last reference)."""
        self._before = (self.length, self.head, self.sealed, self.counts, self._key)

    def rollback(self) -> None:
        """Undoes the last batch: its bytes did not reach the disk."""
        self.length, self.head, self.sealed, self.counts, self._key = self._before

    def resume(self, lines: Iterable[bytes]) -> None:
        """Continues a chain begun with the same key. Raises: ReceiptRefused, unless it is whole and unsealed."""
        verifier = _Verifier(self._key)
        for line in lines:
            verifier.add(line)
        if verifier.faults or verifier.sealed or not verifier.length:
            raise ReceiptRefused("the chain on disk is not one that can be continued")
        self.length, self.head, self.counts, self._key = (
            verifier.length,
            verifier.previous or ZERO_MAC,
            verifier.counts,
            verifier.key,
        )
        self.commit()


def open_receipt(*, session: str, policy_digest: str, key: bytes, previous_head: str = "") -> Fields:
    """The chain's first receipt; `previous_head` links a segment to the one that it continues."""
    fields = {"kind": "open", "version": 1, "session": session, "policy": policy_digest, "key": key_commitment(key)}
    return {**fields, "previous": previous_head} if previous_head else fields


def seal_receipt(writer: Writer, *, outcome: str) -> Fields:
    """The chain's last receipt: the totals of all before it."""
    return {"kind": "seal", "outcome": outcome, "length": writer.length, "totals": dict(sorted(writer.counts.items()))}


def parse_receipt(line: bytes) -> dict[str, object] | None:
    """One line's fields, unverified; None when it is no receipt."""
    if len(line) > MAX_RECEIPT_BYTES + 1:
        return None
    try:
        text = line.decode("ascii")
        document, end = _scan(text)  # half the cost of `json.loads`, which is asked where this is not all of it
        if end != len(text):
            document = json.loads(line)
    except (ValueError, RecursionError):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return None
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return None
    seq = document.get("seq")
    return document if isinstance(seq, int) and not isinstance(seq, bool) and seq > 0 else None


class _Verifier:
    """The verification's state, line by line."""

    def __init__(self, key: bytes, *, observe: Callable[[Fields], None] | None = None) -> None:
        self.key = key
        self._observe = observe
        self.commitment = key_commitment(key)
        self.lines = self.expected = 0
        self.previous: str | None = ZERO_MAC
        self.other: str | None = None
        self.length, self.head = 0, ZERO_MAC
        self.whole, self.sealed, self.torn, self.any_good, self.wrong_key = True, False, False, False, False
        self.checkpoint: Checkpoint | None = None
        self.at_checkpoint: str | None = None
        self.faults: list[Fault] = []
        self.counts: dict[str, int] = {}
        self.digests: list[str] = []
        self.missing: set[int] = set()
        self.expected = 1

    def fault(self, kind: str, detail: str) -> None:
        self.whole = False
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(self.lines, kind, detail))

    def add(self, line: bytes) -> None:
        """One more line. The next link of a sound chain takes the short way, everything else the long one."""
        raw = line.removesuffix(b"\n")
        if self.previous is not None and self.other is None and not self.sealed and len(raw) > _TAIL_BYTES:
            mac = _mac(self.key, self.previous, raw[:-_TAIL_BYTES] + b"}")
            if raw.endswith(f',"mac":"{mac}"}}'.encode("ascii")):
                fields = parse_receipt(raw)
                if fields is not None and fields["seq"] == self.expected:
                    self.lines += 1
                    self.torn, self.any_good = False, True
                    if self._observe is not None:
                        self._observe(fields)
                    self.previous = mac
                    self.key = next_key(self.key)
                    self.expected += 1
                    self._accept(fields, self.expected - 1, mac)
                    return
        self._add_odd(raw)

    def _add_odd(self, raw: bytes) -> None:
        self.lines += 1
        tail = _MAC_TAIL.search(raw[-_TAIL_BYTES:]) if len(raw) > _TAIL_BYTES else None
        fields = parse_receipt(raw) if tail else None
        self.torn = tail is None or fields is None
        if tail is None or fields is None:
            self.fault("not-json", "not a receipt")
            return
        if self._observe is not None:
            self._observe(fields)
        seq = fields["seq"]
        mac = tail.group(1).decode("ascii")
        if self.sealed:
            self.fault("after-seal", "stands after the seal")
        if not isinstance(seq, int) or not self._in_order(seq):
            return
        body = raw[:-_TAIL_BYTES] + b"}"
        computed = "" if self.previous is None else _mac(self.key, self.previous, body)
        good = self.previous is None or hmac.compare_digest(computed, mac)
        if not good and self.other is not None:
            # Only the MAC of the line before was changed: this line still proves itself by what that MAC should be.
            good = hmac.compare_digest(_mac(self.key, self.other, body), mac)
        if seq == 1 and not good and fields.get("key") not in {None, self.commitment}:
            self.wrong_key = True
        if not good:
            self.fault("bad-mac", f"receipt {seq} was changed")
        self.any_good = self.any_good or (good and self.previous is not None)
        self.previous, self.other = mac, None if good else computed or None
        self.key = next_key(self.key)
        self.expected = seq + 1
        self._accept(fields, seq, mac)

    def _in_order(self, seq: int) -> bool:
        if seq < self.expected:
            if seq in self.missing:
                self.missing.discard(seq)
                self.fault("reorder", f"receipt {seq} stands out of order")
            else:
                self.fault("duplicate", f"receipt {seq} stands twice (copied, or a second writer)")
            return False
        gap = seq - self.expected
        if gap > MAX_GAP:
            self.fault("gap", f"receipt {self.expected} expected, found {seq}")
            return False
        if gap:
            self.fault("gap", f"{gap} missing before receipt {seq}")
            self.missing.update(range(self.expected, min(seq, self.expected + 100_000)))
            for _ in range(gap):
                self.key = next_key(self.key)
            self.previous = self.other = None
        return True

    def _accept(self, fields: dict[str, object], seq: int, mac: str) -> None:
        if self.checkpoint is not None and seq == self.checkpoint.length:
            self.at_checkpoint = mac
        kind = fields["kind"]
        if kind == "seal":
            self.sealed = True
            # After a gap they cannot agree, and the gap is what is reported.
            if self.whole and (fields.get("length") != seq - 1 or fields.get("totals") != self.counts):
                self.fault("bad-totals", "the seal's totals are not those of the chain")
        if (kind == "open") != (seq == 1):
            self.fault("gap", "a chain begins with its one `open` receipt")
        digest = fields.get("policy")
        if kind in {"open", "policy"} and isinstance(digest, str):
            self.digests.append(digest)
        tally(self.counts, fields)
        if self.whole:
            self.length, self.head = seq, mac


def verify_chain(
    lines: Iterable[bytes],
    *,
    key: bytes,
    checkpoint: Checkpoint | None = None,
    observe: Callable[[Fields], None] | None = None,
) -> ChainReport:
    """Every link from the first, no gap, no cut tail, sealed. Never raises on what the lines hold. `observe` is shown
    every receipt, genuine or not, as it stands in the lines.

    Fault kinds: bad-mac, gap, duplicate, reorder, cut-tail, missing-seal, not-json, wrong-key, behind-checkpoint,
    after-seal, bad-totals. A half line at the end of an unsealed chain is how a crash looks, and makes it
    unverifiable, not tampered."""
    state = _Verifier(key, observe=observe)
    state.checkpoint = checkpoint
    for line in lines:
        if line.strip():
            state.add(line)
    benign = {"missing-seal"}
    if state.torn and not state.sealed and state.faults and state.faults[-1].kind == "not-json":
        last = state.faults.pop()
        state.faults.append(Fault(last.line, "not-json", "half a line at the end"))
        if not any(fault.kind == "not-json" for fault in state.faults[:-1]):
            benign.add("not-json")
    reached = checkpoint is not None and checkpoint.length > 0
    if state.wrong_key and not state.any_good:
        # Every MAC fails, and the chain itself names another key: nothing can be said, unless it was verified before.
        faults = [Fault(1, "wrong-key", "the chain was written with another key")]
        status = "tampered" if reached else "unverifiable"
        return ChainReport(status, 0, ZERO_MAC, False, tuple(faults), MappingProxyType(state.counts), ())
    if checkpoint is not None and reached:
        last_seq = state.expected - 1
        if last_seq < checkpoint.length:
            state.faults.append(Fault(0, "cut-tail", f"{checkpoint.length - last_seq} missing at the end"))
        elif state.at_checkpoint is not None and state.at_checkpoint != checkpoint.head:
            state.faults.append(
                Fault(0, "behind-checkpoint", f"receipt {checkpoint.length} is not the one verified before")
            )
    if not state.sealed:
        detail = f"nothing past receipt {state.length} is vouched for" if state.length else "nothing there"
        state.faults.append(Fault(0, "missing-seal", detail))
    kinds = {fault.kind for fault in state.faults}
    status = "verified" if not kinds else ("unverifiable" if kinds <= benign else "tampered")
    return ChainReport(
        status=status,
        length=state.length,
        head=state.head,
        sealed=state.sealed,
        faults=tuple(state.faults),
        counts=MappingProxyType(state.counts),
        digests=tuple(dict.fromkeys(state.digests)),
    )
