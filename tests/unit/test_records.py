from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_container.errors import StoreError
from agent_container.events import AgentMessage, Event, ToolCall, Usage, encode_event, numbered, parse_event
from agent_container.frames import BadLine, Frame, LineSplitter, parse_frames, parse_object, split_lines
from agent_container.records import (
    EXIT_STATUS,
    AgentView,
    Basis,
    Outcome,
    RunRecord,
    ToolCount,
    basis_of,
    parse_record,
    record_schema,
)
from tests.support.records import chain_of, record_of

OUTCOMES = [
    (Outcome.SUCCEEDED, 0, Basis.AGENT),
    (Outcome.FAILED, 10, Basis.AGENT),
    (Outcome.TIMEOUT, 11, Basis.HOST),
    (Outcome.BUDGET, 12, Basis.HOST),
    (Outcome.KILLED, 13, Basis.HOST),
    (Outcome.LOST, 14, Basis.HOST),
    (Outcome.NEVER_STARTED, 15, Basis.HOST),
    (Outcome.INTERRUPTED, 130, Basis.HOST),
]


@pytest.mark.parametrize(("outcome", "status", "basis"), OUTCOMES, ids=[row[0].value for row in OUTCOMES])
def test_each_outcome_has_its_exit_status_and_its_witness(outcome: Outcome, status: int, basis: Basis) -> None:
    assert EXIT_STATUS[outcome] == status
    assert basis_of(outcome) is basis
    record = record_of(outcome=outcome, basis=basis)
    assert record.exit_status == status
    assert len(EXIT_STATUS) == len(Outcome)


@pytest.mark.parametrize("outcome", [row[0] for row in OUTCOMES if row[0] is not Outcome.BUDGET])
def test_a_record_cannot_name_the_wrong_witness(outcome: Outcome) -> None:
    wrong = Basis.HOST if basis_of(outcome) is Basis.AGENT else Basis.AGENT
    with pytest.raises(ValidationError, match="word, not the"):
        record_of(outcome=outcome, basis=wrong)


def test_a_budget_may_be_counted_by_either() -> None:
    for basis in Basis:
        assert record_of(outcome=Outcome.BUDGET, basis=basis).host.basis is basis


def test_what_is_written_is_read() -> None:
    record = record_of(chain_of())
    assert parse_record(record.encode(), origin="x") == record
    row = json.loads(record.encode())
    assert row["schema"] == "agent-container/run/1"
    assert set(row) == {"schema", "host", "agent"}
    assert row["host"]["started"] == "2026-11-29T15:33:59Z"
    assert "exit_code" in row["agent"]
    assert "exit_code" not in row["host"]


def test_a_lone_surrogate_of_an_agents_output_leaves_the_record_readable() -> None:
    cut = "cut emoji \ud83d"
    record = record_of()
    agent = AgentView(final_message=cut, errors=(cut,), tool_calls=(ToolCount(name=cut, calls=1),))
    host = record.host.model_copy(update={"reason": cut})
    written = record.model_copy(update={"agent": agent, "host": host}).encode()
    read = parse_record(written, origin="here")
    assert read.host.reason == "cut emoji ?" and read.agent is not None and read.agent.final_message == "cut emoji ?"
    assert written.isascii()


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(schema="agent-container/run/2"),
        lambda row: row["host"].update(duration_s=-1),
        lambda row: row["host"].update(started="2026-11-29T15:33:59"),
        lambda row: row["host"].update(extra=1),
        lambda row: row["host"].pop("outcome"),
    ],
    ids=["another schema", "a negative duration", "a time without its zone", "an unknown key", "no outcome"],
)
def test_what_is_no_record_is_told(change: object) -> None:
    row = json.loads(record_of().encode())
    change(row)  # type: ignore[operator]
    with pytest.raises(StoreError, match=r"x\.json is not a record") as caught:
        parse_record(json.dumps(row).encode(), origin="x.json")
    assert caught.value.details


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), float("-inf")])
def test_a_cost_that_is_no_number_is_no_cost(cost: float) -> None:
    assert AgentView(cost_usd=cost).cost_usd is None
    assert Usage(cost_usd=cost).cost_usd is None
    json.loads(RunRecord(host=record_of().host, agent=AgentView(cost_usd=cost)).encode())


