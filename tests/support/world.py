"""A user of the tool, with a home, settings and an internet of their own: where end-to-end tests start it.

The internet is one container of tests/doubles/world.py on a network without a way out; every sidecar joins that
network and asks it for names. The tool is a process of its own, as for a user, and answers in bytes and a status.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import secrets
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.home import one_builds
from tests.support.workspace import GIT_ENVIRONMENT

ROOT = Path(__file__).parents[2]
SUBNETS = tuple(f"198.51.100.{start}/28" for start in range(16, 256, 16))
DOMAINS = ("acme.test", "agent-container.test")
MODEL_HOSTS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "openrouter.ai")
NAMES = (
    tuple(f"{prefix}.{domain}" for domain in DOMAINS for prefix in ("api", "demo", "refused", "other")) + MODEL_HOSTS
)
TEST_LABEL = f"agent-container.test={os.getpid()}"
HANG_S = 300
DEMO = "version: 1\nagent: demo\n"


def docker(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The docker command."""
    done = subprocess.run(["docker", *arguments], capture_output=True, check=False, timeout=HANG_S, **options)
    assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done


def words(*arguments: str) -> list[str]:
    """The docker command's answer, by words."""
    return docker(*arguments).stdout.decode().split()


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    argv: tuple[str, ...]
    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Both streams, for finding words in."""
        return self.out.decode("utf-8", "replace") + self.err.decode("utf-8", "replace")

    @cached_property
    def lines(self) -> list[Any]:
        """stdout as JSON lines; each must be one."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def envelope(self) -> Any:
        """The last line of `--json`."""
        assert self.lines, self
        return self.lines[-1]

    @property
    def result(self) -> Any:
        """What the envelope holds."""
        assert self.envelope["ok"], self
        return self.envelope["result"]

    @property
    def host(self) -> Any:
        """The host's half of the record that `run` answers with."""
        return self.result["host"]

    @property
    def error(self) -> Any:
        """The envelope's error."""
        assert not self.envelope["ok"], self
        return self.envelope["error"]


