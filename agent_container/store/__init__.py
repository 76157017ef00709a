"""Everything durable: XDG data and state of this user, directories 0700, files 0600, each write whole or not at all.

`Store` hands out one object a noun. What the documents mean belongs to their nouns; what may replace what, which file
is sealed and who may hold which lock is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from agent_container.session import Phase, SessionLimits, SessionState
from agent_container.store.documents import Approvals, Checkpoints, Policies, Sealed, Touched, VerifiedHead
from agent_container.store.host_key import HostKey
from agent_container.store.locks import Holder, Locks
from agent_container.store.paths import Roots, default_roots, safe_name
from agent_container.store.proofs import Proofs
from agent_container.store.runs import RunPlace, Runs
from agent_container.store.sealing import Sealer, key_id
from agent_container.store.sessions import Sessions
from agent_container.store.writer import Writer

__all__ = [
    "Holder",
    "Phase",
    "Roots",
    "RunPlace",
    "SessionLimits",
    "SessionState",
    "Store",
    "VerifiedHead",
    "Writer",
    "default_roots",
    "key_id",
    "open_store",
]


class Store:
    """One data and one state directory. Making it writes nothing; `prepare` makes the directories."""

    def __init__(self, data: Path, state: Path, *, writer: Writer | None = None) -> None:
        self.data = data
        self.state = state
        self.writer = writer or Writer()
        self._locks = Locks(state / "locks", self.writer)
        sealer = Sealer(data / "keys", self.writer)
        self.sessions = Sessions(data=data, state=state, writer=self.writer, sealer=sealer, locks=self._locks)
        self.credentials = Sealed(data / "credentials", kind="credential", writer=self.writer, sealer=sealer)
        self.ssh_keys = Sealed(data / "ssh-keys", kind="ssh-key", writer=self.writer, sealer=sealer)
        self.approvals = Approvals(state / "trust", self.writer)
        self.touched = Touched(state / "touched", self.writer)
        self.checkpoints = Checkpoints(state / "checkpoints", self.writer, self._locks)
        self.policies = Policies(data / "policies", self.writer)
        self.runs = Runs(data / "runs", self.writer)
        self.host_key = HostKey(data / "keys", self.writer, sealer, self._locks)
        self.proofs = Proofs(data / "proofs", self.writer, self.host_key)

    def prepare(self) -> Store:
        """Makes both directories, private to this user. Raises StoreError when they are another's."""
        self.writer.make_private(self.data)
        self.writer.make_private(self.state)
        return self

    def project_lock(self, project_id: str, *, doing: str = "", wait_s: float = 0.0) -> AbstractContextManager[None]:
        """Held by the one process that changes a project's environment. Raises Locked, naming the holder."""
        name = f"project-{safe_name(project_id, what='project')}"
        return self._locks.hold(name, what="this project's environment", doing=doing, wait_s=wait_s)

    def project_owner(self, project_id: str) -> Holder | None:
        """Who holds the project's lock now."""
        return self._locks.holder(f"project-{safe_name(project_id, what='project')}")

    def lock(self, name: str, *, what: str, doing: str = "", wait_s: float = 0.0) -> AbstractContextManager[None]:
        """Any other lock between processes, by name: an image build, for example."""
        return self._locks.hold(f"named-{safe_name(name, what='lock')}", what=what, doing=doing, wait_s=wait_s)


def open_store(environ: Mapping[str, str]) -> Store:
    """The user's own store, its directories made."""
    roots = default_roots(environ)
    return Store(roots.data, roots.state).prepare()
