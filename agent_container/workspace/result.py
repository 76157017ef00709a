"""What becomes of a run's work on the host: on request fetched under `refs/agent-runs/<run>`, and brought to the user
as a branch or as files.

The one git command that ever runs on the host is a fetch of a size-checked bundle into the user's own repository; a
branch is made by a fetch as well. Before anything is applied the bundle is looked at again, in a container that
sees nothing an agent could have touched, and paths that the host runs or obeys hold it up.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_container.errors import AgentContainerError, ApprovalNeeded, UsageError
from agent_container.stack import Mount
from agent_container.workspace.files import Applied, write_changes
from agent_container.workspace.throwaway import (
    BUNDLE,
    MAX_SUMMARY_BYTES,
    MAX_WORK_BYTES,
    Throwaway,
    read_tar,
)
from agent_container.workspace.transfer import Work, parse_model
from agent_container.workspace.tree import TreeFacts, engine_text

HIDDEN = "refs/agent-runs/"
"""Not `refs/agent/`: there git would take it before the branch `agent/<run>` wherever that is named."""
FETCH_TIMEOUT_S = 600
FETCH_SETTINGS = (
    "fetch.fsckObjects=true",
    "fetch.unpackLimit=1",  # stays one pack: a bundle cannot scatter a million files over the repository
    "fetch.writeCommitGraph=false",
    "fetch.bundleURI=",
    "gc.auto=0",
    "maintenance.auto=false",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=true",
    "core.pager=cat",
    "credential.helper=",
    "submodule.recurse=false",
)


@dataclass(frozen=True)
class Reviewed:
    """A bundle that was looked at; only such a one is fetched."""

    bundle: Path
    work: Work


@dataclass(frozen=True)
class ApplyResult:
    """What `apply_result` did, and the line to type next, if there is one."""

    review: Work
    branch: str | None
    files: Applied | None
    next_command: str | None


def fetch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of the fetch: no configuration but the repository's own, no prompt, no protocol but a
    local file."""
    return {
        "PATH": environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "file",
        "GIT_PAGER": "cat",
        "GIT_EDITOR": "false",
        "GIT_ASKPASS": "false",
    }


