"""Claude Code, whose stream is `--output-format stream-json`.

Measured with the pinned version: the task comes on stdin, where `-`, `@` and 200 KB are plain text and only the name of
one of its own slash commands is not. Its exit status is 0 on SIGINT too, with a result that is an error; on SIGTERM it
is 143 and there is no result. A result counts its tokens twice: `usage` and `total_cost_usd`, which include the turns
that a resumed session had before, and `model_usage_since_last_result`, which does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from agent_container.agent_install import AgentInstall
from agent_container.agents.fields import count, dollars, mapping, rows, text
from agent_container.agents.profile import AgentProfile, Channel, HomeFile, Launch, Work, output_event
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentOutput,
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

PROGRAM = "/usr/local/bin/claude"
MAX_REMEMBERED = 10_000
BUDGETS = frozenset({"error_max_turns", "error_max_budget_usd"})

_ENVIRONMENT = (
    ("API_TIMEOUT_MS", "120000"),  # for a host that takes a request and says nothing; the default is ten minutes
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL", "1"),  # github.com and downloads.claude.ai at each start
    ("CLAUDE_CODE_MAX_RETRIES", "5"),  # 20 s of 500s or of refused connections; the default of ten takes three minutes
    ("DISABLE_AUTOUPDATER", "1"),
)


def _options(work: Work) -> tuple[str, ...]:
    model = (f"--model={work.model}",) if work.model else ()
    return ("--dangerously-skip-permissions", *model, *((f"--resume={work.resume}",) if work.resume else ()))


def _headless(work: Work) -> Launch:
    argv = (PROGRAM, "-p", "--output-format", "stream-json", "--verbose", *_options(work))
    limits = (("--max-turns", work.turns), ("--max-budget-usd", work.cost_usd))
    given = tuple(f"{flag}={amount}" for flag, amount in limits if amount is not None)
    return Launch(argv=(*argv, *given), stdin=work.task.encode())


def _interactive(work: Work) -> Launch:
    return Launch(argv=(PROGRAM, *_options(work)))


def _home(decoys: Mapping[str, str]) -> tuple[HomeFile, ...]:
    """Answers to what it would ask on its first start: theme, key, folder, mode."""
    state: dict[str, object] = {
        "hasCompletedOnboarding": True,
        "projects": {WORKSPACE: {"hasTrustDialogAccepted": True}},
    }
    if key := decoys.get("anthropic"):
        state["customApiKeyResponses"] = {"approved": [key[-20:]]}
    # Its check of a WebFetch's host goes to a path of the model's host that no credential covers.
    settings = {"skipDangerousModePermissionPrompt": True, "skipWebFetchPreflight": True}
    return (HomeFile(".claude.json", json.dumps(state)), HomeFile(".claude/settings.json", json.dumps(settings)))


def _credentials(_: str | None) -> tuple[str, ...]:
    return ("anthropic", "anthropic-oauth")


class ClaudeStream:
    """Reads its lines: `system`, `assistant`, `user` and `result`."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}
        self._counted: set[str] = set()
        self._denied: set[str] = set()
        self._spent = Usage(cumulative=True)

    def parse(self, line: Line, *, channel: Channel) -> Iterator[Event]:
        """The events of one line."""
        row = parse_object(line) if channel == "stdout" else None
        events = [] if row is None or isinstance(row, BadLine) else list(self._events(row))
        yield from events or (output_event(line, channel=channel),)

    def _events(self, row: dict[str, object]) -> Iterator[Event]:
        match row.get("type"), row.get("subtype"):
            case "system", "init":
                yield AgentSession(
                    session=text(row, "session_id") or None,
                    model=text(row, "model") or None,
                    version=text(row, "claude_code_version") or None,
                )
            case "system", "api_retry":
                retry = f"retry {count(row, 'attempt')} of {count(row, 'max_retries')}"
                status = f" (status {count(row, 'error_status')})" if row.get("error_status") else ""
                yield AgentError(message=f"{text(row, 'error')}{status}, {retry}", retrying=True)
            case "system", "permission_denied":
                yield self._denial(row, detail=text(row, "message"))
            case "assistant", _:
                yield from self._assistant(row)
            case "user", _:
                yield from self._results(mapping(row, "message"))
            case "result", _:
                yield from self._result(row)
            case _:
                pass

    def _assistant(self, row: dict[str, object]) -> Iterator[Event]:
        message = mapping(row, "message")
        failed = row.get("error") is not None or row.get("is_api_error_message") is True
        for block in rows(message, "content"):
            match block.get("type"):
                case "text" if failed:
                    yield AgentError(message=text(block, "text"))
                case "text":
                    yield AgentMessage(text=text(block, "text"))
                case "thinking":
                    yield AgentThought(text=text(block, "thinking"))
                case "tool_use":
                    ident, name = text(block, "id"), text(block, "name")
                    if len(self._tools) < MAX_REMEMBERED:
                        self._tools[ident] = name
                    yield ToolCall(id=ident, name=name, input=text(block, "input"))
                case _:
                    pass
        yield from self._usage(message)

    def _usage(self, message: dict[str, object]) -> Iterator[Event]:
        """Of each message once, though each of its blocks comes as a line; the output is only what it begins with."""
        ident, usage = text(message, "id"), mapping(message, "usage")
        if usage and ident not in self._counted and len(self._counted) < MAX_REMEMBERED:
            self._counted.add(ident)
            cached = count(usage, "cache_read_input_tokens")
            fresh = count(usage, "input_tokens") + count(usage, "cache_creation_input_tokens")
            yield Usage(tokens_in=fresh + cached, tokens_out=count(usage, "output_tokens"), tokens_cached=cached)

    def _results(self, message: dict[str, object]) -> Iterator[Event]:
        for block in rows(message, "content"):
            if block.get("type") == "tool_result":
                ident = text(block, "tool_use_id")
                parts = [text(part, "text") for part in rows(block, "content") if part.get("type") == "text"]
                output = "\n".join(parts) if isinstance(block.get("content"), list) else text(block, "content")
                ok = block.get("is_error") is not True
                yield ToolResult(id=ident, name=self._tools.get(ident, ""), ok=ok, output=output)
            elif block.get("type") == "text":  # a remark of its own: that it was interrupted
                yield AgentOutput(text=text(block, "text"))

    def _denial(self, row: dict[str, object], *, detail: str) -> PermissionDenied:
        if len(self._denied) < MAX_REMEMBERED:
            self._denied.add(text(row, "tool_use_id"))
        return PermissionDenied(tool=text(row, "tool_name"), detail=detail)

    def _result(self, row: dict[str, object]) -> Iterator[Event]:
        for denial in rows(row, "permission_denials"):
            if text(denial, "tool_use_id") not in self._denied:
                yield self._denial(denial, detail=text(denial, "tool_input"))
        self._add(mapping(row, "model_usage_since_last_result"))
        yield self._spent
        ok = row.get("subtype") == "success" and row.get("is_error") is False
        ending = ": ".join(filter(None, (text(row, "subtype"), text(row, "terminal_reason"))))
        words = text(row, "result") or ("" if ok else ending)
        budget = text(row, "subtype") in BUDGETS
        yield AgentResult(ok=ok, text=words, turns=count(row, "num_turns"), budget=budget)

    def _add(self, models: dict[str, object]) -> None:
        """Adds what each model has used; subagents and titles are in it."""
        total = self._spent
        for usage in (mapping(models, name) for name in models):
            cached, cost = count(usage, "cacheReadInputTokens"), dollars(usage, "costUSD")
            fresh = count(usage, "inputTokens") + count(usage, "cacheCreationInputTokens")
            total = Usage(
                tokens_in=total.tokens_in + fresh + cached,
                tokens_out=total.tokens_out + count(usage, "outputTokens"),
                tokens_cached=total.tokens_cached + cached,
                cost_usd=total.cost_usd if cost is None else cost + (total.cost_usd or 0.0),
                cumulative=True,
            )
        self._spent = total


PROFILE = AgentProfile(
    name="claude",
    headless=_headless,
    interactive=_interactive,
    parser=ClaudeStream,
    install=AgentInstall(kind="native", package="@anthropic-ai/claude-code", version="2.1.332", program="claude"),
    credentials=_credentials,
    environment=_ENVIRONMENT,
    home=_home,
    keeps=(".claude/projects",),
    reports_cost=True,
    stop_signal="INT",
)
