"""git on a private repository: a fixed environment, a fixed configuration, a deadline. Where its parts come from is
`tree`'s business."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Sequence

OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
UNOPENED = re.compile(rb"could not open directory '([^\n]*)'")
IDENTITY = "agent-container"
BASE_SUBJECT = "agent-container base"
"""First line of the commits that this program makes to mark where a run began; they are no part of the work."""


class Failed(Exception):
    """What could not be done, in words for the host to show."""


SETTINGS = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.compression", "1"),  # scratch is memory, and what lies there lives for seconds
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("fetch.fsckObjects", "true"),
    ("advice.detachedHead", "false"),
    ("init.templateDir", ""),
)


def environment(**extra: str) -> dict[str, str]:
    """The whole environment of a git process; nothing is inherited but PATH."""
    fixed = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_DEFAULT_REF_FORMAT": "files",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ALLOW_PROTOCOL": "file",
        "GIT_CONFIG_COUNT": str(len(SETTINGS)),
        "GIT_AUTHOR_NAME": IDENTITY,
        "GIT_AUTHOR_EMAIL": "agent-container@localhost",
        "GIT_COMMITTER_NAME": IDENTITY,
        "GIT_COMMITTER_EMAIL": "agent-container@localhost",
    }
    for number, (key, value) in enumerate(SETTINGS):
        fixed[f"GIT_CONFIG_KEY_{number}"] = key
        fixed[f"GIT_CONFIG_VALUE_{number}"] = value
    return {**fixed, **extra}


@dataclass
class Clock:
    """The time that is left: every git process gets the rest of it and no more."""

    ends: float

    def left(self) -> float:
        """Seconds, more than 0; raises when there are none."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise Failed("time is up")
        return left


@dataclass
class Repository:
    """A private git directory in scratch space, and the tree that it describes (which may be read-only)."""

    git_dir: Path
    tree: Path
    clock: Clock
    object_format: str = "sha1"
    head_branch: str | None = None
    head: str | None = None
    refs: dict[str, str] = field(default_factory=dict)
    config: list[tuple[str, str]] = field(default_factory=list)
    shallow: list[str] = field(default_factory=list)
    exclude: str = ""
    unopened: list[bytes] = field(default_factory=list)
    """Directories that git said it could not look into."""

    def git(
        self,
        *arguments: str,
        stdin: bytes | int = b"",
        stdout: int = subprocess.PIPE,
        check: bool = True,
        objects: Path | None = None,
    ) -> bytes:
        """Runs git; its standard output. `stdin` is bytes or a file descriptor; `objects` receives new objects."""
        env = environment(
            GIT_DIR=str(self.git_dir), GIT_WORK_TREE=str(self.tree), GIT_INDEX_FILE=str(self.git_dir / "index")
        )
        if objects is not None:
            env["GIT_OBJECT_DIRECTORY"] = str(objects)
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=str(self.tree),
                env=env,
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=self.clock.left(),
                check=False,
                **given,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"git {arguments[0]} took too long") from None
        self.unopened += UNOPENED.findall(done.stderr)
        if check and done.returncode != 0:
            raise Failed(f"git {arguments[0]}: {last_words(done.stderr)}")
        return done.stdout or b""

    def has(self, oid: str | None, kind: str = "commit") -> bool:
        """Whether the object is there and is of that kind."""
        return bool(oid) and self.git("cat-file", "-t", str(oid), check=False).decode().strip() == kind

    def tree_of(self, commit: str) -> str:
        """The id of a commit's tree."""
        return self.git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()

    def commit(self, tree: str, message: str, parents: Sequence[str]) -> str:
        """Make a commit by hand; no hook, no signature, no branch moves."""
        flags = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", tree, *flags, stdin=message.encode()).decode().strip()

    @property
    def empty_tree(self) -> str:
        """The id of the tree without files, in this repository's object format."""
        return self.git("hash-object", "-w", "-t", "tree", "--stdin").decode().strip()


def last_words(stderr: bytes) -> str:
    """The end of what a failed git said, on one line."""
    return " / ".join(stderr.decode("utf-8", "replace").strip().splitlines()[-3:])[-600:] or "no message"