def fetch_argv(common_dir: Path, bundle: Path, refs: Sequence[str]) -> list[str]:
    """The fetch, word by word. The git directory is named, so that git looks for none and reads no working tree."""
    settings = [word for setting in FETCH_SETTINGS for word in ("-c", setting)]
    flags = ["--quiet", "--no-recurse-submodules", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"]
    # That one is ours to move; a branch may hold the user's own commits by now.
    specs = [f"{'+' if ref.startswith(HIDDEN) else ''}refs/heads/result:{ref}" for ref in refs]
    return ["git", f"--git-dir={common_dir}", *settings, "fetch", *flags, "--", str(bundle), *specs]


def fetch_result(
    facts: TreeFacts,
    reviewed: Reviewed,
    *,
    run: str,
    environ: Mapping[str, str],
    branch: str | None = None,
) -> str:
    """Fetches the work into `refs/agent-runs/<run>`, and into `branch` when one is named; the ref's name.

    Raises: AgentContainerError when git refuses it.
    """
    if facts.common_dir is None:
        raise UsageError(f"{facts.root} is no git repository; the work is in the run's workspace.patch")
    bundle = reviewed.bundle
    ref = f"{HIDDEN}{run}"
    refs = [ref] if branch is None else [ref, f"refs/heads/{branch}"]
    argv = fetch_argv(facts.common_dir, bundle, refs)
    try:
        done = subprocess.run(
            argv,
            cwd="/",
            env=fetch_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise AgentContainerError("git is not installed on this host", details=[f"the work is in {bundle}"]) from None
    except subprocess.TimeoutExpired:
        raise AgentContainerError(f"the fetch of {bundle} did not end in {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()[-6:]
        raise AgentContainerError(f"git refused {bundle}", details=words)
    return ref


def check_bundle(bundle: Path, *, max_bytes: int = MAX_WORK_BYTES) -> None:
    """The size, and the header that `collect` writes: version 2 or 3, exactly one ref. Raises: AgentContainerError."""
    if (size := bundle.stat().st_size) > max_bytes:
        raise AgentContainerError(f"{bundle} holds {size} bytes, more than {max_bytes}")
    with bundle.open("rb") as stream:
        head = stream.read(64 * 1024)
    lines = head.partition(b"\n\n")[0].splitlines()
    refs = [line for line in lines[1:] if line[:1] not in (b"-", b"@")]
    if not lines or lines[0] not in (b"# v2 git bundle", b"# v3 git bundle"):
        raise AgentContainerError(f"{bundle} is no git bundle")
    if len(refs) != 1 or refs[0].partition(b" ")[2] != b"refs/heads/result":
        raise AgentContainerError(f"{bundle} holds other refs than refs/heads/result")


def review_bundle(
    throwaway: Throwaway,
    facts: TreeFacts,
    bundle: Path,
    *,
    base: str | None,
    patch: Path,
    protect: Sequence[str] = (),
    files: Path | None = None,
    max_bytes: int = MAX_WORK_BYTES,
) -> Reviewed:
    """What the bundle holds, judged in a container that sees it and the project's objects and nothing else.

    Every object is checked there as `git fsck` would: older versions of git fetch from a bundle without that,
    whatever `fetch.fsckObjects` says.

    The patch goes to `patch`; the content of changed files into `files`, named by the position in `Work.changes`.
    """
    check_bundle(bundle, max_bytes=max_bytes)
    common = facts.common_dir
    mounts: list[Mount] = []
    arguments = ["review", *(f"--protect={pattern}" for pattern in protect)]
    if base is not None:
        arguments += ["--base", base]
    if common is not None:
        where = engine_text(common)
        mounts.append(Mount(kind="bind", source=where, target=where, read_only=True))
        arguments += ["--source", where]
    if files is not None:
        arguments.append("--files")
    with tempfile.TemporaryDirectory(dir=throwaway.directory, prefix="review-") as folder:
        tar, readable = Path(folder) / "review.tar", Path(folder) / "bundle"
        readable.write_bytes(bundle.read_bytes())
        readable.chmod(0o644)  # records are 0600 and the container's user need not be ours
        mounts.append(Mount(kind="bind", source=engine_text(readable), target=BUNDLE, read_only=True))
        throwaway.run(
            [*arguments, "--", BUNDLE],
            user=facts.owner,
            mounts=mounts,
            stdout=tar,
            max_stdout_bytes=8 * MAX_WORK_BYTES + MAX_SUMMARY_BYTES,
        )
        work = parse_model(
            Work, read_tar(tar, wanted={"workspace.patch": patch}, numbered=files, max_bytes=4 * MAX_WORK_BYTES)
        )
    return Reviewed(bundle=bundle, work=work)


def apply_result(
    throwaway: Throwaway,
    facts: TreeFacts,
    bundle: Path,
    *,
    run: str,
    base: str,
    environ: Mapping[str, str],
    mode: Literal["branch", "files"] | None = None,
    bound: bool = False,
    carried: bool = False,
    protect: Sequence[str] = (),
    accept_sensitive: bool = False,
) -> ApplyResult:
    """Brings the work to the user: as branch `agent/<run>`, or as files where there is no git or `mode` says so.

    A branch is the default because it changes no file that the user is working on, and `git merge` and `git diff`
    are how they know to go on. Files are written by us and not by `git apply`: only regular files, only where the
    present content is what the agent started from, never through a link. `bound`: the work is in the working tree
    already. `carried`: the run began with uncommitted work of the user, which the branch holds as a commit. Raises:
    ApprovalNeeded naming the paths that hold it up.
    """
    how = mode or ("branch" if facts.kind == "git" else "files")
    if how == "branch" and facts.kind == "plain":
        raise UsageError(f"{facts.root} is no git repository, so there is no branch to make", hint="leave --branch out")
    with tempfile.TemporaryDirectory(dir=throwaway.directory, prefix="apply-") as folder:
        contents = Path(folder) / "files" if how == "files" else None
        if contents is not None:
            contents.mkdir(mode=0o700)
        reviewed = review_bundle(
            throwaway, facts, bundle, base=base, patch=Path(folder) / "patch", protect=protect, files=contents
        )
        review = reviewed.work
        if review.sensitive and not accept_sensitive:
            raise ApprovalNeeded(
                f"tools on this host run or obey {len(review.sensitive)} of the {review.files_changed} changed files",
                diff=[f"{one.path}  ({one.kind})" for one in review.sensitive],
                digest=review.result,
                hint=f"agent-container runs diff {run}, and then: agent-container runs apply {run} --accept-sensitive",
            )
        if contents is not None:
            applied = write_changes(facts.root, review.changes, contents=contents)
            return ApplyResult(review=review, branch=None, files=applied, next_command=None)
    branch = f"agent/{run}"
    fetch_result(facts, reviewed, run=run, environ=environ, branch=branch)
    if bound:  # the files are there already: only the user's branch has to move, and the index with it
        command = f"git reset {branch}"
    elif carried:  # a merge would find the user's own changes in its way
        command = f"agent-container runs apply {run} --files"
    else:
        command = f"git merge {branch}"
    return ApplyResult(review=review, branch=branch, files=None, next_command=command)
