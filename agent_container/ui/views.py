"""How runs look: the table of `runs ls`, the summary of one run, an event in the stream, a verification's verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from agent_container.commands.egress_log import is_refusal, shown
from agent_container.commands.prove import Proof
from agent_container.commands.run_list import RunRow
from agent_container.commands.run_logs import LogEntry
from agent_container.commands.runs import RunDetail
from agent_container.commands.verifying import AllVerified
from agent_container.events import (
    AgentError,
    AgentMessage,
    AgentOutput,
    AgentResult,
    AgentSession,
    AgentThought,
    EgressDenied,
    EgressFinding,
    EgressTripwire,
    Event,
    Evidence,
    PermissionDenied,
    RunFinished,
    RunNote,
    RunStarted,
    ToolCall,
    ToolResult,
    Usage,
    finding_words,
)
from agent_container.records import Outcome, RunRecord
from agent_container.store.marks import Origin
from agent_container.ui.clean import one_line
from agent_container.ui.console import BAD, FAINT, GOOD, WARN, Ui, duration, size
from agent_container.ui.figures import show_changes
from agent_container.verify import VERIFIED, VerifyResult

WIDTH = 100

_STATE_STYLE = {
    "succeeded": GOOD,
    "running": "",
    "orphaned": WARN,
    "interrupted": WARN,
    "timeout": WARN,
    "budget": WARN,
}

_FILES_NOW = {
    "as-recorded": "as they were recorded ({count} files, the host's signature)",
    "changed": "CHANGED since they were recorded",
    "cannot-be-told": "cannot be told whether they are as they were recorded",
}


def show_runs(ui: Ui, rows: Sequence[RunRow], *, narrow: bool = False) -> None:
    """`runs ls`."""
    if not rows:
        ui.info("no run fits" if narrow else 'no runs yet: agent-container run "what to do"')
        return
    cells = [
        (
            row.run,
            f"{row.project} (imported)" if row.imported else row.project,
            row.agent,
            row.state,
            duration(row.duration_s) if row.duration_s is not None else "",
            f"${row.cost_usd:.2f}" if row.cost_usd is not None else "",
            str(row.denied) if row.denied else "",
            one_line(" ".join([*_words(row.labels), row.task]), width=50 + 12 * len(row.labels or ())),
        )
        for row in rows
    ]
    styles = [_STATE_STYLE.get(row.state, BAD) for row in rows]
    ui.table(("run", "project", "agent", "state", "took", "cost", "denied", "task"), cells, styles=styles)
    for row in rows:
        for note in row.notes:
            ui.warn(f"{row.run}: {note}")


def _words(labels: Mapping[str, str] | None) -> list[str]:
    return [f"[{key}={value}]" if value else f"[{key}]" for key, value in (labels or {}).items()]


def show_run_detail(ui: Ui, detail: RunDetail) -> None:
    """`runs show`: what was changed since, the summary, the last events, then what its reader should know."""
    now = detail.files
    if now.state == "changed":
        ui.text("CHANGED since it was recorded: what follows is what the files say now", style=BAD)
        for finding in now.findings:
            ui.text(f"  {finding}", style=BAD)
    show_summary(ui, detail.record)
    show_changes(ui, detail.changes, more=detail.more_changes)
    show_timeline(ui, detail.timeline, earlier=detail.earlier_events)
    ui.heading("record")
    ui.text(str(detail.path))
    ui.fields(
        [
            ("held", f"yes: {detail.held}" if detail.held else "" if detail.held is None else "yes"),
            ("imported", _origin(detail.origin) if detail.origin is not None else ""),
            ("files now", _FILES_NOW[now.state].format(count=now.count)),
            ("full check", f"agent-container runs verify {detail.run}"),
        ]
    )
    if now.state == "cannot-be-told":
        for finding in now.findings:
            ui.warn(finding)
    for warning in detail.warnings:
        ui.warn(warning)


def _origin(origin: Origin) -> str:
    whose = "a key that was vouched for" if origin.key else "a key that nobody here vouches for"
    return f"{origin.at} from {origin.file}, signed by {origin.signer}, {whose}"


def show_summary(ui: Ui, record: RunRecord) -> None:
    """What came of a run; what the agent says of itself is marked as its word."""
    host = record.host
    good = host.outcome is Outcome.SUCCEEDED
    ui.text(f"{host.run}  {host.outcome.value}", style=GOOD if good else BAD)
    ui.fields(
        [
            ("why", host.reason),
            ("whose word", f"the {host.basis.value}'s"),
            ("task", one_line(host.task or "", width=WIDTH)),
            ("labels", ", ".join(f"{key}={value}" for key, value in host.labels.items())),
            ("agent", " ".join(part for part in (host.versions.agent, host.versions.agent_cli) if part)),
            ("started", host.started.isoformat(timespec="seconds")),
            ("took", duration(host.duration_s)),
            ("resumes", host.previous_run or ""),
        ]
    )
    _show_agent(ui, record)
    _show_workspace(ui, record)
    _show_egress(ui, record)
    for note in (*host.notes, *host.drained.notes):
        ui.warn(note)


def show_timeline(ui: Ui, events: Iterable[Event], *, earlier: int = 0) -> None:
    """The last events, one a line."""
    told = [(event, line) for event in events if (line := event_line(event)) is not None]
    if not told:
        return
    ui.heading("timeline")
    if earlier:
        ui.text(f"... {earlier} before (runs logs shows all)", style=FAINT)
    for event, (label, text, style) in told:
        at = event.at.strftime("%H:%M:%S") if event.at else "        "
        ui.text(f"{at}  {label:<8}  {one_line(text, width=WIDTH)}", style=style)


def show_log_entry(ui: Ui, entry: LogEntry) -> None:
    """One entry of a stream of several sources."""
    at = entry.at.strftime("%H:%M:%S") if entry.at else "        "
    if entry.receipt is not None:
        verdict, what, why = shown(entry.receipt)
        style = BAD if is_refusal(entry.receipt) else ""
        words = f"{verdict:<5}  {one_line(what, width=90)}  {one_line(why, width=WIDTH)}"
        ui.text(f"{at}  receipt   {words}".rstrip(), style=style)
        return
    if entry.event is not None:
        line = event_line(entry.event)
        if line is not None:
            label, text, style = line
            ui.text(f"{at}  {label:<8}  {one_line(text, width=WIDTH)}", style=style)
        return
    for text in entry.text.rstrip("\n").split("\n"):
        ui.text(f"{at}  {entry.type:<8}  {text}", style=FAINT)


def show_event(ui: Ui, event: Event) -> None:
    """One event of a run that is under way, or of `runs logs`."""
    if isinstance(event, AgentMessage):
        ui.block(event.text)
        return
    line = event_line(event)
    if line is not None:
        label, text, style = line
        ui.text(f"{label}: {one_line(text, width=WIDTH)}", style=style)


def show_live(ui: Ui, event: Event) -> None:
    """One event to who has just typed the task."""
    if not isinstance(event, RunStarted):
        show_event(ui, event)


def event_line(event: Event) -> tuple[str, str, str] | None:  # noqa: PLR0912 - one line a kind
    """(label, text, style) of an event; None for one that is of no interest to a reader."""
    match event:
        case RunStarted():
            return "start", f"{event.agent}: {event.task or ''}", FAINT
        case AgentSession():
            return "session", " ".join(part for part in (event.model, event.session) if part), FAINT
        case AgentMessage():
            return "says", event.text, ""
        case AgentThought():
            return "thinks", event.text, FAINT
        case ToolCall():
            return "tool", f"{event.name} {event.input}", FAINT
        case ToolResult():
            return ("result", event.output, FAINT) if event.ok else ("failed", event.output, WARN)
        case Usage():
            return None
        case PermissionDenied():
            return "refused", f"{event.tool} {event.detail}", WARN
        case AgentError():
            return "error", event.message, WARN if event.retrying else BAD
        case AgentOutput():
            return event.channel, event.text, FAINT
        case AgentResult():
            return "done", event.text, GOOD if event.ok else BAD
        case EgressDenied():
            times = f" ({event.count} times)" if event.count > 1 else ""
            return "egress", f"denied {_place(event.host, event.port)}{times} {event.rule}".rstrip(), WARN
        case EgressTripwire():
            return "TRIPWIRE", f"{event.host} {event.detail}", BAD
        case EgressFinding():
            return "DLP", event.words, BAD if event.action == "block" else WARN
        case Evidence():
            return "unread", f"{event.source} line {event.line}: {event.kind}", WARN
        case RunNote():
            return "note", event.text, WARN
        case RunFinished():
            return "end", f"{event.outcome}: {event.reason}", ""


def show_verification(ui: Ui, result: VerifyResult) -> None:
    """The verdict first, then what it rests on, then everything against it."""
    ui.text(f"{result.run}  {result.verdict}", style=GOOD if result.exit_code == VERIFIED else BAD)
    counts = result.counts
    ui.fields(
        [
            ("files", str(counts.files)),
            ("receipts", str(counts.receipts)),
            ("decisions replayed", str(counts.replayed)),
            ("policies", str(counts.policies)),
            ("head", f"{result.head.head} at {result.head.length}" if result.head else ""),
            ("signed by", result.signer),
        ]
    )
    if result.findings:
        ui.heading("findings")
        rows = [(row.weight, row.kind, row.where, row.detail) for row in result.findings]
        ui.table(("weight", "kind", "where", "detail"), rows)


def show_bad_record(ui: Ui, result: VerifyResult) -> None:
    """One line: the run, the verdict, the first finding and how many more there are."""
    first, more = result.findings[0], len(result.findings) - 1
    words = f"{first.where}: {first.kind}: {first.detail}" + (f" (and {more} more)" if more else "")
    ui.text(f"{result.run}  {result.verdict}: {words}", style=BAD)


def show_all_verified(ui: Ui, total: AllVerified) -> None:
    """The sum of a look at all records."""
    words = f"{total.verified} verified, {total.tampered} tampered, {total.unverifiable} cannot be verified"
    ui.text(f"{total.records} records: {words}; {total.receipts} receipts", style=BAD if total.exit_code else GOOD)


def _show_agent(ui: Ui, record: RunRecord) -> None:
    agent = record.agent
    if agent is None:
        return
    ui.heading("the agent's own account")
    tokens = agent.tokens
    used = f"{tokens.input} in, {tokens.output} out, {tokens.cached} cached" if tokens.input or tokens.output else ""
    ui.fields(
        [
            ("model", agent.model or ""),
            ("turns", str(agent.turns) if agent.turns is not None else ""),
            ("tokens", used),
            ("cost", f"${agent.cost_usd:.4f}" if agent.cost_usd is not None else ""),
            ("exit", _exit(agent.exit_code, agent.signal)),
            ("tools", ", ".join(f"{tool.name} {tool.calls}" for tool in agent.tool_calls[:12])),
            ("refused to it", ", ".join(agent.permission_denials[:8])),
            ("last words", one_line(agent.final_message or "", width=WIDTH)),
        ]
    )


def _show_workspace(ui: Ui, record: RunRecord) -> None:
    tree = record.host.workspace
    if tree is None:
        return
    ui.heading("workspace")
    changed = (
        f"{tree.files_changed} files, +{tree.insertions} -{tree.deletions}" if tree.files_changed else "nothing changed"
    )
    ui.fields(
        [
            ("mode", tree.mode),
            ("commits", str(tree.commits) if tree.commits else ""),
            ("changed", changed),
            ("fetched to", tree.ref or ""),
            ("note", tree.note or ""),
        ]
    )


def _show_egress(ui: Ui, record: RunRecord) -> None:
    egress = record.host.egress
    ui.heading("egress")
    ui.fields(
        [
            ("requests", f"{egress.allowed} allowed, {egress.denied} denied" if egress.decisions else "none"),
            ("names refused", str(egress.lookups_denied) if egress.lookups_denied else ""),
            ("packets dropped", str(egress.packets_dropped) if egress.packets_dropped else ""),
            ("receipts", f"{egress.chain_length or egress.receipts}, {'sealed' if egress.sealed else 'not sealed'}"),
            ("chain", f"{egress.verified.replace('-', ' ')} when it was recorded"),
        ]
    )
    if egress.top_hosts:
        rows = [
            (row.host, str(row.allowed), str(row.denied), size(row.bytes_up), size(row.bytes_down))
            for row in egress.top_hosts
        ]
        ui.table(("host", "allowed", "denied", "sent", "received"), rows)
    if egress.refusals:
        ui.heading("refused")
        refused = [(_place(row.host, row.port), row.layer, row.rule, str(row.count)) for row in egress.refusals]
        ui.table(("destination", "by", "rule", "times"), refused)
    for wire in egress.tripwires:
        ui.warn(f"TRIPWIRE {wire.host} {wire.detail}")
    for row in egress.findings:
        ui.warn(f"DLP: {finding_words(row.what, row.direction, row.host, row.action, row.count)}")


def _place(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}" if port is not None else host


def _exit(code: int | None, signal: str | None) -> str:
    return signal or ("" if code is None else str(code))


def show_receipt(ui: Ui, receipt: Mapping[str, object]) -> None:
    """One receipt, on one line."""
    verdict, what, why = shown(dict(receipt))
    moment = receipt.get("t")
    clock = f"{datetime.fromtimestamp(moment / 1000, UTC):%H:%M:%S}" if isinstance(moment, int) else ""
    style = BAD if is_refusal(dict(receipt)) else ""
    ui.text(f"{clock:<8}  {verdict:<5}  {one_line(what, width=90)}  {one_line(why, width=WIDTH)}".rstrip(), style=style)


def show_proof(ui: Ui, proof: Proof) -> None:
    """A table of everything that was tried, what it was seen on, and the verdict last."""
    cells = [
        (("held" if row.held else "OPEN") if row.tried else "left", row.group, row.what, row.detail)
        for row in proof.rows
    ]
    styles = ["" if row.held else BAD for row in proof.rows]
    ui.table(("", "group", "tried", "seen"), [(a, b, c, one_line(d, width=60)) for a, b, c, d in cells], styles=styles)
    ui.fields((*proof.about, ("signed account", str(proof.path or ""))))
    open_ones = [row for row in proof.rows if not row.held]
    if open_ones:
        ui.text(f"NOT HELD: {len(open_ones)} of {len(proof.rows)}", style=BAD)
    else:
        tried = sum(row.tried for row in proof.rows)
        left = f", {len(proof.rows) - tried} left out" if tried < len(proof.rows) else ""
        ui.text(f"held: {tried} of {tried}{left}, in {duration(proof.seconds)}", style=GOOD)
