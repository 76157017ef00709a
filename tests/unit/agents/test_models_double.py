"""tests/doubles/models.py: what a model is to do stands in the task, whatever the API."""

from __future__ import annotations

import http.client
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

DOUBLE = Path(__file__).resolve().parents[2] / "doubles" / "models.py"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "description": {"type": "string"}}}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("double_models", DOUBLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["double_models"] = module
    spec.loader.exec_module(module)
    return module


models = load()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = models.Server(("127.0.0.1", 0), models.Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def ask(port: int, path: str, body: object, *, method: str = "POST", **headers: str) -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request(method, path, json.dumps(body).encode() if body is not None else None, headers)
    answer = client.getresponse()
    data = answer.read()
    client.close()
    return answer.status, data


@dataclass
class Client:
    """A client of one API that keeps a conversation."""

    api: str
    turns: list[dict] = field(default_factory=list)
    tools: bool = True
    stream: bool = True

    @property
    def path(self) -> str:
        google = f"/v1beta/models/m:{'streamGenerateContent?alt=sse' if self.stream else 'generateContent'}"
        return {"anthropic": "/v1/messages?beta=true", "responses": "/v1/responses", "google": google}.get(
            self.api, "/api/v1/chat/completions"
        )

    def say(self, text: str) -> None:
        role = {"role": "user"}
        self.turns.append(role | ({"parts": [{"text": text}]} if self.api == "google" else {"content": text}))

    def result(self, call: str) -> None:
        self.turns.append(
            {
                "anthropic": {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": call, "content": "ok"}],
                },
                "responses": {"type": "function_call_output", "call_id": call, "output": "ok"},
                "chat": {"role": "tool", "tool_call_id": call, "content": "ok"},
                "google": {"role": "user", "parts": [{"functionResponse": {"name": call, "response": {}}}]},
            }[self.api]
        )

    @property
    def body(self) -> dict:
        tool = {"name": "bash"}
        tools: list[dict] = {
            "anthropic": [tool | {"input_schema": SCHEMA}],
            "responses": [tool | {"type": "function", "parameters": SCHEMA}],
            "chat": [{"type": "function", "function": tool | {"parameters": SCHEMA}}],
            "google": [{"functionDeclarations": [tool | {"parametersJsonSchema": SCHEMA}]}],
        }[self.api]
        name = {"responses": "input", "google": "contents"}.get(self.api, "messages")
        return {"model": "m", name: self.turns, "stream": self.stream} | ({"tools": tools} if self.tools else {})

    def ask(self, port: int) -> bytes:
        status, data = ask(port, self.path, self.body)
        assert status == 200, data
        return data


APIS = ("anthropic", "responses", "chat", "google")
every_api = pytest.mark.parametrize("api", APIS)


@every_api
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_commands_come_one_by_one_and_then_the_text(port: int, api: str, stream: bool) -> None:
    client = Client(api, stream=stream)
    client.say("Do it.\nRUN: echo one\nRUN: echo two\nSAY: Both done.")
    for word in ("one", "two"):
        data = client.ask(port)
        assert b"bash" in data and word.encode() in data and b"Both" not in data
        assert (b"data: " in data) is stream
        client.result("call")
    assert b"Both" in client.ask(port)
    client.say("And this.\nRUN: echo three")
    assert b"three" in client.ask(port)
    client.result("call")
    assert models.DONE[:5].encode() in client.ask(port)


@every_api
def test_a_request_without_tools_gets_a_short_text(port: int, api: str) -> None:
    client = Client(api, tools=False, stream=False)
    client.say("A title for this:\nRUN: echo one\nSAY: never")
    data = client.ask(port)
    assert models.PLAIN.encode() in data and b"never" not in data


@every_api
@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_fault_has_the_services_own_body(port: int, api: str, status: int) -> None:
    client = Client(api)
    client.say(f"Do it.\nDOUBLE: {status}")
    found, data = ask(port, client.path, client.body)
    assert found == status and "message" in json.loads(data)["error"]


@every_api
def test_a_fault_after_a_command_waits_for_it(port: int, api: str) -> None:
    client = Client(api)
    client.say("Do it.\nRUN: echo one\nDOUBLE: 500")
    client.ask(port)
    client.result("call")
    assert ask(port, client.path, client.body)[0] == 500


@every_api
def test_a_counted_fault_is_over_after_so_many(port: int, api: str) -> None:
    client = Client(api)
    client.say(f"Do it with {api}.\nDOUBLE: 429 x2\nSAY: recovered")
    assert [ask(port, client.path, client.body)[0] for _ in range(4)] == [429, 429, 200, 200]


@every_api
@pytest.mark.parametrize(("fault", "some"), [("hang", False), ("stall", True)])
def test_a_silent_service_is_left_by_its_client(port: int, api: str, fault: str, some: bool) -> None:
    client = Client(api)
    client.say(f"Do it.\nDOUBLE: {fault}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.15)
    connection.request("POST", client.path, json.dumps(client.body).encode())
    read = b""
    with pytest.raises(TimeoutError):
        answer = connection.getresponse()
        while True:
            read += answer.readline()
    assert bool(read) is some
    connection.close()


def test_slow_text_comes_in_pieces(port: int) -> None:
    client = Client("anthropic")
    client.say("Do it.\nDOUBLE: slow 3\nSAY: word by word")
    begun = time.monotonic()
    assert client.ask(port).count(b"text_delta") == 3
    assert time.monotonic() - begun > 0.5


OTHERS = [
    ("a WebSocket upgrade", "GET", "/v1/responses", {"Upgrade": "websocket"}, 426),
    ("a list of models", "GET", "/v1/models", {}, 404),
    ("telemetry", "POST", "/api/event_logging/v2/batch", {}, 404),
    ("a count of tokens", "POST", "/v1/messages/count_tokens?beta=true", {}, 200),
    ("nothing that it can read", "POST", "/v1/messages", {}, 400),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), [o[1:] for o in OTHERS], ids=[o[0] for o in OTHERS])
def test_other_requests(port: int, method: str, path: str, headers: dict[str, str], status: int) -> None:
    found, data = ask(port, path, [1] if method == "POST" else None, method=method, **headers)
    assert found == status and isinstance(json.loads(data), dict)


def test_codex_tools_in_a_namespace_are_called_by_a_script(port: int) -> None:
    client = Client("responses", tools=False)
    tools = [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}]
    client.turns.append({"type": "additional_tools", "tools": tools})
    client.say("RUN: echo 'one'")
    data = client.ask(port)
    assert b"custom_tool_call_input.done" in data and b"tools.exec_command(" in data


def test_a_schema_is_followed(port: int) -> None:
    client = Client("google", tools=False, stream=False)
    client.say("Who speaks next?")
    schema = {"type": "object", "properties": {"who": {"enum": ["user", "model"]}, "score": {"type": "integer"}}}
    status, data = ask(port, client.path, client.body | {"generationConfig": {"responseJsonSchema": schema}})
    text = json.loads(data)["candidates"][0]["content"]["parts"][0]["text"]
    assert (status, json.loads(text)) == (200, {"who": "user", "score": 1})


def test_it_stands_for_no_other_host() -> None:
    assert models.answer(None, "example.org", "POST", "/v1/messages", {}, b"") is False
