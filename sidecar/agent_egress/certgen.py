"""squid's certificate helper: one leaf for each host whose TLS is terminated, signed by the session's CA. squid's own
helper leaves out the authority key identifier, without which Python 3.13 and other strict clients refuse a leaf
(RFC 5280, 4.2.1.1). Keeps nothing on disk that could go stale: squid remembers what it was given."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from agent_egress import identity

LIFE = datetime.timedelta(days=90)
CLOCK_SKEW = datetime.timedelta(hours=1)
MAX_BODY = 65536
END = b"\x01"
CONFIG = "[req]\ndistinguished_name = none\n[none]\n"
MAX_NAMES = 200
_BEGIN = b"-----BEGIN CERTIFICATE-----"
_NAME = re.compile(r"DNS:(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})|IP:[0-9A-Fa-f.:]{2,45}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})", re.ASCII)


class RequestRefused(ValueError):
    """squid asked for what this helper does not make."""


def read_request(stream: BinaryIO) -> bytes | None:
    """The body of squid's next message, `new_certificate LENGTH BODY`; None when squid is gone."""
    head = b""
    while head.count(b" ") < 2:
        byte = stream.read(1)
        if not byte:
            return None
        head = (head + byte).lstrip(b"\n")
        if len(head) > 64:
            raise RequestRefused("no message")
    kind, length, _ = head.split(b" ", 2)
    size = int(length)
    if size > MAX_BODY:
        raise RequestRefused("too long")
    body = stream.read(size)
    if kind != b"new_certificate":
        raise RequestRefused("unknown message")
    return body


def alternative_name(body: bytes) -> str:
    """The subjectAltName for a message: the host that it names, or those of the server's certificate that it holds.

    Raises:
        RequestRefused: unless squid would sign it as trusted: a server that did not verify must not look right.
    """
    fields = dict(line.partition(b"=")[::2] for line in body.split(b"-----BEGIN", 1)[0].split(b"\n") if b"=" in line)
    if fields.get(b"Sign", b"signTrusted") != b"signTrusted":
        raise RequestRefused("only trusted leaves are made")
    if body.count(_BEGIN) > 1:
        # The agent dialled the address itself: squid has met the server first, and hands its certificate over.
        return server_names(_BEGIN + body.rsplit(_BEGIN, 1)[1])
    host = fields.get(b"host", b"").decode("ascii", "replace").strip("[]")
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        if not _HOST.fullmatch(host):
            raise RequestRefused("not a host name") from None
        return f"DNS:{host}"


def server_names(certificate: bytes) -> str:
    """The names of a server's certificate (PEM), as a subjectAltName. Raises: RequestRefused."""
    done = subprocess.run(
        ["/usr/bin/openssl", "x509", "-noout", "-ext", "subjectAltName"],
        input=certificate, capture_output=True, check=False, timeout=10,
    )  # fmt: skip
    words = [
        word.strip() for line in done.stdout.decode("ascii", "replace").splitlines()[1:] for word in line.split(",")
    ]
    names = [word.replace("IP Address:", "IP:") for word in words]
    kept = [name for name in names if _NAME.fullmatch(name)][:MAX_NAMES]
    if not kept:
        raise RequestRefused("the server's certificate has no names")
    return ",".join(kept)


class Leaves:
    """Makes leaves, all with one key of this process."""

    def __init__(self, directory: Path) -> None:
        self._config = directory / f"leaf-{os.getpid()}.cnf"
        self._config.write_text(CONFIG)
        self._key_file = directory / f"leaf-{os.getpid()}.key"
        made = self._openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        self._key = made
        with os.fdopen(os.open(self._key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(made)

    def make(self, name: str, *, now: datetime.datetime) -> bytes:
        """Certificate and key, PEM, for one subjectAltName."""
        stamp = "%Y%m%d%H%M%SZ"
        extensions = (
            f"subjectAltName={name}",
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=serverAuth",
            "subjectKeyIdentifier=hash",
            "authorityKeyIdentifier=keyid",
        )
        certificate = self._openssl(
            "req", "-x509", "-new", "-config", str(self._config), "-key", str(self._key_file), "-sha256",
            "-CA", identity.CA_FILE, "-CAkey", identity.CA_KEY_FILE, "-subj", "/CN=agent-container",
            "-not_before", (now - CLOCK_SKEW).strftime(stamp), "-not_after", (now + LIFE).strftime(stamp),
            *(word for extension in extensions for word in ("-addext", extension)),
        )  # fmt: skip
        return certificate + self._key

    def _openssl(self, *arguments: str) -> bytes:
        done = subprocess.run(["/usr/bin/openssl", *arguments], capture_output=True, check=False, timeout=10)
        if done.returncode != 0:
            raise RequestRefused(done.stderr.decode(errors="replace")[-500:])
        return done.stdout


def main() -> None:
    """Answers until squid closes the pipe."""
    leaves = Leaves(Path(identity.SQUID_DIR))
    while True:
        code = b"OK"
        try:
            body = read_request(sys.stdin.buffer)
            if body is None:
                return
            answer = leaves.make(alternative_name(body), now=datetime.datetime.now(datetime.UTC))
        except (ValueError, subprocess.SubprocessError) as error:
            code, answer = b"BH", f"{type(error).__name__}: {error}".encode("ascii", "replace")
            sys.stderr.write(answer.decode() + "\n")
        sys.stdout.buffer.write(b"%s %d %s%s" % (code, len(answer), answer, END))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
