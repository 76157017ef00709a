"""Before a session starts: filling the volumes of a plan, and the small files that its mounts take."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import AgentContainerError
from agent_container.project import read_plain
from agent_container.stack import Mount
from agent_container.stack_agent import HOME
from agent_container.workspace.plan import EMPTY_DIRECTORY, WORKSPACE_VOLUME, GitDir, WorkspacePlan
from agent_container.workspace.throwaway import BUNDLE, STREAM, WORKSPACE, Throwaway, parse_answer
from agent_container.workspace.transfer import Prepared, packed, parse_model
from agent_container.workspace.tree import TreeFacts, engine_text

MAX_IGNORE_BYTES = 96 * 1024
"""Of the user's ignore file: it travels as one argument of a program."""


@dataclass(frozen=True)
class UserGit:
    """What the user's own git says beyond the project, read by the host's git outside of any tree."""

    ignore: str = ""
    """Text of the user's ignore file: what it names is not carried into a clone."""
    name: str = ""
    email: str = ""


def read_user_git(environ: Mapping[str, str], *, home: Path) -> UserGit:
    """Asks the user's own git configuration, outside of any repository; what it does not say is empty."""
    env = {name: environ[name] for name in ("PATH", "XDG_CONFIG_HOME") if name in environ}
    env |= {"HOME": str(home), "GIT_DIR": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}

    def ask(*words: str) -> str:
        argv = ["git", "config", "--global", *words]
        try:
            done = subprocess.run(argv, cwd="/", env=env, capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return os.fsdecode(done.stdout).rstrip("\n") if done.returncode == 0 else ""

    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    path = Path(ask("--type=path", "core.excludesFile") or config / "git" / "ignore")
    try:
        body = read_plain(path, max_bytes=MAX_IGNORE_BYTES)
    except OSError:
        body = None
    ignore = (body or b"").decode("utf-8", "replace").replace("\0", "")
    return UserGit(ignore=ignore, name=ask("user.name"), email=ask("user.email"))


@dataclass(frozen=True)
class Readied:
    """A workspace that is ready, and what the user should know about it."""

    prepared: Prepared | None
    """None for a bound directory without git."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Earlier:
    """The run whose work a clone goes on from."""

    bundle: Path
    base: str
    head: str | None
    """The project's commit below it."""
    carried: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        """For the workspace program."""
        have = ("--have", self.head) if self.head else ()
        return ("--bundle", BUNDLE, "--base", self.base, *have, *(("--carried",) if self.carried else ()))


def write_files(plan: WorkspacePlan, directory: Path) -> None:
    """Writes `plan.files` into the session's own directory (0700 itself); idempotent, for a session's life they
    never change."""
    for name, text in plan.files:
        path = directory / name
        if name == EMPTY_DIRECTORY:
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        elif not path.exists():
            # In place and never replaced: a mount holds the file itself, not its name.
            path.write_text(text)
            path.chmod(0o644)
            if os.geteuid() == 0:
                # git in the sandbox obeys a `.git` file only when it belongs to whoever runs git
                uid, gid = plan.user.split(":")
                os.chown(path, int(uid), int(gid))


def prepare_workspace(
    throwaway: Throwaway,
    facts: TreeFacts,
    plan: WorkspacePlan,
    *,
    names: Mapping[str, str],
    run: str,
    committed: bool = False,
    earlier: Earlier | None = None,
    user_git: UserGit | None = None,
) -> Readied:
    """Fills the plan's volumes, which `names` gives by key. A clone's volume must be empty; private git directories
    are brought up to date.

    `committed`: a clone starts from the last commit, without uncommitted work. `earlier`: it starts from what that
    run left.
    """
    user_git = user_git or UserGit()
    options = [f"--hide={pattern}" for pattern in plan.hide]
    options += [f"--exclude={user_git.ignore}", f"--name={user_git.name}", f"--email={user_git.email}"]
    if plan.mode == "clone":
        options += ["--committed"] if committed or earlier is not None else []
        with packed(throwaway, facts, options, tree=facts.root) as stream:
            target = Mount(kind="volume", source=names[WORKSPACE_VOLUME], target=WORKSPACE)
            arguments = ["unpack", "--run", run, *(earlier.arguments if earlier else ()), STREAM, WORKSPACE]
            with _readable(throwaway, earlier) as bundle:
                answer = throwaway.run(arguments, user=plan.user, mounts=[stream, target, *bundle])
        prepared = parse_model(Prepared, parse_answer(answer))
        return Readied(prepared, (*plan.warnings, *_stayed(prepared)))
    warnings = list(plan.warnings)
    whole: Prepared | None = None
    for git_dir in plan.git_dirs:
        try:
            filled = _fill(throwaway, facts, git_dir, options, volume=names[git_dir.volume], user=plan.user)
        except AgentContainerError as error:
            if git_dir.tree == facts.root:
                raise
            # The mount over it stays, empty: what cannot be read is not handed out as it is either.
            warnings.append(f"git will not work in {git_dir.tree}: {'; '.join(error.details) or error}")
            continue
        if git_dir.tree == facts.root:
            whole = filled
    return Readied(whole, (*warnings, *(_stayed(whole) if whole else ())))


@contextmanager
def _readable(throwaway: Throwaway, earlier: Earlier | None) -> Iterator[list[Mount]]:
    """The bundle of a record, which is 0600, as a mount that the container's user can read."""
    if earlier is None:
        yield []
        return
    with tempfile.TemporaryDirectory(dir=throwaway.directory, prefix="earlier-") as folder:
        copy = Path(folder) / "bundle"
        shutil.copyfile(earlier.bundle, copy)
        copy.chmod(0o644)
        yield [Mount(kind="bind", source=engine_text(copy), target=BUNDLE, read_only=True)]


def restore_home(throwaway: Throwaway, kept: Path, *, volume: str, user: str) -> None:
    """The files below `kept`, a directory of a record, into the HOME volume of a sandbox that has not started."""
    with tempfile.TemporaryDirectory(dir=throwaway.directory, prefix="home-") as folder:
        stream = Path(folder) / "stream"
        with tarfile.open(stream, "w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(path for path in kept.rglob("*") if path.is_file() and not path.is_symlink()):
                tar.add(path, arcname=path.relative_to(kept).as_posix(), recursive=False)
        stream.chmod(0o644)
        throwaway.run(
            ["unpack-home", STREAM, HOME],
            user=user,
            mounts=[
                Mount(kind="bind", source=engine_text(stream), target=STREAM, read_only=True),
                Mount(kind="volume", source=volume, target=HOME),
            ],
        )


def _fill(
    throwaway: Throwaway, facts: TreeFacts, git_dir: GitDir, options: list[str], *, volume: str, user: str
) -> Prepared:
    with packed(throwaway, facts, ["--index", *options], tree=git_dir.tree) as stream:
        # The image's /workspace belongs to the agent, and a fresh volume takes over what it covers.
        target = Mount(kind="volume", source=volume, target=WORKSPACE)
        arguments = ["unpack-gitdir", STREAM, f"{WORKSPACE}/{git_dir.inside}" if git_dir.inside else WORKSPACE]
        arguments += ["--work-tree", git_dir.work_tree] if git_dir.work_tree else []
        answer = throwaway.run(arguments, user=user, mounts=[stream, target])
    return parse_model(Prepared, parse_answer(answer))


def _stayed(prepared: Prepared) -> list[str]:
    words = [
        f"{name} is tracked by git: it is hidden, but the history that the agent gets holds it"
        for name in prepared.hidden
    ]
    words += [f"{name} could not be read and stayed behind" for name in prepared.unreadable]
    return words + [
        f"{name} is a repository that the project does not track; it stayed behind" for name in prepared.nested
    ]
