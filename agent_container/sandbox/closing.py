"""Closes a session for good: stop, seal and collect, drain, sign, publish; and only then remove.

Every step may be repeated, by this process or by another one after a crash: a record that is published already stays as
it is, and what Docker no longer has is no error. Nothing is removed before the record is on disk.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent_container.drain import (
    RAW,
    RECEIPT_CAPS,
    RECEIPTS,
    RECORD,
    Source,
    add_file,
    digest_file,
    drain,
    file_pieces,
    finalize_run,
)
from agent_container.egress_summary import killed_by, summarise
from agent_container.engine.protocol import Engine, Report
from agent_container.errors import AgentContainerError, EngineError, StoreError, Unverifiable
from agent_container.events import encode_event, numbered
from agent_container.frames import split_lines
from agent_container.manifest import Chain
from agent_container.records import RunRecord, Tokens, parse_record
from agent_container.sandbox.control import SidecarControl
from agent_container.sandbox.recording import Closing, Seen, make_record, merged_events
from agent_container.session import PHASES, Phase, SessionState
from agent_container.stack import LABEL, Mount
from agent_container.stack_agent import HOME, RUN_VOLUME, WORKSPACE
from agent_container.store import RunPlace, Store, VerifiedHead
from agent_container.tally import Tally
from agent_container.workspace.protected import changed_protected, protected_state
from agent_container.workspace.throwaway import Throwaway
from agent_container.workspace.transfer import Prepared, Work, collect_work
from agent_egress.identity import MAX_RECEIPT_BYTES
from agent_egress.receipts import ChainReport, Checkpoint, verify_chain

RECEIPTS_FILE = "/var/lib/egress/receipts.jsonl"
RESCUE = "workspace.tar"
MAX_RESCUE_BYTES = 4 * 1024**3
STOP_GRACE_S = 10
MAX_RESUMED = 1000
BUNDLE, PATCH = "workspace.bundle", "workspace.patch"
KEPT_HOME = "home"
"""Directory of a record with what its agent needs to resume."""


@dataclass(frozen=True)
class Closed:
    """A session that is gone, and the record that is left of it."""

    record: RunRecord
    place: RunPlace
    left_behind: tuple[str, ...] = ()
    """Work that was in the workspace and is not in the bundle, in words."""
    removed: bool = True
    """False when the engine could not read everything: what it has stays for another try."""


def stop_agent(engine: Engine, state: SessionState) -> tuple[str, ...]:
    """Ends the agent's container. What cannot be done is told, not raised: draining goes on."""
    agent = state.container("agent")
    if agent is not None:
        try:
            engine.stop(agent, grace_s=STOP_GRACE_S)
        except EngineError as error:
            return (f"the agent's container could not be stopped: {error}",)
    return ()


def seal_chain(engine: Engine, state: SessionState, *, outcome: str) -> tuple[str, ...]:
    """Ends the chain, once the agent's container has ended. What cannot be done is told, not raised."""
    egress = state.container("egress")
    if egress is None:
        return ()
    running = engine.inspect(egress)
    if running is None:
        return ("the egress sidecar was removed before its receipts were sealed",)
    if running.status != "running":
        return (f"the egress sidecar had ended with status {running.exit_code}; its receipts are not sealed",)
    try:
        SidecarControl(engine, egress).seal(outcome=outcome)
    except EngineError as error:
        return (f"the receipts could not be sealed: {error}",)
    return ()


