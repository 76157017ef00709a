"""Records verified beyond one run of this store: one that lies anywhere, by public keys alone, and all at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_container.commands.context import Context
from agent_container.commands.runs import standing_records, verify_place, verify_record
from agent_container.errors import AgentContainerError, StoreError, Tampered, UsageError
from agent_container.manifest import MANIFEST
from agent_container.session import Phase
from agent_container.store import RunPlace, Store
from agent_container.store.host_key import read_public_keys
from agent_container.store.writer import read_file
from agent_container.verify import TAMPERED, UNVERIFIABLE, VERIFIED, Counts, Finding, VerifyResult, verify_run


@dataclass(frozen=True)
class AllVerified:
    """How all records of the store were found."""

    records: int = 0
    verified: int = 0
    tampered: int = 0
    unverifiable: int = 0
    receipts: int = 0

    @property
    def exit_code(self) -> Literal[0, 5, 6]:
        """The worst of them; nothing checked is no success."""
        if self.tampered:
            return TAMPERED
        return UNVERIFIABLE if self.unverifiable or not self.records else VERIFIED

    def __add__(self, result: VerifyResult) -> AllVerified:
        code = result.exit_code
        return AllVerified(
            self.records + 1,
            self.verified + (code == VERIFIED),
            self.tampered + (code == TAMPERED),
            self.unverifiable + (code == UNVERIFIABLE),
            self.receipts + result.counts.receipts,
        )


def is_directory(run: str | None, key: Path | None) -> bool:
    """Whether what was typed names a directory and not a run: a key makes sense for one only, and no id has a slash."""
    return key is not None or (run is not None and (os.sep in run or run in (".", "..")))


def verify_named(context: Context, run: str | None, *, key: Path | None, egress_only: bool = False) -> VerifyResult:
    """A run of this store by its id, or a record that lies anywhere by its path."""
    if not is_directory(run, key):
        return verify_record(context, run, egress_only=egress_only)
    if run is None:
        raise UsageError("which record is it?", hint="agent-container runs verify DIR --key FILE")
    return verify_directory(context, context.directory / run, key=key, egress_only=egress_only)


def verify_directory(context: Context, directory: Path, *, key: Path | None, egress_only: bool = False) -> VerifyResult:
    """A record by the public keys in `key`, and nothing else: no store, no engine, no network. Without `key` by this
    host's own."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory", hint="unpack an exported record first: tar -xzf RUN.tar.gz")
    if not (directory / MANIFEST).exists() and (inner := _only_record(directory)) is not None:
        directory = inner  # what `tar -x` of an export makes
    keys = read_key_file(context.directory / key) if key is not None else context.store.host_key.all_public()
    host_key, former = (keys[0], keys[1:]) if keys else (None, ())
    return verify_run(directory, host_key=host_key, former_keys=former, egress_only=egress_only, elsewhere=True)


def read_key_file(path: Path) -> tuple[bytes, ...]:
    """The public keys of a file that `host-key export` wrote. Raises UsageError."""
    try:
        body = read_file(path.resolve())
        if body is None:
            raise UsageError(f"there is no {path}", hint="on the host of the runs: agent-container host-key export")
        return read_public_keys(body, origin=str(path))
    except StoreError as bad:
        raise UsageError(bad.message, hint="on the host of the runs: agent-container host-key export") from bad


def verify_all(context: Context, *, on_bad: Callable[[VerifyResult], None]) -> AllVerified:
    """Every record of the store, one after the other; `on_bad` gets each that is not verified."""
    store, total = context.store, AllVerified()
    seen = set()
    for place in _places(store):
        seen.add(place.run_id)
        result = _verified(store, place)
        total = total + result
        if result.exit_code != VERIFIED:
            on_bad(result)
    for session in store.sessions.list(closed=True):
        if session.phase is Phase.CLOSED and session.recorded and session.id not in seen:
            gone = _only(session.id, "tampered", "record-gone", "it was published, and is gone; `runs rm` forgets one")
            total = total + gone
            on_bad(gone)
    return total


def _places(store: Store) -> Iterator[RunPlace]:
    yield from store.runs.list()
    yield from standing_records(store, None)


def _verified(store: Store, place: RunPlace) -> VerifyResult:
    """As `verify_place` finds it; one that cannot even be looked at is no reason to leave the others."""
    try:
        return verify_place(store, place)
    except Tampered as bad:
        return _only(place.run_id, "tampered", "changed", bad.message)
    except (AgentContainerError, OSError) as bad:
        return _only(place.run_id, "unverifiable", "unreadable", str(bad))


def _only(run: str, weight: Literal["tampered", "unverifiable"], kind: str, detail: str) -> VerifyResult:
    code: Literal[5, 6] = TAMPERED if weight == "tampered" else UNVERIFIABLE
    return VerifyResult(run=run, exit_code=code, findings=(Finding(weight, kind, run, detail),), counts=Counts())


def _only_record(directory: Path) -> Path | None:
    """What lies in a directory all alone: anything beside it may be what is left of a record whose manifest is gone."""
    found = list(directory.iterdir())
    return found[0] if len(found) == 1 and found[0].is_dir() and not found[0].is_symlink() else None
