"""What must work, so that the refusals of the other attempts mean something."""

from __future__ import annotations

import socket

from .tools import (
    AAAA,
    OK4,
    OK6,
    RESOLVER6,
    SECRETS,
    ask_dns,
    attempt,
    bearer,
    leaked,
    over,
    proxy_get,
    reached_world,
    request,
    transparent,
    tunnel,
)


@attempt
def control_explicit_http() -> object:
    return reached_world(proxy_get("http://ok.test/control"))


@attempt
def control_explicit_https() -> object:
    with tunnel("ok.test") as wrapped:
        return reached_world(over(wrapped, request("/control", "ok.test")))


@attempt
def control_transparent_http() -> object:
    return reached_world(transparent(OK4, "ok.test", port=80))


@attempt
def control_transparent_https() -> object:
    return reached_world(transparent(OK4, "ok.test"))


@attempt
def control_transparent_https6() -> object:
    return reached_world(transparent(OK6, "ok.test"))


@attempt
def control_transparent_http6() -> object:
    return reached_world(transparent(OK6, "ok.test", port=80))


@attempt
def control_lookup6() -> object:
    return ask_dns(RESOLVER6, "ok.test") == (0, 1)


@attempt
def control_injection() -> object:
    with tunnel("api.test") as wrapped:
        return leaked(over(wrapped, request("/v1/messages", headers=bearer()))) == SECRETS[0]


@attempt
def control_transparent_injection() -> object:
    return leaked(transparent("198.51.100.8", "api.test", "/v1/messages", headers=bearer())) == SECRETS[0]


@attempt
def control_injection_template() -> object:
    with tunnel("api.test") as wrapped:
        return leaked(over(wrapped, request("/v1/items/7", headers=bearer()))) == SECRETS[0]


@attempt
def control_bumped_without_decoy() -> object:
    with tunnel("api.test") as wrapped:
        answer = over(wrapped, request("/v1/elsewhere"))
        return reached_world(answer) and not leaked(answer)


@attempt
def control_lookup() -> object:
    return ask_dns("127.0.0.11", "ok.test") == (0, 1) and ask_dns("127.0.0.11", "ok.test", AAAA, over_tcp=True) == (
        0,
        1,
    )


@attempt
def control_localhost() -> object:
    """The agent's own servers stay its own business, in both families, over TCP and UDP."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_STREAM) as server, socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            server.bind((address, 0))
            server.listen()
            datagrams.bind((address, 0))
            datagrams.settimeout(3)
            with socket.create_connection(server.getsockname()[:2], timeout=3) as client:
                peer, _ = server.accept()
                peer.sendall(b"mine")
                if client.recv(10) != b"mine":
                    return False
                peer.close()
            with socket.socket(family, socket.SOCK_DGRAM) as client:
                client.sendto(b"mine", datagrams.getsockname())
                if datagrams.recv(10) != b"mine":
                    return False
    return True


@attempt
def control_private_range() -> object:
    """A name whose rule opens its private range."""
    return reached_world(proxy_get("http://intranet.test:8080/control"))


@attempt
def control_events_unbuffered() -> object:
    """Server-sent events through TLS that is terminated arrive one by one."""
    with tunnel("api.test") as wrapped:
        wrapped.sendall(request("/sse"))
        received = b""
        while b"data: 0" not in received:
            received += wrapped.recv(4096)
        return b"data: 2" not in received


@attempt
def control_websocket() -> object:
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    with tunnel("api.test") as wrapped:
        wrapped.sendall(f"GET /v1/items/ws HTTP/1.1\r\nHost: api.test\r\n{bearer()}{upgrade}\r\n".encode())
        received = wrapped.recv(4096)
        while b"hello" not in received:
            chunk = wrapped.recv(4096)
            if not chunk:
                return False
            received += chunk
        return received.startswith(b"HTTP/1.1 101")


@attempt
def control_upload() -> object:
    """A body well past any buffer."""
    size = 8 * 1024 * 1024
    with tunnel("api.test") as wrapped:
        length = f"Content-Length: {size}\r\n"
        wrapped.sendall(request("/v1/messages", method="POST", headers=bearer() + length))
        for _ in range(size // 65536):
            wrapped.sendall(b"x" * 65536)
        return f'"body": {size}'.encode() in over(wrapped, b"")
