"""What the tool must know of a coding agent: how to start it, how to read what it prints, and when it has succeeded.

Each agent is one small module that makes one `AgentProfile`; nothing else in the program knows an agent by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from agent_container.events import AgentOutput, Event
from agent_container.frames import Line

Channel = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class Launch:
    """A program to start in the sandbox."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    environment: tuple[tuple[str, str], ...] = ()


class StreamParser(Protocol):
    """Turns an agent's own output into events; holds what must be remembered between lines, and raises nothing."""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line."""


@dataclass(frozen=True)
class AgentProfile:
    """One coding agent."""

    name: str
    headless: Callable[[str, str | None], Launch]
    """(task, model) to the program that works on a task and ends."""
    interactive: Callable[[str | None], Launch]
    """(model) to the agent's own interface on a terminal."""
    parser: Callable[[], StreamParser]
    credential: str | None = None
    """The kind of credential that is implied."""
    hosts: tuple[str, ...] = ()
    """What it cannot work without."""
    has_result: bool = True
    """Whether its stream ends with a result: an exit status of 0 without one is then a failure."""


class PlainText:
    """A stream that nobody has described: each line is output."""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """One output event a line."""
        yield output_event(line, channel=channel)


def output_event(line: Line, *, channel: Channel) -> AgentOutput:
    """A line that is in no known format, as text that can be stored."""
    return AgentOutput(channel=channel, text=line.data.decode("utf-8", "replace") + ("…" if line.cut else ""))
