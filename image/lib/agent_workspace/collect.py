"""The work on its way back: what an agent committed and left uncommitted, as a bundle, a patch and a summary."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Sequence

from agent_workspace.git import OID, Clock, Failed, Repository
from agent_workspace.measure import GITLINK, Change, measure, write_patch
from agent_workspace.staging import MAX_NAMES, Staged, stage
from agent_workspace.tree import make_git_dir, object_stores, private_repository, read_config, read_small
from agent_workspace.unpack import RECORD

VERSION = 1
SUMMARY, PATCH, BUNDLE = "summary.json", "workspace.patch", "workspace.bundle"
RESULT = "refs/heads/result"
MAX_BUNDLE_HEAD_BYTES = 64 * 1024
MAX_RECORD_BYTES = 64 * 1024 * 1024


def collect(
    tree: Path,
    *,
    base: str | None,
    have: str | None,
    git_dir: Path | None,
    run: str,
    hide: Sequence[str],
    protect: Sequence[str],
    max_bytes: int,
    scratch: Path,
    clock: Clock,
    out: BinaryIO,
) -> None:
    """Writes the tar. `base` is where the run began, `have` the newest commit that the host has: none for a
    directory without git."""
    where = git_dir if git_dir is not None else tree / ".git"
    repository = private_repository(tree, scratch, clock, git_dir=git_dir, lenient=True)
    base_is_there = repository.has(base)
    start = base if base_is_there and base else None
    summary: dict[str, Any] = {"version": VERSION, "run": run, "base": base, "base_missing": not base_is_there}
    incomplete: list[str] = []
    try:
        staged = _stage(repository, hide)
        tree_id = staged.tree
        summary.update(unreadable=staged.unreadable[:MAX_NAMES], nested=staged.nested[:MAX_NAMES])
    except Failed as failure:
        incomplete.append(f"uncommitted work: {failure}")
        tree_id = repository.tree_of(repository.head or start or _nothing(repository))
    result = repository.head or start
    uncommitted = result is None or repository.tree_of(result) != tree_id
    if uncommitted:
        message = f"Uncommitted work of agent run {run}\n"
        result = repository.commit(tree_id, message, [result] if result else [])
    assert result is not None
    floor = start or repository.empty_tree
    numbers, found = measure(repository, floor, result, also=protect)
    summary.update(numbers, head=repository.head, result=result, uncommitted=uncommitted)
    summary["commits"] = _count(repository, repository.head, [start, have])
    summary["submodules"] = [change.path for change in found if change.new_mode == GITLINK][:MAX_NAMES]
    left = _left_behind(repository, where, result)
    listed = {os.path.relpath(path, str(tree)) for path in left["worktrees"] if path.startswith("/")}
    summary["nested"] = [name for name in summary.get("nested", ()) if name not in listed]
    summary.update(left)
    files = _artefacts(repository, floor, result, have, scratch=scratch, max_bytes=max_bytes, incomplete=incomplete)
    summary["incomplete"] = incomplete
    write_tar(out, summary, files)


def review(
    bundle: Path,
    *,
    base: str | None,
    source: Path | None,
    protect: Sequence[str],
    with_files: bool,
    scratch: Path,
    clock: Clock,
    out: BinaryIO,
) -> None:
    """Looks at a bundle with nothing but it and the project's objects at hand: what it says does not rest on what
    an agent touched."""
    private = Path(tempfile.mkdtemp(prefix="git-", dir=str(scratch)))
    config = read_config(source / "config", clock) if source is not None else []
    sha256 = ("extensions.objectformat", "sha256") in config
    make_git_dir(private, object_format="sha256" if sha256 else "sha1")
    if source is not None:
        stores = "".join(f"{store}\n" for store in object_stores(source / "objects"))
        (private / "objects" / "info" / "alternates").write_bytes(os.fsencode(stores))
        shallow = read_small(source / "shallow")
        if shallow is not None:
            (private / "shallow").write_bytes(shallow)
    repository = Repository(private, scratch, clock)
    result = _receive_bundle(repository, bundle)
    start = base if base and repository.has(base) else None
    floor = start or repository.empty_tree
    summary, found = measure(repository, floor, result, also=protect)
    summary.update(version=VERSION, base=base, base_missing=start is None, result=result)
    summary["commits"] = _count(repository, result, [start])
    patch = scratch / PATCH
    write_patch(repository, floor, result, patch)
    files = {PATCH: patch}
    if with_files:
        summary["changes"] = [vars(change) for change in found]
        for number, change in enumerate(found):
            if change.new.strip("0") and change.new_mode != GITLINK:
                files[f"files/{number}"] = _blob(repository, change, scratch / f"file-{number}")
    write_tar(out, summary, files)


def _receive_bundle(repository: Repository, bundle: Path) -> str:
    """The objects of a bundle, checked one by one; the commit that it names.

    Not by `git fetch`: older versions take a bundle's objects unchecked whatever `fetch.fsckObjects` says.
    """
    handle = os.open(str(bundle), os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(handle, MAX_BUNDLE_HEAD_BYTES, 0)
        end = head.find(b"\n\n")
        refs = [line for line in head[:end].splitlines()[1:] if line[:1] not in (b"-", b"@")]
        if end < 0 or not head.startswith(b"# v") or len(refs) != 1:
            raise Failed("no bundle of one ref")
        os.lseek(handle, end + 2, os.SEEK_SET)
        repository.git("index-pack", "--strict", "--fix-thin", "--stdin", stdin=handle)
    finally:
        os.close(handle)
    oid, _, name = os.fsdecode(refs[0]).partition(" ")
    if name != RESULT or not repository.has(oid):
        raise Failed(f"the bundle does not hold {RESULT}")
    return oid


def write_tar(out: BinaryIO, summary: dict[str, Any], files: dict[str, Path]) -> None:
    """A plain tar: the summary first, then the files."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        body = json.dumps(summary).encode()
        member = tarfile.TarInfo(SUMMARY)
        member.size = len(body)
        tar.addfile(member, io.BytesIO(body))
        for name, path in files.items():
            member = tarfile.TarInfo(name)
            member.size = path.stat().st_size
            with path.open("rb") as stream:
                tar.addfile(member, stream)


