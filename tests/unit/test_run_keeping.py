"""What becomes of records: removal, pruning, holds, export and import."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from agent_container.commands import run_index, run_transfer
from agent_container.commands.context import Context
from agent_container.commands.run_filters import Wanted
from agent_container.commands.run_list import list_runs
from agent_container.commands.run_logs import SOURCES, LogEnd, LogQuery, read_logs
from agent_container.commands.run_removal import PruneRequest, hold_runs, prune_runs, remove_runs
from agent_container.commands.run_stats import read_stats
from agent_container.commands.run_transfer import Caps, export_runs, import_runs, records_as_lines
from agent_container.commands.runs import show_run, verify_record
from agent_container.errors import StoreError, Tampered, Unverifiable, UsageError
from agent_container.project import find_project
from agent_container.records import RunRecord, Workspace
from agent_container.session import Phase, SessionState
from agent_container.ui.console import Ui
from agent_container.ui.figures import show_stats
from tests.support import records
from tests.support.records import RUN, chain_of, file_tar, publish_run, source, tree_digest

NOW = datetime(2026, 12, 1, tzinfo=UTC)
RUNS = ("20261101-100000-aaaaaa", "20261110-100000-bbbbbb", "20261120-100000-cccccc", "20261130-100000-dddddd")
A, B, C, D = RUNS
WORK = Workspace(mode="clone", commits=1, files_changed=1)


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Context]:
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(records, "PROJECT", find_project(tmp_path / "project").id)

    def made(name: str) -> Context:
        environ = {"XDG_DATA_HOME": str(tmp_path / name / "d"), "XDG_STATE_HOME": str(tmp_path / name / "s")}
        return Context(directory=tmp_path / "project", environ=environ, now=lambda: NOW)

    return made


@pytest.fixture
def context(contexts: Callable[[str], Context]) -> Iterator[Context]:
    yield contexts("home")


def fill(context: Context, **host: object) -> None:
    for run in RUNS:
        publish_run(context.store, run=run, **host)


def left(context: Context) -> list[str]:
    return [row.run for row in list_runs(context)]


class TestPrune:
    @pytest.mark.parametrize(
        ("request_", "gone"),
        [
            (PruneRequest(older_than=timedelta(days=15)), (B, A)),
            (PruneRequest(older_than=timedelta(days=15), keep=3), (A,)),
            (PruneRequest(keep=1), (C, B, A)),
            (PruneRequest(keep=9), ()),
            (PruneRequest(keep=0), (D, C, B, A)),
            (PruneRequest(max_bytes=10**9), ()),
            (PruneRequest(max_bytes=0, keep=2), (B, A)),
        ],
        ids=[
            "older",
            "older but three",
            "but the newest",
            "more than there are",
            "all",
            "fits",
            "too large",
        ],
    )
    def test_what_is_too_many(self, request_: PruneRequest, gone: tuple[str, ...], context: Context) -> None:
        fill(context)
        said = prune_runs(context, request_)
        assert (said.runs, said.dry_run) == (gone, True)
        assert left(context) == [D, C, B, A]
        assert (said.bytes > 0) == bool(gone)
        from dataclasses import replace

        assert prune_runs(context, replace(request_, yes=True)).runs == gone
        assert left(context) == [run for run in (D, C, B, A) if run not in gone]

    def test_as_much_as_fits_stays(self, context: Context) -> None:
        fill(context)
        sizes = prune_runs(context, PruneRequest(keep=0)).bytes
        assert prune_runs(context, PruneRequest(max_bytes=sizes * 2 // 3)).runs == (B, A)

    def test_without_a_measure_nothing_is_too_many(self, context: Context) -> None:
        with pytest.raises(UsageError, match="say what is too many"):
            prune_runs(context, PruneRequest(yes=True))

    def test_what_keeps_a_record(self, context: Context) -> None:
        for run, host in ((A, {"workspace": WORK}), (B, {"labels": {"release": "1"}}), (C, {}), (D, {})):
            publish_run(context.store, run=run, **host)
        hold_runs(context, (C,), reason="for the audit")
        with context.store.sessions.lock(D):
            said = prune_runs(context, PruneRequest(keep=0, yes=True, keep_labels=("release",)))
        assert said.runs == ()
        assert [line.split(": ")[1].split(" by")[0] for line in said.kept] == [
            "in use", "held (for the audit)", "it has the label release", "its work is in the record alone",
        ]  # fmt: skip
        assert left(context) == [D, C, B, A]
        hold_runs(context, (C,), release=True)
        assert prune_runs(context, PruneRequest(keep=0, yes=True, work_too=True)).runs == (D, C, B, A)

    def test_work_that_was_brought_over_keeps_nothing(self, context: Context) -> None:
        publish_run(context.store, run=A, workspace=WORK)
        publish_run(context.store, run=B, workspace=WORK.model_copy(update={"mode": "bind"}))
        context.store.marks.change(A, applied="2026-11-02")
        assert prune_runs(context, PruneRequest(keep=0, yes=True)).runs == (B, A)

    @pytest.mark.parametrize("name", ["workspace.bundle", "workspace.patch", "workspace.tar"])
    @pytest.mark.parametrize("record", ["unreadable", "silent"])
    def test_work_is_seen_by_its_files_whatever_the_record_says(self, record: str, name: str, context: Context) -> None:
        place = publish_run(context.store, run=A, sources=[source(name, file_tar(name, b"work"))]).place
        publish_run(context.store, run=B, sources=[source(name, file_tar(name, b""))])
        if record == "unreadable":
            (place.path / "record.json").write_bytes(b"{")
        said = prune_runs(context, PruneRequest(keep=0, yes=True))
        assert (said.runs, len(said.kept)) == ((B,), 1)
        assert "its work is in the record alone" in said.kept[0]
        context.store.marks.change(A, applied="2026-11-02")
        assert prune_runs(context, PruneRequest(keep=0, yes=True)).runs == (A,)

    def test_other_projects_stay(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        publish_run(context.store, run=A)
        monkeypatch.setattr(records, "PROJECT", "ffffffffffff")
        publish_run(context.store, run=B)
        assert prune_runs(context, PruneRequest(keep=0)).runs == (A,)
        assert prune_runs(context, PruneRequest(keep=0, everywhere=True)).runs == (B, A)

    def test_an_unfinished_run_stays_whoever_asks(self, context: Context) -> None:
        publish_run(context.store, run=A)
        context.store.sessions.save(
            SessionState(id=A, project_id=records.PROJECT, project_root="/x", kind="run", created=NOW, owner_pid=1,
                         phase=Phase.DRAINING)
        )  # fmt: skip
        assert "runs recover" in prune_runs(context, PruneRequest(keep=0, yes=True)).kept[0]
        assert "runs recover" in remove_runs(context, (A,)).kept[0]
        assert left(context) == [A]

    def test_a_hold_that_cannot_be_read_holds(self, context: Context) -> None:
        publish_run(context.store, run=A)
        hold_runs(context, (A,))
        (context.store.data / "marks" / f"{A}.json").write_bytes(b"{")
        with pytest.raises(StoreError, match="cannot be read"):
            remove_runs(context, (A,))
        assert left(context) == [A]

    def test_with_a_record_goes_what_was_noted_of_it(self, context: Context) -> None:
        publish_run(context.store, run=A)
        context.store.marks.change(A, applied="x")
        remove_runs(context, (A,))
        assert list((context.store.data / "marks").iterdir()) == []


class TestTransfer:
    def export(self, context: Context, tmp_path: Path, name: str = "out.tar") -> Path:
        fill(context)
        return export_runs(context, [A, B, A], tmp_path / name).path

    @pytest.mark.parametrize("name", ["out.tar", "out.tar.gz"])
    def test_there_and_back(self, name: str, contexts: Callable[[str], Context], tmp_path: Path) -> None:
        here, there = contexts("here"), contexts("there")
        file = self.export(here, tmp_path, name)
        (tmp_path / "key.pem").write_bytes(here.store.host_key.export())
        imported = import_runs(there, file, key=tmp_path / "key.pem")
        assert [(row.run, row.verdict, row.fresh) for row in imported] == [(A, "verified", True), (B, "verified", True)]
        for run in (A, B):
            place = there.store.runs.find(run)
            assert place is not None
            assert tree_digest(place.path) == tree_digest(here.store.runs.place(records.PROJECT, run).path)
            assert verify_record(there, run).exit_code == 0
            assert show_run(there, run).files.state == "as-recorded"
            assert show_run(there, run).origin is not None
        rows = list_runs(there, everywhere=True)
        assert [(row.run, row.imported) for row in rows] == [(B, True), (A, True)]
        assert list_runs(there) == ()
        assert [row.fresh for row in import_runs(there, file)] == [False, False]
        assert there.store.checkpoints.load(A) is None

    def test_without_a_key_nobody_vouches(self, contexts: Callable[[str], Context], tmp_path: Path) -> None:
        here, there = contexts("here"), contexts("there")
        there.store.host_key.public()
        row = import_runs(there, self.export(here, tmp_path))[0]
        assert row.verdict == "whole, and signed by a key that nobody here vouches for"
        assert verify_record(there, A).exit_code == 6
        assert show_run(there, A).files.state == "cannot-be-told"

    def test_another_key_imports_nothing(self, contexts: Callable[[str], Context], tmp_path: Path) -> None:
        here, there = contexts("here"), contexts("there")
        there.store.host_key.public()
        (tmp_path / "key.pem").write_bytes(there.store.host_key.export())
        with pytest.raises(Unverifiable, match="is not signed by the key"):
            import_runs(there, self.export(here, tmp_path), key=tmp_path / "key.pem")
        self.untouched(there)

    def test_a_changed_record_imports_nothing(self, contexts: Callable[[str], Context], tmp_path: Path) -> None:
        here, there = contexts("here"), contexts("there")
        fill(here)
        path = here.store.runs.place(records.PROJECT, B).path / "record.json"
        path.write_bytes(path.read_bytes().replace(b"say hello", b"say hullo"))
        with pytest.raises(Tampered, match=f"run {B} was changed"):
            import_runs(there, export_runs(here, [A, B], tmp_path / "x.tar").path)
        self.untouched(there)

    def test_another_record_of_that_id_is_never_replaced(
        self, contexts: Callable[[str], Context], tmp_path: Path
    ) -> None:
        here, there = contexts("here"), contexts("there")
        publish_run(there.store, run=A, task="mine")
        before = tree_digest(there.store.data / "runs")
        with pytest.raises(UsageError, match="has another record"):
            import_runs(there, self.export(here, tmp_path))
        assert tree_digest(there.store.data / "runs") == before
        assert list_runs(there)[0].imported is False

    def test_a_restored_record_of_ones_own_is_imported_and_verifies(self, context: Context, tmp_path: Path) -> None:
        file = self.export(context, tmp_path)
        remove_runs(context, (A, B))
        assert [row.verdict for row in import_runs(context, file)] == ["verified", "verified"]
        assert verify_record(context, A).exit_code == 0

    def test_an_unsealed_record_says_so(self, contexts: Callable[[str], Context], tmp_path: Path) -> None:
        here, there = contexts("here"), contexts("there")
        publish_run(here.store, lines=chain_of(seal=False))
        (row,) = import_runs(there, export_runs(here, [RUN], tmp_path / "x.tar").path)
        assert row.verdict.startswith("cannot be verified")

    def test_lines_for_other_programs(self, context: Context) -> None:
        import json

        fill(context)
        rows = [json.loads(line) for line in records_as_lines(context, [A, None])]
        assert [row["host"]["run"] for row in rows] == [A, D]
        assert rows[0]["schema"] == "agent-container/run/1"

    def untouched(self, context: Context) -> None:
        assert list_runs(context, Wanted(), everywhere=True) == ()
        assert [path for path in context.store.data.glob("runs/**/*") if path.is_file()] == []
        assert list((context.store.data / "runs" / ".staging").iterdir()) == []

    FILE = tarfile.REGTYPE
    HOSTILE = {
        "a traversal": [("../evil", b"x", FILE)],
        "a traversal inside": [(f"{A}/../../evil", b"x", FILE)],
        "an absolute name": [("/tmp/evil", b"x", FILE)],
        "a symbolic link": [(f"{A}/record.json", None, tarfile.SYMTYPE)],
        "a hard link": [(f"{A}/record.json", None, tarfile.LNKTYPE)],
        "a device": [(f"{A}/null", None, tarfile.CHRTYPE)],
        "a FIFO": [(f"{A}/pipe", None, tarfile.FIFOTYPE)],
        "a name with an escape": [(f"{A}/a\x1b[2J", b"x", FILE)],
        "a name with a backslash": [(f"{A}/a\\b", b"x", FILE)],
        "no run": [("hello.txt", b"x", FILE)],
        "a run that is a file": [(A, b"x", FILE)],
        "a file twice": [(f"{A}/a", b"x", FILE), (f"{A}/a", b"y", FILE)],
        "a file as a directory": [(f"{A}/a", b"x", FILE), (f"{A}/a/b", b"y", FILE)],
        "records that are mixed": [(f"{A}/a", b"x", FILE), (f"{B}/a", b"x", FILE), (f"{A}/b", b"x", FILE)],
        "too many files": [(f"{A}/{name}", b"x", b"0") for name in "abcdefghijkl"],
        "too large a file": [(f"{A}/a", b"x" * 5000, FILE)],
        "too much": [(f"{A}/{name}", b"x" * 900, b"0") for name in "abcdefghi"],
        "nothing": [],
        "deep": [(A + "/d" * 40, b"x", FILE)],
    }  # fmt: skip
    SMALL = Caps(files=10, file_bytes=4000, total_bytes=8000, stream_bytes=100_000)

    @pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
    def test_a_hostile_archive_imports_nothing(
        self, entries: list[records.Entry], context: Context, tmp_path: Path
    ) -> None:
        (tmp_path / "x.tar").write_bytes(records.tar_of(*entries))
        before = {path for path in tmp_path.rglob("*") if "home" not in path.parts}
        with pytest.raises(UsageError, match="nothing was imported"):
            import_runs(context, tmp_path / "x.tar", caps=self.SMALL)
        self.untouched(context)
        assert {path for path in tmp_path.rglob("*") if "home" not in path.parts} == before

    def test_a_record_without_its_manifest_is_none(self, context: Context, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(records.tar_of((f"{A}/record.json", b"{}", tarfile.REGTYPE)))
        with pytest.raises(Unverifiable, match="is no whole record"):
            import_runs(context, tmp_path / "x.tar")
        self.untouched(context)

    @pytest.mark.parametrize(
        "body",
        [b"", b"no tar at all", b"\x1f\x8b", gzip.compress(b"x" * 10_000), gzip.compress(b"\0" * 50_000_000),
         gzip.compress(records.tar_of((f"{A}/a", b"x" * 3000, tarfile.REGTYPE)))[:-20], b"\x1f\x8b" + b"\xff" * 100],
        ids=["empty", "text", "a beginning", "no tar in it", "a bomb", "cut", "garbage"],
    )  # fmt: skip
    def test_what_is_no_archive(self, body: bytes, context: Context, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(body)
        with pytest.raises(UsageError):
            import_runs(context, tmp_path / "x", caps=self.SMALL)
        self.untouched(context)

    def test_no_command_takes_an_imported_run_for_one_of_the_project(
        self, contexts: Callable[[str], Context], tmp_path: Path
    ) -> None:
        from agent_container.commands.run_control import apply_run

        here, there = contexts("here"), contexts("there")
        import_runs(there, self.export(here, tmp_path))
        with pytest.raises(UsageError, match="there are no runs yet"):
            show_run(there, None)
        with pytest.raises(UsageError, match="came from elsewhere"):
            apply_run(there, A, mode=None, accept_sensitive=False)


EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-14))
HOSTILE: dict[str, dict[str, object]] = {
    "a hunk of endless size": {
        "sources": [
            source(
                "workspace.patch",
                file_tar("workspace.patch", b"diff --git a/x b/x\n@@ -1," + b"9" * 5000 + b" +1 @@\n"),
            )
        ]
    },
    "before the calendar": {"started": datetime(1, 1, 1, tzinfo=EAST)},
    "after the calendar": {"started": datetime(9999, 12, 31, 23, tzinfo=WEST)},
    "a clock that is off for ever": {"clock_skew_s": 1e300},
    "a duration without end": {"duration_s": 1e308},
}


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's tool checks nothing of what it writes."""
    made = records.record_of

    def record_of(*args: object, **host: object) -> RunRecord:
        names = ("started", "clock_skew_s", "duration_s")
        odd = {name: host.pop(name) for name in names if name in host}
        record = made(*args, **host)  # type: ignore[arg-type]
        view = record.agent.model_copy(update={"cost_usd": 1e308}) if record.agent else None
        return record.model_copy(update={"host": record.host.model_copy(update=odd), "agent": view})

    monkeypatch.setattr(records, "record_of", record_of)


