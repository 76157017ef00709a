from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_container.drain import RAW, RECEIPTS, Caps, DrainReport, Source, drain, file_pieces
from agent_container.errors import EngineError, StoreError
from agent_container.manifest import MANIFEST, parse_manifest
from agent_container.store import Store
from tests.process.test_store_crash import every_crash
from tests.support.records import (
    PROJECT,
    RUN,
    SPOOL,
    Entry,
    chain_of,
    file_tar,
    publish_run,
    source,
    tar_of,
    tree_digest,
)

FILE, LINK, SYM = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    path = tmp_path / "staged"
    path.mkdir()
    return path


def take(staged: Path, *entries: Entry, **options: object) -> DrainReport:
    return drain(staged, [source("t", tar_of(*entries), tree=True, **options)])


def found(staged: Path) -> dict[str, bytes]:
    return {p.relative_to(staged).as_posix(): p.read_bytes() for p in staged.rglob("*") if not p.is_dir()}


HOSTILE: list[tuple[str, Entry, str]] = [
    ("a symbolic link", ("d/events.jsonl", None, SYM), "a symbolic link"),
    ("a hard link", ("d/x", None, LINK), "a hard link"),
    ("a FIFO", ("d/x.jsonl", None, tarfile.FIFOTYPE), "a fifo"),
    ("a character device", ("d/null", None, tarfile.CHRTYPE), "a device"),
    ("a block device", ("d/sda", None, tarfile.BLKTYPE), "a device"),
    ("a way out", ("d/../../x", b"x", FILE), "a hostile name"),
    ("a way out at the front", ("../x", b"x", FILE), "a hostile name"),
    ("an absolute name", ("/etc/passwd", b"x", FILE), "a hostile name"),
    ("a dot in the middle", ("d/./x", b"x", FILE), "a hostile name"),
    ("an empty part", ("d//x", b"x", FILE), "a hostile name"),
    ("an encoded way out", ("d/..%2f..%2fx", b"x", FILE), "a hostile name"),
    ("a newline", ("d/a\nb.jsonl", b"x", FILE), "a hostile name"),
    ("an escape sequence", ("d/\x1b[2Jx", b"x", FILE), "a hostile name"),
    ("a turn of direction", ("d/\u202exslj", b"x", FILE), "a hostile name"),
    ("a line separator", ("d/a\u2028b", b"x", FILE), "a hostile name"),
    ("a backslash", ("d/..\\x", b"x", FILE), "a hostile name"),
    ("bytes that are no UTF-8", ("d/\udcff", b"x", FILE), "a hostile name"),
    ("a name over 255 bytes", ("d/" + "x" * 256, b"x", FILE), "a hostile name"),
    ("a path over 1024 bytes", ("d/" + "y" * 200 + ("/" + "x" * 200) * 5, b"x", FILE), "a hostile name"),
    ("too deep", ("d/" * 40 + "x", b"x", FILE), "a hostile name"),
    ("a file in the tree's place", ("d", b"x", FILE), "a hostile name"),
    ("a second of the same name", ("d/good", b"again", FILE), "a second file of the same name"),
]


