"""A user of the real command line on the real engine: directories and a project of its own, and what is left of them.

Networks lead nowhere (`internal`), resolvers are documentation addresses: what these tests start talks to nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HANG_S = 300.0
"""Nothing here takes so long on the slowest machine; it ends a hang."""
KEPT = ("home", "memory")


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status, or minus the signal; and all that it printed."""

    status: int
    output: str


@dataclass(frozen=True)
class Started:
    """A command that is under way."""

    process: subprocess.Popen[bytes]
    output: Path

    def signal(self, number: int) -> None:
        """To this process alone: what it started gets nothing."""
        self.process.send_signal(number)

    def end(self) -> Done:
        """Waits for its end."""
        try:
            status = self.process.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it hung: {self.output.read_text(errors='replace')}") from None
        return Done(status, self.output.read_text(errors="replace"))


@dataclass(frozen=True)
class Home:
    """A user's directories and one project, used by nobody else."""

    path: Path

    @property
    def project(self) -> Path:
        """The project's directory."""
        return self.path / "project"

    @property
    def data(self) -> Path:
        """The tool's data directory."""
        return self.path / "data" / "agent-container"

    @property
    def state(self) -> Path:
        """The tool's state directory."""
        return self.path / "state" / "agent-container"

    @property
    def environ(self) -> dict[str, str]:
        """The whole environment of a command."""
        kept = {name: os.environ[name] for name in ("PATH", "DOCKER_HOST", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.path / "home"),
            "XDG_DATA_HOME": str(self.path / "data"),
            "XDG_STATE_HOME": str(self.path / "state"),
            "XDG_CONFIG_HOME": str(self.path / "config"),
            "COLUMNS": "160",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sidecar")]),
        }

    def make(self, spec: str) -> Home:
        """The directories, the project with its spec, and settings whose networks lead nowhere."""
        for name in ("home", "config/agent-container", "project"):
            (self.path / name).mkdir(parents=True)
        settings = self.path / "config/agent-container/config.yaml"
        settings.write_text("resolvers: [203.0.113.53]\nnetwork: {internal: true}\n")
        settings.chmod(0o600)
        (self.project / "agent-container.yaml").write_text(spec)
        if os.geteuid() == 0:
            for path in (self.project, self.project / "agent-container.yaml"):
                os.chown(path, 1001, 1001)  # no agent works as root
        return self

    def sessions(self) -> dict[str, dict[str, Any]]:
        """Every session in the store."""
        found = (path for path in self.state.glob("sessions/*/session.json"))
        return {path.parent.name: json.loads(path.read_text()) for path in found}

    def records(self) -> dict[str, dict[str, Any]]:
        """Every published record."""
        # A standing environment's lies with its evidence.
        paths = [*self.data.glob("runs/*/*/record.json"), *self.data.glob("sessions/*/*/record.json")]
        found = (path for path in paths if not path.parent.name.startswith("."))
        return {path.parent.name: json.loads(path.read_text()) for path in found}

    def project_id(self) -> str:
        """As the store files it."""
        return next(iter((self.state / "trust").glob("*.json"))).stem

    def run(self, *argv: str) -> Done:
        """One command to its end."""
        return self.start(*argv).end()

    def start(self, *argv: str, **options: Any) -> Started:
        """One command in a process group of its own, as a terminal would start it."""
        output = self.path / f"output-{secrets.token_hex(4)}"
        words = [sys.executable, "-m", "agent_container.cli", "--no-input", "-C", str(self.project), *argv]
        with output.open("wb") as sink:
            process = subprocess.Popen(
                words,
                **{
                    "stdin": subprocess.DEVNULL,
                    "stdout": sink,
                    "stderr": sink,
                    "env": self.environ,
                    "cwd": ROOT,
                    "start_new_session": True,
                    **options,
                },
            )
        return Started(process, output)

    def approve(self) -> str:
        """Says yes to the spec, and has both images made; the digest that was accepted."""
        asked = self.run("build")
        digest = re.search(r"--accept ([0-9a-f]{12,})", asked.output)
        assert digest is not None, asked.output
        with one_builds():
            built = self.run("build", "--accept", digest[1])
        assert built.status == 0, built.output
        return digest[1]

    def wait_for(self, phase: str, *, containers: bool = False) -> str:
        """The session that has come to this phase; with `containers`, one whose containers are made."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            for id_, row in self.sessions().items():
                if row["phase"] == phase and (row["containers"] or not containers):
                    return id_
            time.sleep(0.02)
        raise AssertionError(f"no session came to be {phase}: {self.sessions()}")

    def container(self, session: str, role: str) -> str:
        """The id of one container of a session."""
        return str(dict(self.sessions()[session]["containers"])[role])


@contextlib.contextmanager
def one_builds() -> Iterator[None]:
    """Of the test processes of this user, one at a time: the tool's own lock is its store's, and they have one each.

    Two that make an image of one tag at once would leave each other with containers of the one that lost.
    """
    path = Path(tempfile.gettempdir()) / f"agent-container-test-builds-{os.getuid()}"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def objects(project: str) -> list[str]:
    """What the engine has with the project's label."""
    label = f"label=agent-container.project={project}"
    queries = {
        "container": ("ps", "-a", "--format", "{{.Names}}"),
        "network": ("network", "ls", "--format", "{{.Name}}"),
        "volume": ("volume", "ls", "--format", "{{.Name}}"),
    }
    return [f"{kind} {name}" for kind, words in queries.items() for name in docker(*words, "--filter", label)]


def leftovers(home: Home) -> list[str]:
    """What is wrong in engine and store once everything of a project was taken down, in words."""
    sessions, records, project = home.sessions(), home.records(), home.project_id()
    keep = {f"volume ac-{project}-{key}" for key in KEPT}
    found = [f"left in the engine: {name}" for name in objects(project) if name not in keep]
    # A volume that a container made by itself has no label.
    names = docker("volume", "ls", "--format", "{{.Name}}")
    found += [f"left in the engine, without a label: {name}" for name in names if name[3:25] in sessions]
    for id_, row in sessions.items():
        if row["phase"] != "closed":
            found.append(f"session {id_} is {row['phase']}")
        elif id_ not in records:
            found.append(f"session {id_} has no record")
    hidden = (".staging-", ".replaced-", ".tmp-", "pack-", "collect-")
    for top in (home.data, home.state):
        left = [path for path in top.rglob("*") if path.name.startswith(hidden)]
        found += [f"left on disk: {path.relative_to(top)}" for path in left]
    return found + [f"held: {path.name}" for path in home.state.glob("locks/*") if is_held(path)]


def docker(*words: str) -> list[str]:
    """The words that a docker command prints."""
    done = subprocess.run(["docker", *words], check=True, capture_output=True, text=True)
    return done.stdout.split()


def is_held(path: Path) -> bool:
    """Whether a process has the lock."""
    with path.open() as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
