"""Carrying a project into its volume and the work back out, each in two steps that never share a container.

`pack` sees the project, read-only, as the user who owns it; `unpack` and `collect` see what the agent may have
written. The stream between them passes through a private file of ours. Where the work goes then is `result`'s
business.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from agent_container.errors import AgentContainerError
from agent_container.stack import Mount
from agent_container.workspace.throwaway import (
    MAX_STREAM_BYTES,
    MAX_SUMMARY_BYTES,
    MAX_WORK_BYTES,
    STREAM,
    WORKSPACE,
    Throwaway,
    read_tar,
)
from agent_container.workspace.tree import TreeFacts, engine_text

T = TypeVar("T", bound=BaseModel)
Oid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Text = Annotated[str, StringConstraints(max_length=8192)]
Names = Annotated[tuple[Text, ...], Field(max_length=1000)]
Count = Annotated[int, Field(ge=0)]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Prepared(_Answer):
    """How a workspace began."""

    head: Oid | None
    """The project's last commit; none in a directory without git or without commits."""
    base: Oid
    """Where the run began: `head`, or a marked commit above it that holds what was uncommitted."""
    carried: bool
    """Whether uncommitted work came along."""
    unreadable: Names = ()
    """Files that could not be read and stayed behind."""
    nested: Names = ()
    """Repositories inside the project that it does not track; they stayed behind."""
    hidden: Names = ()
    """Tracked files that were to be hidden: the history that the agent gets holds them."""


class Sensitive(_Answer):
    """A changed path that the host, or a tool on it, runs or obeys."""

    path: Text
    kind: Text


class Change(_Answer):
    """One path that differs between base and result; the id of a side that does not exist is all zeros."""

    path: Text
    old_mode: str
    new_mode: str
    old: Oid
    new: Oid


class Work(_Answer):
    """What came of a workspace."""

    version: int
    run: Text = ""
    base: Oid | None
    base_missing: bool
    """The run's base is not in the workspace any more: the numbers then count everything in it."""
    head: Oid | None = None
    """The agent's last commit."""
    result: Oid
    """`head`, or a commit above it that holds what was uncommitted."""
    uncommitted: bool = False
    commits: Count
    files_changed: Count
    insertions: Count
    deletions: Count
    sensitive: Annotated[tuple[Sensitive, ...], Field(max_length=100_000)]
    unreadable: Names = ()
    nested: Names = ()
    submodules: Names = ()
    """Submodules whose commit changed; those commits are in the workspace alone."""
    branches: Names = ()
    stashes: Names = ()
    worktrees: Names = ()
    incomplete: Names = ()
    """Why a part of the work is in the workspace alone; empty when bundle and patch hold all of it."""
    changes: Annotated[tuple[Change, ...], Field(max_length=1_000_000)] = ()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What would be lost with the workspace, in words; a caller that removes it must have asked."""
        groups = (
            ("branch", self.branches),
            ("stash", self.stashes),
            ("git worktree", self.worktrees),
            ("repository inside the workspace", self.nested),
            ("commits of submodule", self.submodules),
            ("unreadable file", self.unreadable),
            ("not collected:", self.incomplete),
        )
        return tuple(f"{kind} {name}" for kind, names in groups for name in names)


def source_mounts(facts: TreeFacts) -> tuple[Mount, ...]:
    """The project and, for a linked worktree, its repository, read-only at their own paths, so that pointers hold."""
    paths = dict.fromkeys(path for path in (facts.root, facts.common_dir, facts.git_dir) if path is not None)
    outer = [path for path in paths if not any(other != path and path.is_relative_to(other) for other in paths)]
    return tuple(
        Mount(kind="bind", source=engine_text(path), target=engine_text(path), read_only=True) for path in outer
    )


@contextmanager
def packed(throwaway: Throwaway, facts: TreeFacts, arguments: Sequence[str], *, tree: Path) -> Iterator[Mount]:
    """The stream of the project, or of a repository inside it, as a mount for the container that unpacks it."""
    with tempfile.TemporaryDirectory(dir=throwaway.directory, prefix="pack-") as folder:
        stream = Path(folder) / "stream"
        throwaway.run(
            ["pack", *arguments, "--", engine_text(tree)],
            user=f"{facts.owner_uid}:{facts.owner_gid}",
            mounts=source_mounts(facts),
            stdout=stream,
            max_stdout_bytes=MAX_STREAM_BYTES,
        )
        # The other container's user is not ours; the directory around it is closed to everybody else.
        stream.chmod(0o644)
        yield Mount(kind="bind", source=engine_text(stream), target=STREAM, read_only=True)


def collect_work(
    throwaway: Throwaway,
    mounts: Sequence[Mount],
    *,
    prepared: Prepared,
    user: str,
    run: str,
    destination: Path,
    git_dir: str | None = None,
    hide: Sequence[str] = (),
    protect: Sequence[str] = (),
    max_bytes: int = MAX_WORK_BYTES,
) -> Work:
    """Writes `workspace.bundle` (absent when there is nothing new) and `workspace.patch` into `destination`.

    `mounts` are the agent's own workspace mounts; they are made read-only here.
    """
    arguments = ["collect", "--run", run, "--base", prepared.base, "--max-bytes", str(max_bytes)]
    arguments += ["--have", prepared.head] if prepared.head else []
    arguments += ["--git-dir", git_dir] if git_dir else []
    arguments += [f"--hide={pattern}" for pattern in hide]
    arguments += [f"--protect={pattern}" for pattern in protect]
    readable = [Mount(kind=m.kind, source=m.source, target=m.target, read_only=True) for m in mounts]
    with tempfile.TemporaryDirectory(dir=throwaway.directory, prefix="collect-") as folder:
        tar = Path(folder) / "work.tar"
        throwaway.run(
            [*arguments, WORKSPACE],
            user=user,
            mounts=readable,
            stdout=tar,
            max_stdout_bytes=2 * max_bytes + MAX_SUMMARY_BYTES,
        )
        names = {name: destination / name for name in ("workspace.bundle", "workspace.patch")}
        return parse_model(Work, read_tar(tar, wanted=names, max_bytes=max_bytes))


def parse_model(kind: type[T], answer: dict[str, object]) -> T:
    """The answer as a noun. Raises: AgentContainerError."""
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        words = [f"{'.'.join(str(part) for part in row['loc'])}: {row['msg']}" for row in error.errors()[:5]]
        raise AgentContainerError("the workspace program's answer does not fit its schema", details=words) from None
