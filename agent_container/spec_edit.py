"""Edits of a spec's text that leave everything else in it as its user wrote it: comments, order, layout. One entry goes
into or out of one list under `egress`. The result is parsed and compared: an edit that would say anything but what was
asked for is not made."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from agent_container.errors import UsageError
from agent_egress.names import NameRefused, canonical_pattern

Node = yaml.nodes.Node
Mapping = yaml.nodes.MappingNode
Sequence = yaml.nodes.SequenceNode


@dataclass(frozen=True)
class Entry:
    """One entry of an egress list."""

    host: str
    ports: tuple[int, ...] = ()
    """None for the usual ones."""
    addresses: tuple[str, ...] = ()

    @property
    def value(self) -> object:
        """As the spec's YAML means it."""
        if not self.ports and not self.addresses:
            return self.host
        value: dict[str, object] = {"host": self.host}
        if self.addresses:
            value["addresses"] = list(self.addresses)
        if self.ports:
            value["ports"] = list(self.ports)
        return value

    @property
    def text(self) -> str:
        """As the spec writes it, on one line."""
        text = yaml.safe_dump(self.value, default_flow_style=True, width=10**6, sort_keys=False).strip()
        return text.removesuffix("...").strip()


def add_entry(body: str, key: str, entry: Entry) -> str:
    """The text with one more entry in `egress.KEY`. Raises: UsageError with the line to write by hand."""
    before = _load(body)
    lists = _egress_of(before)
    wanted = _with(before, key, [*(lists.get(key) or []), entry.value])
    return _checked(_add(body, key, entry), wanted, f"add it by hand, under egress: {key}: `- {entry.text}`")


def remove_entries(body: str, key: str, host: str) -> str:
    """The text without the entries of `egress.KEY` over this canonical pattern; the same text where there is none.

    Raises: UsageError with what to do by hand.
    """
    before = _load(body)
    there = _egress_of(before).get(key) or []
    left = [value for value in there if _host_of(value) != host]
    if len(left) == len(there):
        return body
    wanted = _with(before, key, left)
    return _checked(_remove(body, key, host), wanted, f"remove {host} by hand, under egress: {key}:")


def _load(body: str) -> dict[str, object]:
    try:
        value = yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise UsageError("the spec is no YAML, so it was not changed", details=str(error).splitlines()) from None
    if value is not None and not isinstance(value, dict):
        raise UsageError("the spec is no mapping, so it was not changed")
    return value or {}


def _egress_of(document: dict[str, object]) -> dict[str, list[object]]:
    egress = document.get("egress")
    return egress if isinstance(egress, dict) else {}


def _with(document: dict[str, object], key: str, values: list[object]) -> dict[str, object]:
    return {**document, "egress": {**_egress_of(document), key: values}}


def _host_of(value: object) -> str:
    """The canonical host of an entry; what cannot be read is nobody's."""
    host = value.get("host") if isinstance(value, dict) else value
    try:
        return canonical_pattern(str(host))
    except NameRefused:
        return ""


def _checked(body: str, wanted: dict[str, object], by_hand: str) -> str:
    """What YAML makes of the new text must be exactly what was wanted; an empty list and none are the same."""
    try:
        found = yaml.safe_load(body)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or _plain(found) != _plain(wanted):
        raise UsageError("the spec is laid out in a way that cannot be edited safely; it was not changed", hint=by_hand)
    return body


def _plain(document: dict[str, object]) -> dict[str, object]:
    egress = {name: value for name, value in _egress_of(document).items() if value not in (None, [])}
    rest = {name: value for name, value in document.items() if name != "egress"}
    return {**rest, "egress": egress} if egress else rest


def _child(node: Node | None, key: str) -> tuple[Node, Node] | None:
    if isinstance(node, Mapping):
        for name, value in node.value:
            if isinstance(name, yaml.nodes.ScalarNode) and name.value == key:
                return name, value
    return None


def _add(body: str, key: str, entry: Entry) -> str:
    newline = "\r\n" if "\r\n" in body else "\n"
    if body and not body.endswith("\n"):
        body += newline
    top = yaml.compose(body, Loader=yaml.SafeLoader)
    egress = _child(top, "egress")
    if egress is None:
        return f"{body}egress:{newline}  {key}:{newline}    - {entry.text}{newline}"
    name, value = egress
    if not isinstance(value, Mapping) or not value.value:
        if isinstance(value, Mapping):  # `egress: {}`
            return _replaced(body, value, f"{{{key}: [{entry.text}]}}")
        at = _line_end(body, name.end_mark.index)
        return _inserted(body, at, f"{' ' * (name.start_mark.column + 2)}{key}: [{entry.text}]", newline)
    found = _child(value, key)
    if found is None:
        if value.flow_style:
            return _put(body, value.end_mark.index - 1, f", {key}: [{entry.text}]")
        last = value.value[-1][1]
        indent = value.value[0][0].start_mark.column
        return _inserted(
            body, _content_end(body, last), f"{' ' * indent}{key}:\n{' ' * indent}  - {entry.text}", newline
        )
    head, items = found
    if not isinstance(items, Sequence):  # `allow:` with nothing behind it
        indent = head.start_mark.column
        if value.flow_style:
            return _put(body, head.end_mark.index, f": [{entry.text}]")
        return _inserted(body, _line_end(body, head.end_mark.index), f"{' ' * indent}  - {entry.text}", newline)
    if items.flow_style:
        return _put(body, items.end_mark.index - 1, f", {entry.text}" if items.value else entry.text)
    dash = items.start_mark.column
    return _inserted(body, _content_end(body, items.value[-1]), f"{' ' * dash}- {entry.text}", newline)


def _remove(body: str, key: str, host: str) -> str:
    top = yaml.compose(body, Loader=yaml.SafeLoader)
    egress = _child(top, "egress")
    found = _child(egress[1], key) if egress else None
    if found is None or not isinstance(found[1], Sequence):
        return body
    items = found[1]
    gone = [index for index, node in enumerate(items.value) if _named(node) == host]
    if items.flow_style:
        kept = [
            body[node.start_mark.index : node.end_mark.index]
            for index, node in enumerate(items.value)
            if index not in gone
        ]
        return _replaced(body, items, f"[{', '.join(kept)}]")
    for index in reversed(gone):
        node = items.value[index]
        start = body.rfind("\n", 0, node.start_mark.index) + 1
        body = body[:start] + body[_line_end(body, _last_index(node)) :]
    return body


def _named(node: Node) -> str:
    if isinstance(node, yaml.nodes.ScalarNode):
        return _host_of(node.value)
    found = _child(node, "host")
    return _host_of(found[1].value) if found else ""


def _last_index(node: Node) -> int:
    """Where the last character of a node's own text stands: block nodes end where the next one begins."""
    if isinstance(node, yaml.nodes.ScalarNode) or getattr(node, "flow_style", False):
        return int(node.end_mark.index)
    last = node.value[-1]
    return _last_index(last[1] if isinstance(last, tuple) else last)


def _content_end(body: str, node: Node) -> int:
    return _line_end(body, _last_index(node))


def _line_end(body: str, index: int) -> int:
    """The offset after the line's newline; a comment behind a value stays with it."""
    end = body.find("\n", index)
    return len(body) if end < 0 else end + 1


def _inserted(body: str, at: int, lines: str, newline: str) -> str:
    return body[:at] + lines.replace("\n", newline) + newline + body[at:]


def _put(body: str, at: int, text: str) -> str:
    return body[:at] + text + body[at:]


def _replaced(body: str, node: Node, text: str) -> str:
    return body[: node.start_mark.index] + text + body[node.end_mark.index :]
