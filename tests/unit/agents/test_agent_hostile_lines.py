"""Lines that no agent would print: whatever comes, a parser yields events that can be stored, and raises nothing."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_container.agents import PROFILES
from agent_container.agents.profile import Channel
from agent_container.events import AgentMessage, AgentOutput, AgentResult, Event, Evidence, encode_event
from agent_container.frames import MAX_AGENT_LINE_BYTES, MAX_AGENT_PARTS, Line, split_lines
from agent_container.tally import Tally

STREAMS = Path(__file__).parent / "streams"
AGENTS = sorted({path.stem.partition("-")[0] for path in STREAMS.glob("*.jsonl")})
HOSTILE = (
    None,
    True,
    -1,
    10**400,
    float("nan"),
    float("inf"),
    1e308,
    "",
    "\ud800",
    [],
    [[]],
    [None, 1, {}],
    {},
    {"": {}},
)


def parse(agent: str, data: bytes, channel: Channel = "stdout") -> list[Event]:
    events = list(PROFILES[agent].parser().parse(Line(1, data, len(data), ended=True), channel=channel))
    for event in events:
        encode_event(event)
    return events


def rows(agent: str) -> list[dict[str, object]]:
    """One recorded row of each kind."""
    found: dict[str, dict[str, object]] = {}
    for path in sorted(STREAMS.glob(f"{agent}-*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            item = row.get("item") or row.get("part") or row.get("message") or {}
            inner = item.get("type") or item.get("role") if isinstance(item, dict) else ""
            found.setdefault(f"{row.get('type')} {row.get('subtype')} {inner}", row)
    return list(found.values())


def changed(value: object) -> Iterator[object]:
    """The value with each of its parts replaced by each hostile one, and with each of them left out."""
    yield from HOSTILE
    if isinstance(value, dict):
        for key in value:
            yield {name: part for name, part in value.items() if name != key}
            for part in changed(value[key]):
                yield {**value, key: part}
    elif isinstance(value, list) and value:
        for part in changed(value[0]):
            yield [part, *value[1:]]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_changed_row_raises_nothing(agent: str) -> None:
    for row in rows(agent):
        for variant in changed(row):
            parse(agent, json.dumps(variant).encode())


@pytest.mark.parametrize("agent", AGENTS)
@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=64), kind=st.sampled_from(["stdout", "stderr"]))
def test_bytes_that_are_no_line_of_it_are_output(agent: str, data: bytes, kind: Channel) -> None:
    events = parse(agent, b"\x00" + data, kind)
    assert [type(event) for event in events] == [AgentOutput]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"type":' * 5_000,
        b"\xff\xfe",
        b"null",
        b"{}",
        b'{"type": "news"}',
        b'{"type": ["result"]}',
        b"7",
    ],
    ids=["deep list", "deep object", "no UTF-8", "null", "no type", "an unknown type", "a type that is a list", "7"],
)
def test_what_is_in_no_known_format_is_output(agent: str, data: bytes) -> None:
    assert [type(event) for event in parse(agent, data)] == [AgentOutput]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_row_on_stderr_is_no_event(agent: str) -> None:
    for row in rows(agent):
        assert [type(event) for event in parse(agent, json.dumps(row).encode(), "stderr")] == [AgentOutput]


def filled(part: bytes, *, size: int = MAX_AGENT_LINE_BYTES) -> bytes:
    """A line of a row's form, full of one thing."""
    head, tail = b'{"type":"x","a":[', b"]}"
    count = (size - len(head) - len(tail)) // (len(part) + 1)
    return head + (part + b",") * (count - 1) + part + tail


COSTLY: dict[str, Callable[[], bytes]] = {
    "lists": lambda: filled(b"[]"),
    "objects": lambda: filled(b"{}"),
    "objects in objects": lambda: filled(b'{"a":{"b":[]}}'),
    "numbers": lambda: filled(b"1.1"),
    "short strings": lambda: filled(b'"a"'),
    "strings of quotes": lambda: filled(b'"\\""'),
    "different keys": lambda: b"{" + b",".join(b'"%x":0' % number for number in range(1_500_000)) + b"}",
    "depth alone": lambda: b"[" * MAX_AGENT_LINE_BYTES,
    "quotes alone": lambda: b'"' * MAX_AGENT_LINE_BYTES,
}


