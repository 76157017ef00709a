"""What the host runs in the sidecar: JSON request lines on stdin to the supervisor's socket, one after the other, and
the answer line of each on stdout. It understands neither; secrets pass through stdin, never argv."""

from __future__ import annotations

import json
import socket
import sys
import time

from agent_egress.identity import CONTROL_SOCKET

TIMEOUT_S = 180.0
CONNECT_S = 30.0


def ask(line: bytes, *, path: str = CONTROL_SOCKET, timeout_s: float = TIMEOUT_S) -> bytes:
    """The supervisor's answer line. Raises: OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        _connect(sock, path)
        sock.settimeout(timeout_s)
        sock.sendall(line.rstrip(b"\n") + b"\n")
        received = b""
        while not received.endswith(b"\n"):
            chunk = sock.recv(65536)
            if not chunk:
                raise OSError("the supervisor closed the connection")
            received += chunk
    return received


def _connect(sock: socket.socket, path: str) -> None:
    """Waits a little for the socket: the host asks as soon as the engine says that the container runs."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def main() -> None:
    """Exit status 0 whenever there is an answer, a refusal included. After a refusal nothing more is asked."""
    for line in sys.stdin.buffer:
        try:
            answer = ask(line)
        except OSError as error:
            fields = {"part": "control", "message": f"the supervisor does not answer: {error}", "output": ""}
            answer = json.dumps({"v": 1, "ok": False, "error": fields}).encode() + b"\n"
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
        if json.loads(answer).get("ok") is not True:
            return


if __name__ == "__main__":
    main()
