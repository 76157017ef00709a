"""What the index is told of a record: its facts, the files that its patch changes, and the hosts that its receipts name
beyond the record's own table. A record that cannot be read is a fact too."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from agent_container.commands.context import Context
from agent_container.drain import RECEIPTS, RECORD, file_pieces
from agent_container.egress_summary import TOP_HOSTS
from agent_container.errors import AgentContainerError
from agent_container.frames import split_lines
from agent_container.manifest import MANIFEST
from agent_container.records import RunRecord, parse_record
from agent_container.run_facts import MAX_HOSTS, MAX_PATHS, RunFacts, facts_of, plain, whole
from agent_container.sandbox.closing import PATCH
from agent_container.store import RunPlace
from agent_container.store.writer import read_file
from agent_egress.identity import MAX_RECEIPT_BYTES
from agent_egress.receipts import parse_receipt

if TYPE_CHECKING:
    from agent_container.store.index import RunIndex

MAX_RECORD_BYTES = 64 * 1024 * 1024
MAX_HEADER = 16 * 1024
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def open_index(context: Context) -> RunIndex:
    """The index of this user's records."""
    return context.store.index(read_facts, progress=context.progress)


def read_facts(place: RunPlace, kind: str) -> RunFacts:
    """The facts of one record, whatever is in it. `kind` is `run`, or `up` for a standing environment."""
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


def record_bytes(directory: Path) -> int:
    """What a record takes, as its manifest has it."""
    try:
        files = json.loads(read_file(directory / MANIFEST, max_bytes=MAX_MANIFEST_BYTES) or b"{}")["files"]
        return whole(sum(row["bytes"] for row in files.values()))
    except (AgentContainerError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0


def changed_paths(directory: Path) -> Iterator[str]:
    """The paths in a record's patch. The patch is the work of a program next to the agent: what is no header is passed
    over, and a name is no more than a name."""
    if not (directory / PATCH).is_file():
        return
    with contextlib.suppress(AgentContainerError):
        for line in split_lines(file_pieces(directory / PATCH), max_bytes=MAX_HEADER):
            if line.data.startswith(b"diff --git ") and not line.cut:
                path = _header_path(line.data.removeprefix(b"diff --git ").rstrip(b"\r\n"))
                if path is not None:
                    yield path


def _header_path(names: bytes) -> str | None:
    """The second of `a/PATH b/PATH`; both are the same, since a rename is shown as two changes."""
    text = names.decode("utf-8", "backslashreplace")
    if text.startswith('"'):
        found = _QUOTED.findall(text)
        return _unquoted(found[-1]).removeprefix("b/") if found else None
    half = (len(text) - 1) // 2
    first, second = text[:half], text[half + 1 :]
    fits = first.startswith("a/") and second.startswith("b/") and first[2:] == second[2:]
    return second[2:] if fits else None


def _unquoted(text: str) -> str:
    """A name as git quotes it: C escapes, octal for bytes."""

    def byte(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word, 8) & 0xFF) if word.isdigit() else chr(_ESCAPES.get(word, ord(word[0])))

    raw = re.sub(r"\\([0-7]{1,3}|.)", byte, text.encode("utf-8").decode("latin-1"))
    return raw.encode("latin-1", "replace").decode("utf-8", "backslashreplace")


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
