"""A run's record, schema `agent-container/run/1`: what the host saw and what the agent reported, kept apart.

Pure. The host's half is written from what the engine, the sidecar and git said; the agent's half from its own stream,
which the sandbox could have made up. Outcomes say whose word they are.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent_container.errors import StoreError

SCHEMA = "agent-container/run/1"


class Outcome(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    BUDGET = "budget"
    KILLED = "killed"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    NEVER_STARTED = "never-started"


class Basis(StrEnum):
    """Whose word an outcome is."""

    HOST = "host"
    AGENT = "agent"


EXIT_STATUS: dict[Outcome, int] = {
    Outcome.SUCCEEDED: 0,
    Outcome.FAILED: 10,
    Outcome.TIMEOUT: 11,
    Outcome.BUDGET: 12,
    Outcome.KILLED: 13,
    Outcome.LOST: 14,
    Outcome.NEVER_STARTED: 15,
    Outcome.INTERRUPTED: 130,
}
"""Exit status of `run` for each outcome."""

_AGENTS_WORD = frozenset({Outcome.SUCCEEDED, Outcome.FAILED})
_EITHERS_WORD = frozenset({Outcome.BUDGET})
"""Model requests and bytes are counted in the sidecar, cost and turns by the agent."""


MAX_COST_USD, MAX_SKEW_S, LAST_YEAR = 1e9, 1e10, 9000


def _plausible(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= MAX_COST_USD else None


def _bounded(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= MAX_SKEW_S else None


def _in_calendar(value: datetime) -> datetime:
    try:
        year = value.astimezone(UTC).year
    except OverflowError:
        year = 0
    if not 1970 <= year <= LAST_YEAR:  # so that no timezone and no clock's error takes it out of the calendar
        raise ValueError("no moment that a run could have had")
    return value


Cost = Annotated[float | None, AfterValidator(_plausible)]
"""US dollars; NaN, infinity and what nobody could pay, which a JSON stream can carry, are no cost."""
Skew = Annotated[float | None, AfterValidator(_bounded)]
Moment = Annotated[AwareDatetime, AfterValidator(_in_calendar)]


class _Noun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Digests(_Noun):
    """What the run was made from."""

    spec: str | None = None
    policy: str | None = None
    """The policy in force when the run began; later ones are named by receipts."""
    stack: str | None = None
    agent_image: str | None = None
    sidecar_image: str | None = None


class Versions(_Noun):
    """Who took part."""

    agent: str
    """The agent's name in the spec."""
    agent_cli: str | None = None
    """What its program says of itself."""
    agent_container: str
    engine: str | None = None


class Workspace(_Noun):
    """What became of the tree, as git on the host sees the fetched bundle."""

    mode: Literal["bind", "clone"]
    project_commit: str | None = None
    """The project's own last commit at the start; none in a directory without commits."""
    base_commit: str | None = None
    """Where the work began: that commit, or a marked one above it."""
    carried: bool = False
    """Whether uncommitted work of the user came along, as the marked commit."""
    head_commit: str | None = None
    commits: int = 0
    files_changed: int = 0
    insertions: int = 0
    deletions: int = 0
    patch_digest: str | None = None
    ref: str | None = None
    """Where the commits were fetched to, `refs/agent-runs/<run>`."""
    note: str | None = None


class HostCount(_Noun):
    """One host in the egress table."""

    host: str
    allowed: int = 0
    denied: int = 0
    bytes_up: int = 0
    """Sent to it, as far as the proxy counted; what was under way when the sandbox ended is missing."""
    bytes_down: int = 0


class Refusal(_Noun):
    """A refused destination, with the rule that refused it."""

    host: str
    port: int | None = None
    rule: str = ""
    layer: str = ""
    """decision, lookup or drop: by name at the proxy, at the resolver, by packet in the kernel."""
    count: int = 1


class Tripwire(_Noun):
    """A decoy seen where it has no business, or a killing rule."""

    host: str = ""
    detail: str = ""


class ScanFinding(_Noun):
    """A key or secret in a body, as the scanner names it; nothing of its text."""

    host: str = ""
    direction: str = ""
    """request or response."""
    what: str = ""
    action: str = ""
    """block or log."""
    count: int = 1


