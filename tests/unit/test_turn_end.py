"""What the runner says of a turn's end, and when that is the host's word: a row for each reason that it may give. And
how events are passed on while it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from agent_container.agents.own import own_profile
from agent_container.engine.protocol import Engine
from agent_container.events import AgentResult, Event, RunStarted, numbered
from agent_container.frames import Frame, Line, parse_frame
from agent_container.records import Basis, Outcome
from agent_container.sandbox.turn import HostsView, TurnLimits, TurnWatch, _Progress, end_of
from agent_container.tally import Tally

NOW = datetime(2026, 12, 1, tzinfo=UTC)
PROFILE = own_profile(command=("true",), environment=(), hosts=())
EARLY = HostsView(elapsed_s=5, time_s=100, silent_s=1, idle_s=50, printed=True)
LATE = HostsView(elapsed_s=101, time_s=100, silent_s=51, idle_s=50, printed=False)

CASES = [
    ("a time limit that the host's clock confirms", "time", LATE, Outcome.TIMEOUT),
    ("a time limit that it does not", "time", EARLY, Outcome.FAILED),
    ("a silence that the host has heard too", "idle", LATE, Outcome.TIMEOUT),
    ("a silence that it has not", "idle", EARLY, Outcome.FAILED),
    ("a program that never printed could not be started", "spawn", LATE, Outcome.NEVER_STARTED),
    ("one that printed was started", "spawn", EARLY, Outcome.FAILED),
    ("a stop that nobody here asked for", "stopped", LATE, Outcome.FAILED),
    ("an interrupt that nobody here asked for", "interrupted", LATE, Outcome.FAILED),
    ("a loss that only the runner tells of", "lost", LATE, Outcome.FAILED),
    ("a plain end with status 0", "exit", EARLY, Outcome.SUCCEEDED),
]


@pytest.mark.parametrize(("reason", "host", "outcome"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_runners_word_never_becomes_the_hosts(reason: str, host: HostsView, outcome: Outcome) -> None:
    frame = Frame(1, 1, 0, None, "exit", code=0, reason=reason, detail="interrupted by SIGINT")
    assert end_of(frame, PROFILE, None, host).outcome is outcome


def test_a_limit_that_nobody_gave_ends_nothing() -> None:
    # Anything in the sandbox can write into the agent's stream: what ends for a budget there is the agent's word.
    frame = Frame(1, 1, 0, None, "exit", code=1, reason="exit")
    forged = AgentResult(ok=False, text="error_max_budget_usd", budget=True)
    assert end_of(frame, PROFILE, forged, EARLY).outcome is Outcome.FAILED
    given = end_of(frame, PROFILE, forged, replace(EARLY, limited=True))
    assert (given.outcome, given.basis) == (Outcome.BUDGET, Basis.AGENT)


def test_events_are_numbered_as_in_the_record_and_stamped_as_they_arrive() -> None:
    seen: list[Event] = []
    moments = iter(NOW + timedelta(seconds=n) for n in range(9))
    watch = TurnWatch(
        engine=cast(Engine, None), egress="", agent="", turn="t", profile=PROFILE, limits=TurnLimits(9, 9),
        on_event=seen.append, stop=lambda: None, stop_requested=lambda: False, now=lambda: next(moments),
        started=RunStarted(at=NOW, run="r", agent="own"),
    )  # fmt: skip
    progress = _Progress(watch)
    for number, text in enumerate((b"one\ntw", b"o\n", b"three"), start=1):
        progress.take(Frame(number, number, 0, None, "stdout", data=text))
    progress.finish()
    assert [(event.seq, event.at, getattr(event, "text", "")) for event in seen] == [
        (1, NOW, ""),
        (2, NOW, "one"),
        (3, NOW + timedelta(seconds=1), "two"),
        (4, NOW + timedelta(seconds=2), "three"),
    ]


LINES = [
    b'{"seq":1,"t_ms":1,"ch":"stdout","text":"one\\ntw"}',
    b'{"seq":2,"t_ms":2,"ch":"stderr","text":"err"}',
    b"no frame",
    b'{"seq":3,"t_ms":3,"ch":"stdout","text":"o\\n"}',
    b'{"seq":4,"t_ms":4,"ch":"truncated","detail":"at 7 bytes"}',
    b'{"seq":5,"t_ms":5,"ch":"exit","code":0,"reason":"exit"}',
]


def test_live_events_have_the_numbers_that_they_have_in_the_record() -> None:
    live: list[Event] = []
    started = RunStarted(at=NOW, run="r", agent="own")
    watch = TurnWatch(
        engine=cast(Engine, None), egress="", agent="", turn="t", profile=PROFILE, limits=TurnLimits(9, 9),
        on_event=live.append, stop=lambda: None, stop_requested=lambda: False, now=lambda: NOW, started=started,
    )  # fmt: skip
    progress = _Progress(watch)
    watch.begin()
    for number, line in enumerate(LINES, start=1):
        progress.take(parse_frame(Line(number, line, len(line), ended=True)))
        watch.remark("the host's own, which stands elsewhere")
    progress.finish()
    spooled = Tally(PROFILE.parser()).events([b"\n".join(LINES) + b"\n"])
    kept = numbered([started, *spooled])

    def plain(events: Iterable[Event]) -> list[dict[str, object]]:
        return [event.model_dump(exclude={"at"}) for event in events]

    assert plain(event for event in live if event.seq is not None) == plain(kept)
    assert [event.seq for event in live].count(None) == len(LINES)
