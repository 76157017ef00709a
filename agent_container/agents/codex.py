"""Codex, whose stream is that of `codex exec --json`.

Measured with the pinned version: the task comes on stdin, as plain text whatever it begins with. A stream that ends has
`turn.completed` or `turn.failed`; SIGINT ends it with status 1, SIGTERM at once, and neither says so in the stream.
The usage of a turn counts from the beginning of its session, turns of earlier runs included; there is no cost, and
neither model nor version is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent_container.agent_install import AgentInstall
from agent_container.agents.fields import as_json, count, mapping, text
from agent_container.agents.profile import AgentProfile, Channel, HomeFile, Launch, Work, output_event
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentResult,
    AgentSession,
    AgentThought,
    Event,
    PermissionDenied,
    ToolCall,
    ToolResult,
    Usage,
)
from agent_container.frames import BadLine, Line, parse_object
from agent_container.stack_agent import WORKSPACE

PROGRAM = "/usr/local/bin/codex"
MAX_REMEMBERED = 10_000
NO_TOOLS = frozenset({"agent_message", "reasoning", "error", "todo_list"})
"""Kinds of item that are not a use of a tool."""
RETRYING = "Reconnecting..."

# The built-in provider of the same service cannot be changed. It takes no OPENAI_API_KEY, tries a WebSocket first
# (seven seconds when that is refused), and retries a refused connection for ever.
_CONFIG = f"""\
model_provider = "openai-https"
check_for_update_on_startup = false
approval_policy = "never"
sandbox_mode = "danger-full-access"  # the container is the sandbox

[model_providers.openai-https]
name = "OpenAI"
base_url = "https://api.openai.com/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = false
request_max_retries = 3
stream_max_retries = 4  # with the line above: 12 s of 500s, 8 s of refused connections
stream_idle_timeout_ms = 120000

[analytics]
enabled = false

[otel]
metrics_exporter = "none"

[features]
api_key_model_discovery = false
apps = false
daemon_auto_start = false  # its interface would copy the program into HOME and leave it running
plugins = false
unbounded_connection_retries = false

[projects."{WORKSPACE}"]
trust_level = "trusted"
"""


def _options(work: Work) -> tuple[str, ...]:
    model = (f"--model={work.model}",) if work.model else ()
    return ("--dangerously-bypass-approvals-and-sandbox", *model)


def _headless(work: Work) -> Launch:
    argv = (PROGRAM, "exec", "--json", "--skip-git-repo-check", *_options(work))
    session = ("resume", work.resume) if work.resume else ()
    return Launch(argv=(*argv, *session, "-"), stdin=work.task.encode())


def _interactive(work: Work) -> Launch:
    return Launch(argv=(PROGRAM, *_options(work), *(("resume", work.resume) if work.resume else ())))


def _home(_: Mapping[str, str]) -> tuple[HomeFile, ...]:
    return (HomeFile(".codex/config.toml", _CONFIG, how="replace"),)


def _credentials(_: str | None) -> tuple[str, ...]:
    return ("openai",)


class CodexStream:
    """Reads its lines: `thread.*`, `turn.*`, `item.*` and `error`."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._said = ""

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line."""
        row = parse_object(line) if channel == "stdout" else None
        if row is None or isinstance(row, BadLine) or not isinstance(row.get("type"), str):
            yield output_event(line, channel=channel)
            return
        match row["type"]:
            case "thread.started":
                yield AgentSession(session=text(row, "thread_id") or None)
            case "item.started" | "item.completed":
                yield from self._item(mapping(row, "item"), done=row["type"] == "item.completed")
            case "turn.completed":
                usage = mapping(row, "usage")
                yield Usage(
                    tokens_in=count(usage, "input_tokens"),
                    tokens_out=count(usage, "output_tokens"),
                    tokens_cached=count(usage, "cached_input_tokens"),
                    cumulative=True,
                )
                yield AgentResult(ok=True, text=self._said)
            case "turn.failed":
                yield AgentResult(ok=False, text=text(mapping(row, "error"), "message"))
            case "error":
                message = text(row, "message")
                yield AgentError(message=message, retrying=message.startswith(RETRYING))
            case "turn.started" | "item.updated":
                return
            case _:
                yield output_event(line, channel=channel)

    def _item(self, item: dict[str, object], *, done: bool) -> Iterator[Event]:
        kind = text(item, "type")
        match kind, done:
            case "agent_message", True:
                self._said = text(item, "text")
                yield AgentMessage(text=self._said)
            case "reasoning", True:
                yield AgentThought(text=text(item, "text"))
            case "error", True:  # a warning: what ends a turn comes as a line of its own
                yield AgentError(message=text(item, "message"), retrying=True)
            case _ if kind and kind not in NO_TOOLS:
                yield from self._tool(item, kind, done=done)
            case _:
                return

    def _tool(self, item: dict[str, object], kind: str, *, done: bool) -> Iterator[Event]:
        ident = text(item, "id")
        name = ".".join(filter(None, (text(item, "server"), text(item, "tool")))) or kind
        if ident not in self._called and len(self._called) < MAX_REMEMBERED:
            self._called.add(ident)
            yield ToolCall(id=ident, name=name, input=_argument(item))
        if not done:
            return
        self._called.discard(ident)
        status = item.get("status")
        output = text(item, "aggregated_output") or text(mapping(item, "error"), "message") or text(item, "result")
        if status == "declined":
            yield PermissionDenied(tool=name, detail=_argument(item))
        yield ToolResult(id=ident, name=name, ok=status not in ("failed", "declined"), output=output)


def _argument(item: dict[str, object]) -> str:
    """What stands for the arguments, by the kind of tool."""
    for key in ("command", "arguments", "query", "changes"):
        if item.get(key) is not None:
            return text(item, key)
    return as_json({key: value for key, value in item.items() if key not in ("id", "type", "status")})


PROFILE = AgentProfile(
    name="codex",
    headless=_headless,
    interactive=_interactive,
    parser=CodexStream,
    install=AgentInstall(kind="native", package="@openai/codex", version="0.171.0", program="codex"),
    credentials=_credentials,
    home=_home,
    keeps=(".codex/sessions",),
    usage_spans_session=True,
    stop_signal="INT",
)
