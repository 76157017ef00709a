from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_container.commands.context import Context
from agent_container.commands.logs import events_so_far, find_under_way
from agent_container.commands.run_list import list_runs
from agent_container.commands.run_removal import PruneRequest, prune_runs, remove_runs
from agent_container.commands.run_transfer import export_runs
from agent_container.commands.runs import (
    resolve_run,
    run_events,
    run_raw,
    show_run,
    verify_record,
)
from agent_container.commands.verify_egress import verify_egress
from agent_container.drain import RAW, RECEIPTS
from agent_container.errors import NotRunning, StoreError, UsageError
from agent_container.events import AgentMessage, EgressDenied, Evidence
from agent_container.frames import BadLine
from agent_container.project import find_project
from agent_container.session import Phase, SessionState
from agent_container.store import VerifiedHead
from agent_container.ui import Ui
from agent_container.ui.views import show_run_detail
from agent_container.verify import verify_run
from tests.support import records
from tests.support.records import KEY, RUN, SPOOL, chain_of, file_tar, publish_run, source, tar_of

SECOND = "20261130-080000-aaaaaa"
NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    here = tmp_path / "project"
    here.mkdir()
    made = Context(
        directory=here,
        environ={"XDG_DATA_HOME": str(tmp_path / "d"), "XDG_STATE_HOME": str(tmp_path / "s")},
        now=lambda: NOW,
    )
    monkeypatch.setattr(records, "PROJECT", find_project(here).id)
    return made


def open_session(context: Context, run: str, phase: Phase = Phase.RUNNING) -> None:
    context.store.sessions.save(
        SessionState(
            id=run, project_id=records.PROJECT, project_root="/srv/x", kind="run", created=NOW, owner_pid=os.getpid(),
            phase=phase, agent="demo", task="long",
        )
    )  # fmt: skip


