"""Through the proxy and the intercept ports to what no rule allows: other names, other addresses, other spellings of
either, another name inside, the proxy itself."""

from __future__ import annotations

import contextlib

from .cases import each
from .tools import (
    EVIL4,
    METADATA,
    OK4,
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


@each(
    {
        "name": "http://evil.test/",
        "address": f"http://{EVIL4}/",
        "below": "http://leak-8.evil.test/",
        "address6": f"http://[{PUBLIC6}]/",
        "below_allowed": "http://sub.ok.test/",
        "allowed_below": "http://ok.test.evil.test/",
        "allowed_address": f"http://{OK4}/",
        "other_port": "http://ok.test:8080/",
        "port_of_ssh": "http://ok.test:22/",
        "port_zero": "http://ok.test:0/",
        "port_around": "http://ok.test:131152/",
        "userinfo": "http://ok.test@evil.test/",
        "userinfo_port": "http://ok.test:80@evil.test/",
        "fragment": "http://evil.test#@ok.test/",
        "fragment_first": "http://ok.test#@evil.test/",
        "backslash": "http://evil.test\\@ok.test/",
        "question": "http://evil.test?@ok.test/",
        "zero_byte": "http://evil.test%00.ok.test/",
        "encoded_dot": "http://ok.test%2eevil.test/",
        "encoded_host": "http://%65vil.test/",
        "dot_behind": "http://evil.test./",
        "upper": "http://EVIL.TEST/",
        "wide": "http://evil\uff0etest/",
        "hex": f"http://0x{0xC6336442:x}/",
        "decimal": f"http://{0xC6336442}/",
        "octal": "http://0306.063.0144.0102/",
        "short": "http://198.51.25666/",
        "long_label": f"http://{'a' * 64}.ok.test/",
        "comma": "http://evil.test,ok.test/",
        "semicolon": "http://evil.test;ok.test/",
        "tab": "http://evil.test\tok.test/",
        "underscore": "http://_.evil.test/",
    }
)
def proxy_refused_host(url: str) -> object:
    answer = proxy_get(url)
    return reached_world(answer) and b'"host": "ok.test"' not in answer


@each({"fragment_first": "http://ok.test#@evil.test/", "upper": "http://OK.TEST/", "dot_behind": "http://ok.test./"})
def proxy_spelled(url: str) -> object:
    """Other spellings of an allowed name may pass, if it is that name that is reached."""
    return b'"address": "198.51.100.66"' in proxy_get(url)


@each(
    {
        "name": "evil.test:443",
        "address": f"{EVIL4}:443",
        "allowed_address": f"{OK4}:443",
        "address6": f"[{PUBLIC6}]:443",
        "ssh": "ok.test:22",
        "smtp": "ok.test:25",
        "no_port": "ok.test",
        "port_around": "ok.test:65979",
        "negative": "ok.test:-443",
        "two_ports": "ok.test:80:22",
        "userinfo": "ok.test:443@evil.test:443",
        "uri": "https://evil.test:443/",
        "path": "evil.test:443/ok.test:443",
        "fragment": "evil.test:443#ok.test:443",
        "space": "evil.test:443 ok.test:443",
        "self": "127.0.0.1:3128",
        "loopback": "localhost:3131",
        "private": "lan.test:443",
        "metadata": f"{METADATA}:80",
        "killed_spelling": "evil.test.:443",
    }
)
def connect(target: str) -> object:
    """A tunnel that ends in TLS to somebody, or in a greeting."""
    with tcp(*PROXY, timeout_s=5) as sock:
        sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: ok.test:443\r\n\r\n".encode())
        head = sock.recv(4096)
        if b" 200 " not in head.split(b"\r\n")[0]:
            return False
        with context(verify=False).wrap_socket(sock, server_hostname="evil.test") as wrapped:
            return reached_world(over(wrapped, request("/connected", "evil.test")))


_FIRST = "GET http://ok.test/first HTTP/1.1\r\nHost: ok.test\r\n\r\n"


@each(
    {
        "get": _FIRST + "GET http://evil.test/second HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n",
        "host_alone": _FIRST + "GET /second HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n",
        "old": _FIRST + "GET http://evil.test/second HTTP/1.0\r\n\r\n",
        "older": _FIRST + "GET http://evil.test/second\r\n\r\n",
        "connect": _FIRST + "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /second HTTP/1.1\r\n\r\n",
        "behind_a_body": "POST http://ok.test/first HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 3\r\n\r\nabc"
        "GET http://evil.test/second HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n",
    }
)
def proxy_pipelined(text: str) -> object:
    with tcp(*PROXY, timeout_s=4) as sock:
        sock.sendall(text.encode())
        received = b""
        with contextlib.suppress(OSError):
            while chunk := sock.recv(65536):
                received += chunk
    return b'"/second"' in received


@each(
    {
        "private": f"http://{PRIVATE}:8080/",
        "metadata": f"http://{METADATA}/latest/",
        "private_name": "http://lan.test:8080/",
        "metadata_name": "http://metadata.test/",
        "metadata_decimal": "http://2852039166/",
        "private_hex": "http://0x0a4d0009:8080/",
        "this_network": "http://0.0.0.1:8080/",
        "carrier": "http://100.64.0.1:8080/",
        "benchmark": "http://198.18.0.1:8080/",
        "multicast": "http://224.0.0.1:8080/",
        "reserved": "http://240.0.0.1:8080/",
        "broadcast": "http://255.255.255.255:8080/",
        "the_range_of_another": "http://10.99.0.9:8080/",
    }
)
def proxy_to_private(url: str) -> object:
    return reached_world(proxy_get(url))


@attempt
def proxy_rebinding() -> object:
    """A name that is allowed and changes its address with every answer."""
    for _ in range(6):
        answer = proxy_get("http://flip.test:8080/")
        if b"10.77.0." in answer or b"169.254." in answer:
            return answer[-200:].decode("latin-1")
    return False


@each(
    {
        "loopback": "127.0.0.1",
        "name": "localhost",
        "loopback6": "[::1]",
        "any": "0.0.0.0",
        "short": "127.1",
        "decimal": "2130706433",
        "hex": "0x7f000001",
        "mapped": "[::ffff:127.0.0.1]",
        "any6": "[::]",
        "other": "127.9.9.9",
        "engine": "127.0.0.11",
    }
)
def proxy_to_itself(host: str) -> object:
    for port in (3128, 3129, 3130, 3131, 3132, 3053):
        status = proxy_get(f"http://{host}:{port}/").split(b" ")[1:2]
        if status in ([b"200"], [b"204"], [b"404"]):
            return f"{host}:{port} answered {status}"
    return False


@each({"root": "", "word": "canary", "token": "0" * 32})
def proxy_canary(path: str) -> object:
    answer = proxy_get(f"http://canary.agent-container.invalid:3131/{path}")
    return b" 403 " not in answer.split(b"\r\n")[0]


@each(
    {
        "info": "GET http://localhost:3128/squid-internal-mgr/info HTTP/1.1\r\nHost: localhost:3128\r\n",
        "config": "GET http://egress/squid-internal-mgr/config HTTP/1.1\r\nHost: egress\r\n",
        "origin": "GET /squid-internal-mgr/info HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n",
        "old": "GET cache_object://localhost/config HTTP/1.0\r\n",
        "menu": "GET http://localhost:3128/squid-internal-mgr/menu HTTP/1.1\r\nHost: localhost:3128\r\n",
        "allowed_host": "GET http://ok.test/squid-internal-mgr/info HTTP/1.1\r\nHost: ok.test\r\n",
        "digest": "GET http://egress/squid-internal-periodic/store_digest HTTP/1.1\r\nHost: egress\r\n",
    }
)
def cache_manager(probe: str) -> object:
    answer = proxy_send(f"{probe}Connection: close\r\n\r\n".encode())
    return b" 200 " in answer.split(b"\r\n")[0] and not reached_world(answer)


@attempt
def bad_certificate() -> object:
    """A credential's host whose certificate is another's: nobody may be told the secret."""
    with tunnel("badcert.test") as wrapped:
        return reached_world(over(wrapped, request("/v1/messages", "badcert.test")))


@each(
    {
        "other": "evil.test",
        "none": None,
        "bound": "api.test",
        "below": "x.ok.test",
        "above": "test",
        "address": "198.51.100.66",
    }
)
def fronting_sni(sni: str | None) -> object:
    """CONNECT to an allowed name, another one in the hello, or none."""
    with tunnel("ok.test", sni=sni, verify=False) as wrapped:
        return reached_world(over(wrapped, request("/fronted", "evil.test")))


@each({"other": "evil.test", "bound": "api.test"})
def transparent_refused(name: str) -> object:
    return reached_world(transparent(EVIL4, name))


@each({"spliced": ("ok.test", ""), "bound": ("api.test", bearer()), "inspected": ("seen.test", "")})
def transparent_wrong_address(how: tuple[str, str]) -> object:
    """The SNI of an allowed name, sent to another address: one got a connection, one the token."""
    name, headers = how
    with tcp(EVIL4, 443, timeout_s=8) as sock:
        wrapped = context(verify=False).wrap_socket(sock, server_hostname=name)
        answer = over(wrapped, request("/v1/messages", name, headers=headers))
        return reached_world(answer) or leaked(answer)


@each(
    {
        "allowed": "GET /x HTTP/1.1\r\nHost: ok.test\r\n",
        "twice": "GET /x HTTP/1.1\r\nHost: ok.test\r\nHost: evil.test\r\n",
        "none": "GET /x HTTP/1.0\r\n",
        "address": f"GET /x HTTP/1.1\r\nHost: {EVIL4}\r\n",
        "absolute": "GET http://ok.test/x HTTP/1.1\r\nHost: ok.test\r\n",
    }
)
def transparent_host(text: str) -> object:
    """Port 80 of an address that nothing allows, with a Host that something does."""
    with tcp(EVIL4, 80, timeout_s=5) as sock:
        return reached_world(over(sock, f"{text}Connection: close\r\n\r\n".encode()))


@each(
    {
        "other": "GET /x HTTP/1.1\r\nHost: evil.test\r\n",
        "twice": "GET /x HTTP/1.1\r\nHost: evil.test\r\nHost: ok.test\r\n",
        "absolute": "GET http://evil.test/x HTTP/1.1\r\nHost: ok.test\r\n",
        "userinfo": "GET /x HTTP/1.1\r\nHost: ok.test@evil.test\r\n",
    }
)
def transparent_fronting(text: str) -> object:
    """Port 80 of an allowed address, and the Host of another behind it."""
    with tcp(OK4, 80, timeout_s=5) as sock:
        return b'"host": "evil.test' in over(sock, f"{text}Connection: close\r\n\r\n".encode())
