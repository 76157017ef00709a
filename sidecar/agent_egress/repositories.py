"""A git repository behind ssh, as a row of the policy: where it is, which refs may be written, and the grammar of paths
and refs. What a request for one may do is `gateway_policy`'s."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from agent_egress.names import NameRefused, canonical_name
from agent_egress.rows import Row

SSH_PORT = 22
DEFAULT_USER = "git"
DEFAULT_PUSH = ("refs/heads/agent/*",)
ROW_KEYS = "host port user path push delete origin"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}", re.ASCII)
_SEGMENT = re.compile(r"[A-Za-z0-9._+@~][A-Za-z0-9._+@~-]*", re.ASCII)
_REF = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]+")
MAX_PATH = 180
"""A receipt names it whole."""
MAX_REF = 200
"""As a receipt has it, where each letter that is not ASCII is escaped: cut, it would read as a lie."""


@dataclass(frozen=True)
class Repository:
    """One repository. It may be fetched; pushes need a ref that `push` or `delete` covers."""

    host: str
    port: int
    user: str
    path: str
    """As the server is asked for it: `acme/api.git` below the account's home, or `/srv/api.git`."""
    push: tuple[str, ...] = DEFAULT_PUSH
    """Refs that may be made or moved: exact ones, or all below `refs/heads/agent/*`."""
    delete: tuple[str, ...] = ()
    """Refs that may be deleted."""
    origin: str = ""

    @property
    def text(self) -> str:
        """What receipts and refusals call it."""
        port = "" if self.port == SSH_PORT else f":{self.port}"
        return f"git {self.host}{port} {self.path}"

    def row(self) -> dict[str, object]:
        """Its JSON form."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "path": self.path,
            "push": sorted(set(self.push)),
            "delete": sorted(set(self.delete)),
            "origin": self.origin,
        }


def parse_repository(value: object, where: str, problems: list[str]) -> Repository:
    """A row of the policy; what is wrong is noted in `problems`."""
    row = Row(value, where, problems, ROW_KEYS)
    host, user, path = row.text("host"), row.text("user", DEFAULT_USER), row.text("path")
    try:
        if canonical_name(host) != host:
            problems.append(f"{where}.host: {host!r} is not in its canonical form")
    except NameRefused as error:
        problems.append(f"{where}.host: {host!r}: {error}")
    for key, problem in (("user", user_problem(user)), ("path", path_problem(path))):
        if problem is not None:
            problems.append(f"{where}.{key}: {problem}")
    return Repository(
        host=host,
        port=row.port(row.value.get("port", SSH_PORT), "port"),
        user=user,
        path=path,
        push=row.texts("push", pattern_problem),
        delete=row.texts("delete", pattern_problem),
        origin=row.text("origin", ""),
    )


def user_problem(user: str) -> str | None:
    """What is wrong with an account's name on the server."""
    return None if _USER.fullmatch(user) else f"{user!r:.80} is no account's name"


def path_problem(path: str) -> str | None:
    """What is wrong with a repository's path; it becomes part of a command on the server, so little is right."""
    segments = path.removeprefix("/").split("/")
    if not path or len(path) > MAX_PATH or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        return f"{path!r:.80} is not a repository's path: letters, digits and . _ + @ ~ - between single slashes"
    if any(segment in {".", ".."} for segment in segments):
        return f"{path!r:.80} has `.` or `..` in it"
    return None


def same_repository(asked: str, declared: str) -> bool:
    """Whether a client means this repository: forges take it with and without `/` before and `.git` behind."""
    return _bare(asked) == _bare(declared)


def _bare(path: str) -> str:
    return path.removeprefix("/").removesuffix(".git")


def ref_problem(ref: str) -> str | None:
    """What is wrong with a ref's name: git-check-ref-format(1), and it begins with `refs/`."""
    parts = ref.split("/")
    wrong = (
        len(json.dumps(ref)) - 2 > MAX_REF
        or not ref.startswith("refs/")
        or not _REF.fullmatch(ref)
        or ".." in ref
        or "@{" in ref
        or ref.endswith(".")
        or any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    )
    return f"{ref!r:.80} is not a full ref such as refs/heads/agent/work" if wrong else None


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with a ref or `refs/heads/agent/*`."""
    return ref_problem(pattern[:-1] + "x" if pattern.endswith("/*") else pattern)


def covers(patterns: tuple[str, ...], ref: str) -> str:
    """The first pattern that a ref falls under; empty when there is none."""
    for pattern in patterns:
        if ref == pattern or (pattern.endswith("/*") and ref.startswith(pattern[:-1])):
            return pattern
    return ""
