"""What people see of a run: the merged stream, the diffstat, the sums over many."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_container.commands.context import Context
from agent_container.commands.run_filters import Wanted
from agent_container.commands.run_logs import SOURCES, LogEnd, LogEntry, LogQuery, read_logs
from agent_container.commands.run_patch import FileChange, read_patch
from agent_container.commands.run_stats import read_stats
from agent_container.commands.runs import show_run
from agent_container.drain import EVENTS, RAW, RECEIPTS
from agent_container.errors import UsageError
from agent_container.events import AgentMessage, encode_event
from agent_container.project import find_project
from agent_container.records import AgentView, Tokens
from agent_container.ui import Ui
from agent_container.ui.figures import show_changes, show_stats
from agent_container.ui.views import show_log_entry
from tests.support import records
from tests.support.records import RUN, STARTED, publish_run, record_of

NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(records, "PROJECT", find_project(tmp_path / "project").id)
    environ = {"XDG_DATA_HOME": str(tmp_path / "d"), "XDG_STATE_HOME": str(tmp_path / "s")}
    yield Context(directory=tmp_path / "project", environ=environ, now=lambda: NOW)


def logs(context: Context, **query: object) -> tuple[list[LogEntry], LogEnd]:
    end = LogEnd()
    return list(read_logs(context, RUN, LogQuery(**query), end)), end  # type: ignore[arg-type]


def stamp(second: float) -> int:
    return int((STARTED.timestamp() + second) * 1000)


def write(context: Context) -> Path:
    """A run whose sources interleave: events at 1 and 4, output at 2 and 5, receipts at 0, 3 and 6."""
    path = publish_run(context.store).place.path
    moments = [(1, "first"), (4, "second")]
    events = [AgentMessage(at=STARTED + timedelta(seconds=at), text=text) for at, text in moments]
    (path / EVENTS).write_bytes(b"".join(map(encode_event, events)))
    frames = [
        {"seq": n, "t_ms": 0, "wall_ms": stamp(at), "ch": "stdout", "text": f"out {at}\n"} for n, at in ((1, 2), (2, 5))
    ]
    (path / RAW).write_text("".join(json.dumps(frame) + "\n" for frame in frames))
    rows = [
        {"seq": n, "t": stamp(at), "kind": "decision", "host": f"h{at}.test", "action": "allow", "mac": "0"}
        for n, at in ((1, 0), (2, 3), (3, 6))
    ]
    (path / RECEIPTS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class TestLogs:
    def test_sources_are_merged_by_time(self, context: Context) -> None:
        write(context)
        entries, end = logs(context, sources=SOURCES)
        assert [entry.source[0] for entry in entries] == ["r", "e", "o", "r", "e", "o", "r"]
        assert (end.entries, end.cut) == (7, [])

    def test_events_alone_stand_as_they_are_numbered(self, context: Context) -> None:
        publish_run(context.store)
        entries, _ = logs(context)
        numbers = [entry.event.seq for entry in entries if entry.event is not None]
        assert numbers == list(range(1, len(entries) + 1)) and len(numbers) > 5
        assert entries[-1].type == "run.finished"

    def test_a_clock_that_jumps_back_reorders_no_source(self, context: Context) -> None:
        path = write(context)
        events = [AgentMessage(at=at, text=text) for at, text in (
            (STARTED + timedelta(seconds=4), "a"), (STARTED - timedelta(days=900), "b"), (None, "c"),
            (STARTED + timedelta(seconds=5), "d"),
        )]  # fmt: skip
        (path / EVENTS).write_bytes(b"".join(map(encode_event, events)))
        entries, _ = logs(context, sources=SOURCES)
        assert [json.loads(entry.text)["text"] for entry in entries if entry.source == "events"] == ["a", "b", "c", "d"]

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ({"types": ["agent.message"]}, 2),
            ({"types": ["std*", "decision"]}, 5),
            ({"host": "H3.*"}, 1),
            ({"since": "+4s"}, 3),
            ({"since": "2026-11-29T15:34:03+00:00"}, 3),
            ({"since": "1s"}, 0),
            ({"grep": r"out [25]"}, 2),
            ({"grep": "first", "types": ["std*"]}, 0),
            ({"limit": 2}, 2),
            ({"sources": ("receipts",)}, 3),
        ],
        ids=str,
    )
    def test_a_filter(self, query: dict[str, object], found: int, context: Context) -> None:
        write(context)
        entries, end = logs(context, **{"sources": SOURCES, **query})
        assert len(entries) == found
        assert bool(end.cut) == ("limit" in query)

    def test_a_cap_that_cut_the_answer_is_said(self, context: Context) -> None:
        from agent_container.records import Drained

        path = publish_run(context.store).place.path
        (path / RAW).write_text('{"seq":1,"t_ms":1,"wall_ms":2,"ch":"truncated","detail":"over 256 MiB"}\n{"half')
        drained = Drained(truncated=("receipts.jsonl: cut at 1 of 2 bytes",))
        (path / "record.json").write_bytes(record_of(drained=drained).encode())
        with (path / EVENTS).open("ab") as stream:
            stream.write(b'{"type": "of.tomorrow"}\n')
        entries, end = logs(context, sources=SOURCES, limit=1)
        assert len(entries) == 1
        assert {note.split(":")[0] for note in end.cut} == {
            "events.jsonl line 8", "the output was cut while the agent worked", "raw.jsonl line 2",
            "15 earlier entries, by --limit 1", "when the record was made",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "query",
        [{"grep": "("}, {"sources": ("nope",)}, {"since": "soon"}, {"limit": 0}, {"grep": "a{99999999999}"}],
        ids=str,
    )
    def test_what_says_nothing(self, query: dict[str, object], context: Context) -> None:
        publish_run(context.store)
        with pytest.raises(UsageError):
            logs(context, **query)

    def test_what_a_sandbox_wrote_stays_on_its_line(self, context: Context) -> None:
        path = write(context)
        frame = {"seq": 1, "t_ms": 0, "wall_ms": 10**30, "ch": "stderr", "text": "\x1b[2Jx\nok: verified\r\u202e"}
        (path / RAW).write_text(json.dumps(frame) + "\n")
        (path / RECEIPTS).write_text(
            '{"seq":1,"t":1e400,"kind":"decision","host":"a\\nb\\u001b[1A","action":"deny","mac":"0"}\n'
        )
        out = io.StringIO()
        ui = Ui(stdout=out, stderr=io.StringIO(), environ={})
        for entry in logs(context, sources=SOURCES)[0]:
            show_log_entry(ui, entry)
        assert "\x1b" not in out.getvalue() and "\u202e" not in out.getvalue()
        assert not any(line.startswith(("ok", "b")) for line in out.getvalue().splitlines())


PATCH = """\
diff --git a/src/a.py b/src/a.py
index 1..2 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,3 +1,4 @@ def f():
 same
