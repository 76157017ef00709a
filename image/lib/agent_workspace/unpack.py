"""Where the volume is: the stream of `pack` becomes a workspace, or a private git directory for a bound one."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_workspace.git import BASE_SUBJECT, Clock, Failed, Repository
from agent_workspace.staging import MAX_NAMES, stage
from agent_workspace.stream import read_header
from agent_workspace.tree import make_git_dir

RECORD = "agent-container.json"
"""Beside HEAD: the commits that were there at the start. An agent that rewrites it only hides its own work."""
ANSWER = ("head", "base", "carried", "unreadable", "nested", "hidden")
HOST_REMOTE = "refs/remotes/host/"
"""Where a second `unpack-gitdir` puts the project's branches, so that the agent's own are never moved."""


@dataclass(frozen=True)
class Earlier:
    """A run that this one continues: its work, and where it began."""

    bundle: Path
    base: str
    head: str | None
    carried: bool


def unpack(destination: Path, *, run: str, source: int, clock: Clock, earlier: Earlier | None = None) -> dict[str, Any]:
    """A clone with its branch `agent/<run>` checked out, in an empty directory; with `earlier`, as that run left it."""
    if any(path.name != "lost+found" for path in destination.iterdir()):
        raise Failed(f"{destination} is not empty")
    header, _ = read_header(source)
    branch = f"refs/heads/agent/{run}"
    git_dir = destination / ".git"
    repository = Repository(git_dir, destination, clock)
    if header["kind"] == "plain" and earlier is not None:
        _layout(git_dir, header)  # its files are in the bundle, the directory's own as they are now are not wanted
        header.update(unreadable=[], nested=[], hidden=[])
    elif header["kind"] == "plain":
        _extract(destination, source)
        _layout(git_dir, header)
        staged = stage(repository)
        message = f"{BASE_SUBJECT}\n\nThe directory as it was at the start.\n"
        base = repository.commit(staged.tree, message, [])
        header.update(
            head=None,
            base=base,
            carried=True,
            unreadable=staged.unreadable[:MAX_NAMES],
            nested=staged.nested[:MAX_NAMES],
            hidden=[],
        )
    else:
        _layout(git_dir, header)
        _receive(repository, source)
        header["refs"].pop("refs/heads/agent", None)  # it would stand in the way of agent/<run>
        _write_refs(git_dir, header["refs"])
    if earlier is not None:
        _take_up(repository, earlier, branch)
        header.update(head=earlier.head, base=earlier.base, carried=earlier.carried)
    else:
        repository.git("update-ref", branch, header["base"])
    repository.git("symbolic-ref", "HEAD", branch)
    repository.git("reset", "-q", "--hard")
    return _answer(git_dir, header)


def _take_up(repository: Repository, earlier: Earlier, branch: str) -> None:
    """The earlier run's work, from its bundle. What lies below it has to be in the project still."""
    if earlier.head is not None and not repository.has(earlier.head):
        raise Failed(f"that run began at commit {earlier.head}, which the project's branches and tags no longer hold")
    repository.git("fetch", "--quiet", "--no-tags", str(earlier.bundle), f"+refs/heads/result:{branch}")


def unpack_git_dir(
    destination: Path, *, scratch: Path, source: int, clock: Clock, work_tree: str | None = None
) -> dict[str, Any]:
    """A private git directory. On one that exists, only objects and the project's branches (as `host/*`) are added."""
    header, index = read_header(source)
    if header["kind"] != "git":
        raise Failed("the project is no git repository")
    fresh = not (destination / "HEAD").exists()
    if fresh:
        if work_tree is not None:
            header["config"].append(["core.worktree", work_tree])
        _layout(destination, header)
    # Never git inside the destination: an agent may have written its configuration.
    private = Path(tempfile.mkdtemp(prefix="git-", dir=str(scratch)))
    make_git_dir(private, object_format=header["object_format"])
    repository = Repository(private, scratch, clock)
    _receive(repository, source, objects=destination / "objects")
    if fresh:
        refs = {**header["refs"], f"refs/agent-container/{header['base']}": header["base"]}
        _write_refs(destination, {name: oid for name, oid in refs.items() if oid})
        head = header["head_branch"]
        (destination / "HEAD").write_text(f"ref: {head}\n" if head else f"{header['head']}\n")
        if index:
            (destination / "index").write_bytes(index)
        return _answer(destination, header)
    for name, oid in {**header["refs"], "refs/heads/HEAD": header["head"]}.items():
        if oid and name.startswith("refs/heads/"):
            _write_loose(destination / HOST_REMOTE / name[len("refs/heads/") :], oid)
    _write_loose(destination / "refs" / "agent-container" / header["base"], header["base"])
    return {key: header[key] for key in ANSWER}


def _layout(git_dir: Path, header: dict[str, Any]) -> None:
    make_git_dir(
        git_dir,
        object_format=header.get("object_format", "sha1"),
        config=[(key, value) for key, value in header["config"]],
        exclude=header["exclude"],
        shallow=header.get("shallow", ()),
    )


def _receive(repository: Repository, source: int, *, objects: Path | None = None) -> None:
    repository.git("index-pack", "--stdin", stdin=source, objects=objects)


def _write_refs(git_dir: Path, refs: dict[str, str]) -> None:
    (git_dir / "packed-refs").write_bytes(
        b"".join(os.fsencode(f"{oid} {name}\n") for name, oid in sorted(refs.items()))
    )


def _write_loose(path: Path, oid: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".lock")
    fresh.unlink(missing_ok=True)
    fresh.write_text(f"{oid}\n")
    fresh.replace(path)


def _answer(git_dir: Path, header: dict[str, Any]) -> dict[str, Any]:
    answer = {key: header[key] for key in ANSWER}
    known = sorted({oid for oid in (*header.get("refs", {}).values(), header["head"], header["base"]) if oid})
    (git_dir / RECORD).write_text(json.dumps({**answer, "known": known}))
    return answer


def _extract(destination: Path, source: int) -> None:
    """Only what `pack` sends; names were made by walking a tree, and a link is never followed."""
    folders = []
    with os.fdopen(os.dup(source), "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            path = destination / member.name
            if member.name.startswith("/") or ".." in member.name.split("/"):
                raise Failed(f"refused: {member.name}")
            if member.isdir():
                path.mkdir()
                folders.append((path, member.mode))
            elif member.issym():
                path.symlink_to(member.linkname)
            elif member.isreg():
                body = tar.extractfile(member)
                with path.open("xb") as file:
                    while body is not None and (block := body.read(1 << 20)):
                        file.write(block)
                path.chmod(member.mode)
    for path, mode in reversed(folders):
        path.chmod(mode)
