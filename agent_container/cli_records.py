"""The parsers of `runs` and `host-key`: the records of runs, and what signs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent_container.cli_call import CALL, KeyOption, RecordArgument, RunArgument
from agent_container.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_container.commands.run_logs import LogEntry
    from agent_container.events import Event
    from agent_container.records import RunRecord

runs_app = typer.Typer(help="The records of past and present runs; without a verb, `runs ls`.", no_args_is_help=False)
host_key_app = typer.Typer(help="The key that signs this host's records, by its public half.", no_args_is_help=True)

Everywhere = Annotated[bool, typer.Option("--all", help="Of every project.")]
Projects = Annotated[list[str] | None, typer.Option("--project", metavar="NAME", help="Of another one: name or id.")]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY[=VALUE]", help="With this label.")]
Outcomes = Annotated[list[str] | None, typer.Option("--outcome", help="succeeded, failed, timeout, ...")]
Agents = Annotated[list[str] | None, typer.Option("--agent", help="Of this agent.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="With this model; * stands for anything.")]
Since = Annotated[str | None, typer.Option("--since", metavar="WHEN", help="From then on: 7d, 2026-11-29.")]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Up to then.")]
Costs = Annotated[list[str] | None, typer.Option("--cost", metavar="AMOUNT", help="'>1.50', '<0.10': US dollars.")]


@runs_app.callback(invoke_without_command=True)
def _runs(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        runs_ls()


@runs_app.command("ls")
def runs_ls(
    everywhere: Everywhere = False,
    project: Projects = None,
    label: Labels = None,
    outcome: Outcomes = None,
    agent: Agents = None,
    model: Models = None,
    since: Since = None,
    until: Until = None,
    cost: Costs = None,
    changed: Annotated[
        list[str] | None, typer.Option("--changed", metavar="PATH", help="That changed it: a file, directory, pattern.")
    ] = None,
    contacted: Annotated[
        list[str] | None, typer.Option("--contacted", metavar="HOST", help="That reached this host, or pattern.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="The newest N.")] = None,
) -> None:
    """Runs of this project, newest first; of several values of one filter, any for outcome, agent, model and project,
    else all."""
    from agent_container.commands.run_filters import Wanted
    from agent_container.commands.run_list import list_runs
    from agent_container.ui.views import show_runs

    wanted = Wanted(
        projects=project or (),
        labels=label or (),
        outcomes=outcome or (),
        agents=agent or (),
        models=model or (),
        since=since,
        until=until,
        costs=cost or (),
        changed=changed or (),
        contacted=contacted or (),
        limit=limit,
    )
    rows = list_runs(CALL.context, wanted, everywhere=everywhere)
    CALL.ui.result(rows, command="runs ls", show=lambda: show_runs(CALL.ui, rows, narrow=wanted != Wanted()))


@runs_app.command("show")
def runs_show(run: RunArgument = None) -> None:
    """One run: how it ended, its cost, work and egress, what was refused, its last events."""
    from agent_container.commands.runs import show_run
    from agent_container.ui.views import show_run_detail

    detail = show_run(CALL.context, run)
    CALL.ui.result(detail, command="runs show", show=lambda: show_run_detail(CALL.ui, detail))


@runs_app.command("logs")
def runs_logs(
    run: RunArgument = None,
    raw: Annotated[bool, typer.Option("--raw", help="The agent's own stream, as it came.")] = False,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help="events (the default), output, receipts, or all."),
    ] = None,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="tool.call, decision, stderr, ...; or a pattern."),
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="About this host, or pattern.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="From then on: 10m, 2026-11-29T15:00, +5m in the run."),
    ] = None,
    grep: Annotated[str | None, typer.Option("--grep", metavar="REGEX", help="That contain this.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="The last N.")] = None,
) -> None:
    """What happened in a run, in the order of time; of one that is under way, the events up to now."""
    from agent_container.commands.logs import events_so_far, find_under_way, raw_so_far
    from agent_container.commands.run_logs import SOURCES, LogEnd, LogQuery, event_entry, log_filter, read_logs
    from agent_container.commands.runs import run_raw
    from agent_container.ui.views import show_log_entry

    context, live = CALL.context, find_under_way(CALL.context, run)
    if raw:
        for piece in raw_so_far(context, live) if live else run_raw(context, run):
            CALL.ui.raw(piece)
        return
    sources = SOURCES if source and "all" in source else tuple(source or ("events",))
    query = LogQuery(sources, tuple(type_ or ()), host, since, grep, limit)
    end = LogEnd()
    if live:
        if sources != ("events",):
            raise UsageError(
                f"run {live.id} is still under way: only its events can be read so far",
                hint=f"agent-container egress log {live.id}",
            )
        wanted = log_filter(query, live.created, now=context.now())
        entries: Iterator[LogEntry] = filter(wanted, map(event_entry, events_so_far(context, live)))
    else:
        entries = read_logs(context, run, query, end)
    count = 0
    for entry in entries:
        count += 1
        if sources == ("events",) and entry.event is not None:
            _stream(entry.event, "runs logs")
        else:
            CALL.ui.stream(entry, command="runs logs", show=lambda entry=entry: show_log_entry(CALL.ui, entry))  # type: ignore[misc]
    for words in end.cut:
        CALL.ui.warn(f"not shown: {words}")
    if live:
        CALL.ui.info(f"run {live.id} is still under way; to follow it: agent-container runs attach {live.id}")
    if CALL.json:
        result = {"events": count, "under_way": live is not None, **({"cut": end.cut} if end.cut else {})}
        CALL.ui.result(result, command="runs logs")


@runs_app.command("attach")
def runs_attach(run: RunArgument = None) -> None:
    """Follow a run that is going on, to its end."""
    from agent_container.commands.run_control import attach_run

    record = attach_run(CALL.context, run, on_event=lambda event: _stream(event, "runs attach"))
    _summary(record, "runs attach")
    raise typer.Exit(record.exit_status)


@runs_app.command("stop")
def runs_stop(run: RunArgument = None) -> None:
    """End a run in order: the agent gets time to flush, the record is written."""
    from agent_container.commands.run_control import stop_run

    stopped = stop_run(CALL.context, run)
    CALL.ui.result(stopped, command="runs stop", show=lambda: CALL.ui.text(f"run {stopped.run}: {stopped.outcome}"))


@runs_app.command("recover")
def runs_recover(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run that lost its driver.")] = None,
) -> None:
    """Join RUN again after its stream was lost. Without RUN: finish this project's runs that nobody drives any more."""
    from agent_container.commands.run_control import recover_run, recover_runs

    if run is not None:
        record = recover_run(CALL.context, run, on_event=lambda event: _stream(event, "runs recover"))
        _summary(record, "runs recover")
        raise typer.Exit(record.exit_status)
    recovered = recover_runs(CALL.context)

    def show() -> None:
        for ended in recovered.finished:
            CALL.ui.text(f"finished run {ended}")
        for going in recovered.working:
            CALL.ui.text(f"run {going} still works: agent-container runs attach {going}, or runs stop {going}")
        for line in recovered.unfinished:
            CALL.ui.warn(line)
        if not (recovered.finished or recovered.working or recovered.unfinished):
            CALL.ui.text("nothing was left behind")

    CALL.ui.result(recovered, command="runs recover", show=show)
    if recovered.unfinished:
        raise typer.Exit(1)


