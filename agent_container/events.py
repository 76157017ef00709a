"""What happens in a run: one typed event a line of events.jsonl, and the same for every agent.

Pure. The agents' modules turn their own formats into these events; nothing here knows an agent. How raw streams
become lines and frames is for `frames`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Cost = Annotated[float | None, AfterValidator(_finite)]
"""US dollars; NaN and infinity, which a JSON stream can carry, are no cost."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int | None = None
    """Its place in the run's events.jsonl, live too; times may jump, this does not. None for what is said of a run that
    is under way and stands elsewhere in its record."""
    at: AwareDatetime | None = None
    """When the host or the runner saw it, UTC."""


class RunStarted(_Event):
    """The agent's process was asked for."""

    type: Literal["run.started"] = "run.started"
    run: str
    agent: str
    task: str | None = None


class AgentSession(_Event):
    """The agent said what it calls its own session, for resuming."""

    type: Literal["agent.session"] = "agent.session"
    session: str | None = None
    model: str | None = None
    version: str | None = None


class AgentMessage(_Event):
    """Text that the agent addressed to its user."""

    type: Literal["agent.message"] = "agent.message"
    text: str


class AgentThought(_Event):
    """Text that the agent marked as its reasoning."""

    type: Literal["agent.thought"] = "agent.thought"
    text: str


class ToolCall(_Event):
    """The agent is about to use a tool."""

    type: Literal["tool.call"] = "tool.call"
    id: str = ""
    name: str
    input: str = ""
    """The arguments as the agent wrote them, usually JSON text."""


class ToolResult(_Event):
    """A tool came back."""

    type: Literal["tool.result"] = "tool.result"
    id: str = ""
    name: str = ""
    ok: bool = True
    output: str = ""


class Usage(_Event):
    """Tokens and cost by the agent's own count since the event before; `cumulative` when they count from the start."""

    type: Literal["usage"] = "usage"
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    cost_usd: Cost = None
    cumulative: bool = False


class PermissionDenied(_Event):
    """The agent was refused something by its own rules."""

    type: Literal["permission.denied"] = "permission.denied"
    tool: str
    detail: str = ""


class AgentError(_Event):
    """The agent reported an error; one that it retries says nothing about the run's end."""

    type: Literal["agent.error"] = "agent.error"
    message: str
    retrying: bool = False


class AgentOutput(_Event):
    """Output that is in no format the agent's module knows."""

    type: Literal["agent.output"] = "agent.output"
    channel: Literal["stdout", "stderr"] = "stdout"
    text: str


class AgentResult(_Event):
    """The agent said that it is done, and how it went; its exit status may say something else."""

    type: Literal["agent.result"] = "agent.result"
    ok: bool
    text: str = ""
    turns: int | None = None
    budget: bool = False
    """Whether it ended because of a limit that it had been given."""


class EgressDenied(_Event):
    """The sidecar refused a connection, a name or a packet."""

    type: Literal["egress.denied"] = "egress.denied"
    host: str
    port: int | None = None
    rule: str = ""
    layer: str = ""
    count: int = 1


class EgressTripwire(_Event):
    """A decoy was seen where it has no business, or a killing rule matched."""

    type: Literal["egress.tripwire"] = "egress.tripwire"
    host: str = ""
    detail: str = ""


class EgressFinding(_Event):
    """The body scanner found a key or a secret; never what it was of it."""

    type: Literal["egress.dlp"] = "egress.dlp"
    host: str = ""
    direction: str = ""
    """request or response."""
    what: str = ""
    action: str = ""
    """block or log."""
    count: int = 1

    @property
    def words(self) -> str:
        """One line for people."""
        return finding_words(self.what, self.direction, self.host, self.action, self.count)


def finding_words(what: str, direction: str, host: str, action: str, count: int) -> str:
    """`aws-access-key in a request to api.example, blocked`."""
    place = "the answer of" if direction == "response" else "a request to"
    times = f" ({count} times)" if count > 1 else ""
    return f"{what} in {place} {host}, {'blocked' if action == 'block' else 'noted'}{times}"


class Evidence(_Event):
    """Something that could not be read; its bytes are in raw.jsonl."""

    type: Literal["evidence"] = "evidence"
    source: str
    line: int
    kind: str
    size: int
    head: str = ""


class RunNote(_Event):
    """A remark of the host's: a clock that jumped, a stream that was cut."""

    type: Literal["run.note"] = "run.note"
    text: str


class RunFinished(_Event):
    """The run is over."""

    type: Literal["run.finished"] = "run.finished"
    outcome: str
    reason: str = ""


Event = Annotated[
    RunStarted
    | AgentSession
    | AgentMessage
    | AgentThought
    | ToolCall
    | ToolResult
    | Usage
    | PermissionDenied
    | AgentError
    | AgentOutput
    | AgentResult
    | EgressDenied
    | EgressTripwire
    | EgressFinding
    | Evidence
    | RunNote
    | RunFinished,
    Field(discriminator="type"),
]

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def encode_event(event: Event) -> bytes:
    """One line of events.jsonl. A lone surrogate, which JSON allows an agent to send, becomes `?`."""
    try:
        return event.model_dump_json(exclude_none=True).encode() + b"\n"
    except (UnicodeEncodeError, ValueError):
        row = event.model_dump(mode="python", exclude_none=True)
        clean = {key: _encodable(value) if isinstance(value, str) else value for key, value in row.items()}
        return type(event).model_validate(clean).model_dump_json(exclude_none=True).encode() + b"\n"


def parse_event(line: bytes) -> Event | None:
    """The event that `encode_event` wrote; None for anything else, such as an event of a newer version."""
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None


def numbered(events: Iterable[Event], *, first: int = 1) -> Iterator[Event]:
    """The events with `seq` counted up from `first`."""
    for seq, event in enumerate(events, start=first):
        yield event.model_copy(update={"seq": seq})


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
