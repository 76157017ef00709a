"""What the attempts are made of: the test world's addresses and names, and ways to speak TCP, DNS and TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterator

PROXY = ("127.0.0.1", 3128)
PUBLIC4, PUBLIC6 = "198.51.100.9", "2001:db8:5::9"
OK4, OK6, EVIL4 = "198.51.100.7", "2001:db8:5::7", "198.51.100.66"
METADATA = "169.254.169.254"
PRIVATE = "10.77.0.9"
RESOLVER4, RESOLVER6 = "198.51.100.53", "2001:db8:5::53"
SECRETS = (
    "real-secret-of-api-0123456789",
    "real-secret-of-other-0123456789",
    "real-secret-of-metered-0123456789",
)
DECOY = "decoy-of-api-0123456789"
METERED_DECOY = "decoy-of-metered-0123456789"
METERED_REQUESTS, METERED_BYTES = 3, 4 << 20
"""The budget of `metered.test`."""
BUNDLE = "/etc/agent-container/ca/bundle.pem"
A, NS, TXT, AAAA, HTTPS, ANY = 1, 2, 16, 28, 65, 255

ATTEMPTS: dict[str, Callable[[], object]] = {}


def attempt(function: Callable[[], object]) -> Callable[[], object]:
    """Registers an attempt: truthy means that it got through; a refusal may be any OSError."""
    ATTEMPTS[function.__name__] = function
    return function


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
    return next((secret for secret in SECRETS if secret in text or secret[::-1] in text), "")


def reached_world(data: bytes) -> bool:
    return b'"world": true' in data


def transparent(address: str, name: str, path: str = "/control", port: int = 443, headers: str = "") -> bytes:
    with tcp(address, port, timeout_s=8) as sock:
        if port != 443:
            return over(sock, request(path, name, headers=headers))
        with context().wrap_socket(sock, server_hostname=name) as wrapped:
            return over(wrapped, request(path, name, headers=headers))
