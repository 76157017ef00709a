"""Gemini CLI, whose stream is `-o stream-json`.

Measured with the pinned version: the task comes on stdin, where only `@file` means something to it. Its exit status is
0 on SIGTERM and on SIGINT too, then without a result; a failure's is that of HTTP modulo 256. The tokens of a result
are those of this process; there is no cost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from agent_container.agent_install import AgentInstall
from agent_container.agents.fields import count, mapping, text
from agent_container.agents.profile import AgentProfile, Channel, HomeFile, Launch, Work, output_event
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentResult,
    AgentSession,
    Event,
    PermissionDenied,
    ToolCall,
    ToolResult,
    Usage,
)
from agent_container.frames import BadLine, Line, parse_object

PROGRAM = "/usr/local/bin/gemini"
MAX_REMEMBERED = 10_000
MAX_MESSAGE = 4 * 1024 * 1024
REFUSALS = ("policy_violation", "permission_denied")

# The launcher starts a second process and ignores signals itself.
_ENVIRONMENT = (("GEMINI_CLI_NO_RELAUNCH", "true"),)

_SETTINGS: dict[str, object] = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    # 15 s of 500s with a model named; the choice of a model by `auto` has attempts of its own, 70 s of them.
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "maxAttempts": 3},
}


def _options(work: Work) -> tuple[str, ...]:
    model = (f"--model={work.model}",) if work.model else ()
    return ("--yolo", "--skip-trust", *model, *((f"--resume={work.resume}",) if work.resume else ()))


def _headless(work: Work) -> Launch:
    return Launch(argv=(PROGRAM, "--output-format=stream-json", *_options(work)), stdin=work.task.encode())


def _interactive(work: Work) -> Launch:
    return Launch(argv=(PROGRAM, *_options(work)))


def _home(_: Mapping[str, str]) -> tuple[HomeFile, ...]:
    return (HomeFile(".gemini/settings.json", json.dumps(_SETTINGS)),)


def _credentials(_: str | None) -> tuple[str, ...]:
    return ("google",)


class GeminiStream:
    """Reads its lines: `init`, `message`, `tool_use`, `tool_result`, `error` and `result`."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}
        self._pieces: list[str] = []
        self._size = 0
        self._said = ""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line; a message comes in pieces, and is one event when something else follows it."""
        row = parse_object(line) if channel == "stdout" else None
        if row is None or isinstance(row, BadLine):
            yield output_event(line, channel=channel)
            return
        kind = row.get("type")
        if kind == "message" and row.get("role") == "assistant":
            yield from self._piece(row)
            return
        yield from self._message()
        match kind:
            case "init":
                yield AgentSession(session=text(row, "session_id") or None, model=text(row, "model") or None)
            case "message" if row.get("role") == "user":
                return
            case "tool_use":
                ident, name = text(row, "tool_id"), text(row, "tool_name")
                if len(self._tools) < MAX_REMEMBERED:
                    self._tools[ident] = name
                yield ToolCall(id=ident, name=name, input=text(row, "parameters"))
            case "tool_result":
                yield from self._tool_result(row)
            case "error":
                yield AgentError(message=text(row, "message"), retrying=row.get("severity") == "warning")
            case "result":
                yield from self._result(row)
            case _:
                yield output_event(line, channel=channel)

    def _piece(self, row: dict[str, object]) -> Iterator[Event]:
        piece = text(row, "content")
        self._pieces.append(piece)
        self._size += len(piece)
        if row.get("delta") is not True or self._size > MAX_MESSAGE:
            yield from self._message()

    def _message(self) -> Iterator[Event]:
        if self._pieces:
            self._said = "".join(self._pieces)
            self._pieces, self._size = [], 0
            yield AgentMessage(text=self._said)

    def _tool_result(self, row: dict[str, object]) -> Iterator[Event]:
        ident, error = text(row, "tool_id"), mapping(row, "error")
        name = self._tools.get(ident, "")
        output = text(row, "output") or text(error, "message")
        if error.get("type") in REFUSALS:
            yield PermissionDenied(tool=name, detail=output)
        yield ToolResult(id=ident, name=name, ok=row.get("status") == "success", output=output)

    def _result(self, row: dict[str, object]) -> Iterator[Event]:
        stats = mapping(row, "stats")
        yield Usage(
            tokens_in=count(stats, "input_tokens"),
            tokens_out=count(stats, "output_tokens"),
            tokens_cached=count(stats, "cached"),
            cumulative=True,
        )
        ok = row.get("status") == "success"
        message = self._said if ok else text(mapping(row, "error"), "message")
        if not ok:
            yield AgentError(message=message)
        yield AgentResult(ok=ok, text=message)


PROFILE = AgentProfile(
    name="gemini",
    headless=_headless,
    interactive=_interactive,
    parser=GeminiStream,
    install=AgentInstall(kind="node", package="@google/gemini-cli", version="0.61.0", program="gemini"),
    credentials=_credentials,
    environment=_ENVIRONMENT,
    home=_home,
    keeps=(".gemini/tmp",),
)
