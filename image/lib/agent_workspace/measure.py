"""What lies between two commits: the numbers, the patch, and the paths that deserve a look before anything runs on
the host."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from agent_workspace.git import Repository
from agent_workspace.staging import matches

LINK, GITLINK = "120000", "160000"
SENSITIVE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "git hooks",
        (".husky", ".githooks", ".pre-commit-config.yaml", "lefthook.y*ml", ".lefthook.y*ml", ".lintstagedrc*"),
    ),
    (
        "CI",
        (
            *(".github", ".gitlab", ".gitlab-ci.yml", ".circleci", ".buildkite", ".forgejo", ".gitea", ".woodpecker*"),
            *(
                "azure-pipelines.y*ml",
                ".travis.yml",
                ".drone.yml",
                "jenkinsfile",
                "bitbucket-pipelines.yml",
                ".cirrus.yml",
            ),
        ),
    ),
    (
        "editor settings",
        (".vscode", ".idea", ".fleet", ".zed", ".devcontainer", ".devcontainer.json", "*.code-workspace"),
    ),
    (
        "agent settings",
        (
            ".claude",
            ".codex",
            ".gemini",
            ".opencode",
            "opencode.json*",
            ".pi",
            ".cursor",
            ".cursorrules",
            ".mcp.json",
            ".aider*",
        ),
    ),
    ("the spec", ("agent-container.yaml",)),
    ("git settings", (".gitattributes", ".gitmodules", ".lfsconfig", ".gitconfig")),
    (
        "shell environment",
        (".envrc", ".env", ".mise.toml", "mise.toml", ".tool-versions", ".bashrc", ".profile", ".zshrc"),
    ),
    (
        "lock file",
        (
            *(
                "package-lock.json",
                "npm-shrinkwrap.json",
                "yarn.lock",
                "pnpm-lock.yaml",
                "bun.lock",
                "bun.lockb",
                "deno.lock",
            ),
            *("cargo.lock", "poetry.lock", "uv.lock", "pdm.lock", "pipfile.lock", "requirements*.lock", "gemfile.lock"),
            *(
                "composer.lock",
                "go.sum",
                "flake.lock",
                "mix.lock",
                "gradle.lockfile",
                "packages.lock.json",
                "pubspec.lock",
            ),
        ),
    ),
    ("registry settings", (".npmrc", ".yarnrc*", ".pypirc", "pip.conf", ".cargo")),
)
"""Kind, and names that count at any depth of the tree, in lower case: file systems that fold case exist."""


@dataclass(frozen=True)
class Change:
    """One path that differs; the object id of a side that does not exist is all zeros."""

    path: str
    old_mode: str
    new_mode: str
    old: str
    new: str


def changes(repository: Repository, base: str, result: str) -> list[Change]:
    """Every path that differs between two trees, renames as removal and addition."""
    fields = repository.git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", base, result).split(b"\0")
    found = []
    for row, name in zip(fields[::2], fields[1::2]):  # noqa: B905 - Python 3.9
        old_mode, new_mode, old, new, _ = row.decode().lstrip(":").split(" ")
        found.append(Change(os.fsdecode(name), old_mode, new_mode, old, new))
    return found


def sensitive(repository: Repository, found: Sequence[Change], *, also: Sequence[str] = ()) -> list[dict[str, str]]:
    """The changed paths that the host or its tools run or obey, and links that lead out of the tree, each with its
    kind."""
    rows = []
    for change in found:
        kind = _kind(change.path, also)
        if GITLINK in (change.old_mode, change.new_mode):
            kind = "submodule"
        elif change.new_mode == LINK:
            target = os.fsdecode(repository.git("cat-file", "blob", change.new))
            if _leaves(change.path, target):
                kind = "link out of the tree"
        if kind is not None:
            rows.append({"path": change.path, "kind": kind})
    return rows


def _kind(path: str, also: Sequence[str]) -> str | None:
    if matches(path, also):
        return "protected"
    lowered = path.lower()
    parts = lowered.split("/")
    for kind, globs in SENSITIVE:
        if any(matches(part, globs) for part in parts):
            return kind
    return None


def _leaves(path: str, target: str) -> bool:
    """Whether a link leads out of the tree or into its `.git`, judged by its text alone."""
    if target.startswith("/"):
        return True
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return inside.split("/")[0].lower() in ("..", ".git")


def measure(
    repository: Repository, base: str, result: str, *, also: Sequence[str] = ()
) -> tuple[dict[str, Any], list[Change]]:
    """The numbers and names for a summary, and the changes themselves."""
    found = changes(repository, base, result)
    insertions = deletions = 0
    for row in repository.git(
        "diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-ext-diff", base, result
    ).split(b"\0"):
        added, _, rest = row.partition(b"\t")
        if added.isdigit():
            insertions += int(added)
            deletions += int(rest.partition(b"\t")[0])
    return {
        "files_changed": len(found),
        "insertions": insertions,
        "deletions": deletions,
        "sensitive": sensitive(repository, found, also=also),
    }, found


def write_patch(repository: Repository, base: str, result: str, path: Path) -> None:
    """A binary patch that `git apply` takes, free of any setting's influence."""
    shape = ("--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
    with path.open("wb") as out:
        repository.git("diff-tree", "-r", "-p", *shape, *prefixes, base, result, stdout=out.fileno())