@runs_app.command("apply")
def runs_apply(
    run: RunArgument = None,
    branch: Annotated[bool, typer.Option("--branch", help="As branch agent/RUN; the default in a repository.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Into the working tree.")] = False,
    accept_sensitive: Annotated[
        bool, typer.Option("--accept-sensitive", help="Also what tools on this host run or obey.")
    ] = False,
) -> None:
    """Bring a run's work to the project."""
    from agent_container.commands.run_control import apply_run

    if branch and files:
        raise UsageError("--branch and --files exclude each other")
    mode: Literal["branch", "files"] | None = "branch" if branch else "files" if files else None
    applied = apply_run(CALL.context, run, mode=mode, accept_sensitive=accept_sensitive)

    def show() -> None:
        if applied.branch is not None:
            CALL.ui.text(f"made branch {applied.branch}")
        if applied.files is not None:
            CALL.ui.text(f"wrote {len(applied.files.written)} files, removed {len(applied.files.removed)}")
        if applied.next_command is not None:
            CALL.ui.info(f"next: {applied.next_command}")

    CALL.ui.result(applied, command="runs apply", show=show)


@runs_app.command("diff")
def runs_diff(run: RunArgument = None) -> None:
    """What a run changed, as a patch."""
    from agent_container.commands.run_control import run_patch

    if CALL.json:
        patch = b"".join(run_patch(CALL.context, run)).decode("utf-8", "backslashreplace")
        CALL.ui.result({"patch": patch}, command="runs diff")
        return
    for piece in run_patch(CALL.context, run):
        CALL.ui.raw(piece)


