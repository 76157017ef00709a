"""What the index is told of a record: its facts, the files that its patch changes, and the hosts that its receipts name
beyond the record's own table. A record that cannot be read is a fact too."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from agent_container.commands.context import Context
from agent_container.commands.run_patch import changed_paths
from agent_container.drain import RECEIPTS, RECORD, file_pieces
from agent_container.egress_summary import TOP_HOSTS
from agent_container.errors import AgentContainerError
from agent_container.frames import split_lines
from agent_container.manifest import MANIFEST
from agent_container.records import RunRecord, parse_record
from agent_container.run_facts import MAX_HOSTS, MAX_PATHS, RunFacts, facts_of, plain, whole
from agent_container.sandbox.closing import BUNDLE, PATCH, RESCUE
from agent_container.store import RunPlace
from agent_container.store.writer import read_file
from agent_egress.identity import MAX_RECEIPT_BYTES
from agent_egress.receipts import parse_receipt

if TYPE_CHECKING:
    from agent_container.store.index import RunIndex

MAX_RECORD_BYTES = 64 * 1024 * 1024
MAX_MANIFEST_BYTES = 64 * 1024 * 1024


def open_index(context: Context) -> RunIndex:
    """The index of this user's records."""
    return context.store.index(read_facts, progress=context.report)


def read_facts(place: RunPlace, kind: str) -> RunFacts:
    """The facts of one record, whatever is in it. `kind` is `run`, or `up` for a standing environment.

    Work in it counts by its files, which are there also where the record cannot be read, or says that there is none.
    """
    try:
        facts = _read_facts(place, kind)
    except Exception as bad:  # whatever a stranger's record makes of it, the others are answered for
        facts = _unreadable(place, kind, f"the record of run {place.run_id} cannot be read: {type(bad).__name__}")
    return replace(facts, work=True) if not facts.work and _has_work(place.path) else facts


def _read_facts(place: RunPlace, kind: str) -> RunFacts:
    try:
        body = read_file(place.path / RECORD, max_bytes=MAX_RECORD_BYTES)
        if body is None:
            return _unreadable(place, kind, f"the record of run {place.run_id} has no {RECORD}")
        record = parse_record(body, origin=str(place.path / RECORD))
    except AgentContainerError as bad:
        return _unreadable(place, kind, bad.message)
    paths, hosts = list(islice(changed_paths(place.path), MAX_PATHS + 1)), list(_more_hosts(place.path, record))
    return facts_of(
        record,
        kind=kind,
        project_id=place.project_id or None,
        size=record_bytes(place.path),
        hosts=hosts,
        paths=paths,
        cut=len(paths) > MAX_PATHS or len(hosts) > MAX_HOSTS,
    )


def _has_work(directory: Path) -> bool:
    for name in (BUNDLE, PATCH, RESCUE):
        try:
            if (directory / name).lstat().st_size:
                return True
        except FileNotFoundError:
            continue
        except OSError:
            return True  # what cannot be looked at may be work
    return False


def record_bytes(directory: Path) -> int:
    """What a record takes, as its manifest has it."""
    try:
        files = json.loads(read_file(directory / MANIFEST, max_bytes=MAX_MANIFEST_BYTES) or b"{}")["files"]
        return whole(sum(row["bytes"] for row in files.values()))
    except (AgentContainerError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0


def _more_hosts(directory: Path, record: RunRecord) -> Iterator[str]:
    """Hosts of the receipts, where the record's own table was too short for all of them."""
    if len(record.host.egress.top_hosts) < TOP_HOSTS or not (directory / RECEIPTS).is_file():
        return
    seen: set[str] = set()
    with contextlib.suppress(AgentContainerError):
        for line in split_lines(file_pieces(directory / RECEIPTS), max_bytes=MAX_RECEIPT_BYTES + 64):
            receipt = parse_receipt(line.data.removesuffix(b"\n"))
            if receipt is None or (receipt.get("kind"), receipt.get("action")) != ("decision", "allow"):
                continue
            host = receipt.get("host")
            if isinstance(host, str) and host not in seen:
                seen.add(host)
                yield host
                if len(seen) > MAX_HOSTS:
                    return


def _unreadable(place: RunPlace, kind: str, why: str) -> RunFacts:
    return RunFacts(project_id=place.project_id, run=place.run_id, kind=kind, notes=(plain(why),))
