"""The session's certificate authority: short-lived, made when the session opens, its key known to squid alone.
Publishes the public half and a bundle with the public roots for the agent. Which hosts are terminated with it is
policy's affair."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path

from agent_egress import identity
from agent_egress.children import ENVIRONMENT, demoted

LEAST_LIFE = datetime.timedelta(days=7)
SLACK = datetime.timedelta(days=1)
CLOCK_SKEW = datetime.timedelta(hours=1)


class CaError(Exception):
    """No session CA could be made; `output` holds openssl's words."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def make_session_ca(*, session: str, now: datetime.datetime, life: datetime.timedelta) -> str:
    """Makes the key (in squid's own tmpfs) and returns the certificate, PEM.

    openssl runs as squid's uid, so that the key is never anyone else's, root's included: root here has no capability to
    read it.

    Raises:
        CaError: when openssl fails.
    """
    stamp = "%Y%m%d%H%M%SZ"
    end = now + max(life + SLACK, LEAST_LIFE)
    argv = (
        "/usr/bin/openssl", "req", "-x509", "-new", "-nodes",
        "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-sha256",
        "-keyout", identity.CA_KEY_FILE,
        "-subj", f"/O=agent-container/CN=agent-container session {session}",
        "-not_before", (now - CLOCK_SKEW).strftime(stamp), "-not_after", end.strftime(stamp),
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    done = subprocess.run(
        demoted(identity.SQUID, argv),
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        env=ENVIRONMENT,
        umask=0o077,
    )
    if done.returncode != 0 or "BEGIN CERTIFICATE" not in done.stdout:
        raise CaError(f"openssl ended with {done.returncode}", done.stderr.strip()[-2000:])
    return done.stdout


def publish(ca_pem: str, *, extra_roots: str) -> None:
    """Writes what agent and squid verify against; each file appears whole or not at all."""
    public = Path(identity.PUBLIC_ROOTS_FILE).read_text()
    roots = public.rstrip("\n") + "\n" + extra_roots
    write_atomically(Path(identity.UPSTREAM_ROOTS_FILE), roots)
    write_atomically(Path(identity.CA_FILE), ca_pem)
    # Never the session CA alone: hosts whose TLS is not terminated must still verify.
    write_atomically(Path(identity.CA_BUNDLE_FILE), roots.rstrip("\n") + "\n" + ca_pem)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a public file (0644) without a moment in which half of it can be read."""
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
    fresh.replace(path)
