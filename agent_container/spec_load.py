"""From strict YAML to a model: every mistake at once, each with its line, path, what was found and what was expected.

Serves every file that users write (the spec, the host's settings). Knows pydantic's errors and the JSON schema, and
nothing of what the keys mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent_container.errors import SpecError
from agent_container.spec_yaml import (
    Document,
    Map,
    Node,
    Plain,
    Problem,
    Scalar,
    Seq,
    YamlFault,
    load,
    shown,
    to_plain,
    type_name,
)

M = TypeVar("M", bound=BaseModel)
MAX_PROBLEMS = 50
MAX_EXPLAINED = 200

Schema = dict[str, Any]  # a JSON Schema as pydantic makes it: JSON, and only read here

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "`key: value` lines",
    "model_type": "`key: value` lines",
    "model_attributes_type": "`key: value` lines",
}


@dataclass(frozen=True)
class Later:
    """A key that the format has and this version does not carry out; `only` are the values it may have all the same."""

    path: str
    only: tuple[str, ...] = ()


def load_model(
    model: type[M],
    data: bytes,
    *,
    path: Path,
    later: tuple[Later, ...] = (),
    secret: tuple[str, ...] = (),
    defaults: Mapping[str, str] | None = None,
) -> tuple[M, dict[str, int]]:
    """The model and the line of every path in the file.

    `secret` are paths below which values are never shown; `defaults` are values for keys that the file leaves out.

    Raises: SpecError with one detail a mistake.
    """
    try:
        document = load(data)
    except YamlFault as fault:
        raise _error(path, [Problem(fault.line, "", fault.reason)]) from None
    problems = list(document.problems)
    plain = to_plain(document.root)
    assert isinstance(plain, dict)  # noqa: S101 - a Map's plain form, told to mypy
    problems += _take_later(document, plain, later)
    try:
        result = model.model_validate({**(defaults or {}), **plain}, strict=True)
    except ValidationError as error:
        explain = _Explainer(document.root, _schema_of(model), secret)
        details = error.errors(include_url=False, include_input=False)
        problems += [explain(detail) for detail in details[:MAX_EXPLAINED]]
        raise _error(path, problems, unexplained=len(details[MAX_EXPLAINED:])) from None
    if problems:
        raise _error(path, problems)
    return result, dict(_lines(document.root))


@cache
def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _error(path: Path, problems: list[Problem], *, unexplained: int = 0) -> SpecError:
    unique = sorted({(p.line, p.path, p.reason) for p in problems})
    name = shown(path.name, 200)
    details = [
        f"{name}:{line}: {where}: {reason}" if where else f"{name}:{line}: {reason}" for line, where, reason in unique
    ]
    count = len(details) + unexplained
    if count > MAX_PROBLEMS:
        details = [*details[:MAX_PROBLEMS], f"and {count - MAX_PROBLEMS} more"]
    return SpecError(f"{name} has {'a mistake' if count == 1 else f'{count} mistakes'}", details=details)


def _take_later(document: Document, plain: dict[str, Plain], later: tuple[Later, ...]) -> Iterator[Problem]:
    """Drop what this version does not carry out from `plain`, and name it unless it is switched off."""
    for item in later:
        *parents, key = item.path.split(".")
        node: Node | None = document.root
        value: Plain = plain
        for parent in parents:
            node = node.entries[parent].value if isinstance(node, Map) and parent in node.entries else None
            value = value.get(parent) if isinstance(value, dict) else None
        if not isinstance(node, Map) or not isinstance(value, dict) or key not in node.entries:
            continue
        found = value.pop(key, None)
        entry = node.entries[key]
        if found in (None, False, (), {}) or found in item.only:
            continue
        what = f"`{key}: {shown(str(found))}`" if item.only and isinstance(found, str) else f"`{key}`"
        fix = f"; write {' or '.join(item.only)}, or leave it out" if item.only else "; leave it out"
        yield Problem(entry.line, item.path, f"{what} is not supported by this version{fix}")


def _lines(node: Node, path: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(node, Map):
        for key, entry in node.entries.items():
            inner = f"{path}.{key}" if path else key
            yield inner, entry.line
            yield from _lines(entry.value, inner)
    elif isinstance(node, Seq):
        for index, item in enumerate(node.items):
            yield f"{path}[{index}]", item.line
            yield from _lines(item, f"{path}[{index}]")


class _Explainer:
    """Turns pydantic's errors into sentences about the file."""

    def __init__(self, root: Map, schema: Schema, secret: tuple[str, ...]) -> None:
        self.root = root
        self.schema = schema
        self.secret = secret

    def __call__(self, error: ErrorDetails) -> Problem:
        kind, ctx = error["type"], error.get("ctx", {})
        steps, node, line = self._locate(error["loc"])
        where = _path(steps)
        if kind == "extra_forbidden":
            return Problem(line, where, self._unknown(steps))
        if kind == "missing":
            return Problem(line, where or str(error["loc"][-1]), f"the key `{error['loc'][-1]}` is missing")
        if kind == "literal_error":
            expected = str(ctx["expected"]).replace("'", "")
        elif kind == "value_error":
            expected = str(ctx["error"])
        else:
            expected = _EXPECTED.get(kind) or _bound(kind, ctx) or error["msg"]
        if isinstance(node, Scalar) and node.kind not in ("text", "null") and self._takes_text(kind, expected, steps):
            found = _found(node, secret=False)
            return Problem(line, where, f'found {found}; for text, quote it: "{shown(node.text)}"')
        return Problem(line, where, self._sentence(expected, node, where, kind=kind))

    def _takes_text(self, kind: str, expected: str, steps: list[int | str]) -> bool:
        if kind == "model_type":
            return any(choice.get("type") == "string" for choice in _choices(self.schema, self._schema_at(steps)))
        return kind == "string_type" or (kind == "literal_error" and not expected.isdigit())

    def _sentence(self, expected: str, node: Node, where: str, *, kind: str) -> str:
        secret = any(where == top or where.startswith(top + ".") for top in self.secret)
        found = _found(node, secret=secret)
        if kind != "value_error":
            return f"found {found}, expected {expected}"
        if secret or not isinstance(node, Scalar):
            return expected
        return f"found {found}: {expected}"

    def _locate(self, loc: tuple[int | str, ...]) -> tuple[list[int | str], Node, int]:
        """The part of `loc` that stands in the file (pydantic adds the names of union branches), its node and line."""
        steps: list[int | str] = []
        node: Node = self.root
        line = node.line
        for step in loc:
            if isinstance(node, Map) and isinstance(step, str) and step in node.entries:
                line, node = node.entries[step].line, node.entries[step].value
            elif isinstance(node, Seq) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
                line = node.line
            else:
                continue
            steps.append(step)
        return steps, node, line

    def _unknown(self, steps: list[int | str]) -> str:
        key = str(steps[-1])
        here = sorted(_keys(self.schema, self._schema_at(steps[:-1])))
        elsewhere = [path for path in _all_paths(self.schema) if path.rpartition(".")[2] == key]
        if elsewhere:
            return f"the key `{key}` does not belong here; it stands as `{elsewhere[0]}`"
        if near := _nearest(key, here):
            return f"unknown key `{shown(key)}`; did you mean `{near}`?"
        return (
            f"unknown key `{shown(key)}`; the keys here are {', '.join(here)}"
            if here
            else f"unknown key `{shown(key)}`"
        )

    def _schema_at(self, steps: list[int | str]) -> Schema:
        at = self.schema
        for step in steps:
            for choice in _choices(self.schema, at):
                if isinstance(step, int) and "items" in choice:
                    at = choice["items"]
                    break
                if step in choice.get("properties", {}):
                    at = choice["properties"][step]
                    break
                if isinstance(choice.get("additionalProperties"), dict):
                    at = choice["additionalProperties"]
                    break
        return at