-old
+new
+diff --git a/fake b/fake
 same
\\ No newline at end of file
@@ -9 +10 @@
-@@ -1,99 +1,99 @@
+x
diff --git a/new b/new
new file mode 100644
--- /dev/null
+++ b/new
@@ -0,0 +1,2 @@
+one
+two
diff --git a/gone b/gone
deleted file mode 100644
@@ -1 +0,0 @@
-x
diff --git a/pic.png b/pic.png
GIT binary patch
literal 3
KcmZQzU|?Vd000210RR91

"""


class TestChanges:
    def test_a_patch_is_read_file_by_file(self, tmp_path: Path) -> None:
        (tmp_path / "workspace.patch").write_text(PATCH)
        assert list(read_patch(tmp_path)) == [
            FileChange("src/a.py", 3, 2),
            FileChange("new", 2, 0, kind="added"),
            FileChange("gone", 0, 1, kind="removed"),
            FileChange("pic.png", binary=True),
        ]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xff" * 99,
            b"@@ -1,9999999999 +1 @@\n",
            b"diff --git \n@@ -0,0 +1 @@\n+x",
            b"diff --git a/" + b"x" * 99_999,
        ],
    )
    def test_what_is_no_patch_changes_nothing(self, body: bytes, tmp_path: Path) -> None:
        (tmp_path / "workspace.patch").write_bytes(body)
        assert list(read_patch(tmp_path)) == []

    def test_the_diffstat(self) -> None:
        out = io.StringIO()
        rows = (FileChange("a\nb", 900, 100), FileChange("c", 1, 0), FileChange("d", binary=True, kind="added"))
        show_changes(Ui(stdout=out, stderr=io.StringIO(), environ={}), rows, more=7)
        lines = out.getvalue().splitlines()
        assert lines[3].split() == ["a", "b", "+900", "-100", "+" * 27 + "-" * 3]
        assert lines[4].split() == ["c", "+1", "-0", "+"]
        assert lines[5].split() == ["d", "added", "binary"]
        assert lines[6].startswith("and 7 more files")

    def test_show_has_the_changes_and_the_last_events(self, context: Context) -> None:
        path = publish_run(context.store).place.path
        (path / "workspace.patch").write_text(PATCH * 60)
        events = [AgentMessage(text=f"{number} " + "x" * 5000) for number in range(100)]
        (path / EVENTS).write_bytes(b"".join(map(encode_event, events)))
        detail = show_run(context, RUN)
        assert (len(detail.changes), detail.more_changes) == (100, 140)
        assert (len(detail.timeline), detail.earlier_events) == (40, 60)
        assert isinstance(detail.timeline[-1], AgentMessage) and detail.timeline[-1].text.endswith("(5003 characters)")


class TestStats:
    def add(self, context: Context, run: str, *, model: str | None, cost: float | None, **host: object) -> None:
        started = datetime.strptime(run[:15] + "+0000", "%Y%m%d-%H%M%S%z")
        agent = AgentView(model=model, cost_usd=cost, tokens=Tokens(input=1000, output=10, cached=5))
        record = record_of(run=run, started=started, duration_s=60, **host).model_copy(update={"agent": agent})
        place = context.store.runs.place(records.PROJECT, run)
        with context.store.runs.staging(place) as staged:
            (staged / "record.json").write_bytes(record.encode())
            context.store.runs.publish(staged, place)

    @pytest.fixture
    def filled(self, context: Context) -> Context:
        self.add(context, "20261228-100000-aaaaaa", model="opus", cost=3.0)
        self.add(context, "20270103-100000-bbbbbb", model="haiku", cost=0.5, outcome="failed")
        self.add(context, "20270104-100000-cccccc", model="haiku", cost=None)
        return context

    def test_by_week_across_a_year(self, filled: Context) -> None:
        stats = read_stats(filled)
        assert [(group.name, group.runs, group.cost_usd) for group in stats.groups] == [
            ("2026-W53", 2, 3.5), ("2027-W01", 1, 0.0),
        ]  # fmt: skip
        assert stats.total.outcomes == {"succeeded": 2, "failed": 1}
        assert (stats.total.tokens_in, stats.total.duration_s, stats.total.without_cost) == (3000, 180, 1)

    def test_by_model_the_dearest_first(self, filled: Context) -> None:
        assert [group.name for group in read_stats(filled, by="model").groups] == ["opus", "haiku"]
        only = read_stats(filled, by="agent", wanted=Wanted(outcomes=["failed"]))
        assert [(group.name, group.runs) for group in only.groups] == [("demo", 1)]
        with pytest.raises(UsageError):
            read_stats(filled, by="state; DROP TABLE runs")

    def test_bars(self, filled: Context) -> None:
        out = io.StringIO()
        show_stats(Ui(stdout=out, stderr=io.StringIO(), environ={}), read_stats(filled, by="model"))
        head, opus, haiku, total = out.getvalue().splitlines()
        assert head.split()[:3] == ["model", "runs", "cost"]
        assert opus.endswith(" " + "#" * 30) and haiku.endswith(" " + "#" * 5) and not total.endswith("#")
        assert "$0.50 (1 without)" in haiku and "$3.50" in total
