"""What the user wrote in `agent-container.yaml`, parsed once: `ProjectSpec`, frozen, every default in its field.

The docstring below a field is its text in the JSON schema and the reference page. Keys that the format has and this
version does not carry out are listed in `LATER` and refused. What a spec may ask for without a yes is `trust`'s; how it
becomes containers, `stack`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from agent_container.environment import check_env_name, check_env_value
from agent_container.git_remote import parse_remote_text
from agent_container.project import SPEC_NAME
from agent_container.public_suffix import is_public_suffix
from agent_container.spec_load import Later, load_model
from agent_container.spec_types import (
    is_metadata,
    network_of,
    never_reachable,
    parse_argument,
    parse_command,
    parse_duration,
    parse_image,
    parse_inner_path,
    parse_method,
    parse_model,
    parse_name,
    parse_package,
    parse_pattern,
    parse_range,
    parse_ref,
    parse_size,
    parse_slug,
    parse_source,
    parse_target,
    parse_url_path,
)
from agent_egress.names import canonical_name
from agent_egress.repositories import DEFAULT_PUSH
from agent_egress.rules import SSH_PORT

KNOWN_AGENTS = ("claude", "codex", "gemini", "opencode", "pi", "demo")
ALWAYS_PROTECTED = (".husky", ".vscode", ".idea", ".claude/settings*.json", SPEC_NAME)
"""Read-only in a bound workspace whatever the spec says: the host runs or obeys these."""

LATER = (Later("services"),)

SECRET = ("env", "agent.env")
"""Messages never show the values below these: people do put secrets there."""

T = TypeVar("T")


def _or_none_to(empty: Callable[[], object]) -> BeforeValidator:
    """A key whose value is commented out means the same as an empty one."""
    return BeforeValidator(lambda value: empty() if value is None else value)


def _text(parse: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(parse)


def _measure(parse: Callable[[str], int], example: str) -> BeforeValidator:
    def read(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError(f"expected a number with its unit, such as {example}")  # noqa: TRY004 - pydantic wants it
        return parse(value)

    return BeforeValidator(read)


Items = Annotated[tuple[T, ...], _or_none_to(tuple)]
Some = Annotated[tuple[T, ...], Field(min_length=1)]
Pattern = Annotated[str, _text(parse_pattern)]
Port = Annotated[int, Field(ge=1, le=65535)]
Tls = Literal["splice", "inspect"]
Duration = Annotated[int, _measure(parse_duration, "2h or 15m"), WithJsonSchema({"type": "string", "examples": ["2h"]})]
Size = Annotated[int, _measure(parse_size, "4g or 512m"), WithJsonSchema({"type": "string", "examples": ["4g"]})]
EnvName = Annotated[str, _text(check_env_name)]
Env = Annotated[dict[EnvName, Annotated[str, _text(check_env_value)]], _or_none_to(dict)]
Package = Annotated[str, _text(parse_package)]
InnerPath = Annotated[str, _text(parse_inner_path)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class _TextForm(_Part):
    """A part that may also be written as one text, which is then the value of `text_key`."""

    text_key: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {cls.text_key: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        full = handler(core)
        return full if cls is _TextForm else {"anyOf": [{"type": "string"}, full]}


class EgressRule(_TextForm):
    """One host, `*.domain`, address or range that may be reached; as a text, on ports 443 and 80."""

    text_key: ClassVar[str] = "host"

    host: Pattern
    """A host, `*.domain` (its subdomains, not itself), an address, or a range such as `10.30.0.0/16`."""
    ports: Some[Port] = (443, 80)
    """TCP ports; other ports than 443 and 80 need a client that speaks CONNECT."""
    addresses: Items[Annotated[str, _text(parse_range)]] = ()
    """Private ranges that the name may resolve into."""
    tls: Tls | None = None
    """`inspect` opens TLS, `splice` leaves it unopened; without the key as `egress.tls` says."""

    @model_validator(mode="after")
    def _addresses_fit(self) -> EgressRule:
        if self.addresses and network_of(self.host):
            raise ValueError("`addresses` goes with a host name; an address or range stands for itself")
        closed = [text for text in (self.host, *self.addresses) if never_reachable(text)]
        if closed:
            raise ValueError(f"{closed[0]} is this sandbox itself or no destination at all: no rule opens it")
        if self.host.startswith("*.") and is_public_suffix(self.host[2:]):
            raise ValueError(f"anybody can have a name below {self.host[2:]}: name the hosts")
        if self.tls == "inspect" and SSH_PORT in self.ports:
            raise ValueError(f"ssh on port {SSH_PORT} cannot be inspected: give that port an entry of its own")
        return self


class InspectedHost(EgressRule):
    """The same, with TLS opened."""

    tls: Literal["inspect"] = "inspect"
    """Nothing else can be said here."""


class OwnAgent(_Part):
    """A command of one's own as the agent."""

    command: Annotated[tuple[Annotated[str, _text(check_env_value), _text(parse_argument)], ...], Field(min_length=1)]
    """Program and arguments; `{task}` in an argument stands for the task, else it comes on standard input."""
    env: Env = Field(default_factory=dict)
    """Variables for this command."""
    hosts: Items[EgressRule] = ()
    """Hosts that the command itself needs."""
    packages: Items[Package] = ()
    """Debian packages that the command needs."""