@pytest.mark.parametrize("make", COSTLY.values(), ids=COSTLY)
def test_what_would_cost_too_much_to_read_is_marked_and_not_read(make: Callable[[], bytes]) -> None:
    data = make()
    tracemalloc.start()
    try:
        [event] = parse("claude", data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(event, Evidence), type(event)
    assert (event.source, event.kind, event.size) == ("stdout", "too-many-parts", len(data))
    assert event.head.encode() == data[:512]
    assert peak < 8 << 20, f"{peak >> 20} MiB to refuse a line of {len(data) >> 20}"


LONG: dict[str, bytes] = {
    "plain text": b"x" * (MAX_AGENT_LINE_BYTES - 200),
    "code, with what JSON is made of": b"[{:,}] " * ((MAX_AGENT_LINE_BYTES - 200) // 7),
    "quotes and backslashes": b'\\"\\\\' * ((MAX_AGENT_LINE_BYTES - 200) // 4),
    "an end of its own": b"\\n" * ((MAX_AGENT_LINE_BYTES - 200) // 2),
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_text_is_read(text: bytes) -> None:
    row = b'{"type":"assistant","message":{"id":"1","content":[{"type":"text","text":"' + text + b'"}]}}'
    assert MAX_AGENT_LINE_BYTES - 300 < len(row) <= MAX_AGENT_LINE_BYTES
    [event] = parse("claude", row)
    assert isinstance(event, AgentMessage)
    assert event.text == json.loads(b'"' + text + b'"')


def test_parts_up_to_the_bound_are_read() -> None:
    """Two of the row's own besides its items: the type's key and its value, and so on."""
    for over, kind in ((-20, AgentOutput), (20, Evidence)):
        data = filled(b"0", size=2 * (MAX_AGENT_PARTS + over))
        assert [type(event) for event in parse("codex", data)] == [kind]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_line_that_no_parser_takes_is_shown_by_its_beginning(agent: str) -> None:
    [event] = parse(agent, b"x" * (1 << 20))
    assert isinstance(event, AgentOutput) and event.text == "x" * (64 * 1024) + "\u2026"


def test_the_run_goes_on_behind_them() -> None:
    """From the spool: long lines, lines past every bound, and the result."""
    result = b'{"type":"result","subtype":"success","is_error":false,"result":"done","num_turns":1}'
    lines = (filled(b"[]"), b"y" * (MAX_AGENT_LINE_BYTES + 1), b"[" * 100_000, result)

    def frames() -> Iterator[bytes]:
        seq = 0
        for line in lines:
            ended = line + b"\n"
            for start in range(0, len(ended), 32 * 1024):
                seq += 1
                text = ended[start : start + 32 * 1024].decode()
                yield json.dumps({"seq": seq, "t_ms": 1, "ch": "stdout", "text": text}).encode() + b"\n"
        yield json.dumps({"seq": seq + 1, "t_ms": 1, "ch": "exit", "code": 0, "reason": "exit"}).encode() + b"\n"

    tally = Tally(PROFILES["claude"].parser())
    events = list(tally.events(frames()))
    found = [(event.line, event.kind) for event in events if isinstance(event, Evidence)]
    assert found == [(1, "too-many-parts"), (2, "too-long")]
    assert [type(event) for event in events if not isinstance(event, Evidence)][0] is AgentOutput
    assert tally.result == next(event for event in events if isinstance(event, AgentResult)) and tally.result.ok


def test_the_mark_counts_the_lines_of_its_stream() -> None:
    lines = list(split_lines([b"a\n", b"b" * 2000 + b"\n"], max_bytes=1000))
    [event] = PROFILES["codex"].parser().parse(lines[1], channel="stderr")
    assert isinstance(event, Evidence) and (event.source, event.line, event.kind) == ("stderr", 2, "too-long")
