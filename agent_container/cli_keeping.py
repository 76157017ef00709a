"""The parsers of what becomes of records: `runs rm`, `prune`, `hold`, `export`, `import`, `stats`, `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_container.cli_call import CALL
from agent_container.cli_records import (
    Agents,
    Everywhere,
    Labels,
    Models,
    Outcomes,
    Projects,
    Since,
    Until,
    runs_app,
)
from agent_container.errors import UsageError

if TYPE_CHECKING:
    from agent_container.commands.run_removal import Removed

RunNames = Annotated[list[str], typer.Argument(metavar="RUN...")]
SomeRuns = Annotated[list[str] | None, typer.Argument(metavar="[RUN...]", help="Ids or their beginnings; the newest.")]


@runs_app.command("rm")
def runs_rm(
    runs: RunNames,
    yes: Annotated[bool, typer.Option("--yes", help="Without asking.")] = False,
) -> None:
    """Remove records for good; one that is held, or not finished, stays."""
    from agent_container.commands.run_removal import remove_runs
    from agent_container.commands.runs import resolve_run

    names = tuple(resolve_run(CALL.context, run).run_id for run in runs)
    hint = f"agent-container runs rm --yes {' '.join(names)}"
    if not yes and not CALL.ui.confirm(f"Remove {', '.join(names)} for good?", hint=hint):
        raise UsageError("nothing was removed")
    removed = remove_runs(CALL.context, names)
    CALL.ui.result(removed, command="runs rm", show=lambda: _show_removed(removed))
    if removed.kept:
        raise typer.Exit(1)


@runs_app.command("prune")
def runs_prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Those that began before: 30d, 8w.")
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", min=0, help="Never the newest N.")] = None,
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="The oldest, until the rest fits: 2g.")
    ] = None,
    keep_label: Annotated[
        list[str] | None, typer.Option("--keep-label", metavar="KEY[=VALUE]", help="Never those with this label.")
    ] = None,
    work_too: Annotated[bool, typer.Option("--work-too", help="Also those whose work is in the record alone.")] = False,
    everywhere: Everywhere = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would go.")] = False,
) -> None:
    """Remove records that are too old, too many or too large. Without --yes nothing is removed."""
    from agent_container.commands.run_filters import parse_age, parse_size
    from agent_container.commands.run_removal import PruneRequest, prune_runs

    request = PruneRequest(
        older_than=parse_age(older_than, option="--older-than") if older_than is not None else None,
        keep=keep,
        max_bytes=parse_size(max_size, option="--max-size") if max_size is not None else None,
        keep_labels=tuple(keep_label or ()),
        work_too=work_too,
        everywhere=everywhere,
        yes=yes,
    )
    removed = prune_runs(CALL.context, request)
    CALL.ui.result(removed, command="runs prune", show=lambda: _show_removed(removed))


@runs_app.command("hold")
def runs_hold(
    runs: RunNames,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown when somebody wants to remove it.")] = "",
    release: Annotated[bool, typer.Option("--release", help="It may be removed again.")] = False,
) -> None:
    """Keep records from being removed."""
    from agent_container.commands.run_removal import hold_runs

    held = hold_runs(CALL.context, tuple(runs), reason=reason, release=release)

    def show() -> None:
        for run in held.runs:
            CALL.ui.text(f"{'held' if held.held else 'released'} {run}")

    CALL.ui.result(held, command="runs hold", show=show)


@runs_app.command("export")
def runs_export(
    runs: SomeRuns = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="By default RUN.tar.gz; or plain, `.tar`."),
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="The records alone, one JSON object a line, on stdout.")
    ] = False,
) -> None:
    """Pack records into one file, to be checked or imported elsewhere."""
    from agent_container.commands.run_transfer import export_runs, records_as_lines

    if jsonl:
        if output is not None:
            raise UsageError("--jsonl writes to stdout", hint=f"agent-container runs export --jsonl > {output}")
        for line in records_as_lines(CALL.context, runs or [None]):
            CALL.ui.raw(line)
        return
    exported = export_runs(CALL.context, runs or [None], output)
    CALL.ui.result(exported, command="runs export", show=lambda: CALL.ui.text(str(exported.path)))


@runs_app.command("import")
def runs_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `runs export` wrote.")],
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The exporter's public keys: `host-key export`.")
    ] = None,
) -> None:
    """Take over exported records, verified and marked as imported; what is here already is never replaced."""
    from agent_container.commands.run_transfer import import_runs

    imported = import_runs(CALL.context, file, key=key)

    def show() -> None:
        for row in imported:
            CALL.ui.text(f"{'imported' if row.fresh else 'here already:'} {row.run}  {row.verdict}")
        if any(row.verdict != "verified" for row in imported) and key is None:
            CALL.ui.info("to have them vouched for, give the exporter's key: --key FILE")

    CALL.ui.result({"runs": imported}, command="runs import", show=show)


@runs_app.command("report")
def runs_report(
    runs: SomeRuns = None,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="The page to write.")] = Path("report.html"),
) -> None:
    """One page about a run, or about several side by side, to be read offline; it loads nothing and runs nothing."""
    from agent_container.commands.run_report import collect_reports, write_page
    from agent_container.ui.report import render_report

    page = render_report(collect_reports(CALL.context, runs or [None]), made=CALL.context.now())
    path = write_page(html, page)
    CALL.ui.result({"path": path}, command="runs report", show=lambda: CALL.ui.text(str(path)))


@runs_app.command("stats")
def runs_stats(
    by: Annotated[str, typer.Option("--by", help="week, project, agent or model.")] = "week",
    everywhere: Everywhere = False,
    project: Projects = None,
    label: Labels = None,
    outcome: Outcomes = None,
    agent: Agents = None,
    model: Models = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """What runs cost and how they ended, summed up; cost and tokens are the agents' own count."""
    from agent_container.commands.run_filters import Wanted
    from agent_container.commands.run_stats import read_stats
    from agent_container.ui.figures import show_stats

    wanted = Wanted(
        projects=project or (),
        labels=label or (),
        outcomes=outcome or (),
        agents=agent or (),
        models=model or (),
        since=since,
        until=until,
    )
    result = read_stats(CALL.context, by=by, wanted=wanted, everywhere=everywhere)
    CALL.ui.result(result, command="runs stats", show=lambda: show_stats(CALL.ui, result))


def _show_removed(removed: Removed) -> None:
    from agent_container.ui.console import size

    for name in removed.runs:
        CALL.ui.text(f"{'would remove' if removed.dry_run else 'removed'} {name}")
    for line in removed.kept:
        CALL.ui.text(f"kept {line}")
    if removed.bytes:
        CALL.ui.text(f"{size(removed.bytes)} {'would be freed' if removed.dry_run else 'freed'}")
    if removed.dry_run:
        CALL.ui.info("nothing was removed; to do it: the same with --yes" if removed.runs else "nothing to remove")
