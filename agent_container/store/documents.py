"""Small durable documents: sealed credentials, approvals of specs, verified chain heads, policy bodies.

Each is one file whose content its noun encodes; this module decides place, sealing, and what may replace what.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent_container.errors import StoreError, Tampered
from agent_container.store.locks import Locks
from agent_container.store.paths import digest_name, safe_name
from agent_container.store.sealing import Sealer, number_of
from agent_container.store.seen import Seen
from agent_container.store.writer import Writer, read_file


class Sealed:
    """Named secrets, one sealed file each; the name is authenticated, so that files cannot be exchanged, and the number
    of each content, so that the keyring can tell an older one that was put back."""

    def __init__(self, directory: Path, *, kind: str, writer: Writer, sealer: Sealer, seen: Seen) -> None:
        self._directory = directory
        self._kind = kind
        self._writer = writer
        self._sealer = sealer
        self._seen = seen

    def save(self, name: str, document: bytes) -> None:
        """Seals `document` as `name`, in place of what was there, whatever state that is in."""
        with self._sealer.locked(doing=f"setting {name}"):
            self._save(name, document)

    def update(self, name: str, change: Callable[[bytes], bytes]) -> bool:
        """Seals what `change` makes of the document, while no other process can: of two at once none is lost. False
        when there is none."""
        with self._sealer.locked(doing=f"changing {name}"):
            before = self.load(name)
            if before is None:
                return False
            self._save(name, change(before))
            return True

    def _save(self, name: str, document: bytes) -> None:
        path, purpose = self._path(name), self._purpose(name)
        body = read_file(path)
        number = max(0 if body is None else number_of(body), self._seen.number(purpose)) + 1
        self._writer.write(path, self._sealer.seal(document, purpose=purpose, number=number))
        # After the file: killed in between, the file is ahead of what was seen, which is no going back.
        self._seen.note(purpose, number)

    def load(self, name: str) -> bytes | None:
        """The document, None when there is none. Raises Unverifiable when its key cannot be had, StoreError naming the
        file when it is damaged, exchanged or older than what was there."""
        path, purpose = self._path(name), self._purpose(name)
        opened = self._sealer.read(path, purpose=purpose)
        if opened is None:
            return None
        seen = self._seen.number(purpose)
        if opened.number < seen:
            raise StoreError(
                f"{path} is not the newest {purpose}: it is number {opened.number}, the keyring has seen {seen}",
                details=("somebody has put an older file back; what it holds may have been withdrawn",),
                hint=f"set it again, or remove it: agent-container credential rm {name}",
            )
        return opened.secret

    def names(self) -> tuple[str, ...]:
        """All names, sorted; opens nothing."""
        return _stems(self._directory, ".sealed")

    def remove(self, name: str) -> bool:
        """Removes it; False when there was none."""
        path, purpose = self._path(name), self._purpose(name)
        with self._sealer.locked(doing=f"removing {name}"):
            body = read_file(path)
            if body is None:
                return False
            # Before the file goes: put back, it is older than what was seen.
            self._seen.note(purpose, max(number_of(body), self._seen.number(purpose)) + 1)
            return self._writer.remove(path)

    def remember(self) -> None:
        """Tells the keyring of all that is there: the store is locked with it from now on."""
        for name in self.names():
            body = read_file(self._path(name))
            if body is not None:
                self._seen.note(self._purpose(name), number_of(body))

    def _purpose(self, name: str) -> str:
        return f"{self._kind}:{name}"

    def _path(self, name: str) -> Path:
        return self._directory / f"{safe_name(name, what=self._kind)}.sealed"


@dataclass(frozen=True)
class Use:
    """The last time that a sandbox was given a credential."""

    at: datetime
    session: str


class Used:
    """When each credential was last given to a sandbox; for its user to see what is no longer needed."""

    def __init__(self, directory: Path, writer: Writer) -> None:
        self._directory = directory
        self._writer = writer

    def note(self, name: str, *, at: datetime, session: str) -> None:
        """Remembers it in place of the time before."""
        row = {"at": at.isoformat(timespec="seconds"), "session": session}
        self._writer.write(self._path(name), json.dumps(row, sort_keys=True).encode() + b"\n")

    def load(self, name: str) -> Use | None:
        """The last time, None when there was none or it cannot be read: nothing depends on it."""
        body = read_file(self._path(name))
        try:
            row = json.loads(body or b"")
            return Use(datetime.fromisoformat(row["at"]), str(row["session"]))
        except (ValueError, KeyError, TypeError):
            return None

    def forget(self, name: str) -> None:
        """The credential is gone."""
        self._writer.remove(self._path(name))

    def _path(self, name: str) -> Path:
        return self._directory / f"{safe_name(name, what='credential')}.json"


class Approvals:
    """What the user has said yes to, one document a project id."""

    def __init__(self, directory: Path, writer: Writer) -> None:
        self._directory = directory
        self._writer = writer

    def save(self, project_id: str, document: bytes) -> None:
        """Records the approval in place of the one before."""
        self._writer.write(self._path(project_id), document)

    def load(self, project_id: str) -> bytes | None:
        """The last approval, None when the project was never approved."""
        return read_file(self._path(project_id))

    def list(self) -> tuple[str, ...]:
        """Project ids with an approval."""
        return _stems(self._directory, ".json")

    def remove(self, project_id: str) -> bool:
        """Takes the approval back; False when there was none."""
        return self._writer.remove(self._path(project_id))

    def _path(self, project_id: str) -> Path:
        return self._directory / f"{safe_name(project_id, what='project')}.json"


class Touched:
    """Protected paths of a bound project that changed while an agent worked, one document a project id.

    A path stays in it until its user has accepted it, or it is as it was.
    """

    def __init__(self, directory: Path, writer: Writer) -> None:
        self._directory = directory
        self._writer = writer

    def add(self, project_id: str, rows: Mapping[str, str]) -> None:
        """Adds paths, each with the digest that it had before any agent touched it; empty where it did not exist."""
        merged = {**rows, **self.load(project_id)}
        self._writer.write(self._path(project_id), json.dumps(merged, sort_keys=True).encode() + b"\n")

    def load(self, project_id: str) -> dict[str, str]:
        """Path to digest before. Raises StoreError when the document is damaged: unread, it would accept everything."""
        body = read_file(self._path(project_id))
        if body is None:
            return {}
        try:
            rows = json.loads(body)
            return {str(path): str(digest) for path, digest in rows.items()}
        except (ValueError, AttributeError) as bad:
            path = self._path(project_id)
            raise StoreError(f"{path} cannot be read", hint=f"look at the project, then remove {path}") from bad

    def clear(self, project_id: str) -> None:
        """Forgets them: they were accepted."""
        self._writer.remove(self._path(project_id))

    def _path(self, project_id: str) -> Path:
        return self._directory / f"{safe_name(project_id, what='project')}.json"


@dataclass(frozen=True)
class VerifiedHead:
    """The last link of a session's chain that this host has verified, or has been told of while the session was live;
    kept outside the chain itself."""

    session: str
    length: int
    """How many receipts lead up to and include the head."""
    head: str
    """MAC of the last of them, hex."""
    sealed: bool = False


class Checkpoints:
    """One head a session; it only moves forward, and a sealed one never moves."""

    def __init__(self, directory: Path, writer: Writer, locks: Locks) -> None:
        self._directory = directory
        self._writer = writer
        self._locks = locks

    def load(self, session_id: str) -> VerifiedHead | None:
        """The last verified head, None when nothing was verified yet."""
        path = self._path(session_id)
        body = read_file(path, max_bytes=4096)
        if body is None:
            return None
        try:
            row = json.loads(body)
            return VerifiedHead(
                session=str(row["session"]),
                length=int(row["length"]),
                head=str(row["head"]),
                sealed=bool(row["sealed"]),
            )
        except (ValueError, KeyError, TypeError) as bad:
            raise StoreError(
                f"{path} is not a checkpoint", hint="restore it from a backup; without it a cut chain cannot be told"
            ) from bad

    def advance(self, new: VerifiedHead) -> VerifiedHead:
        """Moves the checkpoint forward. Raises Tampered when `new` is behind or beside the one in force."""
        with self._locks.hold("checkpoints", what="the checkpoints", wait_s=10):
            old = self.load(new.session)
            if old == new:
                return new
            if old is not None:
                _check_forward(old, new)
            self._write(new)
        return new

    def note(self, seen: VerifiedHead) -> bool:
        """Moves forward to what a live sidecar tells of itself; False where that is no news, which old words are not.
        Raises Tampered when another receipt stands where one was seen before."""
        with self._locks.hold("checkpoints", what="the checkpoints", wait_s=10):
            old = self.load(seen.session)
            if old is not None and seen.length == old.length and seen.head != old.head:
                raise Tampered(
                    f"receipt {old.length} of session {seen.session} is not the one that was seen before",
                    hint="the record of this session will not verify",
                )
            if old is not None and (old.sealed or seen.length <= old.length):
                return False
            self._write(seen)
        return True

    def _write(self, head: VerifiedHead) -> None:
        row = {"version": 1, "session": head.session, "length": head.length, "head": head.head, "sealed": head.sealed}
        self._writer.write(self._path(head.session), json.dumps(row, sort_keys=True).encode() + b"\n")

    def _path(self, session_id: str) -> Path:
        return self._directory / f"{safe_name(session_id, what='session')}.json"


def _check_forward(old: VerifiedHead, new: VerifiedHead) -> None:
    if new.length < old.length:
        raise Tampered(
            f"the chain of session {new.session} got shorter: {old.length} receipts before, now {new.length}",
            details=(f"{old.length - new.length} receipts are missing at the end",),
        )
    if new.length == old.length and (new.head != old.head or old.sealed):
        raise Tampered(f"receipt {old.length} of session {new.session} is not the one that was verified before")
    if old.sealed:
        raise Tampered(
            f"the chain of session {new.session} was sealed at {old.length} receipts, now there are {new.length}"
        )


class Policies:
    """Policy bodies by their digest, for as long as receipts name them."""

    def __init__(self, directory: Path, writer: Writer) -> None:
        self._directory = directory
        self._writer = writer

    def save(self, body: bytes) -> str:
        """Stores a policy and returns its digest, `sha256:...`."""
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        path = self._directory / digest_name(digest)
        if not self._writer.create(path, body) and read_file(path) != body:
            self._writer.write(path, body)  # it was damaged: the digest says what belongs there
        return digest

    def load(self, digest: str) -> bytes | None:
        """The body, None when it is not stored. Raises Tampered when what is stored has another digest."""
        name = digest_name(digest)
        body = read_file(self._directory / name)
        if body is not None and hashlib.sha256(body).hexdigest() != name:
            raise Tampered(f"the stored policy {digest} has been changed")
        return body


def _stems(directory: Path, suffix: str) -> tuple[str, ...]:
    if not directory.is_dir():
        return ()
    names = (
        entry.name for entry in directory.iterdir() if entry.name.endswith(suffix) and not entry.name.startswith(".")
    )
    return tuple(sorted(name.removesuffix(suffix) for name in names))