@runs_app.command("verify")
def runs_verify(
    run: RecordArgument = None,
    key: KeyOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every record of the store; only bad ones are named.")
    ] = False,
) -> None:
    """Check a whole record: signature, files, receipts. Or one that lies anywhere, or all of them."""
    from agent_container.commands.verifying import verify_all, verify_named
    from agent_container.ui.views import show_all_verified, show_bad_record, show_verification

    if everything:
        if run is not None or key is not None:
            raise UsageError("--all takes no run and no key: it is over this host's store")
        total = verify_all(
            CALL.context,
            on_bad=lambda bad: CALL.ui.stream(bad, command="runs verify", show=lambda: show_bad_record(CALL.ui, bad)),
        )
        CALL.ui.result(total, command="runs verify", show=lambda: show_all_verified(CALL.ui, total))
        raise typer.Exit(total.exit_code)
    result = verify_named(CALL.context, run, key=key)
    CALL.ui.result(result, command="runs verify", show=lambda: show_verification(CALL.ui, result))
    raise typer.Exit(result.exit_code)


@host_key_app.command("show")
def host_key_show() -> None:
    """Fingerprints: the key in use, and former ones."""
    from agent_container.commands.host_key import list_host_keys

    rows = list_host_keys(CALL.context)

    def show() -> None:
        if not rows:
            CALL.ui.info("this host has no key yet; its first record, or `agent-container host-key export`, makes it")
            return
        CALL.ui.table(("fingerprint", "state"), [row.cells for row in rows])

    CALL.ui.result(rows, command="host-key show", show=show)


@host_key_app.command("export")
def host_key_export() -> None:
    """Public halves in PEM, for who checks records elsewhere: > host.pub."""
    from agent_container.commands.host_key import export_host_keys

    exported = export_host_keys(CALL.context)
    for row in exported.keys:
        CALL.ui.info(f"{row.fingerprint} ({row.state})")
    CALL.ui.result(exported, command="host-key export", show=lambda: CALL.ui.raw(exported.pem.encode()))


@host_key_app.command("rotate")
def host_key_rotate(yes: Annotated[bool, typer.Option("--yes", help="Without asking.")] = False) -> None:
    """Make a new key and destroy the old one's private half; records that it signed stay verifiable."""
    from agent_container.commands.host_key import rotate_host_key

    if not yes and not CALL.ui.confirm("Make a new host key?", hint="agent-container host-key rotate --yes"):
        raise UsageError("nothing was changed")
    rotated = rotate_host_key(CALL.context)

    def show() -> None:
        if rotated.former is not None:
            CALL.ui.text(f"former key {rotated.former}: its private half is gone")
        CALL.ui.text(f"current key {rotated.current}")
        CALL.ui.info("hand it to who verifies elsewhere: agent-container host-key export")

    CALL.ui.result(rotated, command="host-key rotate", show=show)


def _stream(event: Event, command: str) -> None:
    from agent_container.ui.views import show_event

    CALL.ui.stream(event, command=command, show=lambda: show_event(CALL.ui, event))


def _summary(record: RunRecord, command: str) -> None:
    from agent_container.ui.views import show_summary

    CALL.ui.result(record, command=command, show=lambda: show_summary(CALL.ui, record))
