"""pi, whose stream is `--mode json`.

Measured with the pinned version: the task comes on stdin, as plain text whatever it begins with. Its exit status is 0
even when the model service failed; `stopReason` of the last answer says how it went. An end may be followed by a retry,
so a failure counts as the end only when pi says so or never retries it. SIGTERM ends it with 143 and in order, SIGINT
at once. The tokens and the cost of each answer are its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_container.agent_install import AgentInstall
from agent_container.agents.fields import count, dollars, mapping, rows, text
from agent_container.agents.profile import AgentProfile, Channel, Launch, Work, output_event
from agent_container.agents.providers import credentials_of
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentResult,
    AgentSession,
    AgentThought,
    Event,
    ToolCall,
    ToolResult,
    Usage,
)
from agent_container.frames import BadLine, Line, parse_object

PROGRAM = "/usr/local/bin/pi"
FINAL = re.compile(r"40[134]\b")
"""How an error begins that no retry follows: who may not, may not the next time either."""
PARTS_OF_OTHERS = frozenset(
    {"agent_start", "auto_retry_start", "message_start", "message_update", "tool_execution_update", "turn_start"}
)
"""What the end of the same thing says again. Most of the stream is `message_update`: each has the message so far."""

_ENVIRONMENT = (("PI_OFFLINE", "1"), ("PI_SKIP_VERSION_CHECK", "1"), ("PI_TELEMETRY", "0"))


def _options(work: Work) -> tuple[str, ...]:
    model = ("--model", work.model) if work.model else ()
    return (*model, *(("--session", work.resume) if work.resume else ()))


def _headless(work: Work) -> Launch:
    return Launch(argv=(PROGRAM, "--print", "--mode", "json", *_options(work)), stdin=work.task.encode())


def _interactive(work: Work) -> Launch:
    return Launch(argv=(PROGRAM, *_options(work)))


class PiStream:
    """Reads its lines: those that end a message, a tool's work, a turn or the whole."""

    def __init__(self) -> None:
        self._session: str | None = None
        self._model: str | None = None
        self._turns = 0
        self._said = ""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line."""
        row = parse_object(line) if channel == "stdout" else None
        if row is None or isinstance(row, BadLine) or not isinstance(row.get("type"), str):
            yield output_event(line, channel=channel)
            return
        match row["type"]:
            case "session":
                self._session = text(row, "id") or None
                yield AgentSession(session=self._session)
            case "message_end":
                yield from self._message(mapping(row, "message"))
            case "tool_execution_start":
                yield ToolCall(id=text(row, "toolCallId"), name=text(row, "toolName"), input=text(row, "args"))
            case "tool_execution_end":
                output = "\n".join(text(part, "text") for part in rows(mapping(row, "result"), "content"))
                ok = row.get("isError") is False
                yield ToolResult(id=text(row, "toolCallId"), name=text(row, "toolName"), ok=ok, output=output)
            case "turn_end":
                self._turns += mapping(row, "message").get("stopReason") != "error"
            case "agent_end":
                yield from self._end(row)
            case "auto_retry_end":
                if row.get("success") is False:
                    yield AgentError(message=text(row, "finalError"))
                    yield AgentResult(ok=False, text=text(row, "finalError"), turns=self._turns)
            case kind if kind not in PARTS_OF_OTHERS:
                yield output_event(line, channel=channel)

    def _message(self, message: dict[str, object]) -> Iterator[Event]:
        if message.get("role") != "assistant":
            return
        model = "/".join(filter(None, (text(message, "provider"), text(message, "model"))))
        if model and model != self._model:
            self._model = model
            yield AgentSession(session=self._session, model=model)
        for part in rows(message, "content"):
            if part.get("type") == "text":
                self._said = text(part, "text")
                yield AgentMessage(text=self._said)
            elif part.get("type") == "thinking":
                yield AgentThought(text=text(part, "thinking"))
        if message.get("stopReason") == "error":
            error = text(message, "errorMessage")
            yield AgentError(message=error, retrying=FINAL.match(error) is None)
        usage = mapping(message, "usage")
        if usage:
            cached = count(usage, "cacheRead")
            yield Usage(
                tokens_in=count(usage, "input") + count(usage, "cacheWrite") + cached,
                tokens_out=count(usage, "output"),
                tokens_cached=cached,
                cost_usd=dollars(mapping(usage, "cost"), "total"),
            )

    def _end(self, row: dict[str, object]) -> Iterator[Event]:
        answers = [message for message in rows(row, "messages") if message.get("role") == "assistant"]
        last = answers[-1] if answers else {}
        error = text(last, "errorMessage")
        match last.get("stopReason"):
            case "stop":
                yield AgentResult(ok=True, text=self._said, turns=self._turns)
            case "error":
                if FINAL.match(error):
                    yield AgentResult(ok=False, text=error, turns=self._turns)
            case reason:
                yield AgentResult(ok=False, text=error or f"the model's answer ended with {reason}", turns=self._turns)


PROFILE = AgentProfile(
    name="pi",
    headless=_headless,
    interactive=_interactive,
    parser=PiStream,
    install=AgentInstall(kind="node", package="@mariozechner/pi-coding-agent", version="0.73.1", program="pi"),
    credentials=credentials_of,
    environment=_ENVIRONMENT,
    keeps=(".pi/agent/sessions",),
    reports_cost=True,
)
