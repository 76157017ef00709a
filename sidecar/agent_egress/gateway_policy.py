"""What the git gateway may do for the agent: which repository a request means, what command that is on the server, and
which refs a push may touch. Pure; the same in the gateway, in squid's policy process and in the replay of receipts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent_egress.names import NameRefused, canonical_name
from agent_egress.pktline import Command
from agent_egress.repositories import (
    DEFAULT_USER,
    SSH_PORT,
    Repository,
    covers,
    path_problem,
    ref_problem,
    same_repository,
    user_problem,
)
from agent_egress.rules import Policy

SERVICES = {"git-upload-pack": "fetch", "git-receive-pack": "push"}
PROGRAMS = {service: program for program, service in SERVICES.items()}
REQUEST_KEYS = frozenset({"v", "destination", "port", "command", "protocol"})
PROTOCOLS = ("", "version=0", "version=1", "version=2")
MAX_TEXT = 1024
_COMMAND = re.compile(r"(git-[a-z-]+) '([^'\\\x00-\x1f]*)'")


class RequestRefused(ValueError):
    """A request that cannot be read, or is of a kind that is never carried out."""


@dataclass(frozen=True)
class Request:
    """What git asked its ssh for."""

    host: str
    port: int
    user: str
    service: str
    """`fetch` or `push`."""
    path: str
    protocol: str


@dataclass(frozen=True)
class GitDecision:
    """The answer, and the repository that gave it."""

    allowed: bool
    reason: str
    repository: Repository | None = None

    @property
    def rule(self) -> str:
        """The repository's text; empty when none matched."""
        return self.repository.text if self.repository is not None else ""


def parse_request(document: object) -> Request:
    """A client's request: the destination, port and command that git gives to ssh. Raises: RequestRefused."""
    if not isinstance(document, Mapping) or set(document) != REQUEST_KEYS or document["v"] != 1:
        raise RequestRefused("not a request of the git client's")
    destination, command, protocol = (document[key] for key in ("destination", "command", "protocol"))
    port = SSH_PORT if document["port"] is None else document["port"]
    for text in (destination, command, protocol):
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise RequestRefused("not a request of the git client's")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise RequestRefused("no port")
    if protocol not in PROTOCOLS:
        raise RequestRefused("an unknown version of git's protocol")
    user, at, host = str(destination).rpartition("@")
    match = _COMMAND.fullmatch(str(command))
    service = SERVICES.get(match[1]) if match is not None else None
    if match is None or service is None:
        raise RequestRefused(f"{command!r:.80} is neither a fetch nor a push, and nothing else goes over ssh")
    try:
        host = canonical_name(host)
    except NameRefused as error:
        raise RequestRefused(f"{host!r:.80}: {error}") from error
    problem = path_problem(match[2]) or (user_problem(user) if at else None)
    if problem is not None:
        raise RequestRefused(problem)
    return Request(host, port, user or DEFAULT_USER, service, match[2], str(protocol))


def decide_repository(policy: Policy, request: Request) -> GitDecision:
    """May this repository be fetched from, or pushed to at all? Which refs, `decide_push` says."""
    host = decide_git_host(policy, request.host, request.port)
    if not host.allowed:
        return host
    for repository in policy.git:
        if (repository.host, repository.port, repository.user) == (request.host, request.port, request.user) and (
            same_repository(request.path, repository.path)
        ):
            if request.service == "push" and not repository.push and not repository.delete:
                return GitDecision(False, "it may be fetched, not pushed to", repository)
            return GitDecision(True, "", repository)
    return GitDecision(False, "no repository of the spec's `git` is this one")


def decide_git_host(policy: Policy, host: str, port: int) -> GitDecision:
    """May the gateway connect there at all? Whatever denies the host denies its repositories."""
    if policy.broken:
        return GitDecision(False, policy.broken)
    found = next((row for row in policy.git if (row.host, row.port) == (host, port)), None)
    if found is None:
        return GitDecision(False, "no repository of the spec's `git` is on that host and port")
    _, refuses = policy.matching(host)
    if refuses:
        return GitDecision(False, f"denied by a rule ({refuses[0].text}, from {refuses[0].origin})", found)
    return GitDecision(True, "", found)


def decide_push(repository: Repository, command: Command) -> str:
    """Why a ref may not be touched so; empty when it may. Whether a move is a forced one only the server can tell."""
    problem = ref_problem(command.ref)
    if problem is not None:
        return problem
    if command.deletes:
        return "" if covers(repository.delete, command.ref) else f"{command.ref} may not be deleted"
    if covers(repository.push, command.ref):
        return ""
    allowed = ", ".join(repository.push) or "none"
    return f"{command.ref} may not be pushed; allowed: {allowed}"


def server_command(repository: Repository, service: str) -> str:
    """What is run on the server: the path as the policy spells it, not as the client did."""
    return f"{PROGRAMS[service]} '{repository.path}'"


def refusal_words(reason: str, *, what: str) -> str:
    """What the agent reads; one line of printable ASCII."""
    words = f"agent-container: git over ssh refused: {what}: {reason}. Its user decides in agent-container.yaml, `git:`"
    return "".join(char if 0x20 <= ord(char) < 0x7F else "?" for char in words)
