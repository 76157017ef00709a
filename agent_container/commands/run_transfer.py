"""`runs export` and `runs import`: records as one file, and back, on this host or another.

What is imported is a stranger's until a key vouches for it: it is unpacked out of sight with every name, type and size
checked, verified, and only then published, apart from this host's own projects, so that no command takes it for one of
theirs. A record that is here already is never replaced.
"""

from __future__ import annotations

import base64
import json
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agent_container.commands.context import Context
from agent_container.commands.runs import load_record, resolve_run
from agent_container.commands.verifying import read_key_file
from agent_container.drain import MAX_DEPTH, MAX_PATH_BYTES, MIB, Caps, add_file, plain_component
from agent_container.errors import AgentContainerError, NotRunning, StoreError, Tampered, Unverifiable, UsageError
from agent_container.ids import ID_PATTERN
from agent_container.manifest import MANIFEST, parse_manifest
from agent_container.store import RunPlace
from agent_container.store.marks import IMPORTED, Origin
from agent_container.store.paths import safe_name
from agent_container.store.writer import read_file
from agent_container.tarstream import Member, TarDamaged, TarReader
from agent_container.verify import TAMPERED, VERIFIED, VerifyResult, verify_run

MAX_RUNS = 10_000
CAPS = Caps(files=200_000, file_bytes=4096 * MIB, total_bytes=16 * 1024 * MIB, stream_bytes=20 * 1024 * MIB)
"""What one file may bring, all its records together."""
CHUNK = 256 * 1024
PROJECT_CHARS = 100
_WORTHLESS = frozenset({"no-manifest", "unreadable"})
"""Findings of a record that says nothing to anybody."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    runs: tuple[str, ...]


@dataclass(frozen=True)
class ImportedRun:
    """One record of an imported file."""

    run: str
    project_id: str
    """Where it is filed."""
    verdict: str
    """`verified`, or what is missing for that."""
    signer: str
    fresh: bool
    """False when this very record was here already."""


def export_runs(context: Context, runs: Sequence[str | None], target: Path | None) -> Exported:
    """Writes records as one tar that verifies anywhere, compressed unless it is called `.tar`. Raises UsageError when
    `target` is there already."""
    places = list(dict.fromkeys(resolve_run(context, run) for run in runs))
    more = f"-and-{len(places) - 1}-more" if len(places) > 1 else ""
    target = target or Path(f"{places[0].run_id}{more}.tar.gz")
    try:
        stream = target.open("xb")
    except FileExistsError as there:
        raise UsageError(f"{target} exists already", hint="name another file") from there
    except OSError as bad:
        raise UsageError(f"cannot write {target}: {bad.strerror}") from bad
    target.chmod(0o600)  # it holds what the agent saw
    try:
        with stream, _archive(stream, plain=target.suffix == ".tar") as archive:
            for place in places:
                archive.add(place.path, arcname=place.run_id, filter=_anonymous)
    except OSError as bad:
        target.unlink(missing_ok=True)
        raise StoreError(f"cannot write {target}: {bad.strerror}", hint="free some space, then try again") from bad
    return Exported(target, tuple(place.run_id for place in places))


def records_as_lines(context: Context, runs: Sequence[str | None]) -> Iterator[bytes]:
    """The records themselves, one JSON object a line, for other programs."""
    for place in [resolve_run(context, run) for run in runs]:
        row = load_record(place).model_dump(mode="json", by_alias=True)
        yield json.dumps(row, ensure_ascii=True).encode() + b"\n"


def import_runs(context: Context, file: Path, *, key: Path | None = None, caps: Caps = CAPS) -> tuple[ImportedRun, ...]:
    """Takes over the records of an exported file: all of them, or none.

    `key` holds the exporter's public keys; without it only this host's own keys vouch. Raises UsageError for what is
    no export, Tampered for a record that was changed, Unverifiable for one that `key` did not sign.
    """
    store = context.store
    keys = read_key_file(context.directory / key) if key is not None else store.host_key.all_public()
    with ExitStack() as stack:
        stack.enter_context(store.lock("import", what="an import", doing="runs import", wait_s=60))
        store.runs.clear_scratch("import")  # of an import that was killed
        staged = stack.enter_context(store.runs.scratch("import"))
        names = _Unpacking(staged, caps).run(file)
        checked = [_check(context, staged / name, keys, given=key is not None) for name in names]
        for result, place, fresh in checked:
            if not fresh:
                continue
            manifest = parse_manifest(read_file(staged / place.run_id / MANIFEST) or b"")
            vouched = base64.b64decode(manifest.host_key) in keys
            origin = Origin(
                at=context.now().isoformat(timespec="seconds"),
                file=str(file)[-500:],
                signer=result.signer,
                key=manifest.host_key if vouched else None,
            )
            store.marks.change(place.run_id, origin=origin)  # first: a record never lies there without its origin
            store.runs.publish(staged / place.run_id, place)
    return tuple(
        ImportedRun(place.run_id, place.project_id, _verdict(result), result.signer, fresh)
        for result, place, fresh in checked
    )


def _check(
    context: Context, directory: Path, keys: Sequence[bytes], *, given: bool
) -> tuple[VerifyResult, RunPlace, bool]:
    """A staged record, as it is verified, where it goes, and whether it is new here."""
    run = directory.name
    result = verify_run(directory, host_key=keys[0] if keys else None, former_keys=tuple(keys[1:]))
    details = [f"{row.where}: {row.detail}" for row in result.findings[:10]]
    kinds = {row.kind for row in result.findings}
    if result.exit_code == TAMPERED:
        raise Tampered(f"run {run} was changed since it was signed; nothing was imported", details=details)
    if kinds & _WORTHLESS:
        raise Unverifiable(f"run {run} is no whole record; nothing was imported", details=details)
    if given and "other-host" in kinds:
        raise Unverifiable(
            f"the record of run {run} is not signed by the key that was given; nothing was imported",
            details=details,
            hint="on the host of the runs: agent-container host-key export",
        )
    body = read_file(directory / MANIFEST) or b""
    try:
        project_id = safe_name(IMPORTED + parse_manifest(body).project_id[:PROJECT_CHARS], what="project")
    except ValueError as bad:  # verified, so it is one
        raise Tampered(f"the manifest of run {run} cannot be read", details=(str(bad),)) from bad
    there = _here_already(context, run)
    if there is None:
        return result, context.store.runs.place(project_id, run), True
    if (there.path / MANIFEST).is_file() and read_file(there.path / MANIFEST) == body:
        return result, there, False
    raise UsageError(
        f"this host has another record of run {run}, which stays; nothing was imported",
        hint=f"agent-container runs show {run}",
    )


def _here_already(context: Context, run: str) -> RunPlace | None:
    """The record of that id, of a run or of a standing environment. Raises UsageError for a run that is going on."""
    store = context.store
    found = store.runs.find(run)
    if found is not None:
        return found
    for place in store.sessions.records(run):
        return place
    try:
        state = store.sessions.load(run)
    except NotRunning:
        return None
    raise UsageError(f"run {run} is one of this host ({state.phase.value}); nothing was imported")


def _verdict(result: VerifyResult) -> str:
    if result.exit_code == VERIFIED:
        return "verified"
    kinds = sorted({row.kind for row in result.findings})
    if set(kinds) <= {"other-host", "host-key-missing"}:
        return "whole, and signed by a key that nobody here vouches for"
    return f"cannot be verified: {', '.join(kinds)}"


class _Unpacking:
    """A hostile tar on its way into a staging directory."""

    def __init__(self, staged: Path, caps: Caps) -> None:
        self._staged = staged
        self._caps = caps
        self._files = self._bytes = 0
        self._runs: list[str] = []

    def run(self, file: Path) -> list[str]:
        """The ids of the records in it. Raises UsageError for anything that an export never holds."""
        reader = TarReader(_chunks(file), max_bytes=self._caps.stream_bytes)
        try:
            for member in reader.members():
                self._take(reader, member)
        except (TarDamaged, zlib.error) as bad:
            raise _refused(f"{file} is no whole export: {bad}") from bad
        if not self._runs:
            raise _refused(f"{file} holds no record")
        return self._runs

    def _take(self, reader: TarReader, member: Member) -> None:
        shown = member.name[:200].decode("utf-8", "backslashreplace")
        parts = _parts(member.name)
        if parts is None:
            raise _refused(f"a name that no export has: {shown!r}")
        if member.kind not in ("file", "directory"):
            raise _refused(f"{shown!r} is a {member.kind}, and an export has plain files only")
        run = parts[0]
        if not self._runs or self._runs[-1] != run:
            if run in self._runs:
                raise _refused(f"the records are mixed: {run} comes twice")
            if len(self._runs) >= MAX_RUNS:
                raise _refused(f"more than {MAX_RUNS} records")
            self._runs.append(run)
            (self._staged / run).mkdir(0o700)
        if member.kind == "directory":
            return
        if len(parts) == 1:
            raise _refused(f"{shown!r} is a file, expected a record's directory")
        self._files += 1
        self._bytes += member.size
        if (
            self._files > self._caps.files
            or member.size > self._caps.file_bytes
            or self._bytes > self._caps.total_bytes
        ):
            raise _refused("more or larger files than an export has")
        try:
            add_file(self._staged / run, "/".join(parts[1:]), reader.body())
        except StoreError as bad:
            raise _refused(f"{shown!r} cannot be unpacked: {bad.message}") from bad


def _parts(name: bytes) -> list[str] | None:
    if len(name) > MAX_PATH_BYTES:
        return None
    try:
        parts = name.decode("utf-8").split("/")
    except UnicodeDecodeError:
        return None
    fits = len(parts) <= MAX_DEPTH and ID_PATTERN.fullmatch(parts[0]) and all(map(plain_component, parts))
    return parts if fits else None


def _chunks(file: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed when it is gzip, never more at once than asked for."""
    try:
        with file.open("rb") as stream:
            if not stat.S_ISREG(file.stat().st_mode):
                raise UsageError(f"{file} is not a regular file")
            first = stream.read(CHUNK)
            if not first.startswith(b"\x1f\x8b"):
                yield first
                while piece := stream.read(CHUNK):
                    yield piece
                return
            yield from _inflated(first, stream.read)
    except OSError as bad:
        raise UsageError(f"cannot read {file}: {bad.strerror}") from bad


def _inflated(first: bytes, read: Callable[[int], bytes]) -> Iterator[bytes]:
    inflater, piece = zlib.decompressobj(wbits=31), first
    while piece:
        yield inflater.decompress(piece, CHUNK)
        while inflater.unconsumed_tail:
            yield inflater.decompress(inflater.unconsumed_tail, CHUNK)
        if inflater.eof:
            return
        piece = read(CHUNK)
    raise TarDamaged("the file ends too early")


def _refused(why: str) -> AgentContainerError:
    return UsageError(f"{why}; nothing was imported", hint="what `agent-container runs export` wrote can be imported")


def _archive(stream: BinaryIO, *, plain: bool) -> tarfile.TarFile:
    if plain:
        return tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)
    return tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