class Egress(_Noun):
    """What the receipts say, counted by the host."""

    receipts: int = 0
    decisions: int = 0
    allowed: int = 0
    denied: int = 0
    lookups_denied: int = 0
    packets_dropped: int = 0
    bytes: int | None = None
    top_hosts: tuple[HostCount, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    tripwires: tuple[Tripwire, ...] = ()
    findings: tuple[ScanFinding, ...] = ()
    """What body scanning found."""
    chain_head: str | None = None
    chain_length: int = 0
    sealed: bool = False
    verified: Literal["verified", "tampered", "unverifiable", "not-checked"] = "not-checked"
    """How the chain was found when this was recorded. Whether the record is still what was written is not for the
    record to say."""


class Check(_Noun):
    """One row of the posture probe."""

    name: str
    ok: bool
    detail: str = ""


class Posture(_Noun):
    """What the probe saw before the agent's process started."""

    passed: bool
    checks: tuple[Check, ...] = ()


class Drained(_Noun):
    """How the reading of the volumes went."""

    complete: bool = True
    """False when records were lost: a volume was gone, or could not be read."""
    files: int = 0
    bytes: int = 0
    refused: tuple[str, ...] = ()
    """Names that were not read, with the reason: links, devices, hostile names."""
    truncated: tuple[str, ...] = ()
    bad_lines: int = 0
    notes: tuple[str, ...] = ()


class HostView(_Noun):
    """What the host saw."""

    run: str
    session: str
    project_id: str
    project_name: str = ""
    project_root: str = ""
    task: str | None = None
    labels: dict[str, str] = {}
    """What its user called it by, `run --label KEY=VALUE`."""
    started: Moment
    ended: Moment | None = None
    duration_s: float = Field(default=0.0, ge=0)
    """By a clock that never steps; so it may differ from `ended` minus `started`."""
    clock_skew_s: Skew = None
    """How far the container's clock was ahead of the host's, when that was more than a minute."""
    outcome: Outcome
    basis: Basis
    reason: str
    """Why it ended so, in words."""
    digests: Digests = Digests()
    versions: Versions
    workspace: Workspace | None = None
    egress: Egress = Egress()
    posture: Posture | None = None
    drained: Drained = Drained()
    previous_run: str | None = None
    """The run that this one resumes."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _basis_fits(self) -> Self:
        if self.outcome in _EITHERS_WORD:
            return self
        expected = Basis.AGENT if self.outcome in _AGENTS_WORD else Basis.HOST
        if self.basis is not expected:
            raise ValueError(f"the outcome {self.outcome} is the {expected}'s word, not the {self.basis}'s")
        return self


class Tokens(_Noun):
    """Counted by the agent."""

    input: int = 0
    output: int = 0
    cached: int = 0


class ToolCount(_Noun):
    """How often one tool was called."""

    name: str
    calls: int


class AgentView(_Noun):
    """What the agent reported; the sandbox may have made up any of it, its exit status included."""

    session: str | None = None
    model: str | None = None
    turns: int | None = None
    tokens: Tokens = Tokens()
    cost_usd: Cost = None
    final_message: str | None = None
    tool_calls: tuple[ToolCount, ...] = ()
    permission_denials: tuple[str, ...] = ()
    result_ok: bool | None = None
    """What its final event said; it counts before the exit status when there is one."""
    exit_code: int | None = None
    signal: str | None = None
    errors: tuple[str, ...] = ()


class RunRecord(_Noun):
    """What is known of a run for ever."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_by_name=True, serialize_by_alias=True
    )

    schema_: Literal["agent-container/run/1"] = Field(default="agent-container/run/1", alias="schema")
    host: HostView
    agent: AgentView | None = None

    @property
    def exit_status(self) -> int:
        """What `run` exits with."""
        return EXIT_STATUS[self.host.outcome]

    def encode(self) -> bytes:
        """The content of record.json. A lone surrogate, which JSON allows an agent to send, becomes `?`: no parser
        would read it back."""
        plain = json.dumps(self.model_dump(mode="json"), ensure_ascii=False).encode("utf-8", "replace")
        return json.dumps(json.loads(plain), indent=2, ensure_ascii=True).encode() + b"\n"


def basis_of(outcome: Outcome) -> Basis:
    """Whose word an outcome is; for a budget, the sidecar's count is assumed."""
    return Basis.AGENT if outcome in _AGENTS_WORD else Basis.HOST


def parse_record(body: bytes, *, origin: str, hint: str | None = None) -> RunRecord:
    """The record that `encode` wrote. Raises StoreError naming `origin` when it is not one."""
    try:
        return RunRecord.model_validate_json(body)
    except ValidationError as bad:
        details = [f"{'.'.join(map(str, row['loc'])) or 'file'}: {row['msg']}" for row in bad.errors()]
        raise StoreError(f"{origin} is not a record of schema {SCHEMA}", details=details, hint=hint) from bad


def record_schema() -> dict[str, object]:
    """The JSON Schema of record.json."""
    return dict(RunRecord.model_json_schema(by_alias=True))
