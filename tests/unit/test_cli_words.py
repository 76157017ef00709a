"""Global options before or after the verb; what belongs to a program in the sandbox is never touched."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from agent_container.cli import globals_first, main, verb_of
from agent_container.cli_call import CALL
from agent_container.commands.context import Context
from agent_container.errors import AgentContainerError
from agent_container.ui import Ui

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


HINTS = [
    ("an argument too many", ["runs", "show", "a", "b"], "agent-container runs show --help"),
    ("an argument too few", ["credential", "set"], "agent-container credential set --help"),
    ("an option of nobody", ["run", "--frobnicate", "x"], "agent-container run --help"),
    ("a global option of nobody", ["--frobnicate"], "agent-container --help"),
    ("an option of a group", ["runs", "--frobnicate"], "agent-container runs --help"),
    ("a value of another type", ["credential", "set", "x", "--port", "y"], "agent-container credential set --help"),
    ("a misspelt verb", ["stauts"], "agent-container status"),
    ("a misspelt verb of a group", ["-q", "runs", "shwo"], "agent-container runs show"),
    ("another tool's word", ["ps"], "agent-container status"),
    ("another tool's word in a group", ["credential", "add"], "agent-container credential set"),
    ("a task without quotes", ["run", "make", "tests"], 'agent-container run "the whole task in quotes"'),
    ("the logs of what", ["logs"], "agent-container runs logs"),
    ("a verb like none", ["frobnicate"], "agent-container --help"),
    ("a verb like none in a group", ["runs", "frobnicate"], "agent-container runs --help"),
]


@pytest.mark.parametrize(("words", "hint"), [c[1:] for c in HINTS], ids=[c[0] for c in HINTS])
def test_a_usage_error_names_what_to_type(words: list[str], hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[AgentContainerError] = []
    monkeypatch.setattr(Ui, "error", lambda _, error, **__: said.append(error))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert [error.hint for error in said] == [hint]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["ls"], "agent-container up"),
        (["runs", "ls"], "agent-container run"),
        (["credential", "ls"], "agent-container credential set NAME"),
    ],
)
def test_an_empty_list_says_what_to_type(
    words: list[str], hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, err = io.StringIO(), io.StringIO()
    environ = {"XDG_DATA_HOME": str(tmp_path / "d"), "XDG_STATE_HOME": str(tmp_path / "s")}
    monkeypatch.setattr(CALL, "_context", Context(directory=tmp_path, environ=environ), raising=False)
    monkeypatch.setattr(CALL, "_ui", Ui(stdout=out, stderr=err, environ={}), raising=False)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert (ended.value.code, out.getvalue(), err.getvalue().count("\n")) == (0, "", 1)
    assert hint in err.getvalue()