def _stage(repository: Repository, hide: Sequence[str]) -> Staged:
    """The tree's state, whatever an agent did to its index."""
    try:
        return stage(repository, hide=hide)
    except Failed:
        (repository.git_dir / "index").unlink()
        return stage(repository, hide=hide)


def _artefacts(
    repository: Repository,
    floor: str,
    result: str,
    have: str | None,
    *,
    scratch: Path,
    max_bytes: int,
    incomplete: list[str],
) -> dict[str, Path]:
    """The patch and the bundle, each unless it is over the limit: a name in `incomplete` then says so."""
    files = {PATCH: scratch / PATCH, BUNDLE: scratch / BUNDLE}
    write_patch(repository, floor, result, files[PATCH])
    known = have if repository.has(have) else None
    if result == known:
        del files[BUNDLE]
    else:
        repository.git("update-ref", RESULT, result)
        without = [f"^{known}"] if known else []
        repository.git("bundle", "create", "-q", str(files[BUNDLE]), RESULT, *without)
    for name, path in list(files.items()):
        if (size := path.stat().st_size) > max_bytes:
            incomplete.append(f"{name} holds {size} bytes, more than {max_bytes}")
            del files[name]
    return files


def _left_behind(repository: Repository, git_dir: Path, result: str) -> dict[str, list[str]]:
    """What lies in the repository and is not part of the result: names, so that nobody removes it unseen."""
    try:
        known = set(json.loads(read_small(git_dir / RECORD, MAX_RECORD_BYTES) or b"{}").get("known", ()))
    except (ValueError, AttributeError, TypeError):
        known = set()
    known = {oid for oid in known if isinstance(oid, str) and OID.fullmatch(oid) and repository.has(oid)}
    branches = []
    for name, oid in repository.refs.items():
        if not name.startswith("refs/heads/") or oid in known or not repository.has(oid):
            continue
        if _count(repository, oid, [result, *known]):
            branches.append(name[len("refs/heads/") :])
    stash = os.fsdecode(read_small(git_dir / "logs" / "refs" / "stash") or b"").splitlines()
    stashes = [line.partition("\t")[2] for line in stash] or (["stash"] if "refs/stash" in repository.refs else [])
    worktrees = []
    if (git_dir / "worktrees").is_dir():
        for entry in sorted((git_dir / "worktrees").iterdir()):
            pointer = os.fsdecode(read_small(entry / "gitdir", 8192) or b"").strip()
            worktrees.append(pointer[: -len("/.git")] if pointer.endswith("/.git") else entry.name)
    return {"branches": branches[:MAX_NAMES], "stashes": stashes[:MAX_NAMES], "worktrees": worktrees[:MAX_NAMES]}


def _count(repository: Repository, tip: str | None, without: Sequence[str | None]) -> int:
    if tip is None:
        return 0
    lines = [tip, *(f"^{oid}" for oid in without if oid and repository.has(oid))]
    counted = repository.git("rev-list", "--count", "--stdin", stdin="".join(f"{line}\n" for line in lines).encode())
    return int(counted)


def _nothing(repository: Repository) -> str:
    return repository.commit(repository.empty_tree, "empty\n", [])


def _blob(repository: Repository, change: Change, path: Path) -> Path:
    with path.open("wb") as out:
        repository.git("cat-file", "blob", change.new, stdout=out.fileno())
    return path
