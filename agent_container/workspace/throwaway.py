"""The throw-away containers of the workspace program: which trees each one sees, and what its answer must look like.

Everything in an answer is checked here as hostile input: sizes, member names, types. The container itself is the
engine's business, git the program's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agent_container.engine.protocol import ExecResult, Once
from agent_container.errors import AgentContainerError
from agent_container.stack import Mount

RunOnce = Callable[[Once], ExecResult]
"""`Engine.run_once`: no network, no capabilities, root filesystem read-only, /tmp in memory."""
PROGRAM = "/opt/agent-container/workspace"
WORKSPACE = "/workspace"
STREAM = "/run/agent-container-stream"
BUNDLE = "/run/agent-container-bundle"
GIT_DIR = "/run/agent-container-git"
SUMMARY = "summary.json"
MAX_STREAM_BYTES = 64 * 1024**3
MAX_SUMMARY_BYTES = 64 * 1024 * 1024
MAX_WORK_BYTES = 256 * 1024 * 1024
MAX_ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Throwaway:
    """What every throw-away container of one session shares."""

    run_once: RunOnce
    image: str
    labels: tuple[tuple[str, str], ...]
    directory: Path
    """On the host, in our stores, mode 0700: for streams on their way between two containers."""
    timeout_s: float = 600

    def run(
        self,
        arguments: Sequence[str],
        *,
        user: str,
        mounts: Iterable[Mount],
        stdout: Path | None = None,
        max_stdout_bytes: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """Runs one subcommand; its stdout unless that goes to a file. Raises: AgentContainerError with the
        program's own words."""
        verb, *rest = arguments
        argv = (PROGRAM, verb, "--time-s", f"{self.timeout_s * 0.9:.0f}", *rest)
        done = self.run_once(
            Once(
                image=self.image,
                argv=argv,
                user=user,
                labels=self.labels,
                mounts=tuple(mounts),
                timeout_s=self.timeout_s,
                max_stdout_bytes=max_stdout_bytes,
                stdout_path=stdout,
            )
        )
        if done.exit_code != 0:
            raise AgentContainerError(f"the workspace program could not {verb}", details=[_words(done)])
        return done.stdout


def _words(done: ExecResult) -> str:
    text = done.stderr.decode("utf-8", "replace").strip()
    try:
        return str(json.loads(text.splitlines()[-1])["error"])[:2000]
    except (ValueError, IndexError, KeyError, TypeError):
        return text[-2000:] or f"exit status {done.exit_code}"


def read_tar(
    source: Path, *, wanted: Mapping[str, Path], max_bytes: int, numbered: Path | None = None
) -> dict[str, object]:
    """The summary of a tar of `collect` or `review`; members named in `wanted` are written to their paths, 0600.

    Members `files/<number>` go into the directory `numbered`. Raises: AgentContainerError when there is anything in it
    that the program never writes.
    """
    summary: dict[str, object] | None = None
    seen: set[str] = set()
    try:
        with tarfile.open(source, mode="r|") as tar:
            for member in tar:
                target = wanted.get(member.name)
                if numbered is not None and re.fullmatch(r"files/[0-9]{1,7}", member.name):
                    target = numbered / member.name.removeprefix("files/")
                is_summary = member.name == SUMMARY
                limit = MAX_SUMMARY_BYTES if is_summary else max_bytes
                body = tar.extractfile(member) if member.isreg() else None
                if body is None or member.name in seen or member.size > limit or (target is None and not is_summary):
                    raise AgentContainerError(f"the workspace program sent an unexpected {member.name!r}")
                seen.add(member.name)
                if target is None:
                    summary = parse_answer(body.read())
                    continue
                with _private(target) as out:
                    shutil.copyfileobj(body, out, 1 << 20)
    except (tarfile.TarError, EOFError) as error:
        raise AgentContainerError(f"the workspace program's answer cannot be read: {error}") from None
    if summary is None:
        raise AgentContainerError("the workspace program sent no summary")
    return summary


def parse_answer(body: bytes) -> dict[str, object]:
    """The JSON object that a subcommand printed. Raises: AgentContainerError."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise AgentContainerError("the workspace program's answer is no JSON object")
    return value


def _private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")
