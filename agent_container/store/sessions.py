"""Sessions on disk: their state, their sealed chain key, the files rendered for their sidecar, their owner's lock.

State is of this machine and lies in the state directory; the chain key and the receipts of standing environments
are evidence and lie in the data directory. A session whose lock nobody holds is an orphan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Set
from contextlib import AbstractContextManager
from pathlib import Path

from agent_container.errors import NotRunning, StoreError, Unverifiable
from agent_container.session import Phase, SessionState, parse_session
from agent_container.store.locks import Holder, Locks
from agent_container.store.paths import safe_name
from agent_container.store.runs import RunPlace
from agent_container.store.sealing import Sealer
from agent_container.store.writer import LEFTOVER_AGE_S, TEMP_PREFIX, Writer, read_file

CHAIN_KEY_BYTES = 32
TAKE_WAIT_S = 2.0


class Sessions:
    """Every session this host knows of."""

    def __init__(self, *, data: Path, state: Path, writer: Writer, sealer: Sealer, locks: Locks) -> None:
        self._data = data / "sessions"
        self._state = state / "sessions"
        self._writer = writer
        self._sealer = sealer
        self._locks = locks

    def save(self, session: SessionState) -> SessionState:
        """Writes the state; call it before the Docker objects that it names are made."""
        self._writer.write(self._state_file(session.id), session.encode())
        return session

    def load(self, session_id: str) -> SessionState:
        """The state of one session. Raises NotRunning when there is none."""
        path = self._state_file(session_id)
        body = read_file(path)
        if body is None:
            raise NotRunning(f"there is no session {session_id}", hint="agent-container ls")
        return parse_session(body, origin=str(path))

    def list(
        self, project_id: str | None = None, *, closed: bool = False, among: Set[str] | None = None
    ) -> tuple[SessionState, ...]:
        """Sessions, oldest first, of one project or of all; closed ones only when asked for; with `among`, no others
        than these are even read.

        A file that cannot be read raises: an unseen session would be an orphan that nobody looks for.
        """
        found = []
        for session_id in _names(self._state) if among is None else sorted(among):
            body = read_file(self._state_file(session_id))
            if body is None:
                continue  # made or removed at this very moment: its directory is older than its file
            session = parse_session(body, origin=str(self._state_file(session_id)))
            if project_id is not None and session.project_id != project_id:
                continue
            if session.phase is not Phase.CLOSED or closed:
                found.append(session)
        return tuple(found)

    def ids(self) -> tuple[str, ...]:
        """Of every session, closed ones too; nothing is read."""
        return tuple(_names(self._state))

    def close(self, session_id: str, *, outcome: str | None = None) -> SessionState:
        """Marks a session as drained and removed; its evidence stays."""
        session = self.load(session_id)
        changes: dict[str, object] = {"phase": Phase.CLOSED}
        if outcome is not None:
            changes["outcome"] = outcome
        return self.save(session.updated(**changes))

    def forget(self, session_id: str) -> None:
        """Forgets all of a session, its chain key included: its record was removed for good."""
        self.remove(session_id)
        self._writer.remove_tree(self.evidence_dir(session_id))

    def remove(self, session_id: str) -> None:
        """Forgets a session and its rendered files. The chain key and the receipts stay: records need them."""
        self._writer.remove_tree(self._state / safe_name(session_id, what="session"))
        self._locks.forget(_lock_name(session_id))

    def lock(self, session_id: str, *, doing: str = "", wait_s: float = TAKE_WAIT_S) -> AbstractContextManager[None]:
        """Held by the process that drives the session for as long as it does. Raises Locked."""
        return self._locks.hold(_lock_name(session_id), what=f"session {session_id}", doing=doing, wait_s=wait_s)

    def owner(self, session_id: str) -> Holder | None:
        """The process that drives the session now; None means an orphan."""
        return self._locks.holder(_lock_name(session_id))

    def orphans(self, project_id: str | None = None) -> Iterator[SessionState]:
        """Runs that are not closed and that nobody drives. Standing environments have no driver and are none."""
        for session in self.list(project_id):
            if session.kind == "run" and self.owner(session.id) is None:
                yield session

    def request_stop(self, session_id: str) -> None:
        """Asks the process that drives the session to end it in order."""
        self._writer.write(self._stop_file(session_id), b"")

    def stop_requested(self, session_id: str) -> bool:
        """Whether anybody has asked."""
        return self._stop_file(session_id).exists()

    def save_chain_key(self, session_id: str, key: bytes) -> None:
        """Seals the 32-byte chain key. A session has one for ever: raises StoreError for a second one."""
        if len(key) != CHAIN_KEY_BYTES:
            raise StoreError(f"a chain key has {CHAIN_KEY_BYTES} bytes, this one {len(key)}")
        path = self.evidence_dir(session_id) / "chain.key"
        made = self._sealer.create(path, key, purpose=f"chain-key:{session_id}")
        if not made and self.load_chain_key(session_id) != key:
            raise StoreError(f"session {session_id} has a chain key already")

    def load_chain_key(self, session_id: str) -> bytes:
        """The chain key. Raises Unverifiable when it, or the key that sealed it, is missing."""
        path = self.evidence_dir(session_id) / "chain.key"
        opened = self._sealer.read(path, purpose=f"chain-key:{session_id}")
        if opened is None:
            raise Unverifiable(f"the chain key of session {session_id} is missing")
        return opened.secret

    def evidence_dir(self, session_id: str) -> Path:
        """Where the session's chain key and, for a standing environment, its receipts lie. Need not exist."""
        return self._data / safe_name(session_id, what="session")

    def record_place(self, project_id: str, session_id: str) -> RunPlace:
        """Where the record of a standing environment lies: with its evidence, apart from the runs."""
        return RunPlace(project_id, session_id, self.evidence_dir(session_id) / session_id)

    def records(self, prefix: str) -> tuple[RunPlace, ...]:
        """Records of standing environments whose id begins so, newest first."""
        found = []
        for session_id in sorted(_names(self._data), reverse=True):
            place = self.record_place("", session_id)
            if session_id.startswith(prefix) and place.path.is_dir():
                found.append(place)
        return tuple(found)

    def rendered_dir(self, session_id: str) -> Path:
        """Where `save_rendered` writes. Need not exist."""
        return self._state / safe_name(session_id, what="session") / "etc"

    def save_rendered(self, session_id: str, files: Mapping[str, str]) -> Path:
        """Writes the sidecar's files for a read-only bind. Mode 0644 inside a 0700 store: the sidecar's own uids
        read them through the mount, other users of this host cannot get there."""
        directory = self.rendered_dir(session_id)
        for name, text in files.items():
            self._writer.write(directory / safe_name(name, what="rendered file"), text.encode(), mode=0o644)
        # Not 0700: this directory itself is what the sidecar's uids see. The 0700 ones above it keep others out.
        directory.chmod(0o755)
        return directory

    def sweep(self) -> int:
        """Removes leftovers of killed writers, and directories of sessions that were never written down."""
        tops = [self._state, self._data]
        return (
            sum(self._writer.sweep(top) for top in tops)
            + sum(self._writer.sweep(top / name) for top in tops for name in _names(top))
            + sum(self._forget_unborn(name) for name in _names(self._state))
        )

    def _forget_unborn(self, session_id: str) -> bool:
        """A session whose process was killed before its first state. A young one may be about to be born."""
        directory = self._state / session_id
        try:
            old = time.time() - directory.stat().st_mtime > LEFTOVER_AGE_S
        except FileNotFoundError:
            return False
        if not old or self._state_file(session_id).exists() or self.owner(session_id) is not None:
            return False
        self._writer.remove_tree(directory)
        return True

    def _stop_file(self, session_id: str) -> Path:
        return self._state / safe_name(session_id, what="session") / "stop"

    def _state_file(self, session_id: str) -> Path:
        return self._state / safe_name(session_id, what="session") / "session.json"


def _names(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith(TEMP_PREFIX))


def _lock_name(session_id: str) -> str:
    return f"session-{safe_name(session_id, what='session')}"
