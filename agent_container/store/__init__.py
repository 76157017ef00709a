"""Everything durable: XDG data and state of this user, directories 0700, files 0600, each write whole or not at all.

`Store` hands out one object a noun. What the documents mean belongs to their nouns; what may replace what, which file
is sealed and who may hold which lock is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from agent_container.session import Phase, SessionLimits, SessionState
from agent_container.store.datakeys import DataKeys
from agent_container.store.documents import Approvals, Checkpoints, Policies, Sealed, Touched, Used, VerifiedHead
from agent_container.store.host_key import HostKey
from agent_container.store.journal import Journal
from agent_container.store.keydoc import LOCKS, PROTECTS, LockKind, key_id
from agent_container.store.keyrings import Keyring, OsKeyring, keyring_answers
from agent_container.store.locks import Holder, Locks
from agent_container.store.marks import Marks
from agent_container.store.passphrase import Passphrases
from agent_container.store.paths import Roots, default_roots, safe_name
from agent_container.store.proofs import Proofs
from agent_container.store.relock import Relocked, sealed_files
from agent_container.store.runs import RunPlace, Runs
from agent_container.store.sealing import Sealer
from agent_container.store.seen import Seen
from agent_container.store.sessions import Sessions
from agent_container.store.writer import Writer

if TYPE_CHECKING:
    from agent_container.store.index import RunIndex
    from agent_container.store.index_sync import Read

__all__ = [
    "LOCKS",
    "PROTECTS",
    "Holder",
    "LockKind",
    "Passphrases",
    "Phase",
    "Relocked",
    "Roots",
    "RunPlace",
    "SessionLimits",
    "SessionState",
    "Store",
    "VerifiedHead",
    "Writer",
    "default_roots",
    "key_id",
    "keyring_answers",
    "open_store",
]


class Store:
    """One data and one state directory. Making it writes nothing; `prepare` makes the directories."""

    def __init__(
        self,
        data: Path,
        state: Path,
        *,
        writer: Writer | None = None,
        keyring: Keyring | None = None,
        passphrases: Passphrases | None = None,
    ) -> None:
        self.data = data
        self.state = state
        self.writer = writer or Writer()
        self._locks = Locks(state / "locks", self.writer)
        self.passphrases = passphrases or Passphrases({})
        self.keys = DataKeys(
            data / "keys",
            writer=self.writer,
            keyring=keyring or OsKeyring(),
            passphrase=self.passphrases.current,
            in_use=lambda: bool(sealed_files(data)),
        )
        self._sealer = sealer = Sealer(data, keys=self.keys, writer=self.writer, locks=self._locks)
        self._seen = Seen(self.keys)
        self.sessions = Sessions(data=data, state=state, writer=self.writer, sealer=sealer, locks=self._locks)
        self.credentials = self._sealed("credentials", kind="credential")
        self.ssh_keys = self._sealed("ssh-keys", kind="ssh-key")
        self.used = Used(state / "used", self.writer)
        self.approvals = Approvals(state / "trust", self.writer)
        self.touched = Touched(state / "touched", self.writer)
        self.checkpoints = Checkpoints(state / "checkpoints", self.writer, self._locks)
        self.policies = Policies(data / "policies", self.writer)
        self.journal = Journal(data / "records.journal")
        self.runs = Runs(data / "runs", self.writer, self.journal)
        self.marks = Marks(data / "marks", self.writer)
        self.host_key = HostKey(data / "keys", self.writer, sealer, self._locks)
        self.proofs = Proofs(data / "proofs", self.writer, self.host_key)

    def prepare(self) -> Store:
        """Makes both directories, private to this user. Raises StoreError when they are another's."""
        self.writer.make_private(self.data)
        self.writer.make_private(self.state)
        return self

    def relock(self, lock: LockKind, *, abandon: bool = False) -> Relocked:
        """Changes what the store is locked with; killed at any moment it opens, and the same call goes on."""
        done = self._sealer.relock(lock, passphrases=self.passphrases, abandon=abandon)
        if done.lock == "keyring":
            for kind in (self.credentials, self.ssh_keys):
                kind.remember()
        return done

    def sealed_count(self) -> int:
        """How many files are sealed, of whatever kind."""
        return len(sealed_files(self.data))

    def _sealed(self, directory: str, *, kind: str) -> Sealed:
        return Sealed(self.data / directory, kind=kind, writer=self.writer, sealer=self._sealer, seen=self._seen)

    def project_lock(self, project_id: str, *, doing: str = "", wait_s: float = 0.0) -> AbstractContextManager[None]:
        """Held by the one process that changes a project's environment. Raises Locked, naming the holder."""
        name = f"project-{safe_name(project_id, what='project')}"
        return self._locks.hold(name, what="this project's environment", doing=doing, wait_s=wait_s)

    def project_owner(self, project_id: str) -> Holder | None:
        """Who holds the project's lock now."""
        return self._locks.holder(f"project-{safe_name(project_id, what='project')}")

    def index(self, read: Read, *, progress: Callable[[str], None] = lambda _: None) -> RunIndex:
        """The index of the records; `read` gets the facts of one."""
        from agent_container.store.index import RunIndex

        return RunIndex(self.data, journal=self.journal, locks=self._locks, read=read, progress=progress)

    def lock(self, name: str, *, what: str, doing: str = "", wait_s: float = 0.0) -> AbstractContextManager[None]:
        """Any other lock between processes, by name: an image build, for example."""
        return self._locks.hold(f"named-{safe_name(name, what='lock')}", what=what, doing=doing, wait_s=wait_s)


def open_store(environ: Mapping[str, str], *, passphrases: Passphrases | None = None) -> Store:
    """The user's own store, its directories made."""
    roots = default_roots(environ)
    return Store(roots.data, roots.state, passphrases=passphrases or Passphrases(environ)).prepare()
