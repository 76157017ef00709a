"""The `demo` agent: a scripted program of the image that needs no key and no model, for a first look and for tests.

Its stream is JSON lines of `{"type": ...}`; image/demo writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_container.agents.profile import AgentProfile, Channel, Launch, Work, output_event
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentResult,
    AgentSession,
    Event,
    ToolCall,
    ToolResult,
    Usage,
)
from agent_container.frames import BadLine, Line, parse_object

PROGRAM = "/opt/agent-container/demo"


def _headless(work: Work) -> Launch:
    return Launch(argv=("/usr/bin/python3", PROGRAM, "--", work.task))


def _interactive(_: Work) -> Launch:
    return Launch(argv=("/usr/bin/python3", PROGRAM, "--interactive"))


class DemoStream:
    """Reads the demo agent's lines."""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """One event a line; anything else it prints is output."""
        row = parse_object(line) if channel == "stdout" else None
        event = None if row is None or isinstance(row, BadLine) else _event(row)
        yield event or output_event(line, channel=channel)


def _event(row: dict[str, object]) -> Event | None:
    match row.get("type"):
        case "session":
            return AgentSession(session=_text(row, "session"), version=_text(row, "version"))
        case "message":
            return AgentMessage(text=_text(row, "text"))
        case "tool_call":
            return ToolCall(id=_text(row, "id"), name=_text(row, "name"), input=_text(row, "input"))
        case "tool_result":
            ok = row.get("ok") is not False
            return ToolResult(id=_text(row, "id"), name=_text(row, "name"), ok=ok, output=_text(row, "output"))
        case "usage":
            return Usage(tokens_in=_count(row, "tokens_in"), tokens_out=_count(row, "tokens_out"))
        case "error":
            return AgentError(message=_text(row, "message"))
        case "result":
            turns = _count(row, "turns")
            return AgentResult(ok=row.get("ok") is True, text=_text(row, "text"), turns=turns or None)
        case _:
            return None


def _text(row: dict[str, object], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _count(row: dict[str, object], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


PROFILE = AgentProfile(name="demo", headless=_headless, interactive=_interactive, parser=DemoStream)