class SetupStep(_TextForm):
    """One command at image build; as a text, it runs as the agent's user without a network."""

    text_key: ClassVar[str] = "run"

    run: Annotated[str, _text(parse_command)]
    """A line for `sh -c`."""
    root: bool = False
    """Run as root."""
    network: bool = False
    """Run with the host's network: whatever it fetches is outside the egress policy."""


class Image(_Part):
    """What the agent's image is built from."""

    base: Annotated[str, _text(parse_image)] = "debian:trixie-slim"
    """Any Debian- or Ubuntu-based image."""
    packages: Items[Package] = ()
    """Debian packages to install."""
    setup: Items[SetupStep] = ()
    """Commands to run last."""


class Workspace(_Part):
    """How the project's files reach the agent."""

    mode: Literal["bind", "clone"] | None = None
    """`bind`: the directory itself; `clone`: a copy made by git. Without the key `up` binds and `run` clones."""
    protect: Items[InnerPath] = ()
    """More paths that the agent may read and not write."""
    hide: Items[InnerPath] = ()
    """Paths that the agent sees as empty."""


class Mount(_Part):
    """A host directory or file inside the sandbox."""

    source: Annotated[str, _text(parse_source)]
    """Host path; `~` is the home directory, a relative path starts at the project."""
    target: Annotated[str, _text(parse_target)]
    """Absolute path in the sandbox."""
    read_only: bool = True
    """`false` lets the agent write to it."""


class Egress(_Part):
    """What may be reached. Absent or empty: only what the agent itself needs."""

    allow: Items[EgressRule] = ()
    """Hosts, addresses and ranges that may be reached."""
    inspect: Items[InspectedHost] = ()
    """Hosts, addresses and ranges that may be reached, with TLS opened: an allow with `tls: inspect`."""
    deny: Items[Pattern] = ()
    """Hosts, addresses and ranges that may not; beats every allow."""
    kill: Items[Pattern] = ()
    """The same, and contact with them ends the session: a run's outcome is then `killed`, and an environment is cut."""
    allow_metadata: bool = False
    """Let an explicit range lift the floor over the cloud metadata addresses too."""
    tls: Tls = "splice"
    """What happens to TLS with hosts without a credential: `splice` lets it pass unopened, `inspect` opens it."""
    tripwire: Literal["deny", "kill"] = "deny"
    """What a credential's placeholder that is seen elsewhere leads to: a refusal, or the session's end as well."""
    dlp: Literal["enforce", "log", "off"] = "enforce"
    """What a key in a body that is scanned leads to: at inspected hosts `enforce` refuses it, at hosts that hold a
    credential it is noted; `log` notes it everywhere, `off` does not look for it. Telemetry, and no boundary."""

    @model_validator(mode="after")
    def _metadata_is_said_twice(self) -> Egress:
        for rule in (*self.allow, *self.inspect):
            if not self.allow_metadata and any(is_metadata(text) for text in (rule.host, *rule.addresses)):
                raise ValueError(f"{rule.host} names a metadata address: that needs `allow_metadata: true` besides")
        return self


class CredentialUse(_TextForm):
    """A credential of the store that this project may use; may narrow what it is bound to, never widen."""

    text_key: ClassVar[str] = "name"

    name: Annotated[str, _text(parse_slug)]
    """Its name in the store."""
    hosts: Some[Annotated[str, _text(canonical_name)]] | None = None
    """Only these of its hosts."""
    methods: Some[Annotated[str, _text(parse_method)]] | None = None
    """Only these of its methods."""
    paths: Some[Annotated[str, _text(parse_url_path)]] | None = None
    """Only these of its paths."""
    env: EnvName | None = None
    """The variable that holds the placeholder in the sandbox."""


Ref = Annotated[str, _text(parse_ref)]


class GitRepository(_TextForm):
    """A repository that the agent reaches over ssh through the sidecar's gateway; as a text, fetched and pushed to
    `agent/*` branches."""

    text_key: ClassVar[str] = "repo"

    repo: Annotated[str, _text(parse_remote_text)]
    """`git@github.com:acme/api.git` or `ssh://git@host:port/path`."""
    push: Items[Ref] = DEFAULT_PUSH
    """Refs that may be made or moved: full ones, or all below one as in `refs/heads/agent/*`. Empty: only fetch."""
    delete: Items[Ref] = ()
    """Refs that may be deleted."""


class Resources(_Part):
    """What the agent's container may use of the host."""

    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Processors; without the key no limit."""
    memory_bytes: Annotated[Size, Field(ge=64 * 1024**2)] | None = Field(default=None, alias="memory")
    """Memory, such as `4g`; without the key half of the host's."""
    pids: Annotated[int, Field(ge=64, le=4_194_304)] = 2048
    """Processes and threads."""


