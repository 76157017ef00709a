"""`runs rm`, `runs prune` and `runs hold`: which records go, and what keeps one.

A run that works, one that is not finished, and one that is held stay whatever is asked. Pruning, which names no run,
also leaves those whose work is in their record alone. Everything is decided before the first goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from agent_container.commands.context import Context
from agent_container.commands.run_filters import Wanted, parse_query
from agent_container.commands.run_index import open_index
from agent_container.commands.runs import project_here, resolve_run
from agent_container.errors import NotRunning, UsageError
from agent_container.run_facts import RunFacts
from agent_container.session import Phase
from agent_container.store import RunPlace, Store

WORK_ALONE = "its work is in the record alone"


@dataclass(frozen=True)
class Removed:
    """What went, or would go."""

    runs: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Runs that were left, with the reason."""
    bytes: int = 0
    """What the removed ones take."""
    dry_run: bool = False


@dataclass(frozen=True)
class PruneRequest:
    """Which records are too many. At least one of the first three is given."""

    older_than: timedelta | None = None
    keep: int | None = None
    """So many of the newest stay, whatever else is asked."""
    max_bytes: int | None = None
    """What is left takes no more than this; the oldest go first."""
    keep_labels: Sequence[str] = ()
    work_too: bool = False
    """Also those whose work is in their record alone."""
    everywhere: bool = False
    yes: bool = False


@dataclass(frozen=True)
class Held:
    """What is held, or is not any more."""

    runs: tuple[str, ...]
    held: bool


def remove_runs(context: Context, runs: tuple[str, ...]) -> Removed:
    """Removes records for good; all names are resolved before the first goes."""
    places = [resolve_run(context, run) for run in runs]
    return _remove(context.store, places)


def prune_runs(context: Context, request: PruneRequest) -> Removed:
    """Removes what is too old, too many or too large; without `yes` only says what would go. Raises UsageError."""
    if request.older_than is None and request.keep is None and request.max_bytes is None:
        raise UsageError(
            "say what is too many: --older-than, --keep or --max-size",
            hint="agent-container runs prune --older-than 30d --keep 20",
        )
    project_id = None if request.everywhere else project_here(context)
    query = parse_query(Wanted(), now=context.now(), project_id=project_id)
    wanted = parse_query(Wanted(labels=request.keep_labels), now=context.now(), project_id=None)
    rows = [facts for facts in open_index(context).select(query) if facts.kind == "run"]
    too_many = _too_many(rows, request, now=context.now())
    kept, going = [], []
    for facts in too_many:
        why = _spared(facts, wanted.labels) or _work(context.store, facts, too=request.work_too)
        why = why or _kept_because(context.store, facts.run)
        if why:
            kept.append(f"{facts.run}: {why}")
        else:
            going.append(facts)
    size = sum(facts.bytes for facts in going)
    if not request.yes:
        return Removed(tuple(facts.run for facts in going), tuple(kept), size, dry_run=True)
    places = [context.store.runs.place(facts.project_id, facts.run) for facts in going]
    removed = _remove(context.store, [place for place in places if place.path.is_dir()])
    return Removed(removed.runs, (*kept, *removed.kept), size)


def hold_runs(context: Context, runs: tuple[str, ...], *, reason: str = "", release: bool = False) -> Held:
    """Keeps records from being removed, or lets them go again."""
    places = [resolve_run(context, run) for run in runs]
    for place in places:
        context.store.marks.change(place.run_id, held=None if release else reason[:500])
    return Held(tuple(place.run_id for place in places), not release)


def _too_many(rows: Sequence[RunFacts], request: PruneRequest, *, now: datetime) -> list[RunFacts]:
    """Newest first, as they came. What an option does not speak of, it does not remove."""
    stay = request.keep or 0
    limit = (now - request.older_than).timestamp() if request.older_than is not None else None
    total, found = 0, []
    for number, facts in enumerate(rows):
        total += facts.bytes
        old = limit is not None and _started(facts) < limit
        large = request.max_bytes is not None and total > request.max_bytes
        beyond = request.keep is not None and limit is None and request.max_bytes is None
        if number >= stay and (old or large or beyond):
            found.append(facts)
    return found


def _started(facts: RunFacts) -> float:
    """From the id where there is one of ours: a record that cannot be read has it too, and nobody made it up."""
    try:
        return datetime.strptime(facts.run[:15] + "+0000", "%Y%m%d-%H%M%S%z").timestamp()
    except ValueError:
        return facts.started or 0.0


def _spared(facts: RunFacts, labels: tuple[tuple[str, str | None], ...]) -> str:
    own = dict(facts.labels)
    found = [key for key, value in labels if key in own and value in (None, own[key])]
    return f"it has the label {found[0]}" if found else ""


def _work(store: Store, facts: RunFacts, *, too: bool) -> str:
    if too or not facts.work or store.marks.load(facts.run).applied is not None:
        return ""
    return f"{WORK_ALONE}: agent-container runs apply {facts.run}"


def _kept_because(store: Store, run: str) -> str:
    """Why a record is not removed, whoever asks; empty for no reason."""
    owner = store.sessions.owner(run)
    if owner is not None:
        return f"in use by {owner}"
    try:
        if store.sessions.load(run).phase is not Phase.CLOSED:
            return "it is not finished: agent-container runs recover"
    except NotRunning:
        pass
    held = store.marks.load(run).held
    if held is None:
        return ""
    return f"held{f' ({held})' if held else ''}: agent-container runs hold --release {run}"


def _remove(store: Store, places: Sequence[RunPlace]) -> Removed:
    gone, kept = [], []
    for place in places:
        why = _kept_because(store, place.run_id)
        if why:
            kept.append(f"{place.run_id}: {why}")
            continue
        store.runs.remove(place)
        store.sessions.forget(place.run_id)
        store.marks.forget(place.run_id)
        gone.append(place.run_id)
    return Removed(tuple(gone), tuple(kept))
