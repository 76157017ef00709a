"""The records of runs: which there are, what one says, its events, its verification, and their removal.

Reads the store alone: none of it needs an engine, and a record can be read long after its containers are gone. Runs
that are under way, or that nobody finished, are told from their sessions.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from agent_container.commands.context import Context
from agent_container.commands.run_patch import FileChange, read_patch
from agent_container.drain import EVENTS, RAW, RECORD, file_pieces
from agent_container.errors import (
    AgentContainerError,
    Ambiguous,
    NotRunning,
    StoreError,
    Unverifiable,
    UsageError,
)
from agent_container.events import Event, Evidence, Usage, parse_event
from agent_container.frames import split_lines
from agent_container.project import find_project
from agent_container.records import RunRecord, parse_record
from agent_container.store import RunPlace, Store
from agent_container.store.marks import IMPORTED, Origin
from agent_container.store.writer import read_file
from agent_container.verify import TAMPERED, VERIFIED, VerifyResult, check_files, verify_run

MAX_EVENT_BYTES = 64 * 1024 * 1024
MAX_WARNINGS = 50
TIMELINE = 40
MAX_CHANGES = 100
SHOWN_CHARS = 2_000


@dataclass(frozen=True)
class FilesNow:
    """Whether the record's files are still those that the host signed; what the record says of its own chain was true
    when it was written, and is no answer to that."""

    state: Literal["as-recorded", "changed", "cannot-be-told"]
    count: int
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunDetail:
    """What `runs show` says of one run."""

    run: str
    path: Path
    record: RunRecord
    warnings: tuple[str, ...]
    """Lines that could not be read, files that were refused, records that were lost."""
    files: FilesNow
    changes: tuple[FileChange, ...] = ()
    """What its patch says of each file, the first of them."""
    more_changes: int = 0
    timeline: tuple[Event, ...] = ()
    """The last events, long texts shortened."""
    earlier_events: int = 0
    origin: Origin | None = None
    """Where it came from, when it was imported."""
    held: str | None = None
    """Why it is not to be removed."""


def project_here(context: Context) -> str:
    """The project id of the directory where the user stands."""
    return find_project(context.directory, context.spec_path).id


def resolve_run(context: Context, run: str | None) -> RunPlace:
    """The record that `run` names: an id or its beginning, here or anywhere; the newest of this project for None.

    Raises UsageError, and NotRunning for a run that is still under way.
    """
    store, here = context.store, project_here(context)
    if run is None:
        return store.runs.resolve(None, project_id=here)
    try:
        return store.runs.resolve(run, project_id=here)
    except Ambiguous:
        raise  # no other kind of record is meant by what several runs fit
    except UsageError as unknown:
        if not run:
            raise UsageError("an empty run id", hint="agent-container runs ls") from unknown
        under_way = [state.id for state in store.sessions.list() if state.kind == "run" and state.id.startswith(run)]
        try:
            return store.runs.resolve(run)
        except Ambiguous:
            raise
        except UsageError:
            standing = store.sessions.records(run)
            if len(standing) == 1:
                return standing[0]
            if not under_way:
                raise
            raise no_record_yet(store, under_way[0]) from unknown


def show_run(context: Context, run: str | None) -> RunDetail:
    """One run's record, and everything about it that its reader should know first."""
    place = resolve_run(context, run)
    record = load_record(place)
    warnings = tuple(_warnings(place, record))
    mark = context.store.marks.load(place.run_id)
    timeline, events = deque[Event](maxlen=TIMELINE), 0
    for event in read_events(place):
        if not isinstance(event, Usage):
            events += 1
            timeline.append(_shortened(event))
    changes = iter(read_patch(place.path))
    first = tuple(islice(changes, MAX_CHANGES))
    return RunDetail(
        place.run_id,
        place.path,
        record,
        warnings,
        files=_files_now(context.store, place),
        changes=first,
        more_changes=sum(1 for _ in changes),
        timeline=tuple(timeline),
        earlier_events=events - len(timeline),
        origin=mark.origin,
        held=mark.held,
    )


def run_events(context: Context, run: str | None) -> Iterator[Event]:
    """The events of a finished run, in their order; an event of a newer version is passed over."""
    return read_events(resolve_run(context, run))


def run_raw(context: Context, run: str | None) -> Iterator[bytes]:
    """The agent's raw stream as the runner kept it, frames one a line. Raises NotRunning when there is none."""
    place = resolve_run(context, run)
    if not (place.path / RAW).is_file():
        raise NotRunning(f"run {place.run_id} has no {RAW}", hint=f"agent-container runs show {place.run_id}")
    return file_pieces(place.path / RAW)


def verify_record(context: Context, run: str | None, *, egress_only: bool = False) -> VerifyResult:
    """Verifies a run's record with this host's keys, and moves its checkpoint forward when it holds."""
    return verify_place(context.store, resolve_run(context, run), egress_only=egress_only)


