"""A closed run's record and events from what was seen: one half by host, sidecar and git, one by the agent's spool."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from agent_container import __version__
from agent_container.agents import AgentProfile
from agent_container.drain import DrainReport
from agent_container.egress_summary import egress_events
from agent_container.events import Event, RunFinished, RunNote, parse_event
from agent_container.records import (
    AgentView,
    Basis,
    Check,
    Digests,
    Egress,
    HostView,
    Outcome,
    Posture,
    RunRecord,
    Tokens,
    Versions,
    Workspace,
    basis_of,
)
from agent_container.sandbox.turn import HostsView, TurnEnd, end_of
from agent_container.session import SessionState
from agent_container.tally import Tally
from agent_container.workspace.transfer import Work
from agent_egress.budget import BYTES, REQUESTS

NOTED_SKEW_S = 60.0
NO_TOKENS = Tokens()
TLS_PORT = 443
LEFT_BEHIND = "left behind: "
BUDGET_RULES = (BYTES, REQUESTS)


@dataclass(frozen=True)
class Closing:
    """What is known when a session ends."""

    state: SessionState
    end: TurnEnd | None
    """How the turn ended as its driver saw it; None when the driver is gone, and the spool has to tell."""
    profile: AgentProfile
    ended: datetime
    duration_s: float | None = None
    """By a clock that never steps; None when nobody measured it."""
    posture: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    engine_version: str | None = None


@dataclass(frozen=True)
class Seen:
    """What draining brought, counted by the host."""

    egress: Egress
    work: Work | None
    patch_digest: str | None
    drained: DrainReport
    notes: tuple[str, ...]
    killed: str = ""
    """Why the sidecar ended the session, by a `kill`, as its receipts say."""
    before: Tokens = NO_TOKENS
    """What the agent's count holds of runs that this one went on from."""


def make_record(closing: Closing, state: SessionState, tally: Tally, seen: Seen) -> RunRecord:
    """The record of a run whose session has ended."""
    end = within_budget(closing.end or end_by_spool(state, closing.profile, tally, ended=closing.ended), seen.egress)
    if seen.killed:
        # Whatever the agent made of it before it was noticed here.
        end = replace(end, outcome=Outcome.KILLED, reason=seen.killed, basis=Basis.HOST)
    images = dict(state.images)
    left = seen.work.left_behind if seen.work is not None else ()
    skew = _skew(state, tally)
    notes = (*end.notes, *state.notes, *closing.notes, *seen.notes, *(f"{LEFT_BEHIND}{name}" for name in left))
    return RunRecord(
        host=HostView(
            run=state.id,
            session=state.id,
            project_id=state.project_id,
            project_name=state.project_name,
            project_root=state.project_root,
            task=state.task,
            labels=dict(state.labels),
            started=state.created,
            ended=closing.ended,
            duration_s=_duration(closing, state, tally),
            clock_skew_s=skew,
            outcome=end.outcome,
            basis=end.basis or basis_of(end.outcome),
            reason=end.reason + _about_model(end.outcome, state.model_hosts, seen.egress),
            digests=Digests(
                spec=state.spec_digest or None,
                policy=state.policy_digest or None,
                stack=state.stack_digest or None,
                agent_image=images.get("agent"),
                sidecar_image=images.get("egress"),
            ),
            versions=Versions(
                agent=state.agent,
                agent_cli=tally.version,
                agent_container=__version__,
                engine=closing.engine_version,
            ),
            workspace=_workspace(state, seen),
            egress=seen.egress,
            posture=_posture(closing.posture),
            drained=seen.drained.drained(bad_lines=tally.bad_lines),
            previous_run=state.resumes,
            notes=notes,
        ),
        agent=_without(tally.view(), seen.before),
    )


def _without(view: AgentView, before: Tokens) -> AgentView:
    now = view.tokens
    own = Tokens(
        input=max(now.input - before.input, 0),
        output=max(now.output - before.output, 0),
        cached=max(now.cached - before.cached, 0),
    )
    return view.model_copy(update={"tokens": own})


def left_behind(record: RunRecord) -> tuple[str, ...]:
    """What lay in the workspace and is not part of the record's work."""
    notes = (note for note in record.host.notes if note.startswith(LEFT_BEHIND))
    return tuple(note.removeprefix(LEFT_BEHIND) for note in notes)


