"""Which mounts give an agent its workspace: the project itself with everything that the host obeys masked or
read-only, or a volume for a clone.

A plan is a value. `prepare` fills its volumes; `protected` compares what mounts cannot protect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_container.errors import UsageError
from agent_container.spec import ALWAYS_PROTECTED
from agent_container.stack import Mount
from agent_container.workspace.mounts import HostPaths, refusal
from agent_container.workspace.protected import expand, relative
from agent_container.workspace.throwaway import WORKSPACE
from agent_container.workspace.tree import Nested, TreeFacts, engine_text

WORKSPACE_VOLUME = "workspace"
GIT_VOLUME = "git"
POINTED_GIT_DIR = "/var/lib/agent-container/git"
"""Where the private git directory of a linked worktree stands: a directory cannot be mounted over its `.git` file."""
MAX_NESTED = 100
EMPTY_FILE, EMPTY_DIRECTORY = "empty", "empty.d"


@dataclass(frozen=True)
class GitDir:
    """One private git directory to fill: of the project, or of a repository inside it."""

    tree: Path
    """The working tree on the host."""
    volume: str
    """Key of the volume."""
    inside: str
    """Path below the volume's root; empty for the root."""
    work_tree: str | None
    """The working tree's path in the sandbox where git cannot tell by itself."""


@dataclass(frozen=True)
class WorkspacePlan:
    """How one session's workspace is mounted."""

    mode: Literal["bind", "clone"]
    user: str
    """`uid:gid` of the agent."""
    mounts: tuple[Mount, ...]
    volumes: tuple[str, ...]
    """Keys of the volumes that the mounts name."""
    git_dirs: tuple[GitDir, ...]
    git_dir: str | None
    """Where `collect` finds the git directory when it is not `.git`."""
    files: tuple[tuple[str, str], ...]
    """Small files that mounts take from the session's directory, name to text; `empty.d` is a directory."""
    protect: tuple[str, ...]
    hide: tuple[str, ...]
    covered: tuple[str, ...]
    """Protected paths that a mount holds; all others are compared."""
    warnings: tuple[str, ...]

    @property
    def hidden(self) -> tuple[str, ...]:
        """Where something empty is mounted, in the container."""
        return tuple(m.target for m in self.mounts if m.kind == "bind" and Path(m.source).name in self._empty)

    @property
    def _empty(self) -> frozenset[str]:
        return frozenset({EMPTY_FILE, EMPTY_DIRECTORY} & {name for name, _ in self.files})

    def named(self, names: Mapping[str, str]) -> tuple[Mount, ...]:
        """The mounts with the volumes' real names, as throw-away containers need them."""
        return tuple(
            m
            if m.kind == "bind"
            else Mount(kind="volume", source=names[m.source], target=m.target, read_only=m.read_only)
            for m in self.mounts
        )


def plan_workspace(
    facts: TreeFacts,
    *,
    mode: Literal["bind", "clone"],
    host: HostPaths,
    user: str,
    directory: Path,
    protect: Sequence[str] = (),
    hide: Sequence[str] = (),
) -> WorkspacePlan:
    """The plan for a project. `user` is a clone's `uid:gid`; a bound tree's is its owner. `directory` is the session's
    own, for the files of `WorkspacePlan.files`.

    Raises: UsageError for a project that cannot be given to an agent, naming the path and the cure.
    """
    check_project(facts, mode=mode, host=host)
    warnings = [f"{path} does not exist; git will miss it" for path in facts.missing]
    protected = tuple(dict.fromkeys((*ALWAYS_PROTECTED, *protect)))
    if mode == "clone":
        return WorkspacePlan(
            mode="clone",
            user=user,
            mounts=(Mount(kind="volume", source=WORKSPACE_VOLUME, target=WORKSPACE),),
            volumes=(WORKSPACE_VOLUME,),
            git_dirs=(),
            git_dir=None,
            files=(),
            protect=protected,
            hide=tuple(hide),
            covered=(),
            warnings=(*warnings, *_left_out(facts)),
        )
    return _Bind(facts, directory, protected, tuple(hide), warnings).plan()


def check_project(facts: TreeFacts, *, mode: Literal["bind", "clone"], host: HostPaths) -> None:
    """Refuses what no mode can make safe. Raises: UsageError."""
    root = facts.root
    if reason := refusal(root, host):
        raise UsageError(f"{root} may not be a workspace: {reason}", hint="work in a directory of its own")
    for outer in (facts.git_dir, facts.common_dir):
        if outer is not None and not outer.is_relative_to(root) and (reason := refusal(outer, host)):
            raise UsageError(f"the git directory {outer} may not be seen in a sandbox: {reason}")
    if facts.enclosing is not None:
        raise UsageError(
            f"{root} lies inside the git repository {facts.enclosing}, whose history the agent would not have",
            hint=f"move agent-container.yaml to {facts.enclosing}, or name it there: -C {facts.enclosing} -f SPEC",
        )
    if facts.alternates:
        raise UsageError(
            f"the repository borrows objects from {facts.alternates[0]}, outside the project",
            details=[str(path) for path in facts.alternates],
            hint=f"git -C {root} repack -a -d && rm {facts.common_dir}/objects/info/alternates",
        )
    if mode == "bind":
        _check_bind(facts)