class TestList:
    def test_no_runs(self, context: Context) -> None:
        assert list_runs(context) == ()
        with pytest.raises(UsageError, match="there are no runs yet"):
            show_run(context, None)

    def test_newest_first_with_what_came_of_them(self, context: Context) -> None:
        publish_run(context.store)
        publish_run(context.store, run=SECOND, outcome="timeout", basis="host")
        rows = list_runs(context)
        assert [(row.run, row.state, row.denied, row.verified) for row in rows] == [
            (SECOND, "timeout", 2, "verified"),
            (RUN, "succeeded", 2, "verified"),
        ]
        assert rows[0].task == "say hello"

    def test_those_under_way_orphaned_and_lost_are_told_apart(self, context: Context) -> None:
        open_session(context, "20261130-000000-000001")
        open_session(context, "20261130-000000-000002")
        open_session(context, "20261130-000000-000003", Phase.CLOSED)
        with context.store.sessions.lock("20261130-000000-000001"):
            states = {row.run[-1]: row.state for row in list_runs(context)}
        assert states == {"1": "running", "2": "orphaned", "3": "lost"}
        notes = {row.run[-1]: row.notes for row in list_runs(context)}
        assert "records lost" in notes["3"][0]
        assert "runs recover" in notes["2"][0]

    def test_a_damaged_record_is_a_row_and_hides_no_other(self, context: Context) -> None:
        final = publish_run(context.store)
        publish_run(context.store, run=SECOND)
        (final.place.path / "record.json").write_bytes(b"{")
        rows = {row.run: row for row in list_runs(context)}
        assert rows[RUN].state == "unreadable"
        assert "is not a record" in rows[RUN].notes[0]
        assert rows[SECOND].state == "succeeded"

    def test_other_projects_are_shown_when_asked_for(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        publish_run(context.store)
        monkeypatch.setattr(records, "PROJECT", "ffffffffffff")
        publish_run(context.store, run=SECOND)
        assert [row.run for row in list_runs(context)] == [RUN]
        assert [row.run for row in list_runs(context, everywhere=True)] == [SECOND, RUN]
        assert resolve_run(context, None).run_id == RUN
        assert resolve_run(context, "20261130").run_id == SECOND


class TestResolve:
    def test_a_run_under_way_has_no_record_yet(self, context: Context) -> None:
        publish_run(context.store)
        open_session(context, SECOND)
        with (
            context.store.sessions.lock(SECOND),
            pytest.raises(NotRunning, match="is under way, driven by process") as one,
        ):
            show_run(context, SECOND)
        assert one.value.hint == f"agent-container runs attach {SECOND}"
        with pytest.raises(NotRunning, match="was never finished") as two:
            show_run(context, SECOND)
        assert two.value.hint == f"agent-container runs recover {SECOND}"

    @pytest.mark.parametrize("name", ["nosuch", "", "../x", "2027"])
    def test_what_names_nothing(self, name: str, context: Context) -> None:
        publish_run(context.store)
        with pytest.raises(UsageError):
            show_run(context, name)


class TestLogs:
    def test_a_run_under_way_is_found_by_name_or_as_the_newest(self, context: Context) -> None:
        publish_run(context.store)
        assert find_under_way(context, None) is None
        open_session(context, SECOND)
        named = {name: find_under_way(context, name) for name in (None, SECOND, SECOND[:12], RUN, "", "20261")}
        assert [state is not None for state in named.values()] == [True, True, True, False, False, False]

    def test_one_without_a_sandbox_says_what_to_type_and_nothing_before(self, context: Context) -> None:
        open_session(context, SECOND)
        state = find_under_way(context, SECOND)
        assert state is not None
        with pytest.raises(NotRunning) as caught:
            next(events_so_far(context, state))
        assert caught.value.hint == f"agent-container runs recover {SECOND}"


class TestShow:
    def test_warnings_name_what_was_refused_lost_and_unreadable(self, context: Context) -> None:
        hostile = tar_of(("d/a\nb", b"x", tarfile.REGTYPE))
        sources = [source("transcript", hostile, tree=True), source("gone", b"")]
        final = publish_run(context.store, sources=sources, clock_skew_s=-7200.0)
        bad = BadLine(7, "not-utf8", 3, b"\xff")
        event = Evidence(at=NOW, source="raw.jsonl", line=bad.line, kind=bad.kind, size=bad.size)
        from agent_container.events import encode_event

        with (final.place.path / "events.jsonl").open("ab") as stream:
            stream.write(encode_event(event))
        detail = show_run(context, None)
        assert detail.warnings == (
            "records lost: gone: it is not there",
            "not read: transcript: d/a\nb: a hostile name",
            "raw.jsonl line 7: not-utf8, 3 bytes kept as they are",
            "the container's clock was -7200 s off",
        )

    @pytest.mark.parametrize("name", [RECEIPTS, RAW, "record.json", "events.jsonl", "manifest.json"])
    def test_a_record_that_was_changed_since_says_so_first(self, context: Context, name: str) -> None:
        path = publish_run(context.store).place.path
        assert show_run(context, RUN).files.state == "as-recorded"
        body = (path / name).read_bytes()
        changed = body.replace(b"20261129-153359", b"20261129-153358") if name == "manifest.json" else body + b"\n"
        (path / name).write_bytes(changed)
        detail = show_run(context, RUN)
        assert detail.files.state == "changed"
        assert detail.files.findings[0].startswith(f"{name}: ")
        out = io.StringIO()
        show_run_detail(Ui(stdout=out, stderr=io.StringIO(), environ={}), detail)
        assert out.getvalue().startswith("CHANGED since it was recorded")
        assert f"agent-container runs verify {RUN}" in out.getvalue()

    def test_a_record_without_its_manifest_cannot_be_told(self, context: Context) -> None:
        (publish_run(context.store).place.path / "manifest.json").unlink()
        assert show_run(context, RUN).files.state == "cannot-be-told"

    def test_events_and_raw(self, context: Context) -> None:
        publish_run(context.store)
        events = list(run_events(context, None))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert any(isinstance(event, AgentMessage) for event in events)
        assert {event.layer for event in events if isinstance(event, EgressDenied)} == {"decision", "lookup", "drop"}
        assert b"".join(run_raw(context, RUN)) == SPOOL

    def test_a_record_without_a_spool_says_so(self, context: Context) -> None:
        final = publish_run(context.store)
        (final.place.path / RAW).unlink()
        with pytest.raises(NotRunning, match=r"has no raw\.jsonl"):
            run_raw(context, RUN)

    def test_a_run_without_its_record_file(self, context: Context) -> None:
        final = publish_run(context.store)
        (final.place.path / "record.json").unlink()
        with pytest.raises(StoreError, match=r"has no record\.json") as caught:
            show_run(context, RUN)
        assert caught.value.hint == f"agent-container runs verify {RUN}"


class TestVerify:
    def test_it_moves_the_checkpoint_and_a_cut_tail_is_then_known(self, context: Context) -> None:
        context.store.sessions.save_chain_key(RUN, KEY)
        final = publish_run(context.store)
        assert verify_record(context, RUN).exit_code == 0
        checkpoint = context.store.checkpoints.load(RUN)
        assert checkpoint == VerifiedHead(RUN, 9, final.manifest.chain.head or "", sealed=True)
        body = (final.place.path / RECEIPTS).read_bytes().splitlines(keepends=True)
        (final.place.path / RECEIPTS).write_bytes(b"".join(body[:-3]))
        result = verify_egress(context, RUN)
        assert result.exit_code == 5
        assert any("3 missing at the end" in finding.detail for finding in result.findings)
        assert context.store.checkpoints.load(RUN) == checkpoint

    def test_a_failure_moves_no_checkpoint(self, context: Context) -> None:
        publish_run(context.store, lines=chain_of(seal=False))
        assert verify_record(context, RUN).exit_code == 6
        assert context.store.checkpoints.load(RUN) is None

    def test_an_unknown_run_is_never_a_success(self, context: Context) -> None:
        with pytest.raises(UsageError):
            verify_egress(context, "nosuch")

    def test_policies_of_the_store_stand_in_for_missing_ones(self, context: Context) -> None:
        context.store.policies.save(records.POLICY.encode())
        final = publish_run(context.store)
        shutil.rmtree(final.place.path / "policies")
        result = verify_egress(context, RUN)
        assert {finding.kind for finding in result.findings} == {"missing-file"}
        assert result.counts.policies == 1


class TestRemoval:
    def test_names_are_resolved_before_the_first_goes(self, context: Context) -> None:
        publish_run(context.store)
        with pytest.raises(UsageError):
            remove_runs(context, (RUN, "nosuch"))
        assert len(list_runs(context)) == 1
        assert remove_runs(context, (RUN,)).runs == (RUN,)
        assert list_runs(context) == ()

    def test_what_several_runs_fit_is_not_the_one_record_of_another_kind(self, context: Context) -> None:
        publish_run(context.store)
        publish_run(context.store, run=SECOND)
        context.store.sessions.record_place("", f"{RUN[:-1]}0").path.mkdir(parents=True)
        with pytest.raises(UsageError, match="is the beginning of"):
            remove_runs(context, (RUN[:2],))

    def test_a_run_in_use_is_kept(self, context: Context) -> None:
        publish_run(context.store)
        with context.store.sessions.lock(RUN):
            removed = remove_runs(context, (RUN,))
        assert removed.runs == ()
        assert "in use by process" in removed.kept[0]

    @pytest.mark.parametrize(("days", "keep", "gone"), [(0, 0, 2), (1, 0, 1), (5, 0, 0), (0, 1, 1), (0, 5, 0)])
    def test_prune_takes_old_ones_and_keeps_the_newest(self, days: int, keep: int, gone: int, context: Context) -> None:
        publish_run(context.store)
        publish_run(context.store, run=SECOND)
        removed = prune_runs(context, PruneRequest(older_than=timedelta(days=days), keep=keep, yes=True))
        assert len(removed.runs) == gone
        assert len(list_runs(context)) == 2 - gone
        if gone == 1:
            assert removed.runs == (RUN,)


class TestExport:
    def test_what_is_exported_verifies_elsewhere(self, context: Context, tmp_path: Path) -> None:
        publish_run(context.store, sources=[source("transcript", file_tar("d/x", b"x"), tree=True)])
        target = export_runs(context, [None], tmp_path / "run.tar.gz").path
        assert target.stat().st_mode & 0o777 == 0o600
        with tarfile.open(target) as archive:
            assert {member.uid for member in archive} == {0}
            archive.extractall(tmp_path / "out")  # no `filter`: Debian 12's Python 3.11.2 does not know it
        result = verify_run(tmp_path / "out" / RUN, host_key=context.store.host_key.published())
        assert result.exit_code == 0

    def test_an_existing_file_is_kept(self, context: Context, tmp_path: Path) -> None:
        publish_run(context.store)
        (tmp_path / "run.tar.gz").write_bytes(b"mine")
        with pytest.raises(UsageError, match="exists already"):
            export_runs(context, [None], tmp_path / "run.tar.gz")
        assert (tmp_path / "run.tar.gz").read_bytes() == b"mine"
