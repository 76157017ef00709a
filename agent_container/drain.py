"""From a sandbox's volumes to a record on disk: read defensively, stage out of sight, sign, publish in one step.

What comes in are tar streams that the engine made of the sandbox's own files; every name, type and size in them is
the sandbox's choice. Regular files only, nothing is extracted by its own name without checks, nothing is followed,
and every cap that bites leaves a mark. What the files mean is for `frames`, `events` and `tally`; how the record is
checked later is for `verify`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import AgentContainerError, StoreError
from agent_container.events import Event, encode_event
from agent_container.manifest import MANIFEST, Chain, FileDigest, Manifest, parse_manifest, sign_manifest
from agent_container.records import Drained, RunRecord
from agent_container.store import RunPlace, Store
from agent_container.store.writer import FILE_MODE, explained, read_file
from agent_container.tarstream import Member, TarDamaged, TarReader

RECORD, EVENTS, RAW, RECEIPTS = "record.json", "events.jsonl", "raw.jsonl", "receipts.jsonl"
APPENDED = (RAW, RECEIPTS)
"""Files that only ever grow: a later drain of the same run must begin with what an earlier one stored."""
MIB = 1024 * 1024
MAX_DEPTH = 32
MAX_COMPONENT_BYTES = 255
MAX_PATH_BYTES = 1024
SHOWN = 100
"""How many refused names a report lists; the rest is counted."""
PIECE = 256 * 1024
ABSENT = "it is not there"


@dataclass(frozen=True)
class Caps:
    """What one source may bring. Whatever is over a cap is cut or left out, and marked."""

    files: int = 10_000
    file_bytes: int = 256 * MIB
    total_bytes: int = 1024 * MIB
    stream_bytes: int = 8 * 1024 * MIB
    """What is read at most, skipped bodies included: a sparse file is sent as zeros."""


RECEIPT_CAPS = Caps(files=1, file_bytes=2200 * MIB, total_bytes=2200 * MIB)
"""More than the sidecar's own cap of two million receipts of 1 KiB: a chain that is cut here would read as tampered."""


@dataclass(frozen=True)
class Source:
    """One file, or one tree, of a volume."""

    name: str
    """For people: `the runner's spool`."""
    into: str
    """Where it goes in the record: a file, or with `tree` whatever is there, a file or a directory of files."""
    read: Callable[[], Iterator[bytes]]
    """A tar stream of it; no bytes at all when it is absent."""
    tree: bool = False
    optional: bool = False
    """Whether its absence is no loss."""
    caps: Caps = Caps()