@pytest.mark.parametrize(("entry", "why"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_what_is_hostile_is_refused_by_name_and_the_rest_is_read(entry: Entry, why: str, staged: Path) -> None:
    report = take(staged, ("d", None, tarfile.DIRTYPE), ("d/good", b"1", FILE), entry, ("d/after", b"2", FILE))
    assert found(staged) == {"t/good": b"1", "t/after": b"2"}
    assert len(report.refused) == 1
    assert report.refused[0].endswith(f": {why}")
    assert report.refused[0].startswith("t: ")
    assert report.complete
    assert (report.files, report.bytes) == (2, 2)


def test_a_tree_that_is_one_file_is_that_file_and_nothing_below_it(staged: Path) -> None:
    report = take(staged, ("d", b"x", FILE), ("d/below", b"y", FILE), ("d", b"z", FILE))
    assert found(staged) == {"t": b"x"}
    assert report.refused == ("t: d/below: a hostile name", "t: d: a second file of the same name")


def test_plain_names_of_any_alphabet_are_kept(staged: Path) -> None:
    names = ["a b", "é", "日本.txt", "...dots"[3:], ".hidden", "x" * 255, "sub/dir/file"]
    report = take(staged, *((f"d/{name}", b"x", FILE) for name in names))
    assert report.refused == ()
    assert set(found(staged)) == {f"t/{name}" for name in names}


def test_modes_and_owners_are_ours(staged: Path) -> None:
    old = os.umask(0)
    try:
        take(staged, ("d/sub/x", b"x", FILE))
    finally:
        os.umask(old)
    assert (staged / "t/sub/x").stat().st_mode & 0o7777 == 0o600
    assert (staged / "t/sub").stat().st_mode & 0o7777 == 0o700
    assert (staged / "t/sub/x").stat().st_uid == os.geteuid()


def test_a_file_is_taken_under_our_name_never_its_own(staged: Path) -> None:
    report = drain(staged, [source(RAW, file_tar("evil-name", b"x"))])
    assert found(staged) == {RAW: b"x"}
    assert report == DrainReport(files=1, bytes=1)


@pytest.mark.parametrize(
    ("entry", "refused"),
    [
        (("spool.jsonl", None, SYM), "a symbolic link"),
        (("spool.jsonl", None, tarfile.FIFOTYPE), "a fifo"),
        (("spool.jsonl", None, tarfile.DIRTYPE), "a directory, expected a file"),
        (("d/spool.jsonl", b"x", FILE), "a hostile name"),
    ],
    ids=["link", "fifo", "directory", "a file in a directory"],
)
def test_something_else_in_a_files_place_is_a_loss_that_is_told(entry: Entry, refused: str, staged: Path) -> None:
    report = drain(staged, [source(RAW, tar_of(entry)), source(RECEIPTS, file_tar("r", b"r"))])
    assert found(staged) == {RECEIPTS: b"r"}
    assert refused in report.refused[0]
    assert report.lost == (f"records lost: {RAW}: no regular file is there",)
    assert not report.complete


@pytest.mark.parametrize("optional", [True, False])
def test_an_absent_source_is_a_loss_unless_it_is_optional(optional: bool, staged: Path) -> None:
    report = drain(staged, [source(RAW, b"", optional=optional), source("t", file_tar("t", b"x"))])
    assert found(staged) == {"t": b"x"}
    assert report.lost == (() if optional else (f"records lost: {RAW}: it is not there",))


def test_a_source_that_fails_costs_only_itself(staged: Path) -> None:
    def gone() -> Iterator[bytes]:
        yield file_tar("x", b"y" * 5000)[:2000]
        raise EngineError("no such container: 4f3e")

    report = drain(staged, [Source("the spool", RAW, gone), source(RECEIPTS, file_tar("x", b"r"))])
    assert report.lost == ("records lost: the spool: no such container: 4f3e",)
    assert set(found(staged)) == {RAW, RECEIPTS}
    assert found(staged)[RAW] == b"y" * 1488


def test_a_stream_that_is_cut_is_told_and_what_came_is_kept(staged: Path) -> None:
    report = drain(staged, [source(RAW, file_tar("x", b"y" * 5000)[:3000])])
    assert report.lost == (f"records lost: {RAW}: the stream ends in the middle of a member",)
    assert found(staged)[RAW] == b"y" * 2488


def test_caps_cut_and_mark(staged: Path) -> None:
    caps = Caps(files=3, file_bytes=10, total_bytes=25)
    entries = [(f"d/{name}", b"x" * size, FILE) for name, size in [("a", 10), ("b", 11), ("c", 8), ("e", 1), ("f", 1)]]
    report = take(staged, *entries, caps=caps)
    assert {name: len(body) for name, body in found(staged).items()} == {"t/a": 10, "t/b": 10, "t/c": 5}
    assert report.truncated == (
        "t/b: cut at 10 of 11 bytes",
        "t/c: cut at 5 of 8 bytes",
        "t: 2 files over the cap of 3 were left out",
    )


def test_a_source_over_its_total_leaves_the_rest_out(staged: Path) -> None:
    caps = Caps(total_bytes=4)
    report = take(staged, ("d/a", b"xxxx", FILE), ("d/b", b"x", FILE), ("d/empty", b"", FILE), caps=caps)
    assert set(found(staged)) == {"t/a", "t/empty"}
    assert report.truncated == ("t/b: left out, the source is over its cap of 4 bytes",)


def test_a_sparse_file_of_any_size_does_not_fill_the_disk(staged: Path) -> None:
    zeros = b"\0" * 1_000_000

    def sparse() -> Iterator[bytes]:
        info = tarfile.TarInfo("x")
        info.size = 5_000_000_000_000
        yield info.tobuf(tarfile.PAX_FORMAT)
        while True:
            yield zeros

    caps = Caps(file_bytes=3_000_000, stream_bytes=20_000_000)
    report = drain(staged, [Source("the spool", RAW, sparse, caps=caps)])
    assert (staged / RAW).stat().st_size == 3_000_000
    assert report.truncated == (f"{RAW}: cut at 3000000 of 5000000000000 bytes",)
    assert report.lost == ("records lost: the spool: more bytes than the cap",)


def test_a_million_refusals_are_counted_not_listed(staged: Path) -> None:
    one = tar_of(("d/x", None, SYM))[:512]

    def links() -> Iterator[bytes]:
        for _ in range(500):
            yield one * 100
        yield b"\0" * 1024

    report = drain(staged, [Source("t", "t", links, tree=True)])
    assert len(report.refused) == 101
    assert report.refused[-1] == "and 49900 more"


def test_a_disk_that_is_full_stops_the_drain(staged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    real = os.open

    def full(path: object, flags: int, *args: object, **kwargs: object) -> int:
        if flags & os.O_CREAT and str(path).endswith(RAW):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreError, match="the disk is full"):
        drain(staged, [source(RAW, file_tar("x", b"y"))])


class TestFinalize:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store(tmp_path / "data", tmp_path / "state").prepare()

    def test_the_record_is_whole_signed_and_private(self, store: Store) -> None:
        final = publish_run(store)
        assert final.fresh
        names = {p.relative_to(final.place.path).as_posix() for p in final.place.path.rglob("*") if p.is_file()}
        policy = final.manifest.policies[0].removeprefix("sha256:")
        assert names == {
            "record.json",
            "events.jsonl",
            RAW,
            RECEIPTS,
            f"policies/{policy}.json",
            MANIFEST,
        }
        assert set(final.manifest.files) == names - {MANIFEST}
        assert parse_manifest((final.place.path / MANIFEST).read_bytes()) == final.manifest
        assert final.manifest.chain.sealed
        assert final.manifest.chain.key is not None
        for path in final.place.path.rglob("*"):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path

    def test_the_chain_key_is_kept_back_until_the_chain_is_sealed(self, store: Store) -> None:
        final = publish_run(store, lines=chain_of(seal=False))
        assert not final.manifest.chain.sealed
        assert final.manifest.chain.key is None

    @pytest.mark.parametrize("seal", [True, False])
    def test_draining_again_changes_no_byte(self, seal: bool, store: Store) -> None:
        first = publish_run(store, lines=chain_of(seal=seal))
        before = tree_digest(store.data / "runs")
        for _ in range(3):
            again = publish_run(store, lines=chain_of(seal=seal), reason="said otherwise")
            assert not again.fresh
            assert again.manifest == first.manifest
        assert tree_digest(store.data / "runs") == before
        assert [path.name for path in (store.data / "runs" / PROJECT).iterdir()] == [RUN]

    def test_a_drain_after_the_end_completes_what_one_before_it_stored(self, store: Store) -> None:
        publish_run(store, lines=chain_of(seal=False), spool=SPOOL[:40])
        final = publish_run(store)
        assert final.fresh
        assert (final.place.path / RAW).read_bytes() == SPOOL
        assert final.manifest.chain.sealed

    def test_a_sealed_record_is_never_replaced(self, store: Store) -> None:
        publish_run(store)
        before = tree_digest(store.data / "runs")
        assert not publish_run(store, spool=SPOOL + b"more\n").fresh
        assert tree_digest(store.data / "runs") == before

    @pytest.mark.parametrize(
        "spool", [SPOOL[:20], b"rewritten" + SPOOL[9:] + b"more", b""], ids=["cut", "rewritten", "emptied"]
    )
    def test_evidence_that_was_cut_or_rewritten_does_not_replace_what_is_stored(
        self, spool: bytes, store: Store
    ) -> None:
        publish_run(store, lines=chain_of(seal=False))
        before = tree_digest(store.data / "runs")
        with pytest.raises(StoreError, match="does not continue what was stored"):
            publish_run(store, lines=chain_of(seal=False), spool=spool)
        assert tree_digest(store.data / "runs") == before

    def test_a_sandbox_cannot_bring_our_files(self, store: Store) -> None:
        evil = tar_of(("d/record.json", b"planted", FILE), ("d/manifest.json", b"planted", FILE))
        final = publish_run(store, sources=[source("transcript", evil, tree=True)])
        assert (final.place.path / "transcript/record.json").read_bytes() == b"planted"
        assert b"planted" not in (final.place.path / "record.json").read_bytes()
        assert "transcript/manifest.json" in final.manifest.files

    def test_a_killed_drain_leaves_nothing_half_and_the_next_one_is_complete(self, tmp_path: Path) -> None:
        finals = set()
        for store in every_crash(tmp_path, lambda store: store.host_key.public() and None, publish_run):
            places = store.runs.list(PROJECT)
            for place in places:
                manifest = parse_manifest((place.path / MANIFEST).read_bytes())
                assert set(manifest.files) == {
                    p.relative_to(place.path).as_posix()
                    for p in place.path.rglob("*")
                    if p.is_file() and p.name != MANIFEST
                }
            finals.add(len(places))
            publish_run(store)
            assert [path.name for path in (store.data / "runs" / PROJECT).iterdir()] == [RUN]
        assert finals == {0, 1}


def test_file_pieces_follow_no_link_and_wait_for_no_fifo(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    assert b"".join(file_pieces(tmp_path / "real")) == b"x"
    with pytest.raises(StoreError, match="symbolic link"):
        list(file_pieces(tmp_path / "link"))
    with pytest.raises(StoreError, match="not a regular file"):
        list(file_pieces(tmp_path / "fifo"))
