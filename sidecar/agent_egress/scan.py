"""What stands in a stream of bytes that must not: fingerprints of secrets and keys of known kinds, plain, in base64 at
each alignment, in hex and percent-escaped, wherever the stream is cut. Pure. What follows from a finding is not decided
here."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from agent_egress.fingerprints import ANCHOR, MIN_SECRET, Fingerprint
from agent_egress.keykinds import KINDS, PEM_HEAD, PEM_SPAN, Kind

LOOKBACK = 1024
"""Bytes of what went before that are looked at again: longer than whatever is looked for, in any coding."""
MAX_SEEN = 1000
"""Different findings that are told of one stream."""
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_HEX = b"0123456789abcdefABCDEF"
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
_PRINTABLE = bytes(range(0x21, 0x7F))
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def _mask(members: bytes) -> bytes:
    """A table for `translate`: `members` to `x`, everything else to a space."""
    return bytes(ord("x") if code in members else ord(" ") for code in range(256))


# A search over a mask finds runs ten times as fast as an expression over the text.
_BASE64_MASK = _mask(_BASE64 + b"-_")
_HEX_MASK = _mask(_HEX)
_TAIL_MASK = _mask(_BASE64 + b"-_=%\\.~")
"""What a secret in some coding is made of: a stream that ends in it may go on with the rest of one."""
MIN_BASE64 = 24
"""Shorter runs are words more often than not: what has less than 18 bytes is not found in base64."""
MIN_HEX = MIN_SECRET * 2


@dataclass(frozen=True)
class Finding:
    """One thing found; nothing of its text."""

    what: str
    """A kind of key, or the name of a credential."""
    role: str
    """`key`, or the fingerprint's role."""
    coding: str = ""
    """`base64`, `hex` or `percent`; empty when it stands there plainly."""
    hosts: tuple[str, ...] = ()
    """Of a decoy: where it belongs."""


class Patterns:
    """What is looked for, ready to look."""

    def __init__(self, fingerprints: Iterable[Fingerprint] = (), *, kinds: Iterable[Kind] = KINDS) -> None:
        self._anchors: dict[bytes, list[Fingerprint]] = {}
        for fingerprint in fingerprints:
            self._anchors.setdefault(fingerprint.anchor, []).append(fingerprint)
        self._kinds = tuple(kinds)

    def __bool__(self) -> bool:
        return bool(self._anchors or self._kinds)

    def hits(self, text: bytes, *, more: bool, cut: bool = False) -> Iterator[tuple[Finding, int]]:
        """Findings in one text and a number that is the same for the same secret. `more`: the text goes on, so what
        touches its end is not yet whole. `cut`: it began earlier, so what precedes its first byte is not known."""
        taken = set()
        for at, row in self._secrets(text):
            taken.add(at)
            yield Finding(row.name, row.role, hosts=row.hosts), hash(row.digest)
        for kind in self._kinds:
            at = text.find(kind.literal)
            while at >= 0:
                found = kind.at(text, at)
                if found is not None and found.start() not in taken:
                    whole = not (more and found.end() == len(text)) and not (cut and found.start() == 0)
                    if whole:
                        yield Finding(kind.name(found), "key"), hash(found.group()[:48])
                at = text.find(kind.literal, at + 1)

    def _secrets(self, text: bytes) -> Iterator[tuple[int, Fingerprint]]:
        for anchor, rows in self._anchors.items():
            at = text.find(anchor)
            while at >= 0:
                for row in rows:
                    window = text[at : at + row.length]
                    if len(window) == row.length and row.matches(window):
                        yield at, row
                at = text.find(anchor, at + 1)

    def open_from(self, text: bytes) -> int:
        """Where something may begin that the end of the text cuts; its length when nothing does."""
        size = len(text)
        first = size - len(_tail_run(text[-LOOKBACK:]))
        for anchor, rows in self._anchors.items():
            longest = max(row.length for row in rows)
            at = text.find(anchor, max(0, size - 2 * longest))
            while 0 <= at < first:
                # A secret has no blank in it; each escaped slash makes it one longer.
                reach = at + longest + text.count(b"\\/", at)
                if reach > size and not text[at:].translate(None, _PRINTABLE):
                    first = at
                at = text.find(anchor, at + 1)
            for length in range(1, ANCHOR):
                if text.endswith(anchor[:length]):
                    first = min(first, size - length)
        if self._kinds:
            at = text.find(PEM_HEAD, max(0, size - PEM_SPAN))
            first = min(first, at) if at >= 0 else first
        return first