def close_run(engine: Engine, store: Store, closing: Closing, *, report: Report) -> Closed:
    """Ends a run's session and publishes its record, then removes what Docker has of it. Harmless to repeat."""
    state = closing.state
    place = record_place(store, state)
    published = (place.path / RECORD).is_file()
    if published and (state.recorded or (state.containers and _gone(engine, state, set(dict(state.containers))))):
        # Only the removal was cut short. Reading again would find less than the record holds.
        remove(engine, store, state)
        return Closed(record=_stored(place), place=place)
    if PHASES.index(state.phase) < PHASES.index(Phase.DRAINING):
        reason = closing.end.reason if closing.end is not None else None
        state = state.updated(phase=Phase.DRAINING, outcome=_outcome_word(closing), reason=reason)
        store.sessions.save(state)
    notes = closing.notes + stop_agent(engine, state)
    with contextlib.ExitStack() as stack:
        staged = stack.enter_context(store.runs.staging(place))
        with ThreadPoolExecutor(max_workers=1) as pool:
            # The agent's container has ended: what it left lies still, and nothing more comes to the chain.
            sealing = pool.submit(seal_chain, engine, state, outcome=_outcome_word(closing))
            work, work_notes = _collect(engine, store, state, staged)
            notes += sealing.result()
        report("Collected the work")
        sources = _sources(engine, state, keeps=closing.profile.keeps)
        reports = {role: drain(staged, of_role) for role, of_role in sources.items()}
        drained = reports["agent"] + reports["egress"]
        tally = Tally(closing.profile.parser(), started=state.turn_started)
        scratch = stack.enter_context(tempfile.TemporaryFile(dir=store.state))
        scratch.writelines(encode_event(event) for event in tally.events(_pieces(staged / RAW)))
        chain = _check_chain(store, state, staged)
        work_notes += _touched(store, state)
        seen = Seen(
            egress=summarise(_receipt_lines(staged), report=chain, hosts=state.model_hosts),
            work=work,
            patch_digest=_digest_of(staged / PATCH),
            drained=drained,
            killed=killed_by(_receipt_lines(staged)),
            notes=notes + work_notes,
            before=_counted_before(store, state) if closing.profile.usage_spans_session else Tokens(),
        )
        record = make_record(closing, state, tally, seen)
        scratch.seek(0)
        final = finalize_run(
            store,
            place,
            staged,
            record=record,
            events=numbered(merged_events(state, scratch, _receipt_lines(staged), record)),
            policies=_policies(store, state, chain),
            chain=Chain(
                session=state.id, head=chain.head if chain.length else None, length=chain.length, sealed=chain.sealed
            ),
            chain_key=store.sessions.load_chain_key(state.id) if chain.sealed else None,
        )
    _advance_checkpoint(store, state, chain)
    report("Drained the record")
    # What is not there will not be there the next time either; only what could not be read is worth another try.
    unread = {role for role, report in reports.items() if not (report.complete or report.absent)}
    done = not final.fresh or _gone(engine, state, unread)
    if done:
        state = store.sessions.save(state.updated(recorded=True, outcome=str(record.host.outcome)))
        remove(engine, store, state)
    left = work.left_behind if work else ()
    return Closed(record=_stored(place), place=place, left_behind=left, removed=done)


def _counted_before(store: Store, state: SessionState) -> Tokens:
    """The tokens of the runs that this one went on from, as their records have them."""
    total, run = Tokens(), state.resumes
    for _ in range(MAX_RESUMED):
        if run is None:
            break
        try:
            record = _stored(store.runs.place(state.project_id, run))
        except (OSError, StoreError):
            break  # removed since: what it used is counted once more, and nothing is lost
        said = record.agent.tokens if record.agent is not None else Tokens()
        total = Tokens(
            input=total.input + said.input, output=total.output + said.output, cached=total.cached + said.cached
        )
        run = record.host.previous_run
    return total


def record_place(store: Store, state: SessionState) -> RunPlace:
    """Where the session's record goes: a run's among the runs, a standing environment's with its evidence."""
    if state.kind == "up":
        return store.sessions.record_place(state.project_id, state.id)
    return store.runs.place(state.project_id, state.id)


def remove(engine: Engine, store: Store, state: SessionState) -> None:
    """Removes containers, networks and the session's own volumes, then closes it. Only after its record is on disk."""
    engine.remove_session(state.id, volumes=state.volumes)
    # A killed process leaves a copy of the project there, on its way into a volume.
    store.writer.remove_tree(_streams(store, state.id))
    store.sessions.close(state.id, outcome=state.outcome)


def _stored(place: RunPlace) -> RunRecord:
    return parse_record((place.path / RECORD).read_bytes(), origin=str(place.path / RECORD))


def _gone(engine: Engine, state: SessionState, roles: Set[str]) -> bool:
    """Whether the containers of all these roles are gone, so that no other try could read more from them."""
    return all(engine.inspect(container) is None for role, container in state.containers if role in roles)


def _outcome_word(closing: Closing) -> str:
    return str(closing.end.outcome) if closing.end is not None else closing.state.outcome or "unknown"


def spool_path(turn: str) -> str:
    """Where the runner spools a turn's frames, in the agent's container."""
    return f"{RUN_VOLUME}/turns/{turn}/spool.jsonl"


def _sources(engine: Engine, state: SessionState, *, keeps: tuple[str, ...]) -> dict[str, tuple[Source, ...]]:
    """By the role of the container that has it. `keeps` are the paths in HOME without which nothing is resumed."""
    agent, egress = state.container("agent"), state.container("egress")
    opened = bool(state.policy_digest)
    return {
        "agent": (
            Source(
                name="the runner's spool",
                into=RAW,
                read=lambda: engine.read_archive(agent, spool_path(state.id)) if agent else iter(()),
                optional=state.turn_started is None,  # the agent can move it away; that is then a loss
            ),
            *(_kept(engine, agent, path) for path in keeps if agent and state.kind == "run"),
        ),
        "egress": (
            Source(
                name="the receipts",
                into=RECEIPTS,
                read=lambda: engine.read_archive(egress, RECEIPTS_FILE) if egress else iter(()),
                optional=not opened,
                caps=RECEIPT_CAPS,
            ),
        ),
    }


def _kept(engine: Engine, agent: str, path: str) -> Source:
    """A part of HOME that the agent needs to resume; a standing environment's HOME stays as it is."""
    return Source(
        name=f"the agent's {path}",
        into=f"{KEPT_HOME}/{path}",
        read=lambda: engine.read_archive(agent, f"{HOME}/{path}"),
        tree=True,
        optional=True,
    )


