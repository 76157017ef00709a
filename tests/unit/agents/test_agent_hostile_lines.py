"""Lines that no agent would print: whatever comes, a parser yields events that can be stored, and raises nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_container.agents import PROFILES
from agent_container.agents.profile import Channel
from agent_container.events import AgentOutput, Event, encode_event
from agent_container.frames import Line

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