class Terminal:
    """The tool on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self.seen = b""

    def expect(self, text: bytes, *, timeout_s: float = 120) -> None:
        """Reads until `text` was printed, and forgets all up to it."""
        until = time.monotonic() + timeout_s
        while text not in self.seen:
            left = until - time.monotonic()
            assert left > 0, f"{text!r} was not printed, but {self.seen!r}"
            if select.select([self._master], [], [], left)[0] and not self._read():
                raise AssertionError(f"ended before it printed {text!r}: {self.seen!r}")
        self.seen = self.seen.partition(text)[2]

    def type(self, data: bytes) -> None:
        os.write(self._master, data)

    def wait(self, *, timeout_s: float = 120) -> int:
        """The exit status, once all output is read."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if select.select([self._master], [], [], 0.2)[0] and not self._read():
                break
            if self._process.poll() is not None and not select.select([self._master], [], [], 0)[0]:
                break
        return self._process.wait(timeout=max(1, until - time.monotonic()))

    def close(self) -> None:
        """Ends what still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._master)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self.seen += data
        return bool(data)


@dataclass
class World:
    """One user: where their files lie, their environment, their internet."""

    path: Path
    tree: Path = ROOT
    """The source tree that the command line runs from."""
    settings_name: str = "config.yaml"
    network: str = field(default_factory=lambda: f"ace-{secrets.token_hex(4)}")
    address: str = ""
    digests: dict[bytes, str] = field(default_factory=dict, repr=False)
    """By the text of a spec, what was accepted for it."""

    @property
    def environment(self) -> dict[str, str]:
        """All that the tool is given."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.path / "home"),
            "XDG_DATA_HOME": str(self.path / "data"),
            "XDG_STATE_HOME": str(self.path / "state"),
            "XDG_CONFIG_HOME": str(self.path / "config"),
            "AGENT_CONTAINER_CONFIG": str(self.path / self.settings_name),
            "PYTHONPATH": f"{self.tree}:{self.tree / 'sidecar'}",
            "TERM": "xterm",
        }

    @property
    def state(self) -> Path:
        return self.path / "state" / "agent-container"

    @property
    def data(self) -> Path:
        return self.path / "data" / "agent-container"

    # --- the tool ---

    def start(self, *arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[bytes]:
        """The tool, not waited for."""
        argv = [sys.executable, "-P", "-m", "agent_container.cli", *arguments]
        return subprocess.Popen(argv, cwd=cwd, env={**self.environment, **options.pop("env", {})}, **options)

    def agc(
        self,
        *arguments: str,
        cwd: Path,
        stdin: bytes = b"",
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """Runs the tool to its end. `code` is the exit status that must come; None for any."""
        with self.start(
            *arguments,
            cwd=cwd,
            env=dict(env or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                out, err = process.communicate(stdin, timeout=HANG_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        done = Done(arguments, process.returncode, out, err)
        assert code is None or done.code == code, done
        return done

    @contextlib.contextmanager
    def terminal(self, *arguments: str, cwd: Path) -> Iterator[Terminal]:
        """Runs the tool on a terminal."""
        master, slave = pty.openpty()
        process = self.start(*arguments, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        terminal = Terminal(process, master)
        try:
            yield terminal
        finally:
            terminal.close()

    def digest(self, project: Path, *arguments: str) -> str:
        """What `--accept` takes now; empty when there is nothing to accept."""
        lines = self.agc("--json", "plan", *(arguments or ("--clone",)), cwd=project).result["approval"]
        return next((line.split()[1] for line in lines if line.startswith("digest ")), "")

    def accept(self, project: Path) -> None:
        """Says yes to the project's spec; the digest is asked for once, since projects of one text have one."""
        path = project / "agent-container.yaml"
        text = path.read_bytes() if path.exists() else b""
        known = self.digests.get(text)
        with one_builds():
            if known and self.agc("build", "--accept", known, cwd=project, code=None).code == 0:
                return
            if digest := self.digest(project):
                self.agc("build", "--accept", digest, cwd=project)
                self.digests[text] = digest

    def project(
        self, name: str, spec: str | None = DEMO, *, git: bool = True, accept: bool = True, **files: str
    ) -> Path:
        """A project of the user's; its spec is accepted."""
        path = self.path / "home" / "src" / name
        path.mkdir(parents=True)
        if spec is not None:
            (path / "agent-container.yaml").write_text(spec)
        for file, text in {"README": "hello\n", **files}.items():
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_text(text)
        if git:
            self.git(path, "init", "-q", "-b", "main")
            self.git(path, "config", "user.name", "user")
            self.git(path, "config", "user.email", "user@project.test")
            self.git(path, "add", "-A")
            self.git(path, "commit", "-qm", "first")
        if accept:
            self.accept(path)
        return path

    def git(self, project: Path, *arguments: str) -> str:
        """The user's git."""
        argv = ["git", "-c", f"safe.directory={project}", "-C", str(project), *arguments]
        done = subprocess.run(argv, env=GIT_ENVIRONMENT, check=True, capture_output=True)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    # --- the internet ---

    def ask(self, op: str, **fields: object) -> Any:
        """Asks the double."""
        answer = docker(
            "exec", self.network, "/usr/bin/python3", "-I", "/world.py", "ask", json.dumps({"op": op, **fields})
        )
        return json.loads(answer.stdout)

    def requests(self, host: str) -> list[Any]:
        """What arrived over HTTP for one host."""
        return [one for one in self.ask("log")["requests"] if one["host"].partition(":")[0] == host]

    def arrivals(self, *, port: int) -> int:
        """How many packets arrived for a TCP port, answered or not."""
        packets = self.ask("log")["packets"]
        return sum(count for _, kind, number, count in packets if kind == "tcp" and number == port)

    # --- what Docker has ---

    def sessions(self) -> list[str]:
        """Every session that this user ever had."""
        return sorted(path.name for path in (self.state / "sessions").glob("2*"))

    def objects(self, session: str) -> list[str]:
        """Containers, networks and volumes of a session; those that outlive it (home, memory) are the project's."""
        label = f"label=agent-container.session={session}"
        return [
            *words("ps", "-aq", "--filter", label),
            *words("network", "ls", "-q", "--filter", label),
            *(name for name in words("volume", "ls", "-q", "--filter", label) if session in name),
        ]

    def container(self, role: str, session: str) -> str:
        """The id of one container."""
        found = words("ps", "-aq", "--no-trunc", "--filter", f"label=agent-container.session={session}",
                      "--filter", f"label=agent-container.role={role}")  # fmt: skip
        assert len(found) == 1, found
        return found[0]

    def place(self, run: str) -> Path:
        """A record's directory: a run's, or a standing environment's."""
        found = [*(self.data / "runs").glob(f"*/{run}"), *(self.data / "sessions").glob(f"*/{run}")]
        assert len(found) == 1, found
        return found[0]

    def record(self, run: str) -> Any:
        """A published record."""
        return json.loads((self.place(run) / "record.json").read_bytes())

    # --- life ---

    def open(self) -> None:
        """Makes the home, the network and the double, and builds the images that a plain project needs."""
        for name in ("home", "data", "state", "config"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        (self.path / "config.yaml").write_text("{}\n")  # the images need nothing of it
        base = self._made_network()
        self.address = _offset(base, 5)
        seed = self.project("seed", git=False)
        image = dict(self.agc("--json", "plan", "--clone", cwd=seed).result["fields"])["egress image"]
        settings = {
            "gateways": [],
            "names": [*NAMES, *(f"*.{domain}" for domain in DOMAINS)],
            "zone": {name: {"A": [self.address]} for name in (*NAMES, *(f"*.{domain}" for domain in DOMAINS))},
        }
        doubles = [
            word
            for name in ("world.py", "models.py")
            for word in ("-v", f"{ROOT / 'tests' / 'doubles' / name}:/{name}:ro")
        ]
        docker("run", "-d", "--name", self.network, "--label", TEST_LABEL, "--network", self.network,
               "--ip", self.address, "--cap-add", "NET_ADMIN", "--tmpfs", "/tmp", "--no-healthcheck", *doubles,
               "--entrypoint", "/usr/bin/python3", image, "-I", "/world.py", "serve", json.dumps(settings))  # fmt: skip
        (self.path / "upstream.pem").write_text(self._patient("ca"))
        self.write_settings("config.yaml")

    def write_settings(self, name: str, **changes: object) -> str:
        """The settings file; JSON is YAML."""
        settings = {
            "resolvers": [self.address],
            "upstream_ca": str(self.path / "upstream.pem"),
            "network": {"internal": True, "join": [self.network], "pool": "10.213.0.0/16"},
            **changes,
        }
        (self.path / name).write_text(json.dumps(settings))
        return name

    def close(self) -> None:
        """Removes everything that this user has in Docker."""
        for session in self.sessions():
            label = f"label=agent-container.session={session}"
            for container in words("ps", "-aq", "--filter", label):
                docker("rm", "-f", container, check=False)
            for network in words("network", "ls", "-q", "--filter", label):
                docker("network", "rm", network, check=False)
            for volume in words("volume", "ls", "-q", "--filter", label):
                docker("volume", "rm", volume, check=False)
        docker("rm", "-f", self.network, check=False)
        docker("network", "rm", self.network, check=False)

    def _made_network(self) -> str:
        for subnet in SUBNETS:
            argv = ("network", "create", "--internal", "--label", TEST_LABEL, "--subnet", subnet, self.network)
            if docker(*argv, check=False).returncode == 0:
                return subnet.partition("/")[0]
        raise AssertionError(f"no documentation range is free: {docker('network', 'ls').stdout.decode()}")

    def _patient(self, op: str) -> Any:
        until = time.monotonic() + 60
        while True:
            try:
                return self.ask(op)
            except AssertionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)


def _offset(address: str, by: int) -> str:
    head, _, last = address.rpartition(".")
    return f"{head}.{int(last) + by}"


def copied_tree(target: Path, changes: Mapping[str, Sequence[tuple[str, str]]]) -> Path:
    """A copy of the source tree with some text replaced, for a build whose part is broken. Every text must be there."""
    for name in ("agent_container", "sidecar", "templates", "image"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, replacements in changes.items():
        text = (target / name).read_text()
        for old, new in replacements:
            assert old in text, (name, old)
            text = text.replace(old, new, 1)
        (target / name).write_text(text)
    return target
