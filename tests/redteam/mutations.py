"""Requests as a proxy may get to see them, made from good ones by a seeded generator: method, target, host, port,
headers, line ends, bytes, bodies, tunnels. The standard library only: it runs beside the agent. Every request carries
its own number, so that what arrives anywhere can be traced to how it was made."""

from __future__ import annotations

import random

HOSTS = ("ok.test", "api.test", "other.test", "seen.test", "evil.test", "lan.test", "198.51.100.66", "10.77.0.9")
ODD_HOSTS = (
    "ok.test.", "OK.TEST", "ok.test@evil.test", "evil.test#ok.test", "ok.test%2eevil.test", "ok.test\\evil.test",
    "[::ffff:10.77.0.9]", "[64:ff9b::a4d:9]", "0x0a4d0009", "169.254.169.254", "localhost", "127.1", "", "*", "..",
    "ok.test:80:80", "ok.test:0", "ok.test:99999", "a" * 300 + ".ok.test", "ok..test", "\u2488.test",
    "ok.test,evil.test",
)  # fmt: skip
METHODS = (
    "GET",
    "GET",
    "POST",
    "HEAD",
    "PUT",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "DELETE",
    "PURGE",
    "get",
    "G\tT",
    "",
    "PRI",
)
PATHS = (
    "/v1/messages",
    "/v1/items/7",
    "/",
    "/v1/messages/../who",
    "/v1/messages%2f..",
    "//",
    "*",
    "/\x00",
    "/?a=b#c",
    "/ x",
)
HEADERS = (
    "Content-Length: 0", "Content-Length: 5", "Content-Length: -1", "Transfer-Encoding: chunked",
    "Transfer-Encoding : chunked", "Transfer-Encoding: xchunked", "Expect: 100-continue", "Connection: Authorization",
    "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c", "Host: evil.test", "X-Forwarded-Host: evil.test",
    "X-HTTP-Method-Override: DELETE", "X-Original-URL: /who", "Range: bytes=0-1,0-1", "Proxy-Authorization: Basic eDp5",
    "Max-Forwards: 0", "Via: 1.1 evil.test", "Cookie: a=b", "Accept-Encoding: br", "X: y\r z", " folded: x", "no colon",
    "Authorization: Bearer foreign-key-0123456789", "X-Api-Key: foreign-key-0123456789", ": empty", "X\x00Y: z",
)  # fmt: skip
ENDS = ("\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n", "\n\r\n", "\x0b\r\n")
VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "http/1.1", "HTTP/1.1 x", "")


def _target(pick: random.Random, host: str, number: int) -> str:
    path = pick.choice(PATHS) + (f"?n={number}" if pick.random() < 0.7 else "")
    port = pick.choice(("", "", ":80", ":443", ":22", ":8080"))
    return pick.choice(
        (f"http://{host}{port}{path}", f"http://{host}{port}{path}", f"https://{host}{port}{path}", path,
         f"//{host}{path}",         f"{host}:443", f"{host}{port}", f"ftp://{host}{path}", f"http:{host}{path}", f"HTTP://{host}{port}{path}")
    )  # fmt: skip


def _damaged(pick: random.Random, data: bytes) -> bytes:
    """Some bytes changed, dropped, doubled or put in."""
    found = bytearray(data)
    for _ in range(pick.randint(1, 4)):
        if not found:
            break
        at = pick.randrange(len(found))
        kind = pick.randrange(4)
        if kind == 0:
            found[at] = pick.randrange(256)
        elif kind == 1:
            del found[at : at + pick.randint(1, 8)]
        elif kind == 2:
            found[at:at] = found[at : at + pick.randint(1, 40)]
        else:
            found[at:at] = pick.choice((b"\r\n", b"\n", b"\0", b"\xff\xfe", b" ", b"\t", b"\r\n\r\n", b"\x16\x03\x01"))
    return bytes(found)


def mutated(seed: int, number: int, decoy: str) -> tuple[str, bytes]:
    """The tunnel to put a request into ("" for none), and its bytes."""
    pick = random.Random(seed * 1_000_003 + number)
    tunnel = pick.choice(("", "", "", "api.test", "ok.test", "other.test", "seen.test", "evil.test"))
    host = pick.choice(HOSTS if pick.random() < 0.75 else ODD_HOSTS)
    target = _target(pick, host, number) if not tunnel or pick.random() < 0.3 else pick.choice(PATHS)
    end = pick.choice(ENDS) if pick.random() < 0.3 else "\r\n"
    lines = [f"{pick.choice(METHODS)} {target} {pick.choice(VERSIONS)}"]
    if pick.random() < 0.9:
        lines.append(f"Host: {(tunnel or host) if pick.random() < 0.7 else pick.choice(ODD_HOSTS + HOSTS)}")
    if tunnel != "ok.test" and pick.random() < 0.5:  # nobody looks into that one
        lines.append(f"Authorization: {pick.choice(('Bearer ', 'bearer ', 'Basic ', ''))}{decoy}")
    lines += pick.choices(HEADERS, k=pick.randrange(5))
    lines.append(f"X-Number: {number}")
    lines[1:] = pick.sample(lines[1:], len(lines) - 1)
    body = pick.choice(
        ("", "", "hello", "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", f"GET /inner?n={number} HTTP/1.1\r\n\r\n")
    )
    data = (end.join(lines) + end + end + body).encode("utf-8", "replace")
    if pick.random() < 0.35:
        data = _damaged(pick, data)
    return tunnel, data