def _bound(kind: str, ctx: dict[str, Any]) -> str | None:
    """What pydantic's range and length errors expect."""
    bounds = {
        "greater_than": "more than {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than": "less than {lt}",
        "less_than_equal": "at most {le}",
        "too_short": "at least {min_length} entry",
    }
    return bounds[kind].format(**ctx) if kind in bounds else None


def _found(node: Node, *, secret: bool) -> str:
    if isinstance(node, Seq):
        return "a list"
    if isinstance(node, Map):
        return "`key: value` lines"
    if node.kind == "null":
        return "nothing"
    if node.kind == "text":
        return "text" if secret else f"`{shown(node.text)}`"
    return f"`{shown(node.text)}`, which YAML reads as {type_name[node.kind]}"


def _path(steps: list[int | str]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{shown(step)}" if text else shown(step)
    return text


def _choices(root: Schema, schema: Schema) -> list[Schema]:
    """The schema's branches, references followed."""
    if "$ref" in schema:
        return _choices(root, root["$defs"][schema["$ref"].rpartition("/")[2]])
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    return [schema, *(choice for branch in branches for choice in _choices(root, branch))]


def _keys(root: Schema, schema: Schema) -> set[str]:
    return {key for choice in _choices(root, schema) for key in choice.get("properties", {})}


def _all_paths(root: Schema) -> list[str]:
    """Every key of the schema as a dotted path, the shallowest first."""
    found: list[str] = []
    queue: list[tuple[str, Schema]] = [("", root)]
    while queue:
        prefix, schema = queue.pop(0)
        for choice in _choices(root, schema):
            for key, inner in choice.get("properties", {}).items():
                found.append(f"{prefix}{key}")
                queue.append((f"{prefix}{key}.", inner))
            if "items" in choice:
                queue.append((f"{prefix[:-1]}[].", choice["items"]))
    return found


def _nearest(key: str, valid: list[str]) -> str | None:
    """The valid key that was most likely meant: the same but for case and `_`, then by its beginning, then alike."""
    bare = {candidate.replace("_", ""): candidate for candidate in valid}
    wanted = key.lower().replace("_", "").replace("-", "")
    if wanted in bare:
        return bare[wanted]
    begins = [candidate for candidate in bare if len(candidate) > 2 and wanted.startswith(candidate)]
    if begins:
        return bare[max(begins, key=len)]
    close = difflib.get_close_matches(wanted, list(bare), n=1, cutoff=0.6)
    return bare[close[0]] if close else None
