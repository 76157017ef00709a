"""Writes docs/reference.md from the program itself: commands, spec keys, settings, exit statuses.

reference.py            writes the page
reference.py --check    exit status 1 when the page is not what this would write
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import typer

from agent_container import cli, errors, spec
from agent_container.records import EXIT_STATUS
from agent_container.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
HEAD = """\
# Reference

Written by `bin/docs` from the program itself; a test keeps it current.

Global options stand before or after the verb. Names resolve by the directory you stand in, or by `-C`. stdout is the
answer, stderr the progress; with `--json` stdout is one envelope,
`{"version": 1, "command": ..., "ok": ..., "result": ..., "error": ...}`;
streaming commands print one such line an event.
"""

Schema = dict[str, Any]
TYPES = {"string": "text", "object": "mapping", "boolean": "true, false", "integer": "number", "number": "number"}
Command = Any
"""A command or parameter of the click that typer brings along and does not export."""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def commands() -> Iterator[str]:
    """Every visible command with its arguments and options."""
    program = typer.main.get_command(cli.app)
    yield "## Commands\n"
    yield "### Global options\n"
    yield parameters(program)
    for path, command in walk(program, ()):
        yield f"### `{' '.join(path)}`\n"
        yield (command.help or "").strip() + "\n"
        if any(shown(parameter) for parameter in command.params):
            yield parameters(command)


def walk(command: Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Command]]:
    """The commands below a group, in the program's order; groups that do something of their own too."""
    children: dict[str, Command] = getattr(command, "commands", {})
    for name, child in children.items():
        if child.hidden:
            continue
        if not hasattr(child, "commands") or getattr(child, "invoke_without_command", False):
            yield (*path, name), child
        yield from walk(child, (*path, name))


def shown(parameter: Command) -> bool:
    """Whether users are told of it; completion is typer's own business."""
    return not getattr(parameter, "hidden", False) and parameter.name not in {
        "help",
        "install_completion",
        "show_completion",
    }


def parameters(command: Command) -> str:
    """Arguments and options as a table."""
    rows: list[tuple[str, ...]] = []
    for parameter in filter(shown, command.params):
        if parameter.param_type_name == "option":
            words = ", ".join(f"`{word}`" for word in [*parameter.opts, *parameter.secondary_opts])
            value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or 'VALUE'}"
        else:
            words, value = f"`{parameter.metavar or (parameter.name or '').upper()}`", ""
        rows.append((words + value, getattr(parameter, "help", None) or ""))
    return table(("option", "meaning"), rows)


def keys(schema: Schema) -> list[tuple[str, ...]]:
    """Every key of a JSON schema, flattened: `egress.allow[].host`."""
    return list(_keys(schema, schema.get("$defs", {}), ""))


def _keys(schema: Schema, definitions: Schema, path: str) -> Iterator[tuple[str, ...]]:
    for name, row in schema.get("properties", {}).items():
        here = f"{path}{name}"
        yield f"`{here}`", kind(row, definitions), default(row, name, schema), meaning(row, definitions)
        for part, suffix in parts(row, definitions):
            yield from _keys(part, definitions, f"{here}{suffix}.")


def resolve(row: Schema, definitions: Schema) -> Schema:
    """What a `$ref` stands for."""
    reference = row.get("$ref")
    return cast(Schema, definitions[reference.rsplit("/", 1)[1]]) if reference else row


def forms(row: Schema, definitions: Schema) -> list[Schema]:
    """The alternatives of a value, `null` left out."""
    row = resolve(row, definitions)
    choices = row.get("anyOf") or row.get("oneOf") or [row]
    found = [form for choice in choices for form in ([choice] if choice is row else forms(choice, definitions))]
    return [form for form in found if form.get("type") != "null"]


def parts(row: Schema, definitions: Schema) -> Iterator[tuple[Schema, str]]:
    """The objects inside a value, and how a path to them goes on."""
    for form in forms(row, definitions):
        if form.get("properties"):
            yield form, ""
        elif form.get("type") == "array":
            for part, suffix in parts(form.get("items", {}), definitions):
                yield part, f"[]{suffix}"


def kind(row: Schema, definitions: Schema) -> str:
    """A value's type in words."""
    words: list[str] = []
    for form in forms(row, definitions):
        word: str
        if "const" in form:
            word = f"`{form['const']}`"
        elif "enum" in form:
            word = ", ".join(f"`{value}`" for value in form["enum"])
        elif form.get("type") == "array":
            word = f"list of {kind(form.get('items', {}), definitions)}"
        else:
            word = TYPES.get(form.get("type", ""), "any")
        if word not in words:
            words.append(word)
    return " or ".join(words)


def default(row: Schema, name: str, schema: Schema) -> str:
    """What holds without the key; empty where nothing does."""
    if name in schema.get("required", []):
        return "required"
    value = row.get("default")
    if value is None or value == [] or isinstance(value, dict):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and row.get("type") == "string":
        return f"`{value}s`"  # a duration: parsed into seconds
    return f"`{value}`"


def meaning(row: Schema, definitions: Schema) -> str:
    """The description, or that of what it refers to."""
    return str(row.get("description") or resolve(row, definitions).get("description") or "")


def statuses() -> list[tuple[str, ...]]:
    """Exit status and meaning: those of errors, the program's own, and those of `run`."""
    found: dict[int, list[str]] = {0: ["done"]}
    kinds: list[type[errors.AgentContainerError]] = [errors.AgentContainerError]
    kinds += subclasses(errors.AgentContainerError)
    for error in kinds:
        words = (error.__doc__ or "").split("\n", 1)[0].split(";")[0].rstrip(".")
        found.setdefault(error.exit_code, []).append(words)
    found[cli.EXIT_BUG] = ["A bug in agent-container."]
    found[cli.EXIT_INTERRUPTED] = ["Interrupted."]
    for outcome, status in EXIT_STATUS.items():
        if status:
            found.setdefault(status, []).append(f"`run`: {outcome}")
    return [(str(status), words[0]) for status, words in sorted(found.items())]


def subclasses(error: type[errors.AgentContainerError]) -> Iterator[type[errors.AgentContainerError]]:
    """All below, parents first."""
    for child in error.__subclasses__():
        yield child
        yield from subclasses(child)


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            HEAD,
            *commands(),
            "## The spec: `agent-container.yaml`\n",
            "`agent-container schema` prints the JSON Schema.\n",
            table(("key", "value", "default", "meaning"), keys(spec.json_schema())),
            "## The host's settings: `config.yaml`\n",
            "In `~/.config/agent-container`, or where `AGENT_CONTAINER_CONFIG` says.\n",
            table(("key", "value", "default", "meaning"), keys(Settings.model_json_schema())),
            "## Exit statuses\n",
            table(("status", "meaning"), statuses()),
        ]
    )


def main(argv: list[str]) -> int:
    """Writes or checks."""
    text = page()
    if argv == ["--check"]:
        return 0 if PAGE.is_file() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
