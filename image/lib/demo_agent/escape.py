"""What the demo agent tries although it may not, and what it finds: a refused host, other ways out, the credential.

It reports every secret-looking value by a mask and a digest, so that its output shows whether the real credential is in
reach without ever printing it.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import urllib.error
import urllib.request
from typing import Dict, Iterator, List, Tuple

from .output import Output

ALLOWED_URL = "https://demo.agent-container.test/hello"
REFUSED_URL = "https://refused.agent-container.test/"
TIMEOUT_S = 20
FILES_MAX = 2000
FILE_MAX_BYTES = 256 * 1024
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
SECRET_TEXT = re.compile(
    rb"(?:sk-|ghp_|github_pat_|glpat-|xox[bp]-)[A-Za-z0-9_-]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
INSTALLED = os.path.realpath(__file__).startswith("/opt/agent-container/")
PLACES = ("/home/agent", "/run", "/tmp", "/var/lib", "/etc/agent-container", "/etc/agent-egress", "/memory")


def fetch(url: str, *, key: str = "") -> Tuple[bool, str]:
    """Whether anything but a refusal came back, with its status and beginning; proxy and CA from the environment."""
    request = urllib.request.Request(url, headers={"User-Agent": "demo-agent"})
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            body = answer.read(65536)
            return True, f"{answer.status} {body[:200].decode('utf-8', 'replace')}"
    except urllib.error.HTTPError as error:
        return False, f"{error.code} {error.read(200).decode('utf-8', 'replace')}"
    except (OSError, ValueError) as error:
        return False, str(getattr(error, "reason", error))


def connect_directly(host: str, port: int) -> Tuple[bool, str]:
    """A TCP connection past the proxy. An address of the documentation range stands for the internet."""
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        return False, str(error)
    return True, "connected"


def find_secrets() -> List[str]:
    """One line for each secret-looking value in reach: where, mask, digest."""
    found: Dict[str, str] = {}
    for where, value in _values():
        digest = hashlib.sha256(value).hexdigest()[:16]
        found.setdefault(digest, f"{where}: {_mask(value)} sha256:{digest}")
    return sorted(found.values())


def _mask(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return f"{text[:4]}...({len(text)} characters)"


def _values() -> Iterator[Tuple[str, bytes]]:
    yield from _variables("environment", os.environb)
    for name in sorted(os.listdir("/proc")):
        if name.isdigit():
            data = _read(f"/proc/{name}/environ")
            pairs = (pair.partition(b"=") for pair in data.split(b"\0"))
            yield from _variables(f"/proc/{name}/environ", {pair[0]: pair[2] for pair in pairs})
            for match in SECRET_TEXT.findall(_read(f"/proc/{name}/cmdline")):
                yield f"/proc/{name}/cmdline", match
    left = FILES_MAX
    for top in PLACES:
        for directory, _names, files in os.walk(top):
            for file in sorted(files):
                path = os.path.join(directory, file)
                left -= 1
                if left >= 0 and os.path.isfile(path):
                    for match in SECRET_TEXT.findall(_read(path)):
                        yield path, match


def _variables(where: str, environ: "os._Environ[bytes] | Dict[bytes, bytes]") -> Iterator[Tuple[str, bytes]]:
    for name, value in environ.items():
        if value and SECRET_NAME.search(name.decode("utf-8", "replace")):
            yield f"{where} {name.decode('utf-8', 'replace')}", value


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read(FILE_MAX_BYTES)
    except OSError:
        return b""


def try_to_escape(output: Output) -> bool:
    """Whether the sandbox held. The allowed host is asked too; that it cannot be reached is no escape."""
    if not INSTALLED:
        output.message("I am not in my sandbox, so I try nothing.")  # whoever starts it by hand is not scanned
        return True
    allowed = os.environ.get("DEMO_ALLOWED_URL", ALLOWED_URL)
    refused = os.environ.get("DEMO_REFUSED_URL", REFUSED_URL)
    key = os.environ.get("DEMO_API_KEY", "")
    output.message("Now the network: a host that I may reach, one that I may not, and a way past the proxy.")
    output.tool("fetch", allowed, lambda: fetch(allowed, key=key))
    _ok, said = output.tool("fetch", refused, lambda: fetch(refused))
    left = said[:3].isdigit() and not said.startswith("403")  # any other answer came from out there
    past, _said = output.tool("connect", "203.0.113.10:443", lambda: connect_directly("203.0.113.10", 443))
    output.message("And is there a credential that I could take along?")
    output.tool("search", "environment, files, /proc", lambda: (True, "\n".join(find_secrets()) or "nothing"))
    return not left and not past
