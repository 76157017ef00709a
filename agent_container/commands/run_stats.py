"""`runs stats`: what runs cost and how they ended, summed by project, agent, model or week. Cost and tokens are the
agents' own count; a run that named no cost is counted as such and not as free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_container.commands.context import Context
from agent_container.commands.run_filters import Wanted, parse_query
from agent_container.commands.run_index import open_index
from agent_container.commands.runs import project_here
from agent_container.errors import UsageError
from agent_container.store.index_rows import FROM_ELSEWHERE

GROUPS = ("project", "agent", "model", "week")


@dataclass
class Group:
    """What the runs of one project, agent, model or week come to."""

    name: str
    runs: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    cost_usd: float = 0.0
    without_cost: int = 0
    """Runs that named none."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    duration_s: float = 0.0
    denied: int = 0

    def add(self, outcome: str, numbers: Iterable[float]) -> None:
        """One row of the index's sums."""
        runs, costed, cost, tokens_in, tokens_out, cached, seconds, denied = numbers
        self.runs += int(runs)
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + int(runs)
        self.without_cost += int(runs - costed)
        self.cost_usd += cost
        self.tokens_in += int(tokens_in)
        self.tokens_out += int(tokens_out)
        self.tokens_cached += int(cached)
        self.duration_s += seconds
        self.denied += int(denied)


@dataclass(frozen=True)
class Stats:
    """All groups, and what they come to together."""

    by: str
    groups: tuple[Group, ...]
    total: Group


def read_stats(context: Context, *, by: str = "week", wanted: Wanted | None = None, everywhere: bool = False) -> Stats:
    """Sums over the runs that fit. Raises UsageError."""
    if by not in GROUPS:
        raise UsageError(f"--by {by!r}: one of {', '.join(GROUPS)}", hint="agent-container runs stats --by model")
    wanted = wanted or Wanted()
    project_id = None if everywhere or wanted.projects or by == "project" else project_here(context)
    query = parse_query(wanted, now=context.now(), project_id=project_id)
    groups: dict[str, Group] = {}
    total = Group("all")
    """Of this host's own runs: what others claim to have spent is in groups of its own."""
    for name, outcome, *numbers in open_index(context).sums(query, by):
        group = groups.setdefault(str(name), Group(str(name) or "(none)"))
        group.add(str(outcome), numbers)
        if not str(name).endswith(FROM_ELSEWHERE):
            total.add(str(outcome), numbers)
    found = list(groups.values())
    if any(group.name.endswith(FROM_ELSEWHERE) for group in found):
        total.name = "all but imported"
    if by != "week":
        found.sort(key=lambda group: (-group.cost_usd, -group.runs, group.name))
    return Stats(by, tuple(found), total)
