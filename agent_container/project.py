"""Which project a directory is: its root, its spec, and the id under which keys, homes and records are filed.

The id comes from the real path and the repository's identity, never from the spec's `name`: two checkouts called `app`
stay apart, and a different repository at a known path is a different project. Git's files are read as text, since a
tree that an agent could write must not make the host run git.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from agent_container.errors import SpecError, UsageError

SPEC_NAME = "agent-container.yaml"
MAX_READ_BYTES = 1024 * 1024
_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\](.*)')


@dataclass(frozen=True)
class Project:
    """One directory on this host."""

    root: Path
    """Real path, no link in it."""
    spec_path: Path | None
    """None when there is no spec and the defaults hold."""
    repository: str
    """`remote.origin.url` without a user or password; empty without one."""

    @property
    def id(self) -> str:
        """12 hex digits of SHA-256 over the real path and the repository."""
        return hashlib.sha256(os.fsencode(self.root) + b"\0" + self.repository.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The directory's name, for people."""
        return os.fsencode(self.root.name).decode(errors="replace") or "root"

    @property
    def compose_name(self) -> str:
        """`ac-<slug>-<id>`: legal for Compose, and distinct for each project whatever the directory is called."""
        return f"ac-{slug(self.name)}-{self.id[:8]}"


def slug(name: str) -> str:
    """Lower-case ASCII letters, digits and single `-` of a name, at most 20; never empty."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:20].strip("-") or "project"


def find_project(start: Path, spec: Path | None = None) -> Project:
    """The project of a directory: the nearest ancestor with a spec in the repository around it, else the repository.

    `spec` names another spec file for it; the workspace stays the one of `start`. Raises: UsageError.
    """
    here = real_directory(start)
    candidates = [here, *here.parents]
    top = next((path for path in candidates if _exists(path / ".git")), None)
    if top is not None:
        candidates = candidates[: candidates.index(top) + 1]
    holder = next((path for path in candidates if _exists(path / SPEC_NAME)), None)
    root = holder or top or here
    if spec is not None:
        spec_path: Path | None = _real(spec if spec.is_absolute() else start / spec)
    else:
        spec_path = holder / SPEC_NAME if holder else None
    return Project(root=root, spec_path=spec_path, repository=repository_identity(root))


def real_directory(path: Path) -> Path:
    """The directory with every link resolved. Raises: UsageError when it is missing, a loop or no directory."""
    real = _real(path)
    if not real.is_dir():
        raise UsageError(f"{path} is not a directory", hint="agent-container -C DIRECTORY ...")
    return real


def _real(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path, strict=True))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(f"{path}: symbolic links form a loop") from None
        raise UsageError(f"{path}: {(error.strerror or 'cannot be opened').lower()}") from None
    except ValueError:
        raise UsageError("a path cannot hold a NUL character") from None


def _exists(path: Path) -> bool:
    """Whether there is a name, be it a dangling link: a spec that cannot be read is an error, not an absence."""
    return os.path.lexists(path)


def read_spec(path: Path) -> bytes:
    """The spec's bytes. Raises: SpecError when it is no plain file, too large or unreadable."""
    try:
        body = read_plain(path, max_bytes=MAX_READ_BYTES)
    except OSError as error:
        reason = "symbolic links form a loop" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        raise SpecError(f"{path} cannot be read: {reason}") from None
    if body is None:
        raise SpecError(f"{path} is no plain file, or larger than {MAX_READ_BYTES} bytes")
    return body


def read_plain(path: Path, *, max_bytes: int) -> bytes | None:
    """A plain file's content; None for anything else, which is never waited for, and for more than `max_bytes`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        body = stream.read(max_bytes + 1)
    return body if len(body) <= max_bytes else None


def repository_identity(root: Path) -> str:
    """`remote.origin.url` of the checkout at `root`, user and password left out; empty when there is none."""
    directory = git_directory(root)
    if directory is None:
        return ""
    config = _git_text(directory / "config")
    return _without_user(_origin(config)) if config else ""


def git_directory(root: Path) -> Path | None:
    """Where the repository's config lies: for a linked worktree, in the main repository (gitrepository-layout(5))."""
    dot_git = root / ".git"
    if dot_git.is_dir():
        return dot_git
    pointer = _git_text(dot_git)
    if not pointer or not pointer.startswith("gitdir:"):
        return None
    worktree = root / pointer.removeprefix("gitdir:").strip()
    common = _git_text(worktree / "commondir")
    return worktree / common.strip() if common else worktree


def _git_text(path: Path) -> str | None:
    try:
        body = read_plain(path, max_bytes=MAX_READ_BYTES)
    except (OSError, ValueError):
        return None
    return None if body is None else body.decode(errors="replace")


def _origin(config: str) -> str:
    """The last `url` of `[remote "origin"]`, as git-config(1) reads it; includes are not followed."""
    found, inside = "", False
    for raw in config.splitlines():
        line = raw.strip()
        if match := _SECTION.match(line):
            inside = match[1].lower() == "remote" and match[2] == "origin"
            line = match[3].strip()
        key, equals, value = line.partition("=")
        if inside and equals and key.strip().lower() == "url":
            found = re.split(r"\s[#;]", value)[0].strip().strip('"')
    return found


def _without_user(url: str) -> str:
    """The same identity whoever fetches: a token in the URL neither changes it nor is kept."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return ""
