"""opencode, whose stream is that of `opencode run --format json`.

Measured with the pinned version: the task comes on stdin. The stream has no end: a step that finishes with `stop` may
be a summary in the middle of the work, so no result is made of it. What says how it went is the exit status, 1 as soon
as an error was reported, and a signal ends it at once. The tokens and the cost of each step are its own; those of
titles and of subagents are not said, and neither are model and version. A tool is reported when it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from agent_container.agent_install import AgentInstall
from agent_container.agents.fields import count, dollars, mapping, text
from agent_container.agents.profile import AgentProfile, Channel, HomeFile, Launch, Work, output_event
from agent_container.agents.providers import credentials_of
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentSession,
    AgentThought,
    Event,
    PermissionDenied,
    ToolCall,
    ToolResult,
    Usage,
)
from agent_container.frames import BadLine, Line, parse_object

PROGRAM = "/usr/local/bin/opencode"
GOES_ON = ("tool-calls", "stop")
REFUSED = ("The user has specified a rule which prevents", "The user rejected permission")

_ENVIRONMENT = (
    ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
    ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
    ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
    ("OPENCODE_DISABLE_SHARE", "1"),
)


def _options(work: Work) -> tuple[str, ...]:
    model = (f"--model={work.model}",) if work.model else ()
    return (*model, *((f"--session={work.resume}",) if work.resume else ()))


def _headless(work: Work) -> Launch:
    argv = (PROGRAM, "run", "--format=json", "--thinking", "--auto", *_options(work))
    return Launch(argv=argv, stdin=work.task.encode())


def _interactive(work: Work) -> Launch:
    return Launch(argv=(PROGRAM, *_options(work)))


def _home(_: Mapping[str, str]) -> tuple[HomeFile, ...]:
    config = {"autoupdate": False, "share": "disabled", "permission": "allow"}
    return (HomeFile(".config/opencode/opencode.json", json.dumps(config)),)


class OpencodeStream:
    """Reads its lines: `step_start`, `text`, `reasoning`, `tool_use`, `step_finish` and `error`."""

    def __init__(self) -> None:
        self._session = ""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line."""
        row = parse_object(line) if channel == "stdout" else None
        if row is None or isinstance(row, BadLine):
            yield output_event(line, channel=channel)
            return
        session = text(row, "sessionID")
        if session and session != self._session:
            self._session = session
            yield AgentSession(session=session)
        part = mapping(row, "part")
        match row.get("type"):
            case "step_start":
                return
            case "text":
                yield AgentMessage(text=text(part, "text"))
            case "reasoning":
                yield AgentThought(text=text(part, "text"))
            case "tool_use":
                yield from self._tool(part)
            case "step_finish":
                yield from self._step(part)
            case "error":
                error = mapping(row, "error")
                yield AgentError(message=text(mapping(error, "data"), "message") or text(error, "name"))
            case _:
                yield output_event(line, channel=channel)

    def _tool(self, part: dict[str, object]) -> Iterator[Event]:
        ident, name, state = text(part, "callID"), text(part, "tool"), mapping(part, "state")
        yield ToolCall(id=ident, name=name, input=text(state, "input"))
        output = text(state, "output") or text(state, "error")
        if state.get("status") == "error" and output.startswith(REFUSED):
            yield PermissionDenied(tool=name, detail=text(state, "input"))
        ok = state.get("status") == "completed" and mapping(state, "metadata").get("exit") in (None, 0)
        yield ToolResult(id=ident, name=name, ok=ok, output=output)

    def _step(self, part: dict[str, object]) -> Iterator[Event]:
        tokens = mapping(part, "tokens")
        cache = mapping(tokens, "cache")
        cached = count(cache, "read")
        yield Usage(
            tokens_in=count(tokens, "input") + count(cache, "write") + cached,
            tokens_out=count(tokens, "output") + count(tokens, "reasoning"),
            tokens_cached=cached,
            cost_usd=dollars(part, "cost"),
        )
        if (reason := part.get("reason")) not in GOES_ON:
            yield AgentError(message=f"the model's answer ended with {reason}")


PROFILE = AgentProfile(
    name="opencode",
    headless=_headless,
    interactive=_interactive,
    parser=OpencodeStream,
    install=AgentInstall(kind="native", package="opencode-ai", version="1.18.33", program="opencode"),
    credentials=credentials_of,
    environment=_ENVIRONMENT,
    home=_home,
    keeps=(
        ".local/share/opencode/opencode.db",
        ".local/share/opencode/opencode.db-shm",
        ".local/share/opencode/opencode.db-wal",
    ),
    session_form="ses_[0-9A-Za-z]{8,64}",
    has_result=False,
    reports_cost=True,
)