def test_the_schema_is_published_whole() -> None:
    schema = json.dumps(record_schema())
    assert "What the agent reported" in schema
    assert "never-started" in schema


class TestEvents:
    def every_kind(self) -> list[type]:
        return [kind for kind in get_args(get_args(Event)[0]) if isinstance(kind, type)]

    def test_every_kind_is_written_and_read(self) -> None:
        required = {"run": "r", "agent": "a", "text": "t", "name": "n", "tool": "t", "message": "m", "ok": True}
        required |= {"host": "h", "source": "s", "line": 1, "kind": "k", "size": 2, "outcome": "o"}
        kinds = self.every_kind()
        assert len(kinds) == 17
        for kind in kinds:
            fields = kind.model_fields  # type: ignore[attr-defined]
            event = kind(at=datetime.now(UTC), **{key: value for key, value in required.items() if key in fields})
            line = encode_event(event)
            assert line.endswith(b"\n")
            assert line.count(b"\n") == 1
            assert parse_event(line) == event

    def test_numbers_count_up_whatever_the_clock_says(self) -> None:
        times = [datetime(2026, 1, 1, 12, 0, second, tzinfo=UTC) for second in (5, 5, 1)]
        rows = list(numbered(AgentMessage(at=at, text="x") for at in times))
        assert [row.seq for row in rows] == [1, 2, 3]
        assert [row.at for row in rows] == times

    @pytest.mark.parametrize(
        "line", [b"", b"{", b"[]", b'{"type":"later.kind","x":1}', b'{"type":"usage","tokens_in":"x"}', b"\xff"]
    )
    def test_what_is_no_event_is_none(self, line: bytes) -> None:
        assert parse_event(line) is None

    def test_text_that_utf8_cannot_say_is_replaced(self) -> None:
        line = encode_event(ToolCall(name="x", input="a\ud800b\u2028c\nd"))
        event = parse_event(line)
        assert isinstance(event, ToolCall)
        assert event.input == "a?b\u2028c\nd"


RAW = b'{"a":1}\n{"b":"\xe5\x8d"}\n{"c":"x\xe2\x80\xa8y\xc2\x85z"}\n[1]\n"s"\n\n{"d":3}\n{"half":'


