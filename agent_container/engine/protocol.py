"""What commands may ask of a container engine. `docker.py` is its one form; tests run against a real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from agent_container.stack import Mount, Stack


@dataclass(frozen=True)
class ExecResult:
    """What a finished program left behind."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class ContainerState:
    """A container as the engine reports it now."""

    id: str
    name: str
    image_id: str
    status: Literal["created", "running", "paused", "restarting", "removing", "exited", "dead"]
    exit_code: int
    health: Literal["none", "starting", "healthy", "unhealthy"]
    started_at: str
    pid: int
    labels: tuple[tuple[str, str], ...]
    oom_killed: bool
    health_words: str
    """What the last health probe printed."""
    raw: Mapping[str, object] = field(repr=False, compare=False)
    """The engine's own inspect document, for `posture.check_container` alone."""


@dataclass(frozen=True)
class Created:
    """Ids of the two containers of a Stack that were made but not started."""

    egress: str
    agent: str


@dataclass(frozen=True)
class Labelled:
    """Something of the engine's that carries our labels: a candidate, since an image can forge them."""

    kind: Literal["container", "network", "volume"]
    id: str
    name: str
    session: str
    project: str
    role: str
    running: bool = False
    binds: tuple[str, ...] = ()
    """Host paths of a container's binds: these cannot be forged."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Once:
    """One program in a throw-away container: no network, no capabilities, root filesystem read-only."""

    image: str
    argv: tuple[str, ...]
    user: str
    labels: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...] = ()
    """Volumes are named by their real names here."""
    environment: tuple[tuple[str, str], ...] = ()
    stdin: bytes = b""
    timeout_s: float = 300
    max_stdout_bytes: int = 16 * 1024 * 1024
    stdout_path: Path | None = None
    """Where stdout goes when it is too large for memory; `ExecResult.stdout` is then empty."""
    memory_bytes: int | None = None


class Channel(Protocol):
    """A program running in a container, spoken to in lines over its stdin and stdout."""

    def send(self, line: bytes) -> None:
        """Writes one line; the newline is added."""

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """The next line without its newline; None at the end of the stream. Raises TimeoutError."""

    def close(self) -> None:
        """Ends the conversation. What the program does then is its own affair."""


class Engine(Protocol):
    """Effects on one container engine. Every method raises EngineError with the engine's own words."""

    def ping(self) -> str:
        """The engine's version."""

    def image_id(self, tag: str) -> str | None:
        """The id behind a local tag."""

    def create(self, stack: Stack, *, directory: Path) -> Created:
        """Makes networks, volumes and both containers from the rendered files in `directory`; starts nothing."""

    def start(self, container: str) -> None:
        """Starts one container that was created."""

    def inspect(self, container: str) -> ContainerState | None:
        """The container's state; None when it does not exist."""

    def find(self, labels: Mapping[str, str]) -> list[ContainerState]:
        """Containers that carry all these labels, running or not."""

    def exec(
        self, container: str, argv: Sequence[str], *, stdin: bytes = b"", user: str = "", timeout_s: float = 60
    ) -> ExecResult:
        """Runs one program in a running container."""

    def open_channel(self, container: str, argv: Sequence[str], *, user: str = "") -> Channel:
        """Runs one program in a running container and keeps its stdin and stdout open."""

    def read_archive(self, container: str, path: str) -> Iterator[bytes]:
        """A tar stream of a path in a container, which need not run; volumes included. Nothing when it is absent."""

    def run_once(self, job: Once) -> ExecResult:
        """Runs a throw-away container to its end and removes it."""

    def run_twin(self, of: str, job: Once) -> ExecResult:
        """Runs a program of ours in a container that is held to all that another one is, in the same network namespace,
        and removes it. Of the job, user and mounts do not count."""

    def joined(self, container: str) -> list[str]:
        """Names of all containers in this one's network namespace."""

    def stop(self, container: str, *, grace_s: int) -> None:
        """Stops a container; harmless when it is gone or stopped."""

    def remove_session(self, session: str, *, volumes: Sequence[str]) -> None:
        """Removes containers and networks of one session, and the named volumes given. Harmless when repeated."""

    def labelled(self) -> list[Labelled]:
        """Everything that carries a session's label: containers, then networks, then volumes."""

    def remove_labelled(self, objects: Sequence[Labelled]) -> None:
        """Removes what `labelled` found, in an order that works. Harmless when it is gone."""

    def remove_volumes(self, names: Sequence[str]) -> list[str]:
        """Removes volumes; the names of those that were there."""

    def subnets(self) -> list[str]:
        """The subnets of every network that the engine has."""

    def tail(self, container: str, *, lines: int) -> list[str]:
        """The last lines that a container printed; for error messages."""

    def session_volumes(self, session: str) -> dict[str, str]:
        """Volumes that carry the session's label: role to name."""

    def interactive(self, container: str, argv: Sequence[str], *, tty: bool, user: str = "") -> int:
        """Hands the caller's own terminal to a program in the container; its exit status."""


Report = Callable[[str], None]
"""Progress in plain words, one line a step."""
