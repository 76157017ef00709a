"""Figures in plain characters: the diffstat of a run, and the sums over many with their bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agent_container.commands.run_patch import FileChange
from agent_container.commands.run_stats import Stats
from agent_container.ui.clean import one_line
from agent_container.ui.console import Ui, duration

BAR = 30


def show_changes(ui: Ui, changes: Sequence[FileChange], *, more: int = 0) -> None:
    """The diffstat: a line a file, with a bar in the proportion of the largest."""
    if not changes:
        return
    ui.heading("changes")
    largest = max(1, *(change.insertions + change.deletions for change in changes))
    rows = []
    for change in changes:
        scale = min(1.0, BAR / largest)
        plus, minus = (math.ceil(count * scale) for count in (change.insertions, change.deletions))
        counts = "binary" if change.binary else f"+{change.insertions} -{change.deletions}"
        kind = "" if change.kind == "changed" else change.kind
        rows.append((one_line(change.path, width=80), kind, counts, "+" * plus + "-" * minus))
    ui.table(("file", "", "lines", ""), rows)
    if more:
        ui.text(f"and {more} more files (runs diff shows all)")


def show_stats(ui: Ui, stats: Stats) -> None:
    """`runs stats`: a line a group, with bars of what it cost, or, where nobody named a cost, of its runs."""
    if not stats.groups:
        ui.info("no run fits")
        return
    costed = any(group.cost_usd for group in stats.groups)
    largest = max(group.cost_usd if costed else group.runs for group in stats.groups) or 1
    rows = []
    for group in (*stats.groups, stats.total):
        bar = (
            "#" * round(BAR * (group.cost_usd if costed else group.runs) / largest) if group is not stats.total else ""
        )
        known = group.runs > group.without_cost
        cost = f"${group.cost_usd:.2f}" if known else ""
        rows.append(
            (
                one_line(group.name, width=40),
                str(group.runs),
                f"{cost} ({group.without_cost} without)" if known and group.without_cost else cost,
                _thousands(group.tokens_in),
                _thousands(group.tokens_out),
                duration(group.duration_s),
                ", ".join(
                    f"{name} {number}" for name, number in sorted(group.outcomes.items(), key=lambda row: -row[1])
                ),
                bar,
            )
        )
    ui.table((stats.by, "runs", "cost", "tokens in", "out", "time", "outcomes", ""), rows)


def _thousands(count: int) -> str:
    """`812`, `12 k`, `3.4 M`."""
    if count < 10_000:
        return str(count) if count else ""
    return f"{count / 1000:.0f} k" if count < 1_000_000 else f"{count / 1_000_000:.1f} M"


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda row: (-row[1], row[0]))