class TestLines:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
    def test_lines_are_cut_at_newlines_alone(self, size: int) -> None:
        chunks = [RAW[start : start + size] for start in range(0, len(RAW), size)]
        lines = list(split_lines(chunks, max_bytes=1000))
        assert [line.number for line in lines] == list(range(1, 9))
        assert [line.data for line in lines] == RAW.split(b"\n")
        read = [parse_object(line) for line in lines]
        assert [row for row in read if isinstance(row, dict)] == [{"a": 1}, {"c": "x\u2028y\u0085z"}, {"d": 3}]
        bad = [(row.line, row.kind) for row in read if isinstance(row, BadLine)]
        assert bad == [(2, "not-utf8"), (4, "not-object"), (5, "not-object"), (6, "not-json"), (8, "half-line")]

    def test_separators_of_other_alphabets_are_data(self) -> None:
        for char in "\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\r":
            (line,) = split_lines([f"x{char}y".encode()], max_bytes=100)
            assert line.data == f"x{char}y".encode()

    def test_a_line_over_the_cap_is_counted_and_its_head_kept(self) -> None:
        chunks = [b"a" * 600, b"b" * 600, b"\nnext\n"]
        long, after = split_lines(chunks, max_bytes=1000)
        assert (long.size, len(long.data), long.cut, long.ended) == (1200, 512, True, True)
        assert (after.number, after.data, after.cut) == (2, b"next", False)
        assert parse_object(long) == BadLine(1, "too-long", 1200, b"a" * 512)

    def test_a_line_of_exactly_the_cap_is_whole(self) -> None:
        (line,) = split_lines([b"a" * 1000 + b"\n"], max_bytes=1000)
        assert not line.cut

    def test_100_mb_in_one_line_need_no_memory(self) -> None:
        def chunks() -> Iterator[bytes]:
            for _ in range(1000):
                yield b"a" * 100_000
            yield b'\n{"ok":1}\n'

        tracemalloc.start()
        lines = list(split_lines(chunks(), max_bytes=1_000_000))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [line.size for line in lines] == [100_000_000, 8]
        assert peak < 5_000_000

    def test_a_line_in_single_bytes_needs_no_object_a_byte(self) -> None:
        splitter = LineSplitter(max_bytes=10_000_000)
        tracemalloc.start()
        for _ in range(100_000):  # an object a byte would be 4 MB
            list(splitter.feed(b"a"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000
        (line,) = splitter.finish()
        assert line.size == 100_000

    @settings(deadline=None)
    @given(st.lists(st.binary(max_size=50), max_size=20))
    def test_nothing_is_lost_or_added(self, chunks: list[bytes]) -> None:
        whole = b"".join(chunks)
        lines = list(split_lines(chunks, max_bytes=10_000))
        joined = b"".join(line.data + (b"\n" if line.ended else b"") for line in lines)
        assert joined == whole
        assert all(one.number + 1 == two.number for one, two in pairwise(lines))


def frames(*lines: bytes) -> list[Frame | BadLine]:
    return list(parse_frames([b"".join(line + b"\n" for line in lines)]))


class TestFrames:
    def test_the_runners_frames(self) -> None:
        found = frames(
            b'{"seq":1,"t_ms":12,"wall_ms":99,"ch":"stdout","text":"h\\u00e9\\n"}',
            b'{"seq":2,"t_ms":13,"wall_ms":100,"ch":"stderr","b64":"/wA="}',
            b'{"seq":3,"t_ms":14,"ch":"exit","code":null,"signal":"SIGTERM","reason":"time","detail":"x"}',
        )
        assert found == [
            Frame(1, 1, 12, 99, "stdout", data="hé\n".encode()),
            Frame(2, 2, 13, 100, "stderr", data=b"\xff\x00"),
            Frame(3, 3, 14, None, "exit", signal="SIGTERM", reason="time", detail="x"),
        ]

    @pytest.mark.parametrize(
        ("line", "kind"),
        [
            (b'{"seq":1,"t_ms":1,"ch":"stdin","text":"x"}', "not-a-frame"),
            (b'{"seq":-1,"t_ms":1,"ch":"stdout","text":"x"}', "not-a-frame"),
            (b'{"seq":true,"t_ms":1,"ch":"stdout","text":"x"}', "not-a-frame"),
            (b'{"seq":1e999,"t_ms":1,"ch":"stdout","text":"x"}', "not-a-frame"),
            (b'{"seq":1,"t_ms":1,"ch":"stdout"}', "not-a-frame"),
            (b'{"seq":1,"t_ms":1,"ch":"stdout","text":5}', "not-a-frame"),
            (b'{"seq":1,"t_ms":1,"ch":"stdout","b64":"!!"}', "not-a-frame"),
            (b'{"seq":1,"t_ms":1,"ch":"exit","code":"0"}', "not-a-frame"),
            (b'{"seq":1,"t_ms":1,"ch":["stdout"],"text":"x"}', "not-a-frame"),
            (b"{}", "not-a-frame"),
            (b"[]", "not-object"),
            (b"nonsense", "not-json"),
            (b"[" * 100_000, "not-json"),
            (b'{"seq":' + b"9" * 5000 + b"}", "not-json"),
            (b"\xff\xfe", "not-utf8"),
            (b"\0", "not-json"),
            (b"a" * 300_000, "too-long"),
        ],
        ids=lambda value: value if isinstance(value, str) else repr(value[:40]),
    )
    def test_what_is_no_frame_is_evidence_and_stops_nothing(self, line: bytes, kind: str) -> None:
        good = b'{"seq":1,"t_ms":1,"ch":"stdout","text":"x"}'
        before, bad, after = frames(good, line, good)
        assert isinstance(before, Frame)
        assert isinstance(after, Frame)
        assert isinstance(bad, BadLine)
        assert (bad.kind, bad.line, bad.size) == (kind, 2, len(line))
        assert bad.head == line[:512]

    def test_half_a_line_at_the_end_is_told(self) -> None:
        (bad,) = parse_frames([b'{"seq":1,"t_'])
        assert isinstance(bad, BadLine)
        assert bad.kind == "half-line"

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.binary(max_size=200)))
    def test_any_bytes_are_read_without_raising(self, chunks: list[bytes]) -> None:
        for item in parse_frames(chunks):
            assert isinstance(item, Frame | BadLine)
