"""The model services in one file: Anthropic Messages, OpenAI Responses and Chat Completions, Gemini.

What a model is to do stands in the task itself. Of the last user message that is no tool result, line by line:
`RUN: <command>` is one call of the client's shell tool, one a request, counted by the tool results that came since;
`SAY: <text>` is the final text; `DOUBLE: <fault>` fails once the RUN lines before it are done, and is one of `401` (any
status; `429 x2` fails twice and then goes on), `hang`, `stall`, `slow N`. A request without tools (a title, a summary)
gets a short text. `python3 models.py --port N` serves plain HTTP on loopback; `answer` is for a handler that stands
for the hosts themselves. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOSTS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "openrouter.ai")
PLAIN = "A short text of the double"
DONE = "All done."
HANG_S = 600.0
FRESH, CACHED, OUT = 120, 30, 15
"""Tokens of each answer: prompt without cache, prompt from the cache, completion."""
SHELLS = ("Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command", "exec")

failed: Counter[tuple[str, ...]] = Counter()
"""How often a `DOUBLE: 429 x2` has failed: the one thing that a request does not say."""


# --- what a request asks for ---


@dataclass
class Tool:
    name: str
    schema: dict = field(default_factory=dict)
    custom: bool = False
    """Takes free text; codex's `exec` takes JavaScript."""


@dataclass
class Request:
    """One request, the same for each API."""

    model: str
    task: str
    results: int
    """Tool results since the task."""
    messages: int
    tools: list[Tool]
    stream: bool
    schema: dict | None = None
    """The JSON schema that the answer must follow."""


@dataclass
class Reply:
    """What the model does: calls the shell with `command`, or says `text`."""

    ident: str
    text: str = ""
    command: str | None = None
    tool: Tool | None = None
    pieces: int = 1

    @property
    def arguments(self) -> dict:
        """The command as the tool's schema wants it."""
        assert self.tool is not None
        known = self.tool.schema.get("properties") or {}
        name = "cmd" if "cmd" in known else "command"
        array = (known.get(name) or {}).get("type") in ("array", "ARRAY")
        arguments = {name: ["bash", "-lc", self.command] if array else self.command}
        return arguments | ({"description": "the double's command"} if "description" in known else {})


@dataclass
class Fault:
    status: int = 0
    """0 for one that answers nothing."""
    stall: Reply | None = None
    """Half of this is sent."""


def decide(request: Request) -> Reply | Fault:
    """Reads the task's lines down to the one that is due."""
    ident = f"{request.messages:03}"
    said, pieces, runs, calls = DONE, 1, 0, []
    for line in request.task.splitlines():
        word, _, rest = line.strip().strip('"').partition(": ")
        if word == "SAY":
            said = rest.strip()
        elif word == "RUN":
            runs += 1
            calls.append(rest)
        elif word == "DOUBLE" and runs <= request.results and (fault := _fault(request, rest, ident)):
            if isinstance(fault, int):
                pieces = fault
            else:
                return fault
    if not request.tools or request.schema:
        return Reply(ident, text=json.dumps(_instance(request.schema)) if request.schema else PLAIN)
    tool = min((t for t in request.tools if t.name in SHELLS), key=lambda t: SHELLS.index(t.name), default=None)
    if tool is not None and request.results < runs:
        return Reply(ident, command=calls[request.results], tool=tool)
    return Reply(ident, text=said, pieces=pieces)


def _fault(request: Request, words: str, ident: str) -> Fault | int | None:
    """The fault; a number of pieces for `slow`; None when it is over or not for such a request."""
    if match := re.match(r"(\d{3})(?: x(\d+))?", words):
        key = (request.task, ident)
        failed[key] += 1
        return Fault(int(match[1])) if failed[key] <= int(match[2] or 1 << 30) else None
    if not request.tools:
        return None
    if match := re.match(r"slow (\d+)", words):
        return int(match[1])
    if words.startswith("stall"):
        return Fault(stall=Reply(ident, text=f"{PLAIN} that breaks off"))
    return Fault() if words.startswith("hang") else None