class Limits(_Part):
    """What ends a task."""

    time_s: Duration = Field(default=2 * 3600, alias="time")
    """The most that a task may take, such as `2h`."""
    idle_s: Duration = Field(default=15 * 60, alias="idle")
    """The most that it may stay silent, such as `15m`."""
    model_requests: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The most requests that may carry the agent's key; counted and ended by the sidecar."""
    model_bytes: Size | None = None
    """The most that may go to and come from the model's host, such as `200m`; counted by the sidecar when a transfer is
    over, and then nothing more goes there."""
    cost_usd: Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)] | None = None
    """The most that a task may cost in US dollars, by the agent's own count."""
    turns: Annotated[int, Field(ge=1, le=10**6)] | None = None
    """The most turns that the agent may take, by its own count, or one more than its tool calls."""


def _agent_form(value: object) -> str:
    return "(own)" if isinstance(value, dict | OwnAgent) else "(known)"


KnownAgent = Literal["claude", "codex", "gemini", "opencode", "pi", "demo"]
AnyAgent = Annotated[
    Annotated[KnownAgent, Tag("(known)")] | Annotated[OwnAgent, Tag("(own)")], Discriminator(_agent_form)
]


class ProjectSpec(_Part):
    """The project's `agent-container.yaml`."""

    version: Literal[1] = 1
    """The version of this format."""
    name: Annotated[str, _text(parse_name)]
    """The project's name, for people; by default the directory's."""
    agent: AnyAgent = "claude"
    """claude, codex, gemini, opencode, pi, demo, or `{command: [...]}` for one of your own."""
    model: Annotated[str, _text(parse_model)] | None = None
    """Handed to the agent."""
    image: Annotated[Image, _or_none_to(dict)] = Image()
    """What the agent's image is built from."""
    workspace: Annotated[Workspace, _or_none_to(dict)] = Workspace()
    """How the project's files reach the agent."""
    memory: Literal["none", "shared", "isolated"] = "none"
    """A volume at /memory that outlives the sandbox; concurrent runs are always isolated."""
    env: Env = Field(default_factory=dict)
    """Variables in the sandbox. Secrets do not belong here: use `credentials`."""
    mounts: Items[Mount] = ()
    """Host directories in the sandbox."""
    egress: Annotated[Egress, _or_none_to(dict)] = Egress()
    """What may be reached."""
    credentials: Items[CredentialUse] = ()
    """Credentials beyond the agent's own, which is implied."""
    git: Annotated[tuple[GitRepository, ...] | None, _or_none_to(tuple)] = None
    """Repositories over ssh, with `ssh_key: true`; without the key the project's own remote."""
    ssh_key: bool = False
    """A key for this project, used by the sidecar's git gateway; the private half never enters the sandbox."""
    resources: Annotated[Resources, _or_none_to(dict)] = Resources()
    """What the agent's container may use of the host."""
    limits: Annotated[Limits, _or_none_to(dict)] = Limits()
    """What ends a task."""

    _lines: dict[str, int] = PrivateAttr(default_factory=dict)

    @property
    def agent_name(self) -> str:
        """The agent's name; `own` for a command of the user's."""
        return self.agent if isinstance(self.agent, str) else "own"

    def line_of(self, path: str) -> int | None:
        """The line of `egress.allow[2]` and the like in the file that this came from; none for a default."""
        return self._lines.get(path)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> ProjectSpec:
        _no_twins("mounts", [mount.target for mount in self.mounts])
        _no_twins("credentials", [use.name for use in self.credentials])
        _no_twins("git", [entry.repo for entry in self.git or ()])
        if self.git and not self.ssh_key:
            raise ValueError("git: repositories over ssh need the project's key: add `ssh_key: true`")
        names = [use.env for use in self.credentials if use.env]
        own = self.agent.env if isinstance(self.agent, OwnAgent) else {}
        _no_twins("env", [*names, *self.env, *(name for name in own if name not in self.env)])
        return self


def _no_twins(where: str, values: list[str]) -> None:
    twins = sorted({value for value in values if values.count(value) > 1})
    if twins:
        raise ValueError(f"{where}: {', '.join(twins)} is given twice")


def load_spec(data: bytes, *, path: Path, default_name: str) -> ProjectSpec:
    """Parse the file's bytes. `path` is for messages. Raises: SpecError with every mistake and its line."""
    defaults = {"name": safe_name(default_name)}
    spec, lines = load_model(ProjectSpec, data, path=path, later=LATER, secret=SECRET, defaults=defaults)
    spec._lines.update(lines)
    return spec


def default_spec(*, default_name: str, agent: KnownAgent = "claude") -> ProjectSpec:
    """What a project without a spec gets."""
    return ProjectSpec(name=safe_name(default_name), agent=agent)


def safe_name(name: str) -> str:
    """A directory's name as a project's: anything that a terminal would obey becomes `-`."""
    clean = "".join(c if c.isprintable() else "-" for c in name).strip().lstrip("-")[:64]
    return clean or "project"


def json_schema() -> dict[str, Any]:
    """The format as JSON Schema, for editors."""
    schema = ProjectSpec.model_json_schema()
    schema["required"] = [key for key in schema.get("required", []) if key != "name"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
