"""`run` of an agent that exits at once, split into its parts: which is the largest, and what share it has."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from agent_container.commands.context import Context
from agent_container.commands.run import RunRequest, run_task
from tests.bench.conftest import Bench

RUNS = 5


def test_the_parts_of_a_run(bench: Bench, say: Callable[[str], None]) -> None:
    parts: dict[str, list[float]] = {}
    totals = []
    for number in range(RUNS + 1):
        marks = [("begin", time.perf_counter())]
        ctx = Context(
            directory=bench.project,
            environ=bench.environ,
            report=lambda text, marks=marks: marks.append((text, time.perf_counter())),  # type: ignore[misc]
        )
        result = run_task(ctx, RunRequest(task="nothing", mode="clone"), on_event=lambda event: None)
        marks.append(("Removed what was made", time.perf_counter()))
        assert result.record.host.outcome == "succeeded"
        if number == 0:
            continue  # warm-up
        totals.append(marks[-1][1] - marks[0][1])
        for (_, before), (name, after) in zip(marks, marks[1:], strict=False):
            parts.setdefault(name, []).append(after - before)
    total = statistics.median(totals)
    say(f"run of an agent that exits at once: {total:.2f} s (aim 2.5 s), {RUNS} runs")
    for name, values in parts.items():
        part = statistics.median(values)
        say(f"  until '{name}': {part:.2f} s, {part / total:.0%}")
    assert totals