def verify_place(store: Store, place: RunPlace, *, egress_only: bool = False) -> VerifyResult:
    """The same for a record whose place is known."""
    if is_imported(place):
        own, former = vouching_keys(store, place)
        return verify_run(place.path, host_key=own, former_keys=former, egress_only=egress_only)
    record_session = place.run_id  # a run has a session of its own, of the same id
    try:
        chain_key = store.sessions.load_chain_key(record_session)
    except Unverifiable:
        chain_key = None  # the manifest of a sealed run holds it too
    result = verify_run(
        place.path,
        chain_key=chain_key,
        checkpoint=store.checkpoints.load(record_session),
        policies=_stored_policies(store, place),
        host_key=store.host_key.published(),
        former_keys=store.host_key.former(),
        egress_only=egress_only,
    )
    if result.exit_code == VERIFIED and result.head is not None:
        store.checkpoints.advance(result.head)
    return result


def load_record(place: RunPlace) -> RunRecord:
    """The record of one run. Raises StoreError."""
    body = read_file(place.path / RECORD)
    if body is None:
        raise StoreError(
            f"the record of run {place.run_id} has no {RECORD}", hint=f"agent-container runs verify {place.run_id}"
        )
    return parse_record(
        body, origin=str(place.path / RECORD), hint=f"what else is amiss: agent-container runs verify {place.run_id}"
    )


def read_events(place: RunPlace) -> Iterator[Event]:
    """The events of one record."""
    path = place.path / EVENTS
    if not path.is_file():
        return
    for line in split_lines(file_pieces(path), max_bytes=MAX_EVENT_BYTES):
        event = None if line.cut else parse_event(line.data)
        if event is not None:
            yield event


def _shortened(event: Event) -> Event:
    """The event with its long texts cut: they are in the record, and `runs logs` shows them."""
    long = {
        name: f"{value[:SHOWN_CHARS]}… ({len(value)} characters)"
        for name, value in event
        if isinstance(value, str) and len(value) > SHOWN_CHARS
    }
    return event.model_copy(update=long) if long else event


def _warnings(place: RunPlace, record: RunRecord) -> Iterator[str]:
    drained = record.host.drained
    yield from drained.notes
    yield from (f"not read: {name}" for name in drained.refused)
    yield from (f"truncated: {name}" for name in drained.truncated)
    bad = [event for event in read_events(place) if isinstance(event, Evidence)]
    for event in bad[:MAX_WARNINGS]:
        yield f"{event.source} line {event.line}: {event.kind}, {event.size} bytes kept as they are"
    if len(bad) > MAX_WARNINGS:
        yield f"and {len(bad) - MAX_WARNINGS} more lines that could not be read"
    if record.host.clock_skew_s is not None:
        yield f"the container's clock was {record.host.clock_skew_s:+.0f} s off"


def is_imported(place: RunPlace) -> bool:
    """Whether a record came from elsewhere."""
    return place.project_id.startswith(IMPORTED)


def vouching_keys(store: Store, place: RunPlace) -> tuple[bytes | None, tuple[bytes, ...]]:
    """The public key that vouches for a record, and former ones as good: this host's, or, for one that came from
    elsewhere, the key that was given for it."""
    if not is_imported(place):
        return store.host_key.published(), store.host_key.former()
    origin = store.marks.load(place.run_id).origin
    return (base64.b64decode(origin.key) if origin is not None and origin.key else None), ()


def _files_now(store: Store, place: RunPlace) -> FilesNow:
    own, former = vouching_keys(store, place)
    found = check_files(place.path, host_key=own, former_keys=former)
    states: dict[int, Literal["as-recorded", "changed"]] = {VERIFIED: "as-recorded", TAMPERED: "changed"}
    words = [f"{row.where}: {row.detail}" for row in found.findings]
    if len(words) > MAX_WARNINGS:
        words[MAX_WARNINGS:] = [f"and {len(words) - MAX_WARNINGS} more"]
    return FilesNow(states.get(found.exit_code, "cannot-be-told"), found.counts.files, tuple(words))


def standing_records(store: Store, project_id: str | None) -> Iterator[RunPlace]:
    """Records of standing environments, newest first, of one project or of all; unreadable ones of any."""
    for place in store.sessions.records(""):
        try:
            owner = load_record(place).host.project_id
        except AgentContainerError:
            owner = project_id or ""
        if project_id is None or owner == project_id:
            yield replace(place, project_id=owner)


def no_record_yet(store: Store, run: str) -> NotRunning:
    """Why an unfinished run has no record, and what to type."""
    owner = store.sessions.owner(run)
    if owner is not None:
        return NotRunning(
            f"run {run} is under way, driven by {owner}, and has no record yet",
            hint=f"agent-container runs attach {run}",
        )
    return NotRunning(f"run {run} was never finished, and nobody drives it", hint=f"agent-container runs recover {run}")


def _stored_policies(store: Store, place: RunPlace) -> dict[str, bytes]:
    """Bodies that the record itself lacks; what the record has is checked against its digest there."""
    from agent_container.manifest import MANIFEST, parse_manifest

    body = read_file(place.path / MANIFEST)
    if body is None:
        return {}
    try:
        digests = parse_manifest(body).policies
    except ValueError:
        return {}
    found = {}
    for digest in digests:
        name = f"policies/{digest.removeprefix('sha256:')}.json"
        stored = None if (place.path / name).exists() else store.policies.load(digest)
        if stored is not None:
            found[digest] = stored
    return found
