"""A turn's spool, read after the fact: the run's events, what the agent reported of itself, what was unreadable.

Pure, over bytes that a sandbox could have written. Frames keep the order in which they stand; moments are the host's
start plus the runner's monotonic count, so that a container's clock that jumps cannot reorder or stretch a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Literal

from agent_container.agents.profile import StreamParser
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentResult,
    AgentSession,
    Event,
    Evidence,
    PermissionDenied,
    RunNote,
    ToolCall,
    Usage,
)
from agent_container.frames import MAX_AGENT_LINE_BYTES, BadLine, Frame, Line, LineSplitter, parse_frames
from agent_container.records import AgentView, Tokens, ToolCount

SKEW_S = 60.0
"""A container's clock that is further off than this is noted."""
MAX_LISTED = 100
MAX_TOOLS = 200
MAX_FINAL_CHARS = 64 * 1024
LONGEST_TURN_MS = 366 * 24 * 3600 * 1000
"""A frame that claims to be later than this after the start is not believed."""

Channel = Literal["stdout", "stderr"]


class SpoolReader:
    """Reads one turn. The other attributes are complete once `events` is at its end."""

    def __init__(self, parser: StreamParser, *, started: datetime) -> None:
        self._parser = parser
        self._started = started
        self._splitters: dict[Channel, LineSplitter] = {
            "stdout": LineSplitter(max_bytes=MAX_AGENT_LINE_BYTES),
            "stderr": LineSplitter(max_bytes=MAX_AGENT_LINE_BYTES),
        }
        self._seq = 0
        self._tally = AgentTally()
        self.bad_lines = 0
        self.exit: Frame | None = None
        """The runner's last frame: how the agent's process ended, which is the sandbox's word."""
        self.skew_s: float | None = None
        """The container's clock minus the host's, when that was ever more than a minute."""

    def events(self, chunks: Iterable[bytes]) -> Iterator[Event]:
        """Every event of the turn; what could not be read is an `evidence` event with its line number."""
        at = self._started
        for item in parse_frames(chunks):
            if isinstance(item, BadLine):
                self.bad_lines += 1
                yield _evidence("raw.jsonl", item, at)
                continue
            at = self._moment(item)
            if item.seq <= self._seq:
                yield RunNote(
                    at=at, text=f"frame {item.seq} stands after frame {self._seq} in line {item.line} of the spool"
                )
            self._seq = max(self._seq, item.seq)
            if item.channel == "exit":
                self.exit = item
                continue
            for line in self._splitters[item.channel].feed(item.data):
                yield from self._line(line, item.channel, at)
        channel: Channel
        for channel, splitter in self._splitters.items():
            for line in splitter.finish():
                yield from self._line(line, channel, at)
        if self.exit is None:
            yield RunNote(
                at=at, text="the spool has no end: the runner stopped writing before the agent's process ended"
            )

    @property
    def agent(self) -> AgentView:
        """What the agent reported."""
        ended = self.exit
        view = self._tally.view()
        if ended is None:
            return view
        return view.model_copy(update={"exit_code": ended.code, "signal": ended.signal})

    def _line(self, line: Line, channel: Channel, at: datetime) -> Iterator[Event]:
        if line.cut:
            self.bad_lines += 1
            yield _evidence(channel, BadLine(line.number, "too-long", line.size, line.data), at)
            return
        for event in self._parser.parse(line, channel=channel):
            self._tally.add(event)
            yield event.model_copy(update={"at": at})

    def _moment(self, frame: Frame) -> datetime:
        at = self._started + timedelta(milliseconds=min(frame.t_ms, LONGEST_TURN_MS))
        if frame.wall_ms is not None:
            skew = frame.wall_ms / 1000 - at.timestamp()
            if abs(skew) > SKEW_S and abs(skew) > abs(self.skew_s or 0.0):
                self.skew_s = round(skew, 3)
        return at


class AgentTally:
    """Adds up what an agent reports, event by event."""

    def __init__(self) -> None:
        self._view = AgentView()
        self._tokens = Tokens()
        self._cost: float | None = None
        self._tools: Counter[str] = Counter()
        self._denied: list[str] = []
        self._errors: list[str] = []
        self._message: str | None = None

    def add(self, event: Event) -> None:
        """One more event; those that say nothing of the agent are passed over."""
        match event:
            case AgentSession():
                found = {"session": event.session, "model": event.model}
                self._view = self._view.model_copy(update={key: value for key, value in found.items() if value})
            case AgentMessage():
                self._message = event.text[:MAX_FINAL_CHARS]
            case AgentResult():
                update = {"result_ok": event.ok, "turns": event.turns if event.turns is not None else self._view.turns}
                self._view = self._view.model_copy(update=update)
                self._message = event.text[:MAX_FINAL_CHARS] or self._message
            case ToolCall():
                name = event.name[:200]
                self._tools[name if name in self._tools or len(self._tools) < MAX_TOOLS else "(others)"] += 1
            case Usage():
                self._use(event)
            case PermissionDenied():
                _bounded(self._denied, f"{event.tool}: {event.detail}" if event.detail else event.tool)
            case AgentError():
                _bounded(self._errors, event.message)
            case _:
                pass

    def view(self) -> AgentView:
        """The sum so far."""
        return self._view.model_copy(
            update={
                "tokens": self._tokens,
                "cost_usd": self._cost,
                "final_message": self._message,
                "tool_calls": tuple(ToolCount(name=name, calls=calls) for name, calls in self._tools.most_common()),
                "permission_denials": tuple(self._denied),
                "errors": tuple(self._errors),
            }
        )

    def _use(self, event: Usage) -> None:
        old = Tokens() if event.cumulative else self._tokens
        self._tokens = Tokens(
            input=old.input + event.tokens_in,
            output=old.output + event.tokens_out,
            cached=old.cached + event.tokens_cached,
        )
        if event.cost_usd is not None:
            self._cost = event.cost_usd + (0.0 if event.cumulative or self._cost is None else self._cost)


def _evidence(source: str, bad: BadLine, at: datetime) -> Evidence:
    head = bad.head.decode("utf-8", "backslashreplace")
    return Evidence(at=at, source=source, line=bad.line, kind=bad.kind, size=bad.size, head=head)


def _bounded(names: list[str], name: str) -> None:
    if len(names) < MAX_LISTED:
        names.append(name[:1000])