def _tail_run(text: bytes) -> bytes:
    return text[text.translate(_TAIL_MASK).rfind(b" ") + 1 :]


def decoded_views(text: bytes) -> Iterator[tuple[str, bytes]]:
    """The text as it reads in each coding that something of it may be in."""
    escaped = _escaped(text) if b"%" in text else b""
    if escaped:
        yield "percent", unquote_to_bytes(escaped)
    if b"\\/" in text:  # JSON may escape a slash
        yield "", text.replace(b"\\/", b"/")
    runs = b"AAAA".join(_runs(text, _BASE64_MASK, MIN_BASE64)).translate(_URL_SAFE)
    # All runs at once, at each of the four ways to group them: one of them is the coder's own, whatever precedes a run.
    for shift in range(4 if runs else 0):
        size = len(runs) - shift
        yield "base64", binascii.a2b_base64(runs[shift:] + b"A" * (-size % 4))[: size * 6 // 8]
    digits = b"00".join(_runs(text, _HEX_MASK, MIN_HEX))
    for shift in range(2 if digits else 0):
        yield "hex", binascii.a2b_hex(digits[shift : len(digits) - (len(digits) - shift) % 2])


def _runs(text: bytes, mask: bytes, shortest: int) -> Iterator[bytes]:
    marks = text.translate(mask)
    needle = b"x" * shortest
    start = marks.find(needle)
    while start >= 0:
        end = marks.find(b" ", start + shortest)
        end = len(marks) if end < 0 else end
        yield text[start:end]
        start = marks.find(needle, end)


def _escaped(text: bytes) -> bytes:
    """The parts of the text in which something is percent-escaped, with what is around it."""
    parts: list[tuple[int, int]] = []
    for escape in _ESCAPE.finditer(text):
        start, end = max(0, escape.start() - LOOKBACK), escape.end() + LOOKBACK
        if parts and start <= parts[-1][1]:
            start = parts.pop()[0]
        parts.append((start, end))
    return b"\0".join(text[start:end] for start, end in parts)


class Scanner:
    """One stream."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._before = b""
        self._total = 0
        self._seen: set[tuple[str, str, int]] = set()
        self.held = 0
        """Bytes at the end of what was fed with which something may begin that is not yet whole; at most LOOKBACK."""

    def feed(self, data: bytes, *, last: bool = False) -> list[Finding]:
        """What these bytes, after all before them, add. `last`: the stream ends here."""
        text = self._before + data
        cut = self._total > len(self._before)
        self._total += len(data)
        found = [*self._new("", self._patterns.hits(text, more=not last, cut=cut))]
        for coding, view in decoded_views(text):
            found += self._new(coding, self._patterns.hits(view, more=not last))
        self._before = text[-LOOKBACK:]
        self.held = 0 if last else min(LOOKBACK, len(text) - self._patterns.open_from(text))
        return found

    def _new(self, coding: str, hits: Iterable[tuple[Finding, int]]) -> Iterator[Finding]:
        for finding, number in hits:
            # Once, however it is spelled: a view shows what stands there plainly too.
            key = (finding.role, finding.what, number)
            if key not in self._seen and len(self._seen) < MAX_SEEN:
                self._seen.add(key)
                yield Finding(finding.what, finding.role, coding, finding.hosts)