def _instance(schema: dict) -> object:
    """The smallest value that follows a schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    match str(schema.get("type", "object")).lower():
        case "object":
            return {key: _instance(value) for key, value in (schema.get("properties") or {}).items()}
        case "array":
            return []
        case "number" | "integer":
            return 1
        case "boolean":
            return False
        case _:
            return "double"


def _texts(content: object) -> list[str]:
    """The texts of a message's content, without what a client puts around the user's own words."""
    parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") or "" for part in parts]
    return [text for text in texts if text and not re.match(r"\s*<[a-z_-]+>|# AGENTS\.md", text)]


ORDERS = re.compile(r"^(RUN|SAY|DOUBLE): ", re.MULTILINE)


@dataclass
class Talk:
    """The conversation so far: (is it a tool result, text) for each message of the user's side."""

    turns: list[tuple[bool, str]] = field(default_factory=list)

    def user(self, content: object, *, beside_results: bool = False) -> None:
        """A user message; beside tool results stand remarks of the client, or a task when two messages were joined."""
        text = "\n".join(_texts(content))
        if text and (not beside_results or ORDERS.search(text)):
            self.turns.append((False, text))

    def result(self) -> None:
        self.turns.append((True, ""))

    @property
    def task(self) -> str:
        return next((text for is_result, text in reversed(self.turns) if not is_result), "")

    @property
    def results(self) -> int:
        """Tool results after the task."""
        return sum(1 for _ in itertools.takewhile(lambda turn: turn[0], reversed(self.turns)))


# --- Server-Sent Events ---


