"""What the tool must know of a coding agent: how to start it, how to read what it prints, and when it has succeeded.

Each agent is one small module that makes one `AgentProfile`; nothing else in the program knows an agent by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from agent_container.agent_install import NOTHING, AgentInstall
from agent_container.events import AgentOutput, Event, Evidence
from agent_container.frames import HEAD_BYTES, Line, not_parsed

MAX_OUTPUT_BYTES = 64 * 1024
UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
Channel = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class Work:
    """What an agent is started for."""

    task: str = ""
    """Empty for its own interface."""
    model: str | None = None
    resume: str | None = None
    """The agent's own name of the session that this goes on with."""
    turns: int | None = None
    cost_usd: float | None = None
    """The most that it may take, for agents that count themselves."""


@dataclass(frozen=True)
class Launch:
    """A program to start in the sandbox."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class HomeFile:
    """A file that the agent must find in its HOME before it starts, so that no dialog waits for anybody."""

    path: str
    """Relative to HOME."""
    text: str
    how: Literal["merge-json", "if-absent", "replace"] = "merge-json"
    """What happens to a file that is there: objects are merged and lists joined, it stays, or it goes."""


class StreamParser(Protocol):
    """Turns an agent's own output into events; holds what must be remembered between lines, and raises nothing."""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line."""


def _no_files(_: Mapping[str, str]) -> tuple[HomeFile, ...]:
    return ()


def _no_credentials(_: str | None) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class AgentProfile:
    """One coding agent."""

    name: str
    headless: Callable[[Work], Launch]
    """The program that works on a task and ends."""
    interactive: Callable[[Work], Launch]
    """The agent's own interface on a terminal."""
    parser: Callable[[], StreamParser]
    install: AgentInstall = NOTHING
    credentials: Callable[[str | None], tuple[str, ...]] = _no_credentials
    """(model) to the kinds of credential of which it needs one, the usual one first."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that keep it quiet: no telemetry, no update, no question."""
    home: Callable[[Mapping[str, str]], tuple[HomeFile, ...]] = _no_files
    """(placeholder by kind of credential) to what must be in its HOME."""
    keeps: tuple[str, ...] = ()
    """Paths in HOME that it needs to resume a session; directories with all that is below."""
    session_form: str = UUID
    """Pattern of its own names of sessions. One of another form is never given back to it as an argument: to some of
    them `latest`, a number or a path is a session too, and what begins with a dash is an option."""
    hosts: tuple[str, ...] = ()
    """What it cannot work without, beyond its credential's hosts."""
    has_result: bool = True
    """Whether its stream ends with a result: an exit status of 0 without one is then a failure."""
    reports_cost: bool = False
    """Whether its stream says what it has cost so far, or it ends by itself when `Work.cost_usd` is reached."""
    usage_spans_session: bool = False
    """Whether its count of tokens begins with its session, runs that were resumed included."""
    stop_signal: Literal["INT", "TERM"] = "TERM"
    """What it answers by writing down what it has before it ends."""

    def names_session(self, session: str) -> bool:
        """Whether this may be one of its sessions."""
        return re.fullmatch(self.session_form, session, re.ASCII) is not None


class PlainText:
    """A stream that nobody has described: each line is output."""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """One output event a line."""
        yield output_event(line, channel=channel)


def output_event(line: Line, *, channel: Channel) -> AgentOutput | Evidence:
    """A line that is in no known format, as text that can be stored: its beginning, if it is long. Of a line that was
    not even tried, its mark; its bytes are in the raw stream."""
    if (kind := not_parsed(line)) is not None:
        head = line.data[:HEAD_BYTES].decode("utf-8", "replace")
        return Evidence(source=channel, line=line.number, kind=kind, size=line.size, head=head)
    text = line.data[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
    return AgentOutput(channel=channel, text=text + ("…" if len(line.data) > MAX_OUTPUT_BYTES else ""))
