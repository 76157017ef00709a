"""The page of `runs report`: one file that loads nothing and runs nothing, whatever a sandbox wrote into its records.

Three locks, each by itself: every text passes `clean`, so that no control or bidirectional character is left in it; the
template escapes every value; and the page's own policy allows one style sheet, named by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from agent_container import __version__
from agent_container.commands.egress_log import is_refusal, shown
from agent_container.commands.run_logs import LogEntry
from agent_container.commands.run_report import Activity, RunReport
from agent_container.events import finding_words
from agent_container.records import RunRecord
from agent_container.render.templates import read_asset, render_page
from agent_container.ui.clean import clean, one_line
from agent_container.ui.console import BAD, GOOD, WARN, duration, size
from agent_container.ui.views import event_line

TEXT = 20_000
LINE = 300
HEIGHT = 58
_TONES = {GOOD: "good", BAD: "bad", WARN: "warn"}
_MARKS = {"+": "plus", "-": "minus", "@": "head", "d": "head"}

Page = dict[str, Any]


def render_report(reports: Sequence[RunReport], *, made: datetime) -> str:
    """The whole page."""
    style = read_asset("report.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    runs = [_run(report) for report in reports]
    one = len(runs) == 1
    values = {
        "title": f"Run {runs[0]['id']}" if one else f"{len(runs)} runs side by side",
        "version": __version__,
        "made": made.isoformat(timespec="seconds"),
        "alone": one,
        "runs": runs,
        "rows": [_row(name, ask, reports, agent=agent) for name, ask, agent in _COMPARED],
    }
    cleaned = {name: _cleaned(value) for name, value in values.items()}
    return render_page("report.html.j2", {**cleaned, "style": style, "style_hash": f"sha256-{digest}"})


def _run(report: RunReport) -> Page:
    record, detail = report.detail.record, report.detail
    egress = record.host.egress
    alarms = [f"TRIPWIRE {wire.host} {wire.detail}" for wire in egress.tripwires]
    if detail.files.state == "changed":
        alarms += ["CHANGED since it was recorded:", *detail.files.findings]
    if detail.origin is not None:
        whose = "a key that was vouched for" if detail.origin.key else "a key that nobody vouches for"
        alarms.append(f"imported {detail.origin.at} from {detail.origin.file}, signed by {whose}")
    found = [finding_words(row.what, row.direction, row.host, row.action, row.count) for row in egress.findings]
    return {
        "id": record.host.run,
        "outcome": record.host.outcome.value,
        "tone": _outcome_tone(record),
        "alarms": alarms,
        "warnings": [*(f"DLP: {words}" for words in found), *record.host.notes, *detail.warnings],
        "task": (record.host.task or "")[:TEXT],
        "final_message": ((record.agent.final_message if record.agent else None) or "")[:TEXT],
        "bars": _bars(report.activity),
        "hosts": [
            {"host": row.host, "allowed": row.allowed, "denied": row.denied, "sent": size(row.bytes_up),
             "received": size(row.bytes_down)}
            for row in egress.top_hosts
        ],
        "refusals": [
            {"place": f"{row.host}:{row.port}" if row.port is not None else row.host, "layer": row.layer,
             "rule": row.rule, "count": row.count}
            for row in egress.refusals
        ],
        "changes": [
            {"path": row.path, "kind": "" if row.kind == "changed" else row.kind,
             "lines": "binary" if row.binary else f"+{row.insertions} -{row.deletions}"}
            for row in detail.changes
        ],
        "more_changes": detail.more_changes,
        "timeline": [entry for entry in map(_entry, report.timeline) if entry is not None],
        "left_out": report.left_out,
        "gap": sum(1 for entry in report.timeline[: report.gap] if _entry(entry) is not None),
        "cut": list(report.cut),
        "diff": [{"text": line, "tone": _MARKS.get(line[:1], "same")} for line in report.diff],
        "diff_left_out": report.diff_left_out,
    }  # fmt: skip


def _entry(entry: LogEntry) -> Page | None:
    at = entry.at.strftime("%H:%M:%S") if entry.at is not None else ""
    if entry.receipt is not None:
        verdict, what, why = shown(entry.receipt)
        words = " ".join(part for part in (verdict, what, why) if part)
        return {
            "at": at,
            "label": "egress",
            "text": one_line(words, width=LINE),
            "tone": "bad" if is_refusal(entry.receipt) else "same",
        }
    line = event_line(entry.event) if entry.event is not None else None
    if line is None:
        return None
    label, text, style = line
    return {"at": at, "label": label, "text": one_line(text, width=LINE), "tone": _TONES.get(style, "same")}


def _bars(activity: Sequence[Activity]) -> list[Page]:
    """Heights, each kind in proportion to its own largest."""
    most = {
        name: max((getattr(part, name) for part in activity), default=0) or 1 for name in ("agent", "allowed", "denied")
    }
    return [{name: round(HEIGHT * getattr(part, name) / top) for name, top in most.items()} for part in activity]


def _row(name: str, ask: Callable[[RunRecord], tuple[str, str]], reports: Sequence[RunReport], *, agent: bool) -> Page:
    cells = [ask(report.detail.record) for report in reports]
    return {"name": name, "agent": agent, "cells": [{"text": text[:LINE], "tone": tone} for text, tone in cells]}


def _outcome_tone(record: RunRecord) -> str:
    return "good" if record.host.outcome.value == "succeeded" else "bad"


def _plain(ask: Callable[[RunRecord], object]) -> Callable[[RunRecord], tuple[str, str]]:
    def cell(record: RunRecord) -> tuple[str, str]:
        value = ask(record)
        return ("" if value is None else str(value)), "same"

    return cell


def _tokens(record: RunRecord) -> str:
    tokens = record.agent.tokens if record.agent is not None else None
    return f"{tokens.input} in, {tokens.output} out, {tokens.cached} cached" if tokens else ""


def _work(record: RunRecord) -> str:
    tree = record.host.workspace
    return (
        ""
        if tree is None
        else f"{tree.files_changed} files, +{tree.insertions} -{tree.deletions}, {tree.commits} commits"
    )


def _requests(record: RunRecord) -> tuple[str, str]:
    egress = record.host.egress
    refused = egress.denied + egress.lookups_denied
    return (
        f"{egress.allowed} allowed, {refused} refused, {egress.packets_dropped} packets dropped",
        "warn" if refused else "same",
    )


def _cost(record: RunRecord) -> str:
    cost = record.agent.cost_usd if record.agent is not None else None
    return "" if cost is None else f"${cost:.4f}"


def _tools(record: RunRecord) -> str:
    return ", ".join(f"{tool.name} {tool.calls}" for tool in record.agent.tool_calls[:12]) if record.agent else ""


def _chain(record: RunRecord) -> str:
    return f"{record.host.egress.chain_length}, {record.host.egress.verified} when recorded"


_COMPARED: tuple[tuple[str, Callable[[RunRecord], tuple[str, str]], bool], ...] = (
    ("outcome", lambda record: (record.host.outcome.value, _outcome_tone(record)), False),
    ("why", _plain(lambda record: f"{record.host.reason} (the {record.host.basis.value}’s word)"), False),
    ("project", _plain(lambda record: record.host.project_name), False),
    ("labels", _plain(lambda record: ", ".join(f"{key}={value}" for key, value in record.host.labels.items())), False),
    ("agent", _plain(lambda record: f"{record.host.versions.agent} {record.host.versions.agent_cli or ''}"), False),
    ("started", _plain(lambda record: record.host.started.isoformat(timespec="seconds")), False),
    ("took", _plain(lambda record: duration(record.host.duration_s)), False),
    ("changed", _plain(_work), False),
    ("requests", _requests, False),
    ("bytes", _plain(lambda record: size(record.host.egress.bytes or 0)), False),
    ("receipts", _plain(_chain), False),
    ("model", _plain(lambda record: record.agent.model if record.agent else ""), True),
    ("turns", _plain(lambda record: record.agent.turns if record.agent else ""), True),
    ("tokens", _plain(_tokens), True),
    ("cost", _plain(_cost), True),
    ("tools", _plain(_tools), True),
)
"""Name, what to ask a record, and whether it is the agent's word."""


def _cleaned(value: Any) -> Any:
    """The same with every text cleaned, however deep it lies."""
    if isinstance(value, str):
        return clean(value, lines=True)
    if isinstance(value, Mapping):
        return {key: _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    return value
