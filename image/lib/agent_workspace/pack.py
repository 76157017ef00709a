"""Where the project is mounted, read-only: its commits, refs and cleaned settings, and its uncommitted work, as one
stream."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, Iterator, Sequence

from agent_workspace.git import BASE_SUBJECT, Clock, Failed, Repository
from agent_workspace.staging import MAX_NAMES, matches, stage
from agent_workspace.stream import write_header
from agent_workspace.tree import allowed, config_text, find_git, private_repository, read_config

VERSION = 1
SENT_REFS = ("refs/heads/", "refs/tags/", "refs/remotes/")
"""Not sent: the stash, notes, and results of other runs."""


def pack(
    tree: Path,
    *,
    scratch: Path,
    clock: Clock,
    out: int,
    committed: bool,
    with_index: bool,
    hide: Sequence[str],
    exclude: str,
    identity: Sequence[tuple[str, str]],
) -> None:
    """Writes the stream. `committed`: uncommitted work stays behind. `with_index`: for a private git directory over
    a bound tree."""
    if find_git(tree) is None:
        if (tree / ".git").exists() or (tree / ".git").is_symlink():
            raise Failed(f"{tree}/.git leads to no git directory that is mounted here")
        pack_plain(tree, out=out, hide=hide, exclude=exclude, identity=identity, scratch=scratch, clock=clock)
        return
    repository = private_repository(tree, scratch, clock)
    info_exclude = repository.exclude + "\n" + exclude
    (repository.git_dir / "info" / "exclude").write_text(info_exclude, "utf-8", "surrogateescape")
    index = _portable_index(repository) if with_index else b""
    header: dict[str, Any] = {
        "version": VERSION,
        "kind": "git",
        "object_format": repository.object_format,
        "head_branch": repository.head_branch,
        "head": repository.head,
        "base": repository.head,
        "carried": False,
        "unreadable": [],
        "nested": [],
        "hidden": [],
        "refs": _refs(repository),
        "shallow": repository.shallow,
        "config": [*identity, *repository.config],
        "exclude": info_exclude,
    }
    if not committed or repository.head is None:
        staged = stage(repository, hide=hide)
        for key in ("unreadable", "nested", "hidden"):
            header[key] = getattr(staged, key)[:MAX_NAMES]
        before = repository.tree_of(repository.head) if repository.head else repository.empty_tree
        if staged.tree != before or repository.head is None:
            parents = [repository.head] if repository.head else []
            message = f"{BASE_SUBJECT}\n\nThe uncommitted work that the project held at the start.\n"
            header["base"] = repository.commit(staged.tree, message, parents)
            header["carried"] = staged.tree != before
    tips = [*header["refs"].values(), header["head"], header["base"]]
    write_header(out, header, index)
    flags = ["--indexed-objects"] if index else []
    if index:
        (repository.git_dir / "index").write_bytes(index)
    lines = "".join(f"{oid}\n" for oid in dict.fromkeys(tips) if oid).encode()
    repository.git("pack-objects", "--revs", *flags, "--stdout", "-q", "--delta-base-offset", stdin=lines, stdout=out)


def _refs(repository: Repository) -> dict[str, str]:
    """The refs to send, without those whose object is missing."""
    wanted = {name: oid for name, oid in repository.refs.items() if name.startswith(SENT_REFS)}
    asked = "".join(f"{oid}\n" for oid in wanted.values()).encode()
    answers = repository.git("cat-file", "--batch-check", stdin=asked).decode().splitlines()
    return {name: oid for (name, oid), answer in zip(wanted.items(), answers) if not answer.endswith(" missing")}  # noqa: B905 - Python 3.9


def _portable_index(repository: Repository) -> bytes:
    """The index as one file without extensions that name helpers or other files; empty when there is none."""
    path = repository.git_dir / "index"
    if not path.exists():
        return b""
    repository.git("update-index", "--no-split-index", "--no-untracked-cache", "--no-fsmonitor")
    return path.read_bytes()


# --- a directory without git ------------------------------------------------------------------------------------------


def pack_plain(
    tree: Path,
    *,
    out: int,
    hide: Sequence[str],
    exclude: str,
    identity: Sequence[tuple[str, str]],
    scratch: Path,
    clock: Clock,
) -> None:
    """Regular files, directories, and links as links; sockets, FIFOs and devices stay behind."""
    header: dict[str, Any] = {"version": VERSION, "kind": "plain", "exclude": exclude, "config": list(identity)}
    write_header(out, header)
    with os.fdopen(os.dup(out), "wb") as sink, tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(tree, tree, hide):
            _add(tar, path, str(path.relative_to(tree)), scratch=scratch, clock=clock)


def _walk(top: Path, folder: Path, hide: Sequence[str]) -> Iterator[Path]:
    for entry in sorted(os.scandir(str(folder)), key=lambda found: found.name):
        path = folder / entry.name
        if matches(str(path.relative_to(top)), hide):
            continue
        if folder.name == ".git" and entry.name == "hooks":
            continue  # of a repository inside the tree
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(top, path, hide)


def _add(tar: tarfile.TarFile, path: Path, name: str, *, scratch: Path, clock: Clock) -> None:
    status = path.lstat()
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(status.st_mode) & 0o755 | 0o600
    member.mtime = int(status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
        tar.addfile(member)
    elif stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
        member.mode |= 0o700
        tar.addfile(member)
    elif stat.S_ISREG(status.st_mode):
        if path.name == "config" and (path.parent / "objects").is_dir():
            # a repository inside the tree: its URLs may hold passwords, its settings may name programs
            cleaned = scratch / "nested-config"
            cleaned.write_text(config_text(allowed(read_config(path, clock))), "utf-8", "surrogateescape")
            path, status = cleaned, cleaned.lstat()
        member.size = status.st_size
        with path.open("rb") as body:
            tar.addfile(member, _Exactly(body))


class _Exactly:
    """A file that always has as many bytes as were promised: one that shrinks while it is read is filled up with
    zeros."""

    def __init__(self, body: BinaryIO) -> None:
        self.body = body

    def read(self, length: int) -> bytes:
        """The next bytes."""
        return self.body.read(length).ljust(length, b"\0")