def within_budget(end: TurnEnd, egress: Egress) -> TurnEnd:
    """An agent that failed after the sidecar had refused it for its budget failed for that, whatever it says."""
    spent = next((row for row in egress.refusals if row.rule.startswith(BUDGET_RULES)), None)
    if spent is None or end.outcome is not Outcome.FAILED:
        return end
    return replace(end, outcome=Outcome.BUDGET, reason=f"{spent.rule}; {end.reason}", basis=Basis.HOST)


def end_by_spool(state: SessionState, profile: AgentProfile, tally: Tally, *, ended: datetime) -> TurnEnd:
    """How a turn ended whose driver is gone: as it judged while it could, else by the spool's last frame, or lost."""
    judged = Outcome(state.outcome) if state.outcome in {str(outcome) for outcome in Outcome} else None
    if judged is not None and basis_of(judged) is Basis.HOST:
        return TurnEnd(judged, state.reason or "the process that drove the run was gone before it wrote why")
    if tally.exit is not None:
        elapsed = (ended - state.turn_started).total_seconds() if state.turn_started else 0.0
        host = HostsView(
            elapsed_s=elapsed,
            time_s=state.limits.time_s or math.inf,
            limited=state.limits.turns is not None or state.limits.cost_usd is not None,
        )
        end = end_of(tally.exit, profile, tally.result, host, last_error=tally.last_error)
        note = "the process that drove the run was gone; its end is read from the spool"
        return replace(end, notes=(*end.notes, note))
    if judged is not None:
        return TurnEnd(judged, state.reason or "the process that drove the run was gone before it wrote why")
    return TurnEnd(Outcome.LOST, "the process that drove the run was gone, and the spool does not say how it ended")


def merged_events(
    state: SessionState, spooled: Iterable[bytes], receipts: Iterator[bytes], record: RunRecord
) -> Iterator[Event]:
    """The record's events: the agent's in the spool's order, then what the receipts say, then the end."""
    yield state.started()
    for line in spooled:
        event = parse_event(line)
        if event is not None:
            yield event
    yield from egress_events(receipts)
    for note in record.host.notes:
        yield RunNote(text=note)
    yield RunFinished(at=record.host.ended, outcome=str(record.host.outcome), reason=record.host.reason)


def _duration(closing: Closing, state: SessionState, tally: Tally) -> float:
    if closing.duration_s is not None:
        return closing.duration_s
    # A standing environment has no turn, and nobody who measured from its start to its end by a steady clock.
    return tally.duration_s or max((closing.ended - state.created).total_seconds(), 0.0)


def _workspace(state: SessionState, seen: Seen) -> Workspace | None:
    use, work = state.workspace, seen.work
    if use is None:
        return None
    if work is None:
        return Workspace(mode=use.mode, base_commit=use.base, note="the work was not collected")
    return Workspace(
        mode=use.mode,
        project_commit=use.head,
        base_commit=use.base,
        carried=use.carried,
        head_commit=work.result,
        commits=work.commits,
        files_changed=work.files_changed,
        insertions=work.insertions,
        deletions=work.deletions,
        patch_digest=seen.patch_digest,
    )


def _posture(names: tuple[str, ...]) -> Posture | None:
    return Posture(passed=True, checks=tuple(Check(name=name, ok=True) for name in names)) if names else None


def _about_model(outcome: Outcome, hosts: tuple[str, ...], egress: Egress) -> str:
    """What the sidecar saw of the model's host, where that may be why a run did not succeed."""
    if outcome not in (Outcome.FAILED, Outcome.TIMEOUT):
        return ""
    words = []
    for host in hosts:
        refused = sorted((row for row in egress.refusals if row.host == host), key=lambda row: row.port != TLS_PORT)
        counts = next((row for row in egress.top_hosts if row.host == host), None)
        if refused and (counts is None or not counts.allowed):
            words.append(f"{host} was refused {sum(row.count for row in refused)} times ({refused[0].rule})")
        elif counts is None or not counts.allowed:
            words.append(f"it sent nothing to {host}")
        elif outcome is Outcome.TIMEOUT:
            words.append(f"{host} had {counts.allowed} requests of it and sent {counts.bytes_down} bytes back")
    return f"; its model's host: {', '.join(words)}" if words else ""


def _skew(state: SessionState, tally: Tally) -> float | None:
    """How far the container's clock is from the host's, when the spool's first frame tells of more than a minute."""
    if tally.first_wall_ms is None:
        return None
    skew = tally.first_wall_ms / 1000 - (state.turn_started or state.created).timestamp()
    return skew if abs(skew) > NOTED_SKEW_S else None