@dataclass(frozen=True)
class DrainReport:
    """How a drain went. What it names comes from a sandbox."""

    files: int = 0
    bytes: int = 0
    refused: tuple[str, ...] = ()
    truncated: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Sources that could not be read, or that ended early, with the reason."""

    @property
    def complete(self) -> bool:
        """Whether every source was read to its end."""
        return not self.lost

    @property
    def absent(self) -> bool:
        """Whether all that was lost is what was not there: another try would find no more."""
        return bool(self.lost) and all(words.endswith((" is there", ABSENT)) for words in self.lost)

    def __add__(self, other: DrainReport) -> DrainReport:
        return DrainReport(
            self.files + other.files,
            self.bytes + other.bytes,
            self.refused + other.refused,
            self.truncated + other.truncated,
            self.lost + other.lost,
        )

    def drained(self, *, bad_lines: int = 0, notes: tuple[str, ...] = ()) -> Drained:
        """The same, as part of a record."""
        return Drained(
            complete=self.complete,
            files=self.files,
            bytes=self.bytes,
            refused=self.refused,
            truncated=self.truncated,
            bad_lines=bad_lines,
            notes=self.lost + notes,
        )


@dataclass(frozen=True)
class FinalRun:
    """A published record."""

    place: RunPlace
    manifest: Manifest
    fresh: bool
    """False when the same record, or a sealed one, was there already."""


def drain(staged: Path, sources: Iterable[Source]) -> DrainReport:
    """Reads every source into a staging directory of `store.runs.staging`. A source that fails costs only itself.

    Raises StoreError when this host cannot write.
    """
    report = DrainReport()
    for source in sources:
        report = report + _Intake(staged, source).run()
    return report


def finalize_run(
    store: Store,
    place: RunPlace,
    staged: Path,
    *,
    record: RunRecord,
    events: Iterable[Event],
    policies: Mapping[str, bytes],
    chain: Chain,
    chain_key: bytes | None = None,
) -> FinalRun:
    """Adds what the host knows to a staged record, signs it, and publishes it in one step.

    Idempotent by digest: a sealed record, or one with the same evidence, stays as it is. Raises StoreError when the
    evidence does not continue what an earlier drain stored.
    """
    held = _published(place)
    if held is not None and (held.chain.sealed or _same_evidence(held, staged)):
        return FinalRun(place, held, fresh=False)
    if held is not None:
        _check_continues(place, staged)
    add_file(staged, RECORD, record.encode())
    add_file(staged, EVENTS, (encode_event(event) for event in events))
    for digest, body in policies.items():
        add_file(staged, f"policies/{digest.removeprefix('sha256:')}.json", body)
    signer = store.host_key.signer()
    manifest = sign_manifest(
        Manifest(
            run=place.run_id,
            project_id=place.project_id,
            files=digest_tree(staged),
            policies=tuple(sorted(policies)),
            chain=chain.model_copy(update={"key": chain_key.hex() if chain.sealed and chain_key else None}),
            host_key=base64.b64encode(signer.public).decode("ascii"),
        ),
        signer.sign,
    )
    add_file(staged, MANIFEST, manifest.encode())
    store.runs.publish(staged, place)
    return FinalRun(place, manifest, fresh=True)


def add_file(staged: Path, name: str, data: bytes | Iterable[bytes]) -> None:
    """Writes one more file of a staged record. Raises StoreError when it is there already."""
    path = staged / name
    with explained(path, "write"):
        _make_parents(staged, path.parent)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as stream:
            for piece in [data] if isinstance(data, bytes) else data:
                stream.write(piece)


def _make_parents(staged: Path, directory: Path) -> None:
    if directory == staged or directory.is_dir():
        return
    _make_parents(staged, directory.parent)
    directory.mkdir(0o700)
    directory.chmod(0o700)  # whatever the umask took


def digest_tree(top: Path) -> dict[str, FileDigest]:
    """The digest of every file below `top` but the manifest, by its path from there."""
    return {name: digest_file(top / name) for name in list_files(top)}


def list_files(top: Path) -> list[str]:
    """Everything below `top` that is no directory, links included, but not the manifest; by its path from there."""
    paths = sorted(path for path in top.rglob("*") if path.is_symlink() or not path.is_dir())
    return [name for path in paths if (name := path.relative_to(top).as_posix()) != MANIFEST]


def digest_file(path: Path) -> FileDigest:
    """The digest of one regular file, read in pieces. Raises StoreError for anything else."""
    digest, size = hashlib.sha256(), 0
    for piece in file_pieces(path):
        digest.update(piece)
        size += len(piece)
    return FileDigest(sha256=digest.hexdigest(), bytes=size)


def file_pieces(path: Path) -> Iterator[bytes]:
    """A regular file in pieces; follows no link. Raises StoreError."""
    with explained(path, "read"):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StoreError(f"{path} is not a regular file")
            while piece := stream.read(PIECE):
                yield piece


class _Intake:
    """One source on its way into a staging directory."""

    def __init__(self, staged: Path, source: Source) -> None:
        self._staged = staged
        self._source = source
        self._files = self._bytes = 0
        self._refused = _Names()
        self._truncated = _Names()
        self._lost: list[str] = []
        self._seen: set[str] = set()
        self._branches = False
        """Whether a tree has shown itself to be a directory."""
        self._over = 0

    def run(self) -> DrainReport:
        """Reads the source to its end, or to the cap or failure that stops it."""
        source = self._source
        reader = None
        try:
            reader = TarReader(source.read(), max_bytes=source.caps.stream_bytes)
            for member in reader.members():
                self._take(reader, member)
        except TarDamaged as bad:
            self._lose(str(bad))
        except StoreError:
            raise
        except (AgentContainerError, OSError) as bad:
            self._lose(str(bad))
        if not self._files and not source.tree and not source.optional and not self._lost:
            self._lose(ABSENT if reader is None or reader.empty else "no regular file is there")
        if self._over:
            self._truncated.add(f"{source.into}: {self._over} files over the cap of {source.caps.files} were left out")
        return DrainReport(self._files, self._bytes, self._refused.shown(), self._truncated.shown(), tuple(self._lost))

    def _take(self, reader: TarReader, member: Member) -> None:
        name = _readable(member.name)
        if member.kind == "directory":
            if not self._source.tree:
                self._refuse(name, "a directory, expected a file")
            self._branches = True
            return
        if member.kind != "file":
            self._refuse(
                name, {"link": "a hard link", "symlink": "a symbolic link"}.get(member.kind, f"a {member.kind}")
            )
            return
        into = self._destination(member.name)
        if into is None:
            self._refuse(name, "a hostile name")
        elif into in self._seen:
            self._refuse(name, "a second file of the same name")
        elif len(self._seen) >= self._source.caps.files:
            self._over += 1
        else:
            self._seen.add(into)
            self._store(reader, member, into)

    def _store(self, reader: TarReader, member: Member, into: str) -> None:
        caps = self._source.caps
        room = max(min(caps.file_bytes, caps.total_bytes - self._bytes), 0)
        if not room and member.size:
            self._truncated.add(f"{into}: left out, the source is over its cap of {caps.total_bytes} bytes")
            return
        kept = 0

        def pieces() -> Iterator[bytes]:
            nonlocal kept
            for piece in reader.body():
                part = piece[: room - kept]
                kept += len(part)
                yield part
                if kept >= room:
                    return

        try:
            add_file(self._staged, into, pieces())
        finally:
            self._files, self._bytes = self._files + 1, self._bytes + kept
        if kept < member.size:
            self._truncated.add(f"{into}: cut at {kept} of {member.size} bytes")

    def _destination(self, name: bytes) -> str | None:
        """Where a member goes in the record; None when its name is not one that we would write."""
        if len(name) > MAX_PATH_BYTES:
            return None
        try:
            text = name.decode("utf-8")
        except UnicodeDecodeError:
            return None
        parts = text.removeprefix("./").split("/")
        if len(parts) > MAX_DEPTH or not all(plain_component(part) for part in parts):
            return None
        if not self._source.tree:
            return self._source.into if len(parts) == 1 else None
        # The engine packs a tree below its own last name, which is ours to choose, not the sandbox's.
        # It is one file or a directory, whichever comes first: both cannot stand in one place.
        if self._source.into in self._seen if len(parts) > 1 else self._branches:
            return None
        self._branches = len(parts) > 1
        return "/".join([self._source.into, *parts[1:]])

    def _refuse(self, name: str, why: str) -> None:
        self._refused.add(f"{self._source.into}: {name}: {why}")

    def _lose(self, why: str) -> None:
        self._lost.append(f"records lost: {self._source.name}: {why}")


class _Names:
    """A list that a sandbox can make long: the first ones, and how many more there were."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._more = 0

    def add(self, name: str) -> None:
        """One more."""
        if len(self._kept) < SHOWN:
            self._kept.append(name)
        else:
            self._more += 1

    def shown(self) -> tuple[str, ...]:
        """The list, with a last line that counts the rest."""
        return (*self._kept, f"and {self._more} more") if self._more else tuple(self._kept)


