"""YAML read strictly, as text that a stranger wrote: every node keeps its line, and nothing is guessed.

Owns the bytes: encoding, size, nesting, aliases, duplicate keys, merge keys, and the scalars that YAML 1.1 turns into
something that nobody wrote (`no`, `0644`, `22:22`). What the keys mean is left to `spec_load` and the models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_NODES = 20_000
"""Counted with every alias expanded, so that a small file cannot unfold into a large one."""
MAX_ALIASES = 64
MAX_SHOWN = 60

type_name = {"null": "nothing", "boolean": "a boolean", "number": "a number", "date": "a date", "symbol": "a symbol"}

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"(?i:y|n|yes|no|on|off|true|false)")
_NUMBER = re.compile(
    r"[-+]?[0-9][0-9_]*"  # 7, 0644, 1_000
    r"|[-+]?0[box][0-9a-fA-F_]+"
    r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"  # 22:22 counts in sixties
    r"|[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([Tt\s].*)?")
_SYMBOL = re.compile(r"=|<<")
_KINDS = (("null", _NULL), ("boolean", _BOOLEAN), ("number", _NUMBER), ("date", _DATE), ("symbol", _SYMBOL))
_PLAIN_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_PLAIN_FLOAT = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,17}")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")


class YamlFault(Exception):
    """The bytes cannot be read as YAML at all; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(frozen=True)
class Problem:
    """One mistake: where it stands and what is wrong, in words."""

    line: int
    path: str
    reason: str


@dataclass(frozen=True)
class Unquoted:
    """A bare scalar that YAML reads as something else than its text, in a spelling that no field accepts."""

    text: str


Plain = str | int | float | bool | None | Unquoted | tuple["Plain", ...] | dict[str, "Plain"]
"""What the models are given: lists as tuples, and scalars only in the types that their text spells plainly."""


@dataclass(frozen=True)
class Scalar:
    """A leaf; `bare` when it was written without quotes and so is open to YAML's guesses."""

    text: str
    line: int
    bare: bool
    size: int = 1

    @property
    def kind(self) -> str:
        """What YAML takes the text for: `text`, or one of `type_name`."""
        return _kind(self.text) if self.bare else "text"


@dataclass(frozen=True)
class Seq:
    """A list."""

    items: tuple[Node, ...]
    line: int
    size: int


@dataclass(frozen=True)
class Entry:
    """A value and the line of its key."""

    line: int
    value: Node


@dataclass(frozen=True)
class Map:
    """A mapping; of a key that stands twice, the first entry."""

    entries: dict[str, Entry]
    line: int
    size: int


Node = Scalar | Seq | Map


@dataclass(frozen=True)
class Document:
    """A whole file, and the mistakes that do not hinder reading on."""

    root: Map
    problems: tuple[Problem, ...]


def _kind(text: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(text)), "text")


