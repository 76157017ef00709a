"""The real runner as a process of its own, never as root, on a directory of its own."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).parents[3] / "image" / "runner"
UID = 65534


@functools.cache
def interpreter() -> str:
    """One that an unprivileged uid can start; RUNNER_PYTHON names another one, for the oldest supported version."""
    named = os.environ.get("RUNNER_PYTHON")
    for candidate in [named] if named else [sys.executable, "/usr/bin/python3"]:
        with contextlib.suppress(OSError):
            user = UID if os.geteuid() == 0 else None
            if subprocess.run([candidate, "-c", ""], user=user, check=False).returncode == 0:
                return candidate
    pytest.fail("no Python that an unprivileged user can run")


class Connection:
    """One client of the runner."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.reader = self.socket.makefile("rb")

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.send(op, **fields)
        return self.line()

    def send(self, op: str, **fields: Any) -> None:
        self.socket.sendall(json.dumps({"v": 1, "op": op, **fields}).encode() + b"\n")

    def line(self) -> dict[str, Any]:
        line = self.reader.readline()
        assert line, "the runner closed the connection"
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def frames(self, turn: str, first: int = 1) -> list[dict[str, Any]]:
        """All frames from `first` to the exit frame."""
        self.send("turn.stream", turn=turn, **{"from": first})
        return self.rest()

    def rest(self) -> list[dict[str, Any]]:
        frames = [self.line()]
        while frames[-1]["ch"] != "exit":
            frames.append(self.line())
        return frames

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


class RunningRunner:
    """A runner process and its directories."""

    def __init__(self, directory: Path, volume: Path | None = None) -> None:
        self.directory = directory
        self.socket = directory / "socket" / "runner.sock"
        self.volume = volume or directory / "volume"
        self.workspace = directory / "workspace"
        for path in (self.socket.parent, self.volume, self.workspace):
            path.mkdir(exist_ok=True)
            if os.geteuid() == 0:
                os.chown(path, UID, UID)
        self.environ = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "AGENT_CONTAINER_RUNNER_SOCKET": str(self.socket),
            "AGENT_CONTAINER_RUN_VOLUME": str(self.volume),
        }
        self.connections: list[Connection] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self.popen("serve", "--subreaper")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.connect().close()
                return
            assert self.process.poll() is None, "the runner ended"
            time.sleep(0.02)
        pytest.fail("the runner does not listen")

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        if os.geteuid() == 0:
            options |= {"user": UID, "group": UID, "extra_groups": []}
        runner = self.directory / "program" / "runner"
        return subprocess.Popen([interpreter(), "-I", str(runner), *arguments], env=self.environ, **options)

    def connect(self) -> Connection:
        connection = Connection(self.socket)
        self.connections.append(connection)
        return connection

    def run(self, turn: str, shell: str, **fields: Any) -> list[dict[str, Any]]:
        """Start a shell as a turn and wait for its last frame."""
        connection = self.connect()
        answer = self.begin(connection, turn, shell, **fields)
        assert answer["ok"], answer
        return connection.frames(turn)

    def begin(self, connection: Connection, turn: str, shell: str, **fields: Any) -> dict[str, Any]:
        fields.setdefault("argv", ["/bin/sh", "-c", shell])
        return connection.ask("turn.start", turn=turn, **{"cwd": str(self.workspace), "grace_s": 1, **fields})

    def stop(self, number: int = signal.SIGTERM) -> int:
        for connection in self.connections:
            connection.close()
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


def text(frames: list[dict[str, Any]], channel: str = "stdout") -> bytes:
    """All output of one channel."""
    pieces = [frame for frame in frames if frame["ch"] == channel]
    return b"".join(piece["text"].encode() if "text" in piece else base64.b64decode(piece["b64"]) for piece in pieces)


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short (a socket's path is at most 108 bytes) and open to the unprivileged uid; holds a copy of the program."""
    path = Path(tempfile.mkdtemp(prefix="aci-runner-"))
    path.chmod(0o755)
    program = path / "program"
    program.mkdir()
    shutil.copy(RUNNER, program / "runner")
    shutil.copytree(RUNNER.parent / "lib", program / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def runner(directory: Path) -> Iterator[RunningRunner]:
    """A running runner."""
    running = RunningRunner(directory)
    running.start()
    yield running
    assert running.process is not None
    if running.process.poll() is None:
        assert running.stop() == 0
