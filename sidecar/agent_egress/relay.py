"""squid's external_acl program: carries lines between squid and the policy process in batches, and decides nothing,
so that a broken squid holds neither chain key nor more than the token in flight. It never leaves while squid is there
(squid would go down with it): a lost or hung policy process means refusals, and a new connection."""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import time
from contextlib import suppress

from agent_egress import identity

REFUSAL = (
    b' ERR message="agent-container: blocked: the policy process does not answer, and nothing passes without it. '
    b'Its user can look with: agent-container status" action_='
)
TLS_PORTS = (b"443", b"8443")
CHUNK = 256 * 1024
TICK_MS = 100
RETRY_S = 0.05


class Relay:
    """squid on two descriptors, the policy process on a socket; who waits for an answer is known by channel."""

    def __init__(self, *, path: str, deadline_s: float, stdin: int, stdout: int) -> None:
        self._path, self._deadline_s = path, deadline_s
        self._stdin, self._stdout = stdin, stdout
        self._sock: socket.socket | None = None
        self._asked = self._answered = b""
        self._pending: dict[bytes, tuple[float, bytes]] = {}
        self._next_try_s = 0.0

    def run(self) -> None:
        """Until squid closes its end."""
        while True:
            now_s = time.monotonic()
            if self._sock is None and now_s >= self._next_try_s:
                self._connect(now_s)
            poll = select.poll()
            poll.register(self._stdin, select.POLLIN)
            if self._sock is not None:
                poll.register(self._sock, select.POLLIN)
            ready = poll.poll(TICK_MS)
            for fd, _events in ready:
                if fd == self._stdin:
                    chunk = os.read(self._stdin, CHUNK)
                    if not chunk:
                        return
                    self._from_squid(chunk)
                elif self._sock is not None and fd == self._sock.fileno():
                    self._from_policy()
            self._enforce_deadline()

    def _connect(self, now_s: float) -> None:
        self._next_try_s = now_s + RETRY_S
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self._deadline_s)
            sock.connect(self._path)
        except OSError:
            sock.close()
            return
        self._sock = sock

    def _from_squid(self, chunk: bytes) -> None:
        whole, newline, self._asked = (self._asked + chunk).rpartition(b"\n")
        if not newline:
            return
        until_s = time.monotonic() + self._deadline_s
        for line in whole.split(b"\n"):
            words = line.split(b" ", 5)
            if words[0]:
                # A refused tunnel that does not begin with TLS is closed: its client would not read a 403 inside TLS.
                closes = len(words) > 4 and words[2] == b"CONNECT" and words[4] not in TLS_PORTS
                self._pending[words[0]] = (until_s, b"term" if closes else b"deny")
        if self._sock is None:
            self._connect(time.monotonic())
        if self._sock is None:
            self._deny_pending()
            return
        try:
            self._sock.sendall(whole + b"\n")
        except OSError:
            self._drop()

    def _from_policy(self) -> None:
        try:
            chunk = self._sock.recv(CHUNK) if self._sock is not None else b""
        except OSError:
            chunk = b""
        if not chunk:
            self._drop()
            return
        whole, newline, self._answered = (self._answered + chunk).rpartition(b"\n")
        if not newline:
            return
        known = []
        for line in whole.split(b"\n"):
            # An answer that nobody waits for any more must not meet a channel number that squid used again.
            if self._pending.pop(line.split(b" ", 1)[0], None) is not None:
                known.append(line + b"\n")
        self._write(b"".join(known))

    def _enforce_deadline(self) -> None:
        # Oldest first: the dictionary keeps the order in which squid asked.
        oldest = next(iter(self._pending.values()), None)
        if oldest is not None and time.monotonic() >= oldest[0]:
            self._drop()

    def _drop(self) -> None:
        """The policy process is gone or hangs: its late answers go with the socket."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._answered = b""
        self._deny_pending()

    def _deny_pending(self) -> None:
        pending, self._pending = self._pending, {}
        self._write(b"".join(channel + REFUSAL + action + b"\n" for channel, (_, action) in pending.items()))

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._stdout, data) :]


def main(argv: list[str] | None = None) -> None:
    """The helper's entry; options exist for tests, the defaults are the sidecar's."""
    parser = argparse.ArgumentParser(prog="agent_egress.relay")
    parser.add_argument("--socket", default=identity.POLICY_SOCKET)
    parser.add_argument("--deadline-s", type=float, default=identity.ANSWER_DEADLINE_S)
    options = parser.parse_args(argv)
    relay = Relay(
        path=options.socket, deadline_s=options.deadline_s, stdin=sys.stdin.fileno(), stdout=sys.stdout.fileno()
    )
    with suppress(BrokenPipeError, KeyboardInterrupt):  # squid itself is gone
        relay.run()


if __name__ == "__main__":
    main()
