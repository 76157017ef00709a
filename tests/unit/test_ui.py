from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_container.errors import AgentContainerError, ApprovalNeeded, EngineError, Tampered, UsageError
from agent_container.events import AgentMessage, AgentOutput, EgressDenied, Evidence, ToolCall
from agent_container.records import Drained, Outcome
from agent_container.ui import Ui, clean, duration, envelope, jsonable, one_line, size
from agent_container.ui.views import event_line, show_event, show_run_detail, show_summary
from tests.support.records import STARTED, chain_of, record_of

UNCLEAN = [
    ("a colour", "\x1b[31mred", "\\x1b[31mred"),
    ("a window title", "\x1b]0;x\x07", "\\x1b]0;x\\x07"),
    ("one-byte controls", "\x9b31m", "\\x9b31m"),
    ("a line that is overwritten", "ok\rfailed", "ok\\x0dfailed"),
    ("a backspace", "a\bb", "a\\x08b"),
    ("a newline", "a\nb", "a\\x0ab"),
    ("NUL and DEL", "\0\x7f", "\\x00\\x7f"),
    ("a turn of direction", "a\u202eb\u2066c", "a\\u202eb\\u2066c"),
    ("marks of direction", "\u200e\u200f\u061c", "\\u200e\\u200f\\u061c"),
    ("invisible letters", "a\u200bb\u00adc\ufeff", "a\\u200bb\\xadc\\ufeff"),
    ("tags", "\U000e0041", "\\U000e0041"),
    ("separators", "\u2028\u2029\u0085", "\\u2028\\u2029\\x85"),
    ("half a character", "\ud800", "\\ud800"),
    ("private and unassigned ones", "\ue000\u0378", "\\ue000\\u0378"),
]