def shown(text: str, limit: int = MAX_SHOWN) -> str:
    """The text for people, safe on a terminal: one line, escapes spelled out, cut at `limit`."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def to_plain(node: Node) -> Plain:
    """The node as Python values for the models."""
    if isinstance(node, Seq):
        return tuple(to_plain(item) for item in node.items)
    if isinstance(node, Map):
        return {key: to_plain(entry.value) for key, entry in node.entries.items()}
    return _typed(node)


def _typed(scalar: Scalar) -> Plain:
    text, kind = scalar.text, scalar.kind
    if kind == "text":
        return text
    if kind == "null":
        return None
    if text in ("true", "false"):
        return text == "true"
    if _PLAIN_INT.fullmatch(text):
        return int(text)
    if _PLAIN_FLOAT.fullmatch(text):
        return float(text)
    return Unquoted(text)


def decode(data: bytes) -> str:
    """The file's text: UTF-8, a byte-order mark dropped, line ends as `\\n`. Raises: YamlFault."""
    if len(data) > MAX_BYTES:
        raise YamlFault(1, f"the file has {len(data)} bytes; the most is {MAX_BYTES}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:4]:
        raise YamlFault(1, "the file is UTF-16 or UTF-32, or binary; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlFault(line, f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if bad := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        name = "a NUL character" if bad[0] == "\x00" else f"the invisible character U+{ord(bad[0]):04X}"
        raise YamlFault(line, f"{name} is not allowed")
    return text


def load(data: bytes) -> Document:
    """Read one document whose root is a mapping; an empty file is an empty mapping. Raises: YamlFault."""
    text = decode(data)
    composer = _Composer()
    try:
        root = composer.compose(_events(text))
    except yaml.MarkedYAMLError as error:
        raise _fault(error, text) from None
    except yaml.YAMLError as error:
        raise YamlFault(1, shown(str(error), 200)) from None
    if root is None or (isinstance(root, Scalar) and root.kind == "null"):
        root = Map({}, 1, 1)
    if not isinstance(root, Map):
        found = "a list" if isinstance(root, Seq) else "one bare value"
        raise YamlFault(root.line, f"found {found}, expected `key: value` lines")
    return Document(root, tuple(composer.problems))


def _events(text: str) -> Iterator[yaml.Event]:
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    return yaml.parse(text, Loader=loader)


def _fault(error: yaml.MarkedYAMLError, text: str) -> YamlFault:
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark else 1
    lines = text.split("\n")
    line = lines[number - 1] if number <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "\\t" in (error.problem or ""):
        return YamlFault(number, "a tab stands where YAML wants spaces")
    reason = ", ".join(part for part in (error.context, error.problem) if part)
    return YamlFault(number, f"not valid YAML: {shown(reason, 200)}")


@dataclass
class _Open:
    """A list or mapping whose end has not come yet."""

    line: int
    path: str
    anchor: str | None
    is_map: bool
    size: int = 1
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    key: tuple[str, int] | None = None

    def here(self) -> str:
        """The path of the node that comes next."""
        if not self.is_map:
            return f"{self.path}[{len(self.items)}]"
        key = self.key[0] if self.key else ""
        return f"{self.path}.{key}" if self.path else key


class _Composer:
    """Builds nodes from events without recursion, counting as it goes."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node | None] = {}
        self.aliases = 0
        self.nodes = 0
        self.stack: list[_Open] = []
        self.root: Node | None = None
        self.documents = 0

    def compose(self, events: Iterator[yaml.Event]) -> Node | None:
        """Consume the events of one file."""
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise YamlFault(line, "a second document begins here; one file holds one")
            elif isinstance(event, yaml.AliasEvent):
                self._add(self._alias(event.anchor, line), line)
            elif isinstance(event, yaml.ScalarEvent):
                self._check_tag(event.tag, line)
                bare = event.style is None or event.style == ""
                node = Scalar(event.value, line, bare)
                self._remember(event.anchor, node)
                self._add(node, line)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._start(event, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._end()
        return self.root

    def _start(self, event: yaml.CollectionStartEvent, line: int) -> None:
        self._check_tag(event.tag, line)
        if self._expects_key():
            raise YamlFault(line, "a list or mapping stands where a key is expected (an unquoted `{` or `[`?)")
        if len(self.stack) >= MAX_DEPTH:
            raise YamlFault(line, f"nested more than {MAX_DEPTH} levels deep")
        path = self.stack[-1].here() if self.stack else ""
        self._remember(event.anchor, None)
        self.stack.append(_Open(line, path, event.anchor, isinstance(event, yaml.MappingStartEvent)))

    def _end(self) -> None:
        done = self.stack.pop()
        items = tuple(done.items)
        node = Map(done.entries, done.line, done.size) if done.is_map else Seq(items, done.line, done.size)
        self._remember(done.anchor, node)
        self._add(node, done.line)

    def _remember(self, anchor: str | None, node: Node | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = node

    def _check_tag(self, tag: str | None, line: int) -> None:
        if tag is not None:
            raise YamlFault(line, f"the tag {shown(tag)} is not supported; quote text instead")

    def _alias(self, anchor: str | None, line: int) -> Node:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise YamlFault(line, f"more than {MAX_ALIASES} aliases (`*name`)")
        node = self.anchors.get(anchor) if anchor is not None else None
        if node is None:
            raise YamlFault(line, f"the alias *{shown(anchor or '')} stands inside its own anchor")
        if node.size > MAX_NODES:
            raise YamlFault(line, f"aliases unfold into more than {MAX_NODES} values")
        return node

    def _expects_key(self) -> bool:
        return bool(self.stack) and self.stack[-1].is_map and self.stack[-1].key is None

    def _add(self, node: Node, line: int) -> None:
        if not self.stack:
            self.root = node
            return
        if isinstance(node, Scalar) and "\x00" in node.text:
            raise YamlFault(line, "a NUL character is not allowed")
        top = self.stack[-1]
        if self._expects_key():
            if not isinstance(node, Scalar):
                raise YamlFault(line, "a list or mapping stands where a key is expected")
            top.key = (node.text, line)
            return
        top.size += node.size
        if top.size > MAX_NODES:
            raise YamlFault(line, f"more than {MAX_NODES} values, aliases unfolded")
        if top.key is None:
            top.items.append(node)
        else:
            self._enter(top, top.key, node)
            top.key = None

    def _enter(self, top: _Open, key: tuple[str, int], node: Node) -> None:
        name, line = key
        path = shown(top.here(), 200)
        if name == "<<":
            self.problems.append(Problem(line, path, "merge keys (`<<`) are not supported; write the keys out"))
        elif name in top.entries:
            first = top.entries[name].line
            self.problems.append(Problem(line, path, f"the key stands twice, on lines {first} and {line}"))
        else:
            top.entries[name] = Entry(line, node)
