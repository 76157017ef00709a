"""Image builds: the docker command with BuildKit, an `ImagePlan` in, a tagged image out.

The context lies in a directory of ours that holds nothing but the plan's files; it stays there after a failure, so that
the line in the error can be pasted. What a plan holds is decided in `image_plan`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from agent_container.engine.connection import Connection
from agent_container.engine.protocol import Report
from agent_container.errors import EngineError

LABEL_IMAGE = "agent-container.image"
TAIL_LINES = 25
LINE_MAX = 400

_STEP = re.compile(r"#(\d+) \[([^\]]+)\]\s*(.*)")
_OUTPUT = re.compile(r"#(\d+) (?:\d+\.\d+ )?(.*)")
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[^\x20-\x7e\u00a0-\uffff]")


class Plan(Protocol):
    """What is needed of an `image_plan.ImagePlan`."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def tag(self) -> str: ...  # noqa: D102
    @property
    def dockerfile(self) -> str: ...  # noqa: D102
    @property
    def files(self) -> Mapping[str, bytes]: ...  # noqa: D102
    @property
    def build_args(self) -> tuple[tuple[str, str], ...]: ...  # noqa: D102
    @property
    def secrets(self) -> Mapping[str, bytes]: ...  # noqa: D102


def image_id(reference: str, *, connection: Connection) -> str | None:
    """The local image's id, None when there is none. Raises: EngineError when the engine does not answer."""
    argv = ["docker", "image", "inspect", "--format", "{{.Id}}", reference]
    done = run_docker(argv, connection=connection)
    if done.returncode == 0:
        return done.stdout.strip()
    if "no such image" in done.stderr.lower():
        return None
    raise EngineError(
        f"the engine could not be asked for the image {reference}",
        details=(shlex.join(argv), *printable_tail(done.stderr)),
        hint="agent-container doctor",
    )