@pytest.mark.parametrize(("text", "shown"), [row[1:] for row in UNCLEAN], ids=[row[0] for row in UNCLEAN])
def test_what_could_paint_the_terminal_is_written_out(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize("text", ["plain", "naïve 日本 👩‍💻", "[red]no markup[/red] :smile:", "a  b"])
def test_what_is_plainly_visible_stays(text: str) -> None:
    assert clean(text) == text


def test_newlines_and_tabs_stay_where_lines_are_wanted() -> None:
    assert clean("a\n\tb\r\x1b", lines=True) == "a\n\tb\\x0d\\x1b"


@given(st.text())
def test_nothing_that_is_cleaned_holds_a_control_character(text: str) -> None:
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", clean(text))
    assert len(one_line(text, width=20)) <= 20


class Shown:
    """A Ui on streams that are no terminal, and what it printed."""

    def __init__(self, **options: object) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.ui = Ui(stdout=self.out, stderr=self.err, stdin=io.StringIO(), environ={}, **options)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        return self.out.getvalue()

    @property
    def progress(self) -> str:
        return self.err.getvalue()


class TestProgress:
    def test_a_step_is_one_line_in_the_past_tense_on_stderr(self) -> None:
        shown = Shown()
        with shown.ui.step("Building the image", "Built the image") as step:
            step.update("layer 3")
        assert shown.progress == "ok: Built the image\n"
        assert shown.text == ""

    def test_a_step_may_say_at_its_end_what_it_did(self) -> None:
        shown = Shown()
        with shown.ui.step("Building", "Built") as step:
            step.finish("Nothing to build")
        assert shown.progress == "ok: Nothing to build\n"

    def test_a_step_that_fails_says_so_and_passes_the_error_on(self) -> None:
        shown = Shown()
        with pytest.raises(EngineError), shown.ui.step("Building", "Built"):
            raise EngineError("no")
        assert shown.progress == "failed: Building\n"

    def test_quiet_hides_progress_but_no_warning_and_no_error(self) -> None:
        shown = Shown(quiet=True)
        with shown.ui.step("x", "y"):
            pass
        shown.ui.info("i")
        shown.ui.detail("d")
        shown.ui.warn("w")
        shown.ui.error(EngineError("e"))
        assert shown.progress == "warning: w\nerror: e\n"

    def test_details_are_for_verbose(self) -> None:
        for verbose, expected in ((False, ""), (True, "d\n")):
            shown = Shown(verbose=verbose)
            shown.ui.detail("d")
            assert shown.progress == expected

    def test_an_error_names_details_and_the_next_command(self) -> None:
        shown = Shown()
        shown.ui.error(EngineError("it \x1b[2Jfailed", details=["line one", "line two"], hint="docker info"))
        assert shown.progress == "error: it \\x1b[2Jfailed\n  line one\n  line two\nhint: docker info\n"
        assert shown.text == ""

    @pytest.mark.parametrize(("seconds", "words"), [(0.2, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7260, "2 h 1 min")])
    def test_durations_in_words(self, seconds: float, words: str) -> None:
        assert duration(seconds) == words


class TestAnswers:
    def test_a_table_is_aligned_and_never_cut_where_no_terminal_is(self) -> None:
        shown = Shown()
        shown.ui.table(("run", "task"), [("1", "x" * 300), ("22", "a\x1bb")])
        assert shown.text == f"run  task\n1    {'x' * 300}\n22   a\\x1bb\n"

    def test_fields_without_a_value_are_left_out(self) -> None:
        shown = Shown()
        shown.ui.fields([("run", "1"), ("nothing", ""), ("outcome", "lost")])
        assert shown.text == "run      1\noutcome  lost\n"

    def test_markup_is_text(self) -> None:
        shown = Shown()
        shown.ui.text("[bold]x[/bold] :smile:")
        assert shown.text == "[bold]x[/bold] :smile:\n"

    def test_json_prints_the_envelope_and_nothing_else_on_stdout(self) -> None:
        shown = Shown(json_output=True)
        with shown.ui.step("x", "y"):
            pass
        shown.ui.result({"a": 1}, command="status", show=lambda: pytest.fail("the view was shown"))
        assert json.loads(shown.text) == {
            "version": 1,
            "command": "status",
            "ok": True,
            "result": {"a": 1},
            "error": None,
        }

    def test_json_errors_are_in_the_envelope_too(self) -> None:
        shown = Shown(json_output=True)
        shown.ui.error(ApprovalNeeded("say yes", diff=["+ x"], digest="sha256:ab", hint="up --accept ab"), command="up")
        row = json.loads(shown.text)
        assert (row["ok"], row["result"], row["command"]) == (False, None, "up")
        assert row["error"] == {
            "kind": "ApprovalNeeded",
            "message": "say yes",
            "details": ["+ x"],
            "hint": "up --accept ab",
            "exit_code": 2,
            "digest": "sha256:ab",
        }
        assert shown.progress == ""  # said once

    def test_json_and_verbose_says_an_error_twice(self) -> None:
        shown = Shown(json_output=True, verbose=True)
        shown.ui.error(EngineError("no"))
        assert json.loads(shown.text)["error"]["message"] == "no"
        assert shown.progress == "error: no\n"

    def test_streams_are_json_lines_and_end_with_the_result(self) -> None:
        shown = Shown(json_output=True)
        shown.ui.stream(AgentMessage(text="a\nb\x1b"), command="run")
        shown.ui.result(None, command="run")
        first, last = [json.loads(line) for line in shown.text.splitlines()]
        assert first["event"]["text"] == "a\nb\x1b"
        assert last["ok"]
        assert "\x1b" not in shown.text

    def test_raw_bytes_pass_a_pipe_as_they_are(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        with path.open("w", encoding="utf-8") as stream:
            Ui(stdout=stream, environ={}).raw(b"\xff\x1b[31m\n")
        assert path.read_bytes() == b"\xff\x1b[31m\n"

    def test_an_encoding_that_cannot_say_it_gets_an_escape(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        with path.open("w", encoding="ascii") as stream:
            Ui(stdout=stream, environ={}).text("naïve")
        assert path.read_text() == "na\\xefve\n"


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Noun:
    path: Path
    at: datetime
    colour: Colour
    items: tuple[int, ...]
    cost: float = float("nan")


def test_typed_results_become_json() -> None:
    noun = Noun(Path("/x"), datetime(2026, 1, 2, tzinfo=UTC), Colour.RED, (1, 2))
    expected = {"path": "/x", "at": "2026-01-02T00:00:00+00:00", "colour": "red", "items": [1, 2], "cost": None}
    assert jsonable(noun) == expected
    assert jsonable({"set": frozenset({"b", "a"}), 1: [noun]}) == {"set": ["a", "b"], "1": [expected]}
    assert json.loads(envelope("x", result=record_of()))["result"]["schema"] == "agent-container/run/1"
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        jsonable(b"x")


@pytest.mark.parametrize("error", [UsageError("x"), EngineError("x"), Tampered("x"), AgentContainerError("x")])
def test_the_envelope_names_the_exit_status(error: AgentContainerError) -> None:
    row = json.loads(envelope("x", error=error))
    assert row["error"]["exit_code"] == error.exit_code
    assert row["error"]["kind"] == type(error).__name__


class TestQuestions:
    def test_where_nobody_can_answer_the_line_to_type_is_told(self) -> None:
        for options in ({}, {"no_input": True}):
            with pytest.raises(UsageError, match="cannot ask: Remove it") as caught:
                Shown(**options).ui.confirm("Remove it?", hint="rm --yes")
            assert caught.value.hint == "rm --yes"

    @pytest.mark.parametrize(
        ("typed", "default", "answer"),
        [
            ("y\n", False, True),
            ("YES\n", False, True),
            ("n\n", True, False),
            ("\n", True, True),
            ("\n", False, False),
            ("?\n", True, False),
        ],
    )
    def test_answers(self, typed: str, default: bool, answer: bool) -> None:
        def ask(ui: Ui) -> None:
            ui.text(f"answer {ui.confirm('Go on?', default=default)}")

        assert f"answer {answer}" in on_terminal(ask, typed=typed)


def on_terminal(use: Callable[[Ui], None], *, typed: str = "", environ: dict[str, str] | None = None) -> str:
    """What a terminal shows."""
    main, side = pty.openpty()
    with os.fdopen(side, "w", encoding="utf-8") as stream, os.fdopen(os.dup(side), encoding="utf-8") as stdin:
        os.write(main, typed.encode())
        ui = Ui(
            stdin=stdin, stdout=stream, stderr=stream, environ={"TERM": "xterm", "COLUMNS": "80", **(environ or {})}
        )
        use(ui)
        stream.flush()
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed: EIO ends it
        while piece := os.read(main, 65536):
            shown += piece
    os.close(main)
    return shown.decode()


class TestTerminal:
    def use(self, ui: Ui) -> None:
        with ui.step("Building", "Built"):
            pass
        ui.diff(["+ more", "- less"])
        ui.table(("a",), [("x\x1b[31m",)], styles=["red"])

    def test_colours_are_ours_alone(self) -> None:
        shown = on_terminal(self.use)
        assert "\x1b[32m+ more" in shown
        assert "✓ Built" in shown
        assert "x\\x1b[31m" in shown

    def test_no_color_means_none(self) -> None:
        shown = on_terminal(self.use, environ={"NO_COLOR": "1"})
        assert "+ more" in shown
        assert not re.search(r"\x1b\[3\dm", shown)


class TestViews:
    def test_the_summary_has_both_halves_and_whose_word_it_is(self) -> None:
        shown = Shown()
        show_summary(shown.ui, record_of(chain_of()))
        for words in (
            "20261129-153359-7f3a2c  succeeded",
            "the agent's",
            "say hello",
            "the agent's own account",
            "$0.0100",
            "1 allowed, 1 denied",
            "evil.test:443",
            "203.0.113.9:5432",
            "9, sealed",
            "verified when it was recorded",
        ):
            assert words in shown.text, words
        assert "TRIPWIRE api.test" in shown.progress

    def test_a_run_that_the_host_ended(self) -> None:
        shown = Shown()
        show_summary(shown.ui, record_of(outcome=Outcome.TIMEOUT, basis="host", reason="over its limit of 2 h"))
        assert "timeout" in shown.text
        assert "the host's" in shown.text

    def test_what_a_sandbox_wrote_cannot_fake_a_line(self) -> None:
        shown = Shown()
        record = record_of(task="x\nok: verified\x1b[2J", drained=Drained(refused=("t: a\nb: a hostile name",)))
        from agent_container.commands.runs import FilesNow, RunDetail

        now = FilesNow("changed", 1, ("t: a\nok: as recorded\x1b[1A",))
        detail = RunDetail("r", Path("/x"), record=record, warnings=("not read: a\nok: fine",), files=now)
        said = AgentMessage(at=STARTED, text="hi\nok: verified\x1b]0;x\x07")
        show_run_detail(shown.ui, replace(detail, timeline=(said,)))
        everything = shown.text + shown.progress
        assert "\x1b" not in everything
        assert not any(line.startswith("ok:") for line in everything.splitlines())

    @pytest.mark.parametrize(
        ("event", "line"),
        [
            (ToolCall(name="bash", input="ls\n-la"), "tool: bash ls -la"),
            (
                EgressDenied(host="evil.test", port=443, rule="no rule", count=3),
                "egress: denied evil.test:443 (3 times) no rule",
            ),
            (EgressDenied(host="2001:db8::1", port=53), "egress: denied [2001:db8::1]:53"),
            (AgentOutput(text="x" * 500), f"stdout: {'x' * 99}…"),
            (Evidence(source="spool", line=7, kind="not-utf8", size=3), "unread: spool line 7: not-utf8"),
        ],
    )
    def test_events_are_one_line(self, event: ToolCall, line: str) -> None:
        shown = Shown()
        show_event(shown.ui, event)
        assert shown.text == line + "\n"
        assert event_line(event) is not None

    def test_a_message_keeps_its_lines(self) -> None:
        shown = Shown()
        show_event(shown.ui, AgentMessage(text="a\n  b\x1b\n"))
        assert shown.text == "a\n  b\\x1b\n"


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0"), (1, "1 B"), (999, "999 B"), (1000, "1.0 kB"), (9_960, "10 kB"), (999_499, "999 kB"), (999_500, "1.0 MB"),
     (3_400_000, "3.4 MB"), (2 * 10**12, "2.0 TB"), (10**16, "10000 TB")],
)  # fmt: skip
def test_bytes_for_people(count: int, words: str) -> None:
    assert size(count) == words
