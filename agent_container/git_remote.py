"""A repository's address as people write it for git over ssh, taken apart. Its grammar is the sidecar's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_egress.names import canonical_name
from agent_egress.repositories import DEFAULT_USER, SSH_PORT, path_problem, user_problem

_SCP = re.compile(r"(?:([^@/:]+)@)?([^@/:]+):(?!/)(.+)")
_URL = re.compile(r"(?:git\+)?ssh://(?:([^@/:]+)@)?([^@/:]+)(?::(\d{1,5}))?(/.+)")


@dataclass(frozen=True)
class GitRemote:
    """Where a repository is."""

    host: str
    port: int
    user: str
    path: str

    @property
    def text(self) -> str:
        """For people, and for git."""
        if self.port == SSH_PORT and not self.path.startswith("/"):
            return f"{self.user}@{self.host}:{self.path}"
        port = "" if self.port == SSH_PORT else f":{self.port}"
        return f"ssh://{self.user}@{self.host}{port}/{self.path.removeprefix('/')}"


def parse_remote(text: str) -> GitRemote:
    """`git@host:path` or `ssh://git@host:port/path`. Raises: ValueError saying what was expected."""
    url, scp = _URL.fullmatch(text), _SCP.fullmatch(text)
    if url is not None:
        user, host, port, path = url[1], url[2], int(url[3] or SSH_PORT), url[4]
    elif scp is not None and "://" not in text:
        user, host, port, path = scp[1], scp[2], SSH_PORT, scp[3]
    else:
        raise ValueError("expected a repository over ssh, such as git@github.com:acme/api.git or ssh://git@host/path")
    user = user or DEFAULT_USER
    problem = user_problem(user) or path_problem(path.removesuffix("/"))
    if problem is not None:
        raise ValueError(problem)
    if not 0 < port < 65536:
        raise ValueError(f"{port} is not a port")
    return GitRemote(canonical_name(host), port, user, path.removesuffix("/"))


def parse_remote_text(text: str) -> str:
    """The same, in its one spelling."""
    return parse_remote(text).text


def ssh_remote(url: str) -> GitRemote | None:
    """The repository behind a project's own remote; None where it is not one over ssh."""
    try:
        return parse_remote(url)
    except ValueError:
        return None