def run_docker(argv: list[str], *, connection: Connection) -> subprocess.CompletedProcess[str]:
    """One short docker command in the cleaned environment; its output as text."""
    try:
        return subprocess.run(
            argv,
            env=connection.cli_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise EngineError("there is no `docker` command", hint="install Docker, or type: bin/quickstart") from None


def build_image(plan: Plan, *, connection: Connection, report: Report) -> None:
    """Build and tag. One build of a tag at a time; the second finds the image made.

    Raises:
        EngineError: with the failing step, the end of its output, and the line to paste.
    """
    with _locked(plan, connection):
        if image_id(plan.tag, connection=connection) is not None:
            return
        directory = connection.config_dir / "builds" / plan.tag.replace("/", "-").replace(":", "-")
        shutil.rmtree(directory, ignore_errors=True)
        argv = _write_context(plan, directory)
        report(f"building the {plan.name} (once; the next start finds it)")
        _run_build(plan, argv, connection=connection, report=report)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _locked(plan: Plan, connection: Connection) -> Iterator[None]:
    locks = connection.config_dir / "builds"
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = plan.tag.replace("/", "-").replace(":", "-") + ".lock"
    with (locks / name).open("w") as handle:  # the kernel drops the lock of a process that died
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _write_context(plan: Plan, directory: Path) -> list[str]:
    context, secrets = directory / "context", directory / "secrets"
    for parent in (context, secrets):
        parent.mkdir(mode=0o700, parents=True)
    for name, data in plan.files.items():
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (directory / "Dockerfile").write_text(plan.dockerfile, encoding="utf-8")
    argv = ["docker", "build", "--progress=plain", "--tag", plan.tag, "--file", str(directory / "Dockerfile")]
    argv += ["--label", f"{LABEL_IMAGE}={plan.tag}"]
    for name, value in plan.build_args:
        argv += ["--build-arg", f"{name}={value}"]
    for name, secret in plan.secrets.items():
        path = secrets / name
        path.touch(mode=0o600)
        path.write_bytes(secret)
        argv += ["--secret", f"id={name},src={path}"]
    return [*argv, str(context)]


def _run_build(plan: Plan, argv: list[str], *, connection: Connection, report: Report) -> None:
    # The default builder is the engine's own: another one would need --load, and may be a remote machine.
    environment = {**connection.cli_environment(), "DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"}
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise EngineError("there is no `docker` command", hint="install Docker, or type: bin/quickstart") from None
    progress = Progress(plan.name, report)
    try:
        _follow(process, progress)
        status = process.wait()
    finally:
        if process.poll() is None:  # interrupted: the engine stops the build when its client leaves
            process.terminate()
            process.wait()
    if status != 0:
        raise _failure(plan, argv, progress)


def _follow(process: subprocess.Popen[str], progress: Progress) -> None:
    stream = process.stdout
    if stream is not None:
        for line in iter(lambda: stream.readline(1 << 20), ""):
            progress.take(line)


class Progress:
    """Reads BuildKit's plain progress: one report a step, and the end of each step's output for the error."""

    def __init__(self, name: str, report: Report) -> None:
        self._name = name
        self._report = report
        self._steps: dict[str, str] = {}
        self._tails: dict[str, deque[str]] = {}
        self._all: deque[str] = deque(maxlen=TAIL_LINES)
        self.failed: str | None = None

    def take(self, line: str) -> None:
        """One line of the build's output."""
        line = printable(line)
        if line:
            self._all.append(line)
        if (step := _STEP.match(line)) and step[1] not in self._steps:
            words = step[2] if step[2] == "internal" else f"{step[2]}: {_shorten(step[3])}"
            self._steps[step[1]] = words
            if step[2] != "internal":
                self._report(f"{self._name}: {words}")
        elif output := _OUTPUT.match(line):
            self._tails.setdefault(output[1], deque(maxlen=TAIL_LINES)).append(output[2])
            if output[2].startswith("ERROR"):
                self.failed = output[1]

    @property
    def step(self) -> str:
        """The step that failed, in words."""
        return self._steps.get(self.failed or "", "")

    @property
    def tail(self) -> list[str]:
        """The end of the failed step's output, or of everything."""
        return list(self._tails.get(self.failed or "", self._all))


def _shorten(instruction: str) -> str:
    """Without the mounts that stand before every command, and as a person would type it."""
    words = re.sub(r"--(?:mount|network|chmod|from)=\S+\s+", "", instruction)
    if words.startswith("RUN ["):
        with contextlib.suppress(ValueError):
            argv = [str(word) for word in json.loads(words.removeprefix("RUN "))]
            while argv[:1] in (["/bin/sh"], ["/agent-build/with-ca"], ["-c"]):
                del argv[0]
            words = "RUN " + " ".join(argv)
    return printable(words)[:120]


def _failure(plan: Plan, argv: list[str], progress: Progress) -> EngineError:
    text = "\n".join(progress.tail)
    if "buildx component is missing" in text:
        hint = "install the buildx plugin (Debian: docker-buildx; Docker's own packages: docker-buildx-plugin)"
    elif re.search(r"SELF_SIGNED_CERT|self-signed certificate|unable to get local issuer|certificate verif", text):
        hint = "the network's certificate authority is not known to the build; put it into SSL_CERT_FILE and try again"
    elif "no space left on device" in text.lower():
        hint = "the engine's disk is full: docker builder prune"
    else:
        hint = "agent-container doctor"
    where = f" at {progress.step}" if progress.step else ""
    line = "DOCKER_BUILDKIT=1 " + shlex.join(argv)
    return EngineError(f"building the {plan.name} failed{where}", details=(line, *progress.tail), hint=hint)


def printable(text: str) -> str:
    """One line for a terminal: package scripts print what they like."""
    return _UNPRINTABLE.sub("", text.rstrip("\r\n").replace("\t", " "))[:LINE_MAX]


def printable_tail(text: str) -> list[str]:
    """The last lines, for an error's details."""
    return [printable(line) for line in text.splitlines()[-TAIL_LINES:]]
