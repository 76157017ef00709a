"""The daemons as they run in the sidecar, on sockets and ports of the test's own; only uids and paths differ."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_egress import wire
from agent_egress.receipts import ChainReport, parse_receipt, verify_chain
from agent_egress.rules import Policy

KEY = bytes(range(32))
DECOY = "demo-decoy-0123456789ab"
SECRET = "real-secret-value-xyz"
POLICY: dict[str, object] = {
    "version": 1,
    "rules": [
        {"action": "allow", "pattern": "ok.test", "origin": "spec egress.allow[0]"},
        {"action": "allow", "pattern": "*.wild.test", "origin": "spec egress.allow[1]"},
        {"action": "deny", "pattern": "ads.wild.test", "origin": "spec egress.deny[0]"},
        {"action": "allow", "pattern": "git.test", "ports": [22]},
        {"action": "allow", "pattern": "lan.test", "ports": [1234], "addresses": ["10.20.0.0/16"]},
        {"action": "allow", "pattern": "203.0.113.0/24"},
        {"action": "allow", "pattern": "api.test", "origin": "credential demo"},
    ],
    "credentials": [
        {
            "name": "demo",
            "host": "api.test",
            "port": 443,
            "methods": ["GET", "POST"],
            "paths": ["/v1/messages", "/v1/items/*"],
            "header": "Authorization",
            "format": "Bearer {}",
        }
    ],
}


@dataclass
class Sidecar:
    """Daemons of one test module, started one by one and ended by their pids."""

    root: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def path(self, name: str) -> str:
        return str(self.root / name)

    def put_policy(self, policy: Mapping[str, object] | bytes) -> None:
        """As the supervisor does: a new file moved over the old one."""
        data = policy if isinstance(policy, bytes) else json.dumps(policy).encode()
        staged = self.root / "policy.new"
        staged.write_bytes(data)
        staged.replace(self.root / "policy.json")

    def put_session(self, **more: object) -> None:
        """What the session was made with."""
        session = {"session": "s", "max_receipts": 1000, "credential_headers": ["Authorization", "X-Api-Key"], **more}
        (self.root / "session.json").write_text(json.dumps(session))

    def policy(self) -> Policy:
        return Policy.parse((self.root / "policy.json").read_bytes())

    def start(self, name: str, *options: str, key: bytes | None = None, pipes: bool = False) -> subprocess.Popen[bytes]:
        fds: list[int] = []
        if key is not None:
            reader, writer = os.pipe()
            os.write(writer, key)
            os.close(writer)
            fds, options = [reader], (*options, "--key-fd", str(reader))
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", f"agent_egress.{name}", *options],
            pass_fds=fds,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        for fd in fds:
            os.close(fd)
        self.processes[name] = process
        return process

    def start_audit(self, *options: str, key: bytes = KEY, roles: str = "root,policy,dns") -> subprocess.Popen[bytes]:
        defaults = (
            "--session",
            "20261129-000000-abcdef",
            "--max-receipts",
            "100000",
            "--policy-file",
            self.path("policy.json"),
            "--session-file",
            self.path("session.json"),
        )
        paths = ("--receipts", self.path("receipts.jsonl"), "--socket", self.path("audit.sock"))
        process = self.start("audit", *defaults, *paths, "--peer", f"{os.getuid()}={roles}", *options, key=key)
        self.wait(process, lambda: answers(self.path("audit.sock")))
        return process

    def wait(self, process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
        while not ready():
            if process.poll() is not None:
                assert process.stderr is not None
                raise AssertionError(f"ended with {process.returncode}: {process.stderr.read().decode()}")
            time.sleep(0.005)

    def audit(self, message: Mapping[str, object]) -> dict[str, object]:
        return wire.call(self.path("audit.sock"), message, timeout_s=10)

    def receipts(self, kind: str = "") -> list[dict[str, object]]:
        path = self.root / "receipts.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = [receipt for line in lines if (receipt := parse_receipt(line)) is not None]
        return [receipt for receipt in found if kind in {"", receipt["kind"]}]

    def verify(self, key: bytes = KEY) -> ChainReport:
        return verify_chain((self.root / "receipts.jsonl").read_bytes().splitlines(keepends=True), key=key)

    def stop(self, name: str) -> int:
        process = self.processes.pop(name)
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        code = process.wait(timeout=30)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return code


def answers(path: str) -> bool:
    """Whether somebody listens on a path socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
        return True


def free_ports(count: int = 1) -> list[int]:
    """Ports of the loopback that nobody has now."""
    socks = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    ports = [int(sock.getsockname()[1]) for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that other processes bring about; the test's own timeout is the bound."""
    while not condition():
        time.sleep(0.01)


def make(root: Path) -> Sidecar:
    sidecar = Sidecar(root)
    sidecar.put_policy(POLICY)
    sidecar.put_session()
    return sidecar


def end(sidecar: Sidecar) -> None:
    for name in list(sidecar.processes):
        sidecar.stop(name)


def rows(*found: Sequence[object]) -> list[object]:
    """Parametrize rows whose first item is the case's name, a sentence."""
    return [pytest.param(*row[1:], id=str(row[0])) for row in found]
