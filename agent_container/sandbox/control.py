"""The host's half of the sidecar control protocol, version 1: one JSON line in, one out, through the engine's exec.

Secrets (chain key, credentials) travel in the request line on stdin and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from agent_container.engine.protocol import Engine
from agent_container.errors import SidecarError
from agent_egress.fingerprints import Fingerprint
from agent_egress.policy import Policy, PolicyError

VERSION = 1
MOVED = "the policy was changed meanwhile"
"""The sidecar's words for a policy that was not the expected one; a test holds them equal."""
NO_GATEWAY = "this sandbox has no git gateway"
"""The sidecar's words where nothing asked for one; a test holds them equal."""
SSH_TEST_S = 80.0
ARGV = ("/usr/bin/python3", "-I", "-m", "agent_egress.ctl")


class PolicyMoved(SidecarError):
    """Somebody else changed the policy between the look at it and the change."""


@dataclass(frozen=True)
class SealedCredential:
    """What the sidecar needs to swap one decoy: the binding itself is part of the policy."""

    name: str
    decoy: str
    secret: bytes

    def __repr__(self) -> str:
        return f"SealedCredential(name={self.name!r})"


@dataclass(frozen=True)
class SshKeys:
    """What the git gateway needs: ids and OpenSSH texts of keys, which of them is used, and a known_hosts file."""

    keys: tuple[tuple[str, str], ...]
    current: str
    known_hosts: str

    def __repr__(self) -> str:
        return f"SshKeys(current={self.current!r})"


@dataclass(frozen=True)
class Ready:
    """A sidecar that came up healthy."""

    ca_pem: str
    ruleset_digest: str
    policy_digest: str
    checks: tuple[tuple[str, bool, str], ...]


@dataclass(frozen=True)
class InForce:
    """The policy that a sidecar holds."""

    policy: Policy
    """The one that it was given; while cut, nothing of it holds."""
    cut: bool
    digest: str
    """Of what is enforced at this moment."""


@dataclass(frozen=True)
class Hits:
    """How often one rule decided one way."""

    rule: str
    """`allow api.example.com`; empty where no rule matched."""
    action: str
    count: int


@dataclass(frozen=True)
class Seal:
    """The end of a receipt chain, as the sidecar wrote it."""

    head: str
    length: int