def _event(data: dict, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _pieces(text: str, count: int) -> list[str]:
    size = max(1, -(-len(text) // max(count, 2)))
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


class Anthropic:
    """https://docs.anthropic.com/en/api/messages-streaming"""

    kinds: Mapping[int, str] = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    words: Mapping[int, str] = {
        401: "invalid x-api-key",
        403: "Your API key does not have permission to use the specified resource.",
        429: "This request would exceed your account's rate limit. Please try again later.",
        500: "Internal server error",
        529: "Overloaded",
    }

    def error(self, status: int, text: str = "") -> dict:
        error = {"type": self.kinds.get(status, "api_error"), "message": text or self.words.get(status, "Error")}
        return {"type": "error", "error": error, "request_id": "req_double"}

    def read(self, path: str, body: dict) -> Request:
        talk = Talk()
        messages = body.get("messages") or []
        for message in messages:
            if message.get("role") != "user":
                continue
            content = message.get("content")
            results = (
                [part for part in content if part.get("type") == "tool_result"] if isinstance(content, list) else []
            )
            for _ in results:
                talk.result()
            talk.user(content, beside_results=bool(results))
        tools = [Tool(tool["name"], tool.get("input_schema") or {}) for tool in body.get("tools") or []]
        schema = ((body.get("output_config") or {}).get("format") or {}).get("schema")
        return Request(
            str(body.get("model")), talk.task, talk.results, len(messages), tools, bool(body.get("stream")), schema
        )

    def _message(self, request: Request, reply: Reply, content: list, *, stop: str | None, out: int) -> dict:
        return {
            "id": f"msg_double{reply.ident}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": FRESH,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": CACHED,
                "output_tokens": out,
            },
        }

    def _block(self, reply: Reply) -> dict:
        if reply.tool is None:
            return {"type": "text", "text": reply.text}
        return {
            "type": "tool_use",
            "id": f"toolu_double{reply.ident}",
            "name": reply.tool.name,
            "input": reply.arguments,
        }

    def whole(self, request: Request, reply: Reply) -> dict:
        stop = "end_turn" if reply.tool is None else "tool_use"
        return self._message(request, reply, [self._block(reply)], stop=stop, out=OUT)

    def stream(self, request: Request, reply: Reply) -> Iterator[bytes]:
        stop = "end_turn" if reply.tool is None else "tool_use"
        message = self._message(request, reply, [], stop=None, out=1)
        yield _event({"type": "message_start", "message": message}, "message_start")
        block = self._block(reply) | ({"text": ""} if reply.tool is None else {"input": {}})
        yield _event({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start")
        text = reply.text if reply.tool is None else json.dumps(reply.arguments)
        for piece in _pieces(text, reply.pieces):
            kind = {"type": "text_delta", "text": piece}
            delta = kind if reply.tool is None else {"type": "input_json_delta", "partial_json": piece}
            yield _event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": stop, "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": end, "usage": {"output_tokens": OUT}}, "message_delta")
        yield _event({"type": "message_stop"}, "message_stop")


class OpenAI:
    """What both of OpenAI's APIs share."""

    def error(self, status: int, text: str = "") -> dict:
        words, kind, code = {
            401: ("Incorrect API key provided: sk-proj-****.", "invalid_request_error", "invalid_api_key"),
            404: ("Invalid URL", "invalid_request_error", None),
            429: ("Rate limit reached for requests. Please try again in 1s.", "requests", "rate_limit_exceeded"),
        }.get(status, ("The server had an error while processing your request.", "server_error", None))
        return {"error": {"message": text or words, "type": kind, "param": None, "code": code}}


class Responses(OpenAI):
    """https://platform.openai.com/docs/api-reference/responses-streaming"""

    def read(self, path: str, body: dict) -> Request:
        talk = Talk()
        items = body.get("input") or []
        items = [{"type": "message", "role": "user", "content": items}] if isinstance(items, str) else items
        tools = [self._tool(tool) for tool in body.get("tools") or []]
        for item in items:
            kind = str(item.get("type", "message"))
            if kind == "message" and item.get("role") == "user":
                talk.user(item.get("content"))
            elif kind.endswith("call_output"):
                talk.result()
            elif kind == "additional_tools":
                tools += [self._tool(tool) for tool in self._flat(item.get("tools") or [])]
        schema = ((body.get("text") or {}).get("format") or {}).get("schema")
        return Request(
            str(body.get("model")), talk.task, talk.results, len(items), tools, bool(body.get("stream")), schema
        )

    def _flat(self, tools: list[dict]) -> Iterator[dict]:
        """Tools may stand in a namespace, with a list of their own."""
        for tool in tools:
            yield from self._flat(tool["tools"]) if isinstance(tool.get("tools"), list) else [tool]

    def _tool(self, tool: dict) -> Tool:
        name = str(tool.get("name") or tool.get("type"))
        return Tool(name, tool.get("parameters") or {}, custom=tool.get("type") == "custom")

    def _item(self, reply: Reply) -> dict:
        if reply.tool is None:
            part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
            ident = f"msg_double{reply.ident}"
            return {"id": ident, "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        call = {"call_id": f"call_double{reply.ident}", "name": reply.tool.name, "status": "completed"}
        if reply.tool.custom:
            script = f"const r = await tools.exec_command({json.dumps({'cmd': reply.command})});\ntext(r.output);\n"
            return {"id": f"ctc_double{reply.ident}", "type": "custom_tool_call", "input": script, **call}
        arguments = json.dumps(reply.arguments)
        return {"id": f"fc_double{reply.ident}", "type": "function_call", "arguments": arguments, **call}

    def _response(self, request: Request, reply: Reply, output: list, *, done: bool) -> dict:
        usage = {
            "input_tokens": FRESH + CACHED,
            "input_tokens_details": {"cached_tokens": CACHED},
            "output_tokens": OUT,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": FRESH + CACHED + OUT,
        }
        return {
            "id": f"resp_double{reply.ident}",
            "object": "response",
            "created_at": 1700000000,
            "status": "completed" if done else "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": request.model,
            "output": output,
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage if done else None,
        }

    def whole(self, request: Request, reply: Reply) -> dict:
        return self._response(request, reply, [self._item(reply)], done=True)

    def stream(self, request: Request, reply: Reply) -> Iterator[bytes]:
        count = itertools.count()

        def event(name: str, **values: object) -> bytes:
            return _event({"type": name, "sequence_number": next(count), **values}, name)

        item, at = self._item(reply), {"output_index": 0}
        yield event("response.created", response=self._response(request, reply, [], done=False))
        yield event("response.in_progress", response=self._response(request, reply, [], done=False))
        at["item_id"] = item["id"]
        empty = {"status": "in_progress"} | {
            key: type(item[key])() for key in ("content", "arguments", "input") if key in item
        }
        yield event("response.output_item.added", output_index=0, item=item | empty)
        if reply.tool is None:
            part = item["content"][0]
            yield event("response.content_part.added", **at, content_index=0, part=part | {"text": ""})
            for piece in _pieces(reply.text, reply.pieces):
                yield event("response.output_text.delta", **at, content_index=0, delta=piece, logprobs=[])
            yield event("response.output_text.done", **at, content_index=0, text=reply.text, logprobs=[])
            yield event("response.content_part.done", **at, content_index=0, part=part)
        else:
            name, key = (
                ("custom_tool_call_input", "input") if reply.tool.custom else ("function_call_arguments", "arguments")
            )
            for piece in _pieces(item[key], reply.pieces):
                yield event(f"response.{name}.delta", **at, delta=piece)
            yield event(f"response.{name}.done", **at, **{key: item[key]})
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response=self._response(request, reply, [item], done=True))


class Chat(OpenAI):
    """https://platform.openai.com/docs/api-reference/chat-streaming"""

    usage: Mapping[str, object] = {
        "prompt_tokens": FRESH + CACHED,
        "completion_tokens": OUT,
        "total_tokens": FRESH + CACHED + OUT,
        "prompt_tokens_details": {"cached_tokens": CACHED},
    }

    def read(self, path: str, body: dict) -> Request:
        talk = Talk()
        messages = body.get("messages") or []
        for message in messages:
            if message.get("role") == "user":
                talk.user(message.get("content"))
            elif message.get("role") == "tool":
                talk.result()
        rows = [tool.get("function") or {} for tool in body.get("tools") or []]
        tools = [Tool(str(row.get("name")), row.get("parameters") or {}) for row in rows]
        schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
        return Request(
            str(body.get("model")), talk.task, talk.results, len(messages), tools, bool(body.get("stream")), schema
        )

    def _message(self, reply: Reply) -> dict:
        if reply.tool is None:
            return {"role": "assistant", "content": reply.text}
        function = {"name": reply.tool.name, "arguments": json.dumps(reply.arguments)}
        call = {"id": f"call_double{reply.ident}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def whole(self, request: Request, reply: Reply) -> dict:
        reason = "stop" if reply.tool is None else "tool_calls"
        choice = {"index": 0, "message": self._message(reply), "finish_reason": reason, "logprobs": None}
        head = {"id": f"chatcmpl-double{reply.ident}", "object": "chat.completion", "created": 1700000000}
        return {**head, "model": request.model, "choices": [choice], "usage": self.usage}

    def stream(self, request: Request, reply: Reply) -> Iterator[bytes]:
        head = {"id": f"chatcmpl-double{reply.ident}", "object": "chat.completion.chunk", "created": 1700000000}
        head["model"] = request.model

        def chunk(delta: dict, reason: str | None = None) -> bytes:
            return _event(
                {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}
            )

        yield chunk({"role": "assistant", "content": ""})
        if reply.tool is None:
            for piece in _pieces(reply.text, reply.pieces):
                yield chunk({"content": piece})
        else:
            call = self._message(reply)["tool_calls"][0]
            empty = {**call["function"], "arguments": ""}
            yield chunk({"tool_calls": [{"index": 0, **call, "function": empty}]})
            for piece in _pieces(call["function"]["arguments"], reply.pieces):
                yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield chunk({}, "stop" if reply.tool is None else "tool_calls")
        yield _event({**head, "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"


class Gemini:
    """https://ai.google.dev/api/generate-content"""

    def error(self, status: int, text: str = "") -> dict:
        name, words = {
            400: ("INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
            401: ("UNAUTHENTICATED", "Request had invalid authentication credentials."),
            403: ("PERMISSION_DENIED", "The caller does not have permission"),
            404: ("NOT_FOUND", "Requested entity was not found."),
            429: ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
            500: ("INTERNAL", "An internal error has occurred."),
        }.get(status, ("UNAVAILABLE", "The service is currently unavailable."))
        return {"error": {"code": status, "message": text or words, "status": name}}

    def read(self, path: str, body: dict) -> Request:
        talk = Talk()
        contents = body.get("contents") or []
        for content in contents:
            parts = content.get("parts") or []
            results = [part for part in parts if "functionResponse" in part]
            for _ in results:
                talk.result()
            if content.get("role", "user") == "user":
                talk.user(parts, beside_results=bool(results))
        tools = []
        for row in (one for group in body.get("tools") or [] for one in group.get("functionDeclarations") or []):
            tools.append(Tool(str(row.get("name")), row.get("parametersJsonSchema") or row.get("parameters") or {}))
        config = body.get("generationConfig") or {}
        schema = config.get("responseJsonSchema") or config.get("responseSchema")
        model, _, method = path.partition("?")[0].rpartition("/")[2].partition(":")
        stream = method == "streamGenerateContent"
        return Request(model, talk.task, talk.results, len(contents), tools, stream, schema)

    def _chunk(self, request: Request, reply: Reply, part: dict | None, *, last: bool) -> dict:
        candidate: dict = {"index": 0, "content": {"role": "model", "parts": [part] if part else []}}
        if last:
            candidate["finishReason"] = "STOP"
        usage = {
            "promptTokenCount": FRESH + CACHED,
            "cachedContentTokenCount": CACHED,
            "candidatesTokenCount": OUT,
            "totalTokenCount": FRESH + CACHED + OUT,
        }
        ident = f"double{reply.ident}"
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": request.model, "responseId": ident}

    def _call(self, reply: Reply) -> dict:
        assert reply.tool is not None
        return {"functionCall": {"name": reply.tool.name, "args": reply.arguments}}

    def whole(self, request: Request, reply: Reply) -> dict:
        part = {"text": reply.text} if reply.tool is None else self._call(reply)
        return self._chunk(request, reply, part, last=True)

    def stream(self, request: Request, reply: Reply) -> Iterator[bytes]:
        parts = [self._call(reply)] if reply.tool else [{"text": text} for text in _pieces(reply.text, reply.pieces)]
        for part in parts:
            yield _event(self._chunk(request, reply, part, last=False))
        yield _event(self._chunk(request, reply, None, last=True))


Api = Anthropic | Responses | Chat | Gemini
ROUTES: tuple[tuple[str, Api], ...] = (
    (r"(/api)?/v1/messages", Anthropic()),
    (r"(/api)?/v1/responses", Responses()),
    (r"(/api)?/v1/chat/completions", Chat()),
    (r"/v1(beta|alpha)?/models/[^/:]+:(streamGenerateContent|generateContent)", Gemini()),
)


# --- HTTP ---


def answer(
    handler: BaseHTTPRequestHandler, host: str, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> bool:
    """Answers as one of `HOSTS` or, with an empty host, as whichever the path belongs to; False for another host.

    `handler` must speak HTTP/1.1; the body has been read from it.
    """
    if host.partition(":")[0] not in ("", *HOSTS):
        return False
    bare = path.partition("?")[0]
    api = next((api for pattern, api in ROUTES if re.fullmatch(pattern, bare)), None)
    upgrade = {key.lower(): value for key, value in headers.items()}.get("upgrade")
    with contextlib.suppress(OSError):  # a client that has left
        if bare.endswith("/v1/messages/count_tokens") and method == "POST":
            _send(handler, 200, {"input_tokens": FRESH + CACHED})
        elif bare.endswith("/v1/responses") and method == "GET" and upgrade:
            _send(handler, 426, Responses().error(426, "Upgrade Required"))
        elif api is None or method != "POST":
            _send(handler, 404, _nobody(host, path).error(404))
        else:
            _reply(handler, api, path, body)
    return True


def _nobody(host: str, path: str) -> Api:
    """Whose 404 it is."""
    if "anthropic" in host:
        return Anthropic()
    return Gemini() if "google" in host or "/v1beta/" in path else Responses()


def _reply(handler: BaseHTTPRequestHandler, api: Api, path: str, body: bytes) -> None:
    try:
        request = api.read(path, json.loads(body))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        _send(handler, 400, api.error(400, f"the double cannot read this request: {error!r}"))
        return
    match decide(request):
        case Fault(stall=Reply() as half):
            parts = list(api.stream(request, half))
            _stream(handler, iter(parts[: len(parts) // 2]), pause_s=0)
            _wait(handler)
        case Fault(status=0):
            _wait(handler)
        case Fault(status=status):
            _send(handler, status, api.error(status))
        case Reply() as reply if request.stream:
            _stream(handler, api.stream(request, reply), pause_s=0.2 if reply.pieces > 1 else 0)
            handler.wfile.write(b"0\r\n\r\n")
        case reply:
            assert isinstance(reply, Reply)
            _send(handler, 200, api.whole(request, reply))


def _send(handler: BaseHTTPRequestHandler, status: int, row: dict) -> None:
    data = json.dumps(row).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    if status == 429:
        handler.send_header("Retry-After", "1")
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


def _stream(handler: BaseHTTPRequestHandler, parts: Iterator[bytes], *, pause_s: float) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for part in parts:
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        handler.wfile.flush()
        time.sleep(pause_s if b"delta" in part or b'"text"' in part else 0)


def _wait(handler: BaseHTTPRequestHandler) -> None:
    """Silence until the client leaves, and not for ever."""
    handler.close_connection = True
    handler.connection.settimeout(1)
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        try:
            if not handler.connection.recv(1):
                return
        except TimeoutError:
            continue


class Handler(BaseHTTPRequestHandler):
    """Each API on one port, told apart by path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def work(self) -> None:
        answer(self, "", self.command, self.path, dict(self.headers.items()), self.body())

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = work


class Server(ThreadingHTTPServer):
    """Serves on loopback; a client that leaves is nothing to report."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description="the model services' double, on loopback")
    parser.add_argument("--port", type=int, default=8000)
    Server(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()


if __name__ == "__main__":
    main()
