"""`runs ls`: the runs that fit, those with a record from the index, those without one from their sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from agent_container.commands.context import Context
from agent_container.commands.run_filters import Wanted, parse_query
from agent_container.commands.run_index import open_index
from agent_container.commands.runs import project_here
from agent_container.errors import StoreError
from agent_container.run_facts import RunFacts, plain
from agent_container.session import SessionState
from agent_container.store import Store
from agent_container.store.marks import IMPORTED

NOT_VOUCHED = "not-vouched"


@dataclass(frozen=True)
class RunRow:
    """One line of `runs ls`."""

    run: str
    project: str
    project_id: str
    agent: str
    state: str
    """An outcome, or `running`, `orphaned` (nobody drives it any more), `unreadable`."""
    started: datetime | None
    duration_s: float | None
    denied: int
    verified: str
    """How the chain was found when the run was recorded, or `not-vouched` for an imported record whose signer nobody
    here knows; what is true now is for `runs verify`."""
    task: str
    notes: tuple[str, ...] = ()
    model: str = ""
    cost_usd: float | None = None
    """By the agent's own count."""
    labels: dict[str, str] | None = None
    imported: bool = False
    """Whether the record came from elsewhere."""


def list_runs(context: Context, wanted: Wanted | None = None, *, everywhere: bool = False) -> tuple[RunRow, ...]:
    """Runs, newest first: of the project here, or of all. Raises UsageError for a filter that says nothing."""
    from agent_container.store.index import match

    wanted = wanted or Wanted()
    project_id = None if everywhere or wanted.projects else project_here(context)
    query = parse_query(wanted, now=context.now(), project_id=project_id)
    # Named before the index is asked: what is recorded in between is in it then, and no session is missed.
    recorded, others = open_index(context).listing(query, context.store.sessions.ids())
    found = [*recorded, *match(_without_record(context.store, others, project_id), query)]
    newest = sorted(found, key=lambda facts: facts.run, reverse=True)
    return tuple(_row(facts, context.store) for facts in newest[: query.limit])


def _without_record(store: Store, names: frozenset[str], project_id: str | None) -> Iterator[RunFacts]:
    for session in store.sessions.list(project_id, closed=True, among=names):
        if session.kind == "run" and not store.runs.place(session.project_id, session.id).path.is_dir():
            yield _session_facts(store, session)


def _session_facts(store: Store, session: SessionState) -> RunFacts:
    state = "running" if store.sessions.owner(session.id) else "orphaned"
    notes: tuple[str, ...] = ()
    if session.phase.value == "closed":
        state, notes = "lost", ("records lost: the session was closed without one",)
    elif state == "orphaned":
        notes = ("nobody drives it any more: agent-container runs recover",)
    return RunFacts(
        project_id=plain(session.project_id),
        run=session.id,
        state=state,
        project=plain(session.project_name),
        agent=plain(session.agent),
        started=session.created.timestamp(),
        task=plain(session.task or ""),
        notes=notes,
        labels=session.labels,
    )


def _claimed(facts: RunFacts, store: Store) -> str:
    """What a record says of its chain counts as far as a key that its user knows signed it."""
    if not facts.project_id.startswith(IMPORTED):
        return facts.verified
    try:
        origin = store.marks.load(facts.run).origin
    except StoreError:
        origin = None
    return facts.verified if origin is not None and origin.key else NOT_VOUCHED


def _row(facts: RunFacts, store: Store) -> RunRow:
    return RunRow(
        run=facts.run,
        project=facts.project,
        project_id=facts.project_id,
        agent=facts.agent,
        state=facts.state,
        started=None if facts.started is None else datetime.fromtimestamp(facts.started, UTC),
        duration_s=facts.duration_s,
        denied=facts.denied,
        verified=_claimed(facts, store),
        task=facts.task,
        notes=facts.notes,
        model=facts.model,
        cost_usd=facts.cost_usd,
        labels=dict(facts.labels),
        imported=facts.project_id.startswith(IMPORTED),
    )
