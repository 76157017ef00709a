"""What is looked for in a run's record: the flat facts that the index holds of it, and the question put to them.

Pure. A record is written once and read for ever, by people who look for a host, a path, a cost or a label; which of its
thousand fields those are is decided here, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from agent_container.records import RunRecord

TEXT = 512
"""Characters that are kept of any text; the record itself has all of it."""
LABEL_KEY_CHARS, LABEL_CHARS, MAX_LABELS = 63, 255, 32
MAX_PATHS, MAX_HOSTS = 20_000, 5_000
LARGEST = 2**62
LARGEST_S = 1e10


@dataclass(frozen=True)
class RunFacts:
    """One run, as far as anybody looks for it."""

    project_id: str
    run: str
    kind: str = "run"
    """`run`, or `up` for a standing environment."""
    state: str = "unreadable"
    """An outcome, or `running`, `orphaned`, `lost`, `unreadable`."""
    project: str = ""
    agent: str = ""
    model: str = ""
    started: float | None = None
    """Seconds since the epoch."""
    duration_s: float | None = None
    cost_usd: float | None = None
    """By the agent's own count."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    denied: int = 0
    tripwires: int = 0
    verified: str = "not-checked"
    task: str = ""
    notes: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    bytes: int = 0
    """Of all its files."""
    work: bool = False
    """Whether it holds work that was done in a clone, as it says or as its files show."""
    hosts: tuple[str, ...] = ()
    """Hosts that it sent to or that answered it."""
    paths: tuple[str, ...] = ()
    """Files that it changed, by their path in the project."""
    cut: bool = False
    """Whether there were more hosts or paths than are listed."""


@dataclass(frozen=True)
class RunQuery:
    """Which runs are wanted. Several values of one of the first four: any of them. All else must fit altogether."""

    project_id: str | None = None
    projects: tuple[str, ...] = ()
    """Names or ids, with `*`."""
    outcomes: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """With `*`."""
    labels: tuple[tuple[str, str | None], ...] = ()
    """Key and value; None for any value."""
    since: float | None = None
    until: float | None = None
    """Seconds since the epoch; the first is in, the second is not."""
    costs: tuple[tuple[str, float], ...] = ()
    """`<`, `<=`, `>`, `>=` or `=`, and US dollars."""
    changed: tuple[str, ...] = ()
    """A path, a directory, or a pattern with `*`."""
    contacted: tuple[str, ...] = ()
    """A host, or a pattern with `*`."""
    limit: int | None = None

    @property
    def narrow(self) -> bool:
        """Whether anything but the project is asked for."""
        return self != RunQuery(project_id=self.project_id)


def facts_of(
    record: RunRecord,
    *,
    kind: str = "run",
    project_id: str | None = None,
    size: int = 0,
    hosts: Iterable[str] = (),
    paths: Iterable[str] = (),
    cut: bool = False,
) -> RunFacts:
    """The facts of one record. `hosts` adds to those that the record lists."""
    host, agent = record.host, record.agent
    tokens = agent.tokens if agent is not None else None
    listed = [row.host for row in host.egress.top_hosts if row.allowed]
    tree = host.workspace
    return RunFacts(
        project_id=project_id if project_id is not None else plain(host.project_id),
        run=plain(host.run),
        kind=kind,
        state="taken down" if kind == "up" and host.outcome == "interrupted" else host.outcome.value,
        project=plain(host.project_name),
        agent=plain(host.versions.agent),
        model=plain(agent.model or "") if agent is not None else "",
        started=host.started.timestamp(),
        duration_s=min(host.duration_s, LARGEST_S) if math.isfinite(host.duration_s) else None,
        cost_usd=agent.cost_usd if agent is not None else None,
        tokens_in=whole(tokens.input) if tokens else 0,
        tokens_out=whole(tokens.output) if tokens else 0,
        tokens_cached=whole(tokens.cached) if tokens else 0,
        denied=whole(host.egress.denied + host.egress.lookups_denied),
        tripwires=len(host.egress.tripwires),
        verified=host.egress.verified,
        task=plain("(environment)" if kind == "up" else host.task or ""),
        notes=tuple(plain(note) for note in host.drained.notes[:20]),
        labels=tuple(sorted((plain(key), plain(value)) for key, value in list(host.labels.items())[:MAX_LABELS])),
        bytes=whole(size),
        work=tree is not None and tree.mode == "clone" and bool(tree.commits or tree.files_changed),
        hosts=tuple(dict.fromkeys(plain(name).lower() for name in (*listed, *hosts)))[:MAX_HOSTS],
        paths=tuple(dict.fromkeys(plain(path, MAX_PATH) for path in paths))[:MAX_PATHS],
        cut=cut,
    )


MAX_PATH = 4096


def plain(text: str, limit: int = TEXT) -> str:
    """The beginning of a text that any program can store: a lone surrogate becomes `?`."""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")


def whole(number: int) -> int:
    """A count that any program can store."""
    return max(0, min(number, LARGEST))