def _check_bind(facts: TreeFacts) -> None:
    root = facts.root
    if facts.owner_uid == 0:
        raise UsageError(
            f"{root} belongs to root, and the agent never runs as root, so it could not write there",
            hint=f"run with --clone, or give the project to a user: chown -R USER {root}",
        )
    if facts.special_files:
        raise UsageError(
            f"{root} holds sockets, FIFOs or devices, which reach beyond the sandbox even when they are read-only",
            details=[relative(root, path) for path in facts.special_files],
            hint="remove them, or run with --clone: a clone leaves them behind",
        )
    if len(facts.nested) > MAX_NESTED:
        raise UsageError(
            f"{root} holds {len(facts.nested)} repositories, more than {MAX_NESTED}", hint="run with --clone"
        )


def _left_out(facts: TreeFacts) -> list[str]:
    return [
        f"{relative(facts.root, one.path.parent)} is a repository of its own; a clone starts without its files"
        for one in facts.nested
    ]


class _Bind:
    """Collects the mounts of a bound workspace; a target is mounted once, and outer ones come first."""

    def __init__(
        self, facts: TreeFacts, directory: Path, protect: tuple[str, ...], hide: tuple[str, ...], warnings: list[str]
    ) -> None:
        self.facts, self.directory, self.protect, self.hide, self.warnings = facts, directory, protect, hide, warnings
        self.mounts: dict[str, Mount] = {}
        self.files: dict[str, str] = {}
        self.git_dirs: list[GitDir] = []
        self.covered: list[str] = []

    def plan(self) -> WorkspacePlan:
        """All of it."""
        facts = self.facts
        self._put(WORKSPACE, Mount(kind="bind", source=engine_text(facts.root), target=WORKSPACE))
        git_dir = self._repository()
        for number, nested in enumerate(facts.nested):
            self._nested(number, nested)
        for path in expand(facts.root, self.hide):
            self._hide(path)
        for path in expand(facts.root, self.protect):
            self._protect(path)
        mounts = tuple(self.mounts[target] for target in sorted(self.mounts, key=lambda name: name.split("/")))
        return WorkspacePlan(
            mode="bind",
            user=facts.owner,
            mounts=mounts,
            volumes=tuple(m.source for m in mounts if m.kind == "volume"),
            git_dirs=tuple(self.git_dirs),
            git_dir=git_dir,
            files=tuple(self.files.items()),
            protect=self.protect,
            hide=self.hide,
            covered=tuple(self.covered),
            warnings=tuple(self.warnings),
        )

    def _put(self, target: str, mount: Mount) -> None:
        self.mounts.setdefault(target, mount)

    def _repository(self) -> str | None:
        """The private git directory over `.git`; for a linked worktree beside it, with a pointer of ours in its
        place."""
        facts = self.facts
        if facts.kind == "plain":
            return None
        inside = facts.dotgit == "directory"
        target = f"{WORKSPACE}/.git" if inside else POINTED_GIT_DIR
        self._put(target, Mount(kind="volume", source=GIT_VOLUME, target=target))
        self.git_dirs.append(GitDir(facts.root, GIT_VOLUME, "", None if inside else WORKSPACE))
        if inside:
            return None
        self._pointer("gitdir", f"{WORKSPACE}/.git", POINTED_GIT_DIR)
        return POINTED_GIT_DIR

    def _pointer(self, name: str, target: str, git_dir: str) -> None:
        self.files[name] = f"gitdir: {git_dir}\n"
        self._put(target, Mount(kind="bind", source=engine_text(self.directory / name), target=target, read_only=True))

    def _nested(self, number: int, nested: Nested) -> None:
        """A repository inside the project: its git directory is as private as the project's own."""
        tree = nested.path.parent
        inner = relative(self.facts.root, tree)
        self._ancestors(f"{inner}/.git")
        target = _target(f"{inner}/.git")
        if nested.kind == "directory":
            volume = f"{GIT_VOLUME}-{number}"
            self._put(target, Mount(kind="volume", source=volume, target=target))
            self.git_dirs.append(GitDir(tree, volume, "", None))
            return
        owner = next(
            (top for top in (self.facts.git_dir, self.facts.common_dir) if top and _below(nested.git_dir, top)), None
        )
        if nested.git_dir is None or owner is None:
            # The pointer leads nowhere, or to a repository that is not this project's: nobody can use or change it.
            self.warnings.append(f"{inner}/.git leads to no repository of this project; git will not work in {inner}")
            self._put(target, Mount(kind="bind", source=engine_text(nested.path), target=target, read_only=True))
            return
        root_git = f"{WORKSPACE}/.git" if self.facts.dotgit == "directory" else POINTED_GIT_DIR
        inside = relative(owner, nested.git_dir)
        self.git_dirs.append(GitDir(tree, GIT_VOLUME, inside, _target(inner)))
        self._pointer(f"gitdir-{number}", target, f"{root_git}/{inside}")

    def _hide(self, path: str) -> None:
        self._ancestors(path)
        empty = EMPTY_DIRECTORY if (self.facts.root / path).is_dir() else EMPTY_FILE
        self.files[empty] = ""
        target = _target(path)
        self._put(target, Mount(kind="bind", source=engine_text(self.directory / empty), target=target, read_only=True))

    def _protect(self, path: str) -> None:
        source = self.facts.root / path
        self._ancestors(path)
        self.covered.append(path)
        target = _target(path)
        self._put(target, Mount(kind="bind", source=engine_text(source), target=target, read_only=True))

    def _ancestors(self, path: str) -> None:
        """Each directory on the way is a mount point of its own, so that it cannot be renamed and replaced."""
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            inner = "/".join(parts[:depth])
            target = _target(inner)
            self._put(target, Mount(kind="bind", source=engine_text(self.facts.root / inner), target=target))


def _target(inner: str) -> str:
    return engine_text(Path(WORKSPACE) / inner)


def _below(path: Path | None, top: Path) -> bool:
    return path is not None and path != top and path.is_relative_to(top)