@pytest.mark.parametrize("host", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_imported_record_takes_the_others_along(
    host: dict[str, object], contexts: Callable[[str], Context], tmp_path: Path, unchecked: None
) -> None:
    evil, ours = contexts("evil"), contexts("home")
    publish_run(ours.store, run=A)
    publish_run(evil.store, run=B, **host)  # type: ignore[arg-type]
    export_runs(evil, [B], tmp_path / "x.tar")
    with suppress(Tampered):  # a record that says what no run can be is refused whole
        import_runs(ours, tmp_path / "x.tar")
    place = ours.store.runs.place("imported-" + records.PROJECT, B)
    if not place.path.is_dir():  # an older version took it over all the same
        shutil.copytree(evil.store.runs.place(records.PROJECT, B).path, place.path)
    assert [row.run for row in list_runs(ours, everywhere=True)] == [B, A]
    assert prune_runs(ours, PruneRequest(keep=0)).runs == (A,)
    for by in ("project", "week"):
        show_stats(Ui(), read_stats(ours, by=by, everywhere=True))
    for act in (lambda: show_run(ours, B), lambda: list(read_logs(ours, B, LogQuery(sources=SOURCES), LogEnd()))):
        with suppress(StoreError):  # it cannot be read, and says so
            act()


def test_a_fault_in_reading_a_record_is_a_row(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(directory: Path) -> Iterator[str]:
        raise OverflowError(directory)

    publish_run(context.store, run=A)
    monkeypatch.setattr(run_index, "changed_paths", broken)
    row = list_runs(context)[0]
    assert (row.run, row.state, row.notes) == (
        A,
        "unreadable",
        (f"the record of run {A} cannot be read: OverflowError",),
    )


def test_what_a_killed_import_left_goes_with_the_next(
    contexts: Callable[[str], Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, home = contexts("other"), contexts("home")
    publish_run(other.store, run=B)
    export_runs(other, [B], tmp_path / "x.tar")
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(run_transfer, "verify_run", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        try:
            import_runs(home, tmp_path / "x.tar")
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    area = next((tmp_path / "home").rglob(".staging"))
    assert [entry.name.startswith(".staging-import-") for entry in area.iterdir()] == [True]
    import_runs(home, tmp_path / "x.tar")
    assert list(area.iterdir()) == []


@pytest.mark.parametrize("vouched", [False, True])
def test_an_imported_records_own_word_counts_as_far_as_its_signer_is_known(
    vouched: bool, contexts: Callable[[str], Context], tmp_path: Path
) -> None:
    other, home = contexts("other"), contexts("home")
    publish_run(home.store, run=A)
    publish_run(other.store, run=B)
    export_runs(other, [B], tmp_path / "x.tar")
    (tmp_path / "key").write_bytes(other.store.host_key.export())
    import_runs(home, tmp_path / "x.tar", key=tmp_path / "key" if vouched else None)
    rows = {row.run: row.verified for row in list_runs(home, everywhere=True)}
    assert rows == {A: "verified", B: "verified" if vouched else "not-vouched"}
    for by in ("project", "agent", "model", "week"):
        stats = read_stats(home, by=by, everywhere=True)
        assert [(group.name.endswith(" (imported)"), group.cost_usd) for group in stats.groups] == [
            (False, 0.01),
            (True, 0.01),
        ]
        assert (stats.total.name, stats.total.runs, stats.total.cost_usd) == ("all but imported", 1, 0.01)
