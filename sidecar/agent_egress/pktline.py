"""The commands of a push, read from the client's own bytes before any of them goes out (gitprotocol-pack(5),
gitprotocol-common(5)): pkt-lines up to the first flush. What they ask for is judged by `gateway_policy`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_HEAD = 1024 * 1024
MAX_COMMANDS = 500
_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CAPABILITIES = frozenset(
    {"agent", "atomic", "delete-refs", "object-format", "ofs-delta", "quiet"}
    | {"report-status", "report-status-v2", "session-id", "side-band-64k"}
)
"""What a push may ask of the server, by the name before any `=` (gitprotocol-capabilities(5)): a server may act on push
options, and what a later git invents is judged before it passes."""
_FLUSH = 0
_HEADER = 4


class PushRefused(ValueError):
    """What is no push, or one of a kind that is not let through."""


@dataclass(frozen=True)
class Command:
    """One ref to be made, moved or deleted."""

    old: str
    new: str
    ref: str

    @property
    def deletes(self) -> bool:
        """Whether the ref is to go."""
        return not self.new.strip("0")


@dataclass
class PushHead:
    """The beginning of a push as it arrives: `feed` until it is complete, then `raw` is all that was held back."""

    raw: bytearray = field(default_factory=bytearray)
    commands: list[Command] = field(default_factory=list)
    complete: bool = False
    _at: int = 0

    def feed(self, data: bytes) -> bool:
        """Takes bytes in; whether all commands are there. Raises: PushRefused."""
        self.raw += data
        while not self.complete and len(self.raw) - self._at >= _HEADER:
            head = bytes(self.raw[self._at : self._at + _HEADER])
            if not _LENGTH.fullmatch(head):
                raise PushRefused("not the beginning of a push")
            length = int(head, 16)
            if length == _FLUSH:
                self.complete = True
                break
            if length <= _HEADER:
                raise PushRefused("a kind of pkt-line that no push has")
            if self._at + length > MAX_HEAD:
                raise PushRefused("too many refs in one push")
            if len(self.raw) - self._at < length:
                break
            self._line(bytes(self.raw[self._at + _HEADER : self._at + length]))
            self._at += length
        return self.complete

    def _line(self, line: bytes) -> None:
        text, zero, capabilities = line.partition(b"\0")
        if zero and self.commands:
            raise PushRefused("capabilities stand twice")
        asked = {word.partition("=")[0] for word in capabilities.decode("utf-8", "replace").split()}
        if "push-options" in asked:
            raise PushRefused("push options are not let through: a server may act on them")
        if unknown := sorted(asked - _CAPABILITIES):
            raise PushRefused(f"a push that asks for {unknown[0]!r:.80} is not let through")
        words = text.removesuffix(b"\n").decode("utf-8", "replace")
        if words.startswith("push-cert"):
            raise PushRefused("signed pushes are not let through")
        kind, _, rest = words.partition(" ")
        if kind == "shallow" and not zero and not self.commands:
            _object(rest)
            return
        new, _, ref = rest.partition(" ")
        if len(self.commands) >= MAX_COMMANDS:
            raise PushRefused("too many refs in one push")
        self.commands.append(Command(_object(kind), _object(new), ref))


def _object(text: str) -> str:
    if not _OBJECT.fullmatch(text):
        raise PushRefused(f"{text!r:.50} is no object's name")
    return text