def plain_component(part: str) -> bool:
    """Whether a part of a path is one that we would write."""
    return (
        bool(part)
        and not part.startswith("..")
        and part != "."
        and len(part.encode()) <= MAX_COMPONENT_BYTES
        and part.isprintable()  # no control character, no line or paragraph separator, nothing invisible
        and "\\" not in part
    )


def _readable(name: bytes) -> str:
    return name[:MAX_PATH_BYTES].decode("utf-8", "backslashreplace")


def _published(place: RunPlace) -> Manifest | None:
    body = read_file(place.path / MANIFEST) if place.path.is_dir() else None
    if body is None:
        return None
    try:
        return parse_manifest(body)
    except ValueError as bad:
        raise StoreError(
            f"{place.path / MANIFEST} cannot be read, so the record is not replaced",
            details=(str(bad),),
            hint=f"agent-container runs verify {place.run_id}",
        ) from bad


def _same_evidence(held: Manifest, staged: Path) -> bool:
    made_by_host = {RECORD, EVENTS}
    before = {
        name: row for name, row in held.files.items() if name not in made_by_host and not name.startswith("policies/")
    }
    return before == digest_tree(staged)


def _check_continues(place: RunPlace, staged: Path) -> None:
    for name in APPENDED:
        old, new = place.path / name, staged / name
        if old.exists() and not (new.exists() and _begins_with(new, old)):
            raise StoreError(
                f"{name} of run {place.run_id} does not continue what was stored of it before",
                details=("the sandbox's copy was cut or rewritten; the stored one stays",),
                hint=f"agent-container runs show {place.run_id}",
            )


def _begins_with(new: Path, old: Path) -> bool:
    with explained(old, "compare"), new.open("rb") as longer, old.open("rb") as shorter:
        while piece := shorter.read(PIECE):
            if longer.read(len(piece)) != piece:
                return False
    return True
