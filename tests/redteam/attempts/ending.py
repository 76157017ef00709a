"""What rules do besides letting pass: an inspected host's TLS is opened, and contact with a killed one ends the session
at once."""

from __future__ import annotations

import contextlib
import time

from .tools import attempt, over, proxy_send, reached_world, request, tunnel

LAST = ("tunnel_outlives_a_kill",)
"""Nothing works after it."""


def issuer(host: str) -> str:
    """Who vouches for the certificate that a client gets to see."""
    with tunnel(host) as wrapped:
        return str((wrapped.getpeercert() or {}).get("issuer"))


@attempt
def control_inspected() -> object:
    with tunnel("seen.test") as wrapped:
        return "agent-container" in issuer("seen.test") and reached_world(over(wrapped, request("/x", "seen.test")))


@attempt
def control_spliced() -> object:
    return "agent-container" not in issuer("ok.test")


@attempt
def inspected_unopened() -> object:
    found = issuer("seen.test")
    return False if "agent-container" in found else found


@attempt
def tunnel_outlives_a_kill() -> object:
    with tunnel("ok.test") as live:
        with contextlib.suppress(OSError):
            proxy_send(b"CONNECT trap.test:443 HTTP/1.1\r\nHost: trap.test:443\r\n\r\n")
        time.sleep(1)
        return reached_world(over(live, request("/control", "ok.test")))
