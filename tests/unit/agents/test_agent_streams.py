"""What the real programs printed (streams/, against tests/doubles/models.py), as events, as a tally and as an outcome.

Each answer of the double counts 150 tokens in, 30 of them cached, and 15 out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_container.agents import PROFILES
from agent_container.events import AgentError, AgentOutput, AgentResult, Event, PermissionDenied, ToolCall, ToolResult
from agent_container.records import Outcome, Tokens
from agent_container.sandbox.turn import HostsView, end_of
from agent_container.tally import Tally

STREAMS = Path(__file__).parent / "streams"
HOST = HostsView(elapsed_s=5, time_s=100, silent_s=1, idle_s=50, limited=True)
GOOD, BAD, LIMIT = Outcome.SUCCEEDED, Outcome.FAILED, Outcome.BUDGET


@dataclass(frozen=True)
class Case:
    """One recording, and what is to be read from it."""

    name: str
    code: int | None
    outcome: Outcome
    answers: int
    message: str | None
    turns: int | None = None
    model: str | None = None
    cost: float | None = None
    tools: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    """Tool results that are none of success."""
    errors: int = 0
    retries: int = 0
    denials: int = 0
    remarks: int = 0
    """Lines that are kept as output."""
    reason: str = "the agent reported success"
    out: int | None = None
    """Tokens out, where the program has not heard of all."""
    signal: str | None = None


OPUS, SONNET, FLASH = "claude-opus-5-5", "claude-sonnet-5", "gemini-3.8-flash"
SHELL = "run_shell_command"
STATUS_0 = "the command exited with status 0"
NO_RESULT = "the agent exited with status 0 without reporting a result"
FAILED_MESSAGE = "the agent reported failure: "
CASES = [
    Case("claude-ok", 0, GOOD, 3, "Changed and committed.", 3, OPUS, 0.002358, {"Bash": 2}),
    Case("claude-resume", 0, GOOD, 2, "resumed", 2, SONNET, 0.000792, {"Bash": 1}),
    Case("claude-recovered", 0, GOOD, 1, "recovered", 1, OPUS, 0.000786, retries=2),
    Case("claude-denied", 0, GOOD, 3, "It was not allowed.", 3, OPUS, 0.002358, {"Bash": 2}, failed=2, denials=1),
    Case("claude-401", 1, BAD, 0, "Invalid API key · Fix external API key", 1, OPUS, errors=1, retries=4,
         reason=FAILED_MESSAGE + "Invalid API key"),
    Case("claude-500", 1, BAD, 0, "API Error: 500 Internal server error.", 1, OPUS, errors=1, retries=4,
         reason=FAILED_MESSAGE + "API Error: 500"),
    Case("claude-blocked", 1, BAD, 0, "Failed to authenticate. API Error: 403 agent-container egress", 1, OPUS,
         errors=1, reason=FAILED_MESSAGE + "Failed to authenticate. API Error: 403 agent-container egress"),
    Case("claude-max-turns", 1, LIMIT, 1, "error_max_turns: max_turns", 2, OPUS, 0.000786, {"Bash": 1},
         reason="the agent ended at a limit that it was given: error_max_turns"),
    Case("claude-int", 0, BAD, 2, "error_during_execution: aborted_tools", 4, OPUS, 0.001572, {"Bash": 2}, failed=1,
         remarks=1, reason=FAILED_MESSAGE + "error_during_execution"),
    Case("claude-term", 143, BAD, 2, None, None, OPUS, None, {"Bash": 2}, failed=1, out=2,
         reason="the agent ended with status 143"),
    Case("codex-ok", 0, GOOD, 3, "Changed and committed.", tools={"command_execution": 2}),
    Case("codex-resume", 0, GOOD, 3, "resumed", tools={"command_execution": 1}),  # counts the first run's answer too
    Case("codex-recovered", 0, GOOD, 1, "recovered", retries=2),
    Case("codex-tool-error", 0, GOOD, 3, "It failed.", tools={"command_execution": 2}, failed=2, retries=1),
    Case("codex-401", 1, BAD, 0, "unexpected status 401 Unauthorized: Incorrect API key", errors=1, retries=4,
         reason=FAILED_MESSAGE + "unexpected status 401"),
    Case("codex-500", 1, BAD, 0, "We’re currently experiencing high demand", errors=1, retries=4,
         reason=FAILED_MESSAGE + "We’re currently"),
    Case("codex-blocked", 1, BAD, 0, "unexpected status 403 Forbidden: agent-container egress", errors=1, retries=4,
         reason=FAILED_MESSAGE + "unexpected status 403"),
    Case("codex-refused", 1, BAD, 0, "Connection failed: error sending request", errors=1, retries=4,
         reason=FAILED_MESSAGE + "Connection failed"),
    Case("gemini-ok", 0, GOOD, 4, "Changed and committed.", None, "auto", tools={SHELL: 2}),  # auto asks for a model
    Case("gemini-resume", 0, GOOD, 3, "resumed", None, "auto", tools={SHELL: 1}),
    Case("gemini-recovered", 0, GOOD, 1, "recovered", None, FLASH),
    Case("gemini-tool-error", 0, GOOD, 3, "It failed.", None, FLASH, tools={SHELL: 2}),  # it calls them successes
    Case("gemini-401", 145, BAD, 0, '[API Error: {"error":{"code":401', None, "auto", errors=1,
         reason=FAILED_MESSAGE + '[API Error: {"error":{"code":401'),
    Case("gemini-500", 244, BAD, 0, '[API Error: {"error":{"code":500', None, FLASH, errors=1,
         reason=FAILED_MESSAGE + '[API Error: {"error":{"code":500'),
    Case("gemini-blocked", 147, BAD, 0, '[API Error: {"error":{"message":"agent-container egress', None, "auto",
         errors=1, reason=FAILED_MESSAGE + '[API Error: {"error":{"message":"agent-container egress'),
    Case("gemini-refused", 1, BAD, 0, "[API Error: exception TypeError: fetch failed", None, "auto", errors=1,
         reason=FAILED_MESSAGE + "[API Error: exception TypeError: fetch failed"),
    Case("gemini-int", 0, BAD, 0, None, None, FLASH, tools={SHELL: 2}, reason=NO_RESULT),
    Case("gemini-term", 0, BAD, 0, None, None, FLASH, tools={SHELL: 2}, reason=NO_RESULT),
    Case("opencode-ok", 0, GOOD, 3, "Changed and committed.", None, None, 0.001782, {"bash": 2}, reason=STATUS_0),
    Case("opencode-resume", 0, GOOD, 2, "resumed", None, None, 0.001188, {"bash": 1}, reason=STATUS_0),
    Case("opencode-denied", 0, GOOD, 2, "It was not allowed.", None, None, 0.001188, {"bash": 1}, failed=1,
         denials=1, reason=STATUS_0),
    Case("opencode-tool-error", 0, GOOD, 3, "It failed.", None, None, 0.00091125, {"bash": 2}, failed=2,
         reason=STATUS_0),
    Case("opencode-401", 1, BAD, 0, None, errors=1, reason="the agent ended with status 1"),
    Case("opencode-500", 1, BAD, 0, None, errors=1, reason="the agent ended with status 1"),
    Case("opencode-blocked", 1, BAD, 0, None, errors=1, reason="the agent ended with status 1"),
    Case("opencode-int", None, BAD, 1, None, None, None, 0.000594, {"bash": 1}, signal="SIGINT",
         reason="the agent ended by signal SIGINT"),
    Case("opencode-term", None, BAD, 1, None, None, None, 0.000594, {"bash": 1}, signal="SIGTERM",
         reason="the agent ended by signal SIGTERM"),
    Case("pi-ok", 0, GOOD, 3, "Changed and committed.", 3, "anthropic/claude-opus-4-7", 0.00297, {"bash": 2}),
    Case("pi-resume", 0, GOOD, 2, "resumed", 2, "anthropic/claude-sonnet-4-5", 0.001188, {"bash": 1}),
    Case("pi-recovered", 0, GOOD, 1, "recovered", 1, "anthropic/claude-opus-4-7", 0.00099),
    Case("pi-tool-error", 0, GOOD, 3, "It failed.", 3, "openai/gpt-5.1", 0.0009117, {"bash": 2}, failed=2),
    Case("pi-401", 0, BAD, 0, '401 {"type":"error"', 0, "anthropic/claude-opus-4-7", 0.0, errors=1,
         reason=FAILED_MESSAGE + "401"),
    Case("pi-500", 0, BAD, 0, '500 {"type":"error"', 0, "anthropic/claude-opus-4-7", 0.0, errors=1, retries=4,
         reason=FAILED_MESSAGE + "500"),
    Case("pi-blocked", 0, BAD, 0, "403 agent-container egress", 0, "anthropic/claude-sonnet-4-5", 0.0, errors=1,
         reason=FAILED_MESSAGE + "403 agent-container egress"),
    Case("pi-int", None, BAD, 2, None, None, "anthropic/claude-opus-4-7", 0.00198, {"bash": 2}, signal="SIGINT",
         reason="the agent ended by signal SIGINT"),
    Case("pi-term", 143, BAD, 2, None, None, "anthropic/claude-opus-4-7", 0.00198, {"bash": 2},
         reason="the agent ended with status 143"),
    Case("codex-int", 1, BAD, 0, None, tools={"command_execution": 2}, reason="the agent ended with status 1"),
    Case("codex-term", None, BAD, 0, None, tools={"command_execution": 2}, signal="SIGTERM",
         reason="the agent ended by signal SIGTERM"),
]  # fmt: skip


def spool(case: Case) -> Iterator[bytes]:
    """The recording as the runner would have kept it, in pieces that end in the middle of lines."""
    data = (STREAMS / f"{case.name}.jsonl").read_text()
    pieces = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    for seq, text in enumerate(pieces, start=1):
        yield json.dumps({"seq": seq, "ch": "stdout", "text": text}).encode() + b"\n"
    end = {"seq": len(pieces) + 1, "ch": "exit", "code": case.code, "signal": case.signal, "reason": "exit"}
    yield json.dumps(end).encode() + b"\n"


def read(case: Case) -> tuple[Tally, list[Event]]:
    tally = Tally(PROFILES[case.name.partition("-")[0]].parser())
    return tally, list(tally.events(spool(case)))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_recording_is_counted_as_what_it_was(case: Case) -> None:
    tally, events = read(case)
    view = tally.view()
    assert re.fullmatch(r"[0-9a-zA-Z_-]{20,40}", view.session or "")
    assert (view.model, view.turns) == (case.model, case.turns)
    out = 15 * case.answers if case.out is None else case.out
    assert view.tokens == Tokens(input=150 * case.answers, output=out, cached=30 * case.answers)
    assert view.cost_usd == (None if case.cost is None else pytest.approx(case.cost))
    if case.message is None:
        assert view.final_message is None
    else:
        assert (view.final_message or "").startswith(case.message)
    assert {row.name: row.calls for row in view.tool_calls} == case.tools
    assert (len(view.errors), len(view.permission_denials)) == (case.errors, case.denials)
    assert sum(isinstance(event, AgentError) and event.retrying for event in events) == case.retries
    assert sum(isinstance(event, ToolResult) and not event.ok for event in events) == case.failed
    assert sum(isinstance(event, AgentOutput) for event in events) == case.remarks


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_recording_ends_as_it_did(case: Case) -> None:
    tally, _ = read(case)
    assert tally.exit is not None
    end = end_of(tally.exit, PROFILES[case.name.partition("-")[0]], tally.result, HOST)
    assert end.outcome is case.outcome
    assert end.reason.startswith(case.reason)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_result_of_a_tool_belongs_to_a_call(case: Case) -> None:
    _, events = read(case)
    calls = {event.id: event.name for event in events if isinstance(event, ToolCall)}
    for event in events:
        if isinstance(event, ToolResult):
            assert calls[event.id] == event.name
        elif isinstance(event, PermissionDenied):
            assert event.tool in calls.values()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_half_a_recording_never_succeeds(case: Case) -> None:
    """Whatever the exit status: the end of a stream must be there."""
    data = (STREAMS / f"{case.name}.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    parser = PROFILES[case.name.partition("-")[0]].parser
    tally = Tally(parser())
    half = b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2]
    frame = json.dumps({"seq": 1, "ch": "stdout", "text": half.decode("utf-8", "ignore")}).encode() + b"\n"
    events = list(tally.events([frame, b'{"seq": 2, "ch": "exit", "code": 0, "reason": "exit"}\n']))
    assert not [event for event in events if isinstance(event, AgentResult)]


def test_every_recording_has_its_row() -> None:
    assert {path.stem for path in STREAMS.glob("*.jsonl")} == {case.name for case in CASES}
    assert all(path.stat().st_size < 60_000 for path in STREAMS.glob("*.jsonl"))
