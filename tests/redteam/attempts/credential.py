"""The real credential: to the wrong host, on the wrong path, in the clear, out of the decoy's place; and keys that are
not this session's, to a host that holds one."""

from __future__ import annotations

import base64
import contextlib

from .cases import each
from .tools import (
    DECOY,
    METERED_DECOY,
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

OTHER_DECOY = "decoy-of-other-0123456789"


@each({"of_two": ("other.test", "api.test"), "turned": ("api.test", "other.test"), "evil": ("api.test", "evil.test")})
def token_inner_host(how: tuple[str, str]) -> object:
    """CONNECT one host, name another inside; both hold credentials, so both are terminated."""
    outer, inner = how
    with tunnel(outer) as wrapped:
        return reached_world(over(wrapped, request("/v1/messages", inner, headers=bearer())))


@each(
    {
        "dots": "/v1/messages/../../who",
        "dots_encoded": "/v1/messages/%2e%2e/who",
        "dots_half": "/v1/messages/%2E./who",
        "dots_twice": "/v1/messages/%252e%252e/who",
        "two_slashes": "//v1/messages",
        "slashes_inside": "/v1//messages",
        "slash_encoded": "/v1/messages%2f..%2fwho",
        "slash_for_slash": "/v1%2fmessages",
        "template_dots": "/v1/items/../who",
        "template_dots_encoded": "/v1/items/%2e%2e",
        "template_slash": "/v1/items/a%2fb",
        "deeper": "/v1/items/a/b",
        "empty_item": "/v1/items/",
        "slash_behind": "/v1/messages/",
        "backslash": "/v1\\messages",
        "parameter": "/v1/messages;x=1",
        "item_parameter": "/v1/items/7;x=1",
        "dot": "/./v1/messages",
        "dot_behind": "/v1/messages/.",
        "upper": "/V1/MESSAGES",
        "zero": "/v1/messages%00",
        "blank": "/v1/messages%20",
        "line": "/v1/messages%0a",
        "fragment": "/v1/elsewhere#/v1/messages",
        "query": "/v1/elsewhere?/v1/messages",
        "wide": "/v1/messages\uff0f..\uff0fwho",
        "overlong": "/v1/messages/%c0%ae%c0%ae/who",
        "longer": "/v1/messagesx",
        "shorter": "/v1/message",
        "above": "/v1",
        "star": "*",
    }
)
def token_other_paths(path: str) -> object:
    with tunnel("api.test") as wrapped:
        return leaked(over(wrapped, request(path, headers=bearer())))


@each({name: name for name in ("TRACE", "DELETE", "OPTIONS", "M-SEARCH", "PUT", "PATCH", "PROPFIND", "GETS")})
def token_other_methods(method: str) -> object:
    with tunnel("api.test") as wrapped:
        return leaked(over(wrapped, request("/v1/messages", method=method, headers=bearer())))


@each(
    {
        "http": "http://api.test/v1/messages",
        "http_on_443": "http://api.test:443/v1/messages",
        "https_by_proxy": "https://api.test/v1/messages",
        "allowed_host": "http://ok.test/v1/messages",
    }
)
def token_plain_http(url: str) -> object:
    """Nothing of it, not even the decoy, over a line that is not TLS."""
    answer = proxy_get(url, bearer())
    return (reached_world(answer) and b'"host": "api.test' in answer) or leaked(answer)


@attempt
def token_plain_intercepted() -> object:
    return reached_world(transparent("198.51.100.8", "api.test", "/v1/messages", port=80, headers=bearer()))


@each(
    {
        "another_header": (f"X-Api-Key: {DECOY}\r\n", "/v1/messages"),
        "cookie": (f"Cookie: k={DECOY}\r\n", "/v1/messages"),
        "query": ("", f"/v1/messages?key={DECOY}"),
        "longer": (bearer(f"{DECOY} x"), "/v1/messages"),
        "scheme": (f"Authorization: Token {DECOY}\r\n", "/v1/messages"),
        "bare": (f"Authorization: {DECOY}\r\n", "/v1/messages"),
        "basic": (f"Authorization: Basic {base64.b64encode(f'x:{DECOY}'.encode()).decode()}\r\n", "/v1/messages"),
        "list": (bearer(f"{DECOY}, Bearer {DECOY}"), "/v1/messages"),
        "key_header": (f"X-Goog-Api-Key: {DECOY}\r\n", "/v1/messages"),
    }
)
def token_elsewhere_in_request(how: tuple[str, str]) -> object:
    """Refused at its own host already: what a client puts there by mistake must not look as if it worked."""
    headers, path = how
    with tunnel("api.test") as wrapped:
        return reached_world(over(wrapped, request(path, headers=headers)))


@each(
    {
        "of_api_at_other": ("other.test", DECOY),
        "of_other_at_api": ("api.test", OTHER_DECOY),
        "of_metered_at_api": ("api.test", METERED_DECOY),
        "upper": ("api.test", DECOY.upper()),
        "cut": ("api.test", DECOY[:-1]),
    }
)
def token_of_another_host(how: tuple[str, str]) -> object:
    host, decoy = how
    with tunnel(host) as wrapped:
        return reached_world(over(wrapped, request("/v1/messages", host, headers=bearer(decoy))))


@each({"spliced": "ok.test", "inspected": "seen.test"})
def token_at_an_echo(host: str) -> object:
    """A host that tells what it was sent: it gets the decoy at best, and never what that stands for."""
    with tunnel(host) as wrapped:
        return leaked(over(wrapped, request("/v1/messages", host, headers=f"X-Told: {DECOY[::-1]}\r\n")))


FOREIGN = "foreign-key-of-another-account"


def _foreign_arrived(headers: str, target: str = "/v1/messages") -> bool:
    """Whether the server saw a key that is not this session's, plain or as squid would make it of userinfo."""
    coded = base64.b64encode(f"evil:{FOREIGN}".encode())
    with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
        answer = over(wrapped, request(target, "api.test", headers=headers))
        body = answer.partition(b"\r\n\r\n")[2][::-1]  # the world tells headers backwards
        return FOREIGN.encode() in body or coded in body
    return False


@each(
    {
        "alone": bearer(FOREIGN),
        "after_ours": bearer() + bearer(FOREIGN),
        "before_ours": bearer(FOREIGN) + bearer(),
        "key_header": f"X-Api-Key: {FOREIGN}\r\n",
        "lower": f"authorization: bearer {FOREIGN}\r\n",
        "folded": f"Authorization:\r\n Bearer {FOREIGN}\r\n",
        "blank": f"Authorization : Bearer {FOREIGN}\r\n",
        "hop_by_hop": f"Connection: Authorization\r\n{bearer(FOREIGN)}",
    }
)
def token_foreign(headers: str) -> object:
    """Another account's key at a host that holds one of ours: a way out that looks like work."""
    return _foreign_arrived(headers)


@each(
    {
        "dash": ("Authorization", "-"),
        "empty": ("Authorization", ""),
        **{name.lower(): (name, "") for name in ("X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Private-Token")},
    }
)
def token_foreign_twice(how: tuple[str, str]) -> object:
    """A header twice, the first one empty: squid shows the policy process the first alone."""
    name, first = how
    return _foreign_arrived(f"{name}: {first}\r\n{name}: Bearer {FOREIGN}\r\n")


@attempt
def token_foreign_userinfo() -> object:
    """A key in an absolute URI, which squid turns into a header."""
    return _foreign_arrived("", f"https://evil:{FOREIGN}@api.test/v1/messages")


@each({name.lower(): name for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")})
def token_override(header: str) -> object:
    """The real credential with another method than the one that was judged."""
    with tunnel("api.test") as wrapped:
        answer = over(wrapped, request("/v1/messages", headers=bearer() + f"{header}: DELETE\r\n"))
        return header.lower().encode() in answer.lower()


@each({name.lower(): name for name in ("X-Original-URL", "X-Rewrite-URL")})
def token_override_path(header: str) -> object:
    with tunnel("api.test") as wrapped:
        answer = over(wrapped, request("/v1/messages", headers=bearer() + f"{header}: /v1/who\r\n"))
        return header.lower().encode() in answer.lower()


@attempt
def token_in_parts() -> object:
    """An answer that shows the real credential, asked for a few bytes at a time."""
    with tunnel("api.test") as wrapped:
        return b"bytes=5-9"[::-1] in over(wrapped, request("/v1/messages", headers=bearer() + "Range: bytes=5-9\r\n"))