def _collect(engine: Engine, store: Store, state: SessionState, staged: Path) -> tuple[Work | None, tuple[str, ...]]:
    """Bundle and patch into the staged record. A failure costs the work's copy, not the record, and is told."""
    use = state.workspace
    image = dict(state.images).get("agent")
    if use is None or use.base is None or image is None:
        return None, ()
    try:
        work = collect_work(
            throwaway(engine, store, session=state.id, project=state.project_id, image=image),
            [Mount(kind=m.kind, source=m.source, target=m.target) for m in use.mounts],
            prepared=Prepared(head=use.head, base=use.base, carried=use.carried),
            user=use.user,
            run=state.id,
            destination=staged,
            git_dir=use.git_dir,
            hide=use.hide,
            protect=use.protect,
        )
    except StoreError:
        raise
    except AgentContainerError as error:
        words = "; ".join([error.message, *error.details[:2]])
        return None, (f"the work could not be collected: {words}", *_rescue(engine, state, staged))
    # What is left out of a bundle (it is too large, say) goes with the volume: all of it as it is, then.
    return work, _rescue(engine, state, staged) if work.incomplete else ()


def _rescue(engine: Engine, state: SessionState, staged: Path) -> tuple[str, ...]:
    """The workspace as it is, packed by the engine, where no bundle could be made of it: nobody has looked into it."""
    agent, use = state.container("agent"), state.workspace
    if agent is None or use is None or use.mode != "clone":
        return ()
    kept = 0

    def pieces() -> Iterator[bytes]:
        nonlocal kept
        for piece in engine.read_archive(agent, WORKSPACE):
            if kept + len(piece) > MAX_RESCUE_BYTES:
                return
            kept += len(piece)
            yield piece

    try:
        add_file(staged, RESCUE, pieces())
    except EngineError as error:
        return (f"and it could not be packed as it is: {error}",)
    return (f"the workspace as it was is in {RESCUE} of the record ({kept} bytes); unpack it in a sandbox only",)


def _touched(store: Store, state: SessionState) -> tuple[str, ...]:
    """What changed of a bound tree that the host runs or obeys, and that no mount could hold: told, and remembered
    until its user has accepted it."""
    use = state.workspace
    root = Path(state.project_root)
    if use is None or use.mode != "bind" or not root.is_dir():
        return ()
    before = dict(use.protected)
    changed = changed_protected(before, protected_state(root, use.protect, covered=use.covered))
    if changed:
        store.touched.add(state.project_id, {path: before.get(path, "") for path in changed})
    return tuple(f"changed while the agent worked, and tools on this host run or obey it: {path}" for path in changed)


def throwaway(engine: Engine, store: Store, *, session: str, project: str, image: str) -> Throwaway:
    """How a session's throw-away containers run."""
    directory = store.writer.make_dir(_streams(store, session))
    labels = ((f"{LABEL}.session", session), (f"{LABEL}.project", project), (f"{LABEL}.role", "throwaway"))
    return Throwaway(run_once=engine.run_once, image=image, labels=labels, directory=directory)


def _streams(store: Store, session: str) -> Path:
    return store.sessions.rendered_dir(session).parent / "streams"


def _pieces(path: Path) -> Iterator[bytes]:
    return file_pieces(path) if path.exists() else iter(())


def _receipt_lines(staged: Path) -> Iterator[bytes]:
    for line in split_lines(_pieces(staged / RECEIPTS), max_bytes=MAX_RECEIPT_BYTES + 64):
        yield line.data + (b"\n" if line.ended else b"")


def _digest_of(path: Path) -> str | None:
    return f"sha256:{digest_file(path).sha256}" if path.exists() else None


def _check_chain(store: Store, state: SessionState, staged: Path) -> ChainReport:
    known = store.checkpoints.load(state.id)
    checkpoint = Checkpoint(known.length, known.head) if known else None
    try:
        key = store.sessions.load_chain_key(state.id)
    except Unverifiable:
        # Killed before the key was sealed, or the key that sealed it is lost. No chain is written with zeros: it reads
        # as one of another key, which is the truth, and the record comes out all the same.
        key = bytes(32)
    return verify_chain(_receipt_lines(staged), key=key, checkpoint=checkpoint)


def _advance_checkpoint(store: Store, state: SessionState, chain: ChainReport) -> None:
    if chain.status == "verified" and chain.length:
        head = VerifiedHead(session=state.id, length=chain.length, head=chain.head, sealed=chain.sealed)
        store.checkpoints.advance(head)


def _policies(store: Store, state: SessionState, chain: ChainReport) -> Mapping[str, bytes]:
    found = {}
    for digest in dict.fromkeys((*chain.digests, *((state.policy_digest,) if state.policy_digest else ()))):
        body = store.policies.load(digest)
        if body is not None:
            found[digest] = body
    return found
