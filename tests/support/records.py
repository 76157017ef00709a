"""Makes what a run leaves behind: tar streams as an engine packs them, hostile ones, sealed chains, whole records."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from agent_container.drain import RAW, RECEIPTS, FinalRun, Source, drain, finalize_run
from agent_container.egress_summary import egress_events, summarise
from agent_container.events import AgentMessage, Event, RunFinished, RunStarted, numbered
from agent_container.manifest import Chain
from agent_container.records import AgentView, Basis, Digests, HostView, Outcome, RunRecord, Versions
from agent_container.store import Store
from agent_egress.policy import Policy
from agent_egress.receipts import Checkpoint, Fields, Writer, open_receipt, seal_receipt, verify_chain

RUN = "20261129-153359-7f3a2c"
PROJECT = "0123456789ab"
KEY = bytes(range(32))
STARTED = datetime(2026, 11, 29, 15, 33, 59, tzinfo=UTC)
POLICY = Policy.parse(
    b'{"version":1,"rules":[{"action":"allow","pattern":"api.test","ports":[443],"addresses":[],"origin":"spec"}],'
    b'"allow_metadata":false,"host_addresses":[],"credentials":[]}'
)
SPOOL = (
    b'{"seq":1,"t_ms":5,"wall_ms":1796000000005,"ch":"stdout","text":"hello\\n"}\n'
    b'{"seq":2,"t_ms":9,"wall_ms":1796000000009,"ch":"exit","code":0,"signal":null,"reason":"exit"}\n'
)

Entry = tuple[str, bytes | None, bytes]
"""(name, content or None, tar type flag)."""


def tar_of(*entries: Entry) -> bytes:
    """A tar stream with any kind of member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content, kind in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content or b"") if kind in (tarfile.REGTYPE, tarfile.AREGTYPE) else 0
            info.linkname = "/etc/shadow" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            archive.addfile(info, io.BytesIO(content or b""))
    return buffer.getvalue()


def file_tar(name: str, content: bytes) -> bytes:
    """A tar stream of one regular file."""
    return tar_of((name, content, tarfile.REGTYPE))


def pieces(data: bytes, size: int = 1000) -> Iterator[bytes]:
    """The bytes cut into pieces, with an empty one among them."""
    yield b""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def source(into: str, data: bytes, **options: object) -> Source:
    """A source that can be read any number of times."""
    return Source(into, into, lambda: pieces(data), **options)  # type: ignore[arg-type]


def decision(host: str, *, allow: bool, rule: str = "", policy: Policy = POLICY, **more: object) -> Fields:
    """A decision's receipt."""
    action = "allow" if allow else "deny"
    row = {"kind": "decision", "host": host, "port": 443, "method": "CONNECT", "action": action, "rule": rule}
    return {**row, "policy": policy.short_digest, **more}


RECEIPT_ROWS: tuple[Fields, ...] = (
    decision("api.test", allow=True, rule="allow api.test"),
    {"kind": "answer", "name": "api.test", "addresses": ["203.0.113.7"]},
    {"kind": "connection", "address": "203.0.113.7", "port": 443, "packets": 9},
    decision("evil.test", allow=False),
    {"kind": "lookup", "name": "evil.test", "type": "A", "action": "deny", "rule": "", "policy": POLICY.short_digest},
    {"kind": "drop", "address": "203.0.113.9", "proto": "tcp", "port": 5432, "count": 3},
    {"kind": "tripwire", "host": "api.test", "where": "path"},
)


def chain_of(
    rows: Sequence[Fields] = RECEIPT_ROWS,
    *,
    key: bytes = KEY,
    seal: bool = True,
    session: str = RUN,
    policy: Policy = POLICY,
) -> list[bytes]:
    """The lines of a chain, newlines included."""
    writer = Writer(key=key)
    written = [writer.append([open_receipt(session=session, policy_digest=policy.digest, key=key)], t_ms=1796000000000)]
    written += [writer.append([row], t_ms=1796000000000 + number) for number, row in enumerate(rows)]
    if seal:
        written.append(writer.append([seal_receipt(writer, outcome="succeeded")], t_ms=1796000009000))
    return written


def record_of(receipts: Iterable[bytes] = (), *, run: str = RUN, key: bytes = KEY, **host: object) -> RunRecord:
    """A run's record that fits its receipts."""
    lines = list(receipts)
    values: dict[str, object] = {
        "run": run,
        "session": run,
        "project_id": PROJECT,
        "project_name": "acme-api",
        "task": "say hello",
        "started": STARTED,
        "ended": STARTED,
        "duration_s": 12.5,
        "outcome": Outcome.SUCCEEDED,
        "basis": Basis.AGENT,
        "reason": "the agent said that it is done",
        "digests": Digests(policy=POLICY.digest),
        "versions": Versions(agent="demo", agent_container="0"),
        "egress": summarise(lines, report=verify_chain(lines, key=key)),
    }
    view = AgentView(model="m-1", turns=1, final_message="hello", exit_code=0, cost_usd=0.01)
    return RunRecord(host=HostView.model_validate({**values, **host}), agent=view)


def events_of(receipts: Iterable[bytes]) -> Iterator[Event]:
    """A short run's events."""
    body: list[Event] = [
        RunStarted(at=STARTED, run=RUN, agent="demo", task="say hello"),
        AgentMessage(at=STARTED, text="hello"),
        *egress_events(receipts),
        RunFinished(at=STARTED, outcome="succeeded", reason="done"),
    ]
    return numbered(body)


def publish_run(
    store: Store,
    *,
    run: str = RUN,
    lines: Sequence[bytes] | None = None,
    spool: bytes = SPOOL,
    key: bytes = KEY,
    policies: Mapping[str, bytes] | None = None,
    sources: Sequence[Source] = (),
    **host: object,
) -> FinalRun:
    """Drains, finalises and publishes a run, as closing a session does."""
    receipts = list(chain_of(session=run) if lines is None else lines)
    place = store.runs.place(PROJECT, run)
    with store.runs.staging(place) as staged:
        report = drain(
            staged,
            [
                source(RAW, file_tar("spool.jsonl", spool)),
                source(RECEIPTS, file_tar("x", b"".join(receipts))),
                *sources,
            ],
        )
        chain = verify_chain(receipts, key=key)
        return finalize_run(
            store,
            place,
            staged,
            record=record_of(receipts, run=run, key=key, drained=report.drained(), **host),
            events=events_of(receipts),
            policies={POLICY.digest: POLICY.encode()} if policies is None else policies,
            chain=Chain(
                session=run, head=chain.head if chain.length else None, length=chain.length, sealed=chain.sealed
            ),
            chain_key=key,
        )


def checkpoint_of(lines: Sequence[bytes]) -> Checkpoint:
    """Where a chain ends."""
    return verify_chain(lines, key=KEY).checkpoint


def tree_digest(top: Path) -> str:
    """One digest over names and contents of all files below `top`."""
    digest = hashlib.sha256()
    for path in sorted(top.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(top).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
