"""From a spool to events, and from events to what the agent said of itself. Pure; the same for live and stored runs.

Everything here is the agent's word. Events come in the order of the spool; what cannot be read comes as evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Literal, Protocol

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

Channel = Literal["stdout", "stderr"]
MAX_LISTED = 50
MAX_TRACKED = 1000
OTHERS = "(others)"
MAX_TEXT = 64 * 1024


class Parser(Protocol):
    """An agent's stream parser (`agents.profile.StreamParser`)."""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line."""


class Tally:
    """Reads a spool once: yields its events and counts what the agent says of itself."""

    def __init__(self, parser: Parser, *, started: datetime | None = None) -> None:
        """`started` is the host's clock at the turn's start: the container's own may jump."""
        self._parser = parser
        self._started = started
        self._splitters = {channel: LineSplitter(max_bytes=MAX_AGENT_LINE_BYTES) for channel in ("stdout", "stderr")}
        self._session: AgentSession | None = None
        self._result: AgentResult | None = None
        self._last_message: str | None = None
        self._usage = Tokens()
        self._cost: float | None = None
        self._tools: Counter[str] = Counter()
        self._denials: list[str] = []
        self._errors: list[str] = []
        self._exit: Frame | None = None
        self.bad_lines = 0
        self.duration_s = 0.0
        self.first_wall_ms: int | None = None

    def events(self, chunks: Iterable[bytes], *, goes_on: bool = False) -> Iterator[Event]:
        """The events of a spool given in chunks cut anywhere; of one that `goes_on`, half a line is left out."""
        for frame in parse_frames(chunks):
            yield from self.read(frame)
        if not goes_on:
            yield from self.rest()

    def rest(self) -> Iterator[Event]:
        """The events of what stands after the last line end: an agent's result may be there."""
        for channel in self._splitters:
            yield from self._lines(channel, lambda splitter: splitter.finish(), None)

    def read(self, frame: Frame | BadLine) -> Iterator[Event]:
        """The events that end in one frame."""
        if isinstance(frame, BadLine):
            self.bad_lines += 1
            head = frame.head.decode("utf-8", "replace")
            yield Evidence(source="spool", line=frame.line, kind=frame.kind, size=frame.size, head=head)
            return
        self.duration_s = max(self.duration_s, frame.t_ms / 1000)
        if self.first_wall_ms is None and frame.wall_ms is not None:
            self.first_wall_ms = frame.wall_ms - frame.t_ms
        if frame.channel == "exit":
            self._exit = frame
            return
        if frame.channel == "truncated":
            yield RunNote(at=self._moment(frame), text=f"the spool was cut: {frame.detail}")
            return
        yield from self._lines(frame.channel, lambda splitter: splitter.feed(frame.data), self._moment(frame))

    def _moment(self, frame: Frame) -> datetime | None:
        try:
            return None if self._started is None else self._started + timedelta(milliseconds=frame.t_ms)
        except OverflowError:
            return None

    def _lines(
        self, channel: str, take: Callable[[LineSplitter], Iterator[Line]], at: datetime | None
    ) -> Iterator[Event]:
        name: Channel = "stdout" if channel == "stdout" else "stderr"
        for line in take(self._splitters[channel]):
            for event in self._parser.parse(line, channel=name):
                self._note(event)
                yield event.model_copy(update={"at": at}) if at is not None and event.at is None else event

    def _note(self, event: Event) -> None:
        match event:
            case AgentSession():
                self._session = event
            case AgentResult():
                self._result = event
            case AgentMessage():
                self._last_message = event.text
            case ToolCall():
                name = event.name[:128]
                self._tools[name if name in self._tools or len(self._tools) < MAX_TRACKED else OTHERS] += 1
            case Usage():
                self._add_usage(event)
            case PermissionDenied() if len(self._denials) < MAX_LISTED:
                self._denials.append(f"{event.tool}: {event.detail}"[:512])
            case AgentError() if not event.retrying and len(self._errors) < MAX_LISTED:
                self._errors.append(event.message[:512])
            case _:
                pass

    def _add_usage(self, event: Usage) -> None:
        before = Tokens() if event.cumulative else self._usage
        self._usage = Tokens(
            input=before.input + event.tokens_in,
            output=before.output + event.tokens_out,
            cached=before.cached + event.tokens_cached,
        )
        if event.cost_usd is not None:
            self._cost = event.cost_usd + (0.0 if event.cumulative else self._cost or 0.0)

    def view(self) -> AgentView:
        """What the agent reported, as far as the spool was read."""
        result, session, end = self._result, self._session, self._exit
        final = (result.text if result is not None and result.text else self._last_message) or None
        return AgentView(
            session=session.session if session else None,
            model=session.model if session else None,
            turns=result.turns if result else None,
            tokens=self._usage,
            cost_usd=self._cost,
            final_message=final[:MAX_TEXT] if final else None,
            tool_calls=tuple(ToolCount(name=name, calls=calls) for name, calls in self._tools.most_common(MAX_LISTED)),
            permission_denials=tuple(self._denials),
            result_ok=result.ok if result else None,
            exit_code=end.code if end else None,
            signal=end.signal if end else None,
            errors=tuple(self._errors),
        )

    @property
    def version(self) -> str | None:
        """What the agent's program says of its version."""
        return self._session.version if self._session else None

    @property
    def exit(self) -> Frame | None:
        """The spool's last frame, when it got that far."""
        return self._exit

    @property
    def last_error(self) -> str:
        """The last error that the agent did not get over, in its words."""
        return self._errors[-1] if self._errors else ""

    @property
    def result(self) -> AgentResult | None:
        """The agent's final word, when it said one."""
        return self._result
