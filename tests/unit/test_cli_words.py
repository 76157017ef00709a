"""Global options before or after the verb; what belongs to a program in the sandbox is never touched."""

from __future__ import annotations

import pytest

from agent_container.cli import globals_first, verb_of

CASES = [
    ("after the verb", ["status", "--json"], ["--json", "status"]),
    ("before the verb", ["--json", "status"], ["--json", "status"]),
    ("with a value", ["up", "-C", "/srv/x", "--bind"], ["-C", "/srv/x", "up", "--bind"]),
    ("a task after --", ["run", "--json", "--", "--json"], ["--json", "run", "--", "--json"]),
    ("a program's own options", ["exec", "ls", "--json", "-q"], ["exec", "ls", "--json", "-q"]),
    ("before the program", ["exec", "--json", "ls", "-q"], ["--json", "exec", "ls", "-q"]),
    ("the task file is not the spec file", ["run", "-F", "t.md"], ["run", "-F", "t.md"]),
]


@pytest.mark.parametrize(("words", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_global_options_move_to_the_front(words: list[str], expected: list[str]) -> None:
    assert globals_first(words) == expected


@pytest.mark.parametrize(
    ("words", "verb"),
    [(["--json", "status"], "status"), (["-C", "/srv/x", "up"], "up"), (["--json"], ""), (["-f", "up"], "")],
    ids=["after a flag", "after a value that is none", "no verb", "only a value"],
)
def test_the_verb_is_found_behind_the_global_options(words: list[str], verb: str) -> None:
    assert verb_of(words) == verb
