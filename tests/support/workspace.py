"""Real throw-away containers for workspace tests: an image with git and the program, volumes that are removed again."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_container.engine.connection import connect
from agent_container.engine.docker import DockerEngine
from agent_container.engine.protocol import ExecResult, Once
from agent_container.stack import Mount
from agent_container.workspace.mounts import HostPaths
from agent_container.workspace.plan import WorkspacePlan, plan_workspace
from agent_container.workspace.prepare import Readied, prepare_workspace, write_files
from agent_container.workspace.result import Reviewed, fetch_result, review_bundle
from agent_container.workspace.throwaway import WORKSPACE, Throwaway
from agent_container.workspace.transfer import Work, collect_work
from agent_container.workspace.tree import TreeFacts, inspect_tree

ROOT = Path(__file__).parents[2]
AGENT_UID = os.getuid() or 1001
USER = f"{AGENT_UID}:{AGENT_UID}"
TAG = f"acw-test:{AGENT_UID}"
LABELS = (("agent-container.role", "acw-test"),)
RUN = "20261129-153359-7f3a2c"
AGENT_ENVIRONMENT = (
    ("HOME", "/tmp"),
    ("GIT_AUTHOR_NAME", "agent"),
    ("GIT_AUTHOR_EMAIL", "agent@sandbox.test"),
    ("GIT_COMMITTER_NAME", "agent"),
    ("GIT_COMMITTER_EMAIL", "agent@sandbox.test"),
)
GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": str(Path(__file__).with_name("gitconfig")),
    "GIT_AUTHOR_NAME": "user",
    "GIT_AUTHOR_EMAIL": "user@project.test",
    "GIT_COMMITTER_NAME": "user",
    "GIT_COMMITTER_EMAIL": "user@project.test",
}
BASE = "acw-base:1"
BASE_DOCKERFILE = """
FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends git python3 && rm -rf /var/lib/apt/lists/*
"""
DOCKERFILE = f"""
FROM {BASE}
RUN install -d -o {AGENT_UID} -g {AGENT_UID} /workspace && install -d /opt/agent-container
COPY lib /opt/agent-container/lib
COPY workspace /opt/agent-container/workspace
"""


def build_image() -> None:
    """Builds the images; what is fetched is fetched once, the program is always the present one."""
    known = subprocess.run(["docker", "image", "inspect", BASE], check=False, capture_output=True)
    if known.returncode != 0:
        _build(BASE, BASE_DOCKERFILE)
    _build(TAG, DOCKERFILE)


def _build(tag: str, dockerfile: str) -> None:
    argv = ["docker", "build", "-q", "-t", tag, "-f", "-", str(ROOT / "image")]
    subprocess.run(argv, input=dockerfile.encode(), check=True, stdout=subprocess.DEVNULL)


def git(tree: Path, *arguments: str) -> str:
    """The user's own git, for set-up and for looking at results."""
    done = subprocess.run(["git", "-C", str(tree), *arguments], env=GIT_ENVIRONMENT, check=True, capture_output=True)
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def write(path: Path, text: str) -> Path:
    """A file with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def give(*trees: Path) -> None:
    """Gives trees to the uid that the agent runs with."""
    if os.getuid() == 0:
        subprocess.run(["chown", "-hR", USER, *map(str, trees)], check=True)


def repository(path: Path, **files: str) -> Path:
    """A repository with one commit."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    git(path, "config", "user.name", "user")
    git(path, "config", "user.email", "user@project.test")
    for name, text in {"README": "hello\n", "src/app.py": "print(1)\n", **files}.items():
        write(path / name, text)
    git(path, "add", "-A")
    git(path, "commit", "-qm", "first")
    give(path)
    return path


@dataclass
class Bench:
    """One test's engine, directories and volumes."""

    path: Path
    engine: DockerEngine = field(init=False)
    throwaway: Throwaway = field(init=False)
    volumes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = self.path / "store"
        self.store.mkdir(mode=0o700)
        self.home = self.path / "home"
        self.home.mkdir()
        self.engine = DockerEngine(connect(os.environ, state_dir=self.store))
        self.throwaway = Throwaway(self.engine.run_once, TAG, LABELS, self.store)
        self.host = HostPaths(home=self.home, stores=(self.store,))

    def facts(self, tree: Path) -> TreeFacts:
        return inspect_tree(tree, home=self.home)

    def open(self, tree: Path, mode: str, **options: object) -> Session:
        """Inspects, plans and prepares, as `up` and `run` do."""
        committed = bool(options.pop("committed", False))
        facts = self.facts(tree)
        plan = plan_workspace(facts, mode=mode, host=self.host, user=USER, directory=self.store, **options)  # type: ignore[arg-type]
        for key in plan.volumes:
            self.volumes.setdefault(key, f"acw-{secrets.token_hex(4)}-{key}")
        write_files(plan, self.store)
        readied = prepare_workspace(self.throwaway, facts, plan, names=self.volumes, run=RUN, committed=committed)
        return Session(self, facts, plan, readied)

    def remove_volumes(self) -> None:
        for name in self.volumes.values():
            subprocess.run(["docker", "volume", "rm", "-f", name], check=False, stdout=subprocess.DEVNULL)


@dataclass
class Session:
    """A prepared workspace, and a stand-in for its agent."""

    bench: Bench
    facts: TreeFacts
    plan: WorkspacePlan
    readied: Readied

    @property
    def base(self) -> str:
        assert self.readied.prepared is not None
        return self.readied.prepared.base

    def try_agent(self, script: str) -> ExecResult:
        """Runs a shell script as the agent, in its mounts."""
        return self.bench.engine.run_once(
            Once(
                image=TAG,
                argv=("/bin/sh", "-euc", f"cd {WORKSPACE}\n{script}"),
                user=self.plan.user,
                labels=LABELS,
                mounts=self.plan.named(self.bench.volumes),
                environment=AGENT_ENVIRONMENT,
            )
        )

    def agent(self, script: str) -> str:
        done = self.try_agent(script)
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def collect(self, **options: object) -> Work:
        assert self.readied.prepared is not None
        return collect_work(
            self.bench.throwaway,
            self.plan.named(self.bench.volumes),
            prepared=self.readied.prepared,
            user=self.plan.user,
            run=RUN,
            destination=self.bench.path,
            git_dir=self.plan.git_dir,
            hide=self.plan.hide,
            **options,  # type: ignore[arg-type]
        )

    def review(self, bundle: Path, **options: object) -> Reviewed:
        return review_bundle(
            self.bench.throwaway,
            self.facts,
            bundle,
            base=self.base,
            patch=self.bench.path / "reviewed.patch",
            **options,  # type: ignore[arg-type]
        )

    def fetch(self) -> str:
        return fetch_result(self.facts, self.review(self.bundle), run=RUN, environ=os.environ)

    @property
    def bundle(self) -> Path:
        return self.bench.path / "workspace.bundle"

    @property
    def patch(self) -> str:
        return (self.bench.path / "workspace.patch").read_text("utf-8", "surrogateescape")


def mounts_of(targets: Sequence[Mount]) -> dict[str, Mount]:
    """Mounts by target."""
    return {mount.target: mount for mount in targets}