class SidecarControl:
    """Requests to one sidecar. Every method raises SidecarError naming the part that failed."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container

    def open_session(self, *, session: str, chain_key: bytes, wait_s: float) -> Ready:
        """Hands over the chain key and waits until the sidecar is healthy; harmless to repeat with the same key."""
        answer = self._ask(
            {"op": "session.open", "session": session, "chain_key": chain_key.hex(), "wait_s": wait_s},
            timeout_s=wait_s + 10,
        )
        checks = answer.get("checks")
        rows = checks if isinstance(checks, list) else []
        return Ready(
            ca_pem=_text(answer, "ca_pem"),
            ruleset_digest=_text(answer, "ruleset_digest"),
            policy_digest=_text(answer, "digest"),
            checks=tuple(
                (str(row.get("name")), row.get("ok") is True, str(row.get("detail") or ""))
                for row in rows
                if isinstance(row, dict)
            ),
        )

    def policy(self) -> InForce:
        """The policy with what was added to it live, and whether everything is cut."""
        answer = self._ask({"op": "policy.get"})
        try:
            policy = Policy.parse(json.dumps(answer.get("policy")).encode())
        except PolicyError as error:
            raise SidecarError(
                "the egress sidecar's policy cannot be read by this version",
                part="policy",
                details=error.problems,
                hint="agent-container redeploy",
            ) from None
        return InForce(policy, cut=answer.get("cut") is True, digest=_text(answer, "digest"))

    def put_policy(self, policy: Policy, *, expect: str) -> str:
        """Replaces the policy, whole or not at all; the digest of what is enforced then. `expect` is the digest of the
        policy that this one was made from. Raises PolicyMoved when another is there by now."""
        document = json.loads(policy.encode())
        try:
            answer = self._ask({"op": "policy.put", "policy": document, "expect": expect})
        except SidecarError as error:
            raise (PolicyMoved(error.message, part=error.part) if MOVED in error.message else error) from None
        return _text(answer, "digest")

    def hits(self) -> tuple[Hits, ...]:
        """How often each rule decided since the session began."""
        rows = self._ask({"op": "hits"}).get("hits")
        return tuple(
            Hits(_text(row, "rule"), _text(row, "action"), count)
            for row in (rows if isinstance(rows, list) else [])
            if _is_object(row) and isinstance(count := row.get("count"), int)
        )

    def make_ready(
        self,
        *,
        core: int,
        deadline_s: float | None,
        credentials: Sequence[SealedCredential],
        stored: Sequence[Fingerprint] | None = None,
        ssh: SshKeys | None = None,
    ) -> None:
        """The last words before an agent starts, in one exec: how many ways out were tried, when the sidecar is to cut
        egress by itself, and the credentials. Each is said only when the one before was taken. `stored` are
        fingerprints of other secrets that are not to leave, None keeps those that are known."""
        requests: list[dict[str, object]] = [{"op": "posture", "core": core}]
        if deadline_s is not None:
            requests.append({"op": "deadline", "seconds": deadline_s})
        if credentials or stored:
            requests.append(_credentials(credentials, stored))
        if ssh is not None:
            requests.append(_ssh(ssh))
        self._ask_all(requests)

    def rotate(self, name: str, secret: bytes | None) -> None:
        """Another secret behind the placeholder that the sandbox has, or none any more; it holds from the next request
        on. Raises SidecarError, when the session has no such credential too."""
        row = {"name": name, "secret": None if secret is None else secret.decode("latin-1")}
        self._ask({"op": "credential.put", "rotate": True, "credentials": [row]})

    def put_ssh(self, ssh: SshKeys) -> None:
        """Replaces the keys and pins of the git gateway; what is under way goes on with the old ones."""
        self._ask(_ssh(ssh))

    def test_ssh(self, *, key: str, repository: str) -> tuple[bool, str]:
        """Whether a repository's server takes a key, and its words."""
        answer = self._ask({"op": "ssh.test", "key": key, "repository": repository}, timeout_s=SSH_TEST_S)
        return answer.get("taken") is True, _text(answer, "words")

    def cut(self) -> str:
        """Ends every connection and allows none; the digest of what is enforced then."""
        return _text(self._ask({"op": "cut"}), "digest")

    def restore(self) -> str:
        """Undoes a cut; the digest of what is enforced then."""
        return _text(self._ask({"op": "restore"}), "digest")

    def status(self) -> dict[str, object]:
        """The sidecar's own view of its health, for `status`."""
        return self._ask({"op": "status"}, timeout_s=10)

    def seal(self, *, outcome: str) -> Seal:
        """Ends the chain; everything is denied from then on. Harmless to repeat."""
        answer = self._ask({"op": "seal", "outcome": outcome}, timeout_s=30)
        length = answer.get("length")
        return Seal(head=_text(answer, "head"), length=length if isinstance(length, int) else 0)

    def _ask(self, request: dict[str, object], *, timeout_s: float = 20) -> dict[str, object]:
        return self._ask_all([request], timeout_s=timeout_s)[0]

    def _ask_all(self, requests: Sequence[dict[str, object]], *, timeout_s: float = 20) -> list[dict[str, object]]:
        lines = b"".join(json.dumps({"v": VERSION, **request}).encode() + b"\n" for request in requests)
        done = self._engine.exec(self._container, ARGV, stdin=lines, timeout_s=timeout_s)
        answers: list[dict[str, object]] = []
        said = done.stdout.splitlines()
        for number, request in enumerate(requests):
            try:
                answer: object = json.loads(said[number])
            except (ValueError, IndexError):
                answer = None
            if not _is_object(answer):
                words = done.stderr.decode(errors="replace").strip().splitlines()
                raise SidecarError(
                    f"the egress sidecar gave no answer to {request['op']}", part="control", details=words[-8:]
                )
            if answer.get("ok") is not True:
                raise _refusal(str(request["op"]), answer.get("error"))
            answers.append(answer)
        return answers


def _credentials(credentials: Sequence[SealedCredential], stored: Sequence[Fingerprint] | None) -> dict[str, object]:
    rows = [{"name": c.name, "decoy": c.decoy, "secret": c.secret.decode("latin-1")} for c in credentials]
    more = {} if stored is None else {"stored": [row.row() for row in stored]}
    return {"op": "credential.put", "credentials": rows, **more}


def _ssh(ssh: SshKeys) -> dict[str, object]:
    return {"op": "ssh.put", "keys": dict(ssh.keys), "current": ssh.current, "known_hosts": ssh.known_hosts}


def _refusal(operation: str, error: object) -> SidecarError:
    fields = error if _is_object(error) else {}
    part = str(fields.get("part") or "control")
    output = str(fields.get("output") or "").strip().splitlines()
    message = str(fields.get("message") or "no reason given")
    return SidecarError(
        f"the egress sidecar refused {operation}: {part}: {message}",
        part=part,
        details=output[-12:],
        hint="`agent-container down` removes what is left; `agent-container render` shows the configuration",
    )


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _text(answer: dict[str, object], key: str) -> str:
    value = answer.get(key)
    return value if isinstance(value, str) else ""
