"""The parser of `egress`: the live policy of a sandbox, its log, and what it says of a URL."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent_container.cli_call import CALL
from agent_container.errors import UsageError

if TYPE_CHECKING:
    from agent_container.commands.egress import Done
    from agent_container.commands.egress_log import Receipt
    from agent_container.commands.egress_watch import Row

egress_app = typer.Typer(help="The egress policy of a live sandbox, and what it decided.", no_args_is_help=True)

RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="A run, where it is not the standing environment.")
]
Save = Annotated[bool, typer.Option("--save", help="Also in the project's spec.")]
Host = Annotated[str, typer.Argument(metavar="HOST", help="A host, *.domain, address or range; a URL's host is taken.")]


@egress_app.command("ls")
def egress_ls(run: RunOption = None) -> None:
    """The rules in force: where each comes from, how often it decided."""
    from agent_container.commands.egress import list_rules

    rules = list_rules(CALL.context, run=run)

    def show() -> None:
        ui = CALL.ui
        if rules.session is None:
            ui.info("nothing is running: this is what the next sandbox begins with")
        if rules.cut:
            ui.warn("everything is cut: agent-container egress restore")
        cells = [
            (
                row.action,
                row.pattern + (f" within {' '.join(row.addresses)}" if row.addresses else ""),
                " ".join(map(str, row.ports)) if row.seen else "",
                row.seen,
                "" if row.allowed is None else str(row.allowed),
                "" if row.denied is None else str(row.denied),
                row.origin,
            )
            for row in rules.rules
        ]
        if cells:
            ui.table(("", "host", "ports", "seen", "allowed", "denied", "origin"), cells)
        else:
            ui.text("nothing is allowed: agent-container egress allow HOST")
        if rules.unmatched:
            ui.info(f"{rules.unmatched} more refusals that no rule names: agent-container egress log --denied")
        ui.info(f"policy {rules.digest[:19]}")

    CALL.ui.result(rules, command="egress ls", show=show)


@egress_app.command("allow")
def egress_allow(
    host: Host,
    port: Annotated[list[int] | None, typer.Option("--port", help="Instead of 443 and 80; may be repeated.")] = None,
    address: Annotated[
        list[str] | None, typer.Option("--address", metavar="RANGE", help="A private range that its names may be in.")
    ] = None,
    run: RunOption = None,
    save: Save = False,
) -> None:
    """Allow a host in a live sandbox, from its next request on."""
    _change("allow", host, ports=port or (), addresses=address or (), run=run, save=save)


@egress_app.command("deny")
def egress_deny(host: Host, run: RunOption = None, save: Save = False) -> None:
    """Deny a host in a live sandbox, on every port; beats every allow, and ends what is open."""
    _change("deny", host, run=run, save=save)


@egress_app.command("rm")
def egress_rm(host: Host, run: RunOption = None, save: Save = False) -> None:
    """Take the rules over exactly this host out of a live sandbox."""
    _change("rm", host, run=run, save=save)


def _change(
    verb: Literal["allow", "deny", "rm"],
    host: str,
    *,
    ports: list[int] | tuple[()] = (),
    addresses: list[str] | tuple[()] = (),
    run: str | None,
    save: bool,
) -> None:
    from agent_container.commands.egress import change_rules

    done = change_rules(CALL.context, verb, host, ports=ports, addresses=addresses, run=run, save=save)
    CALL.ui.result(done, command=f"egress {verb}", show=lambda: _show_done(done))


def _show_done(done: Done) -> None:
    for line in done.words:
        CALL.ui.text(line)
    if done.digest:
        CALL.ui.info(f"in force: policy {done.digest[:19]}")


Everywhere = Annotated[bool, typer.Option("--all", help="Of every project.")]


@egress_app.command("cut")
def egress_cut(run: RunOption = None, everywhere: Everywhere = False) -> None:
    """End every connection of this project's sandboxes and allow none."""
    _cut("cut", run, everywhere)


@egress_app.command("restore")
def egress_restore(run: RunOption = None, everywhere: Everywhere = False) -> None:
    """Undo a cut."""
    _cut("restore", run, everywhere)


def _cut(verb: Literal["cut", "restore"], run: str | None, everywhere: bool) -> None:
    from agent_container.commands.egress import cut_egress

    if run is not None and everywhere:
        raise UsageError("--run and --all exclude each other")
    done = cut_egress(CALL.context, run=run, everywhere=everywhere, restore=verb == "restore")

    def show() -> None:
        for one in done:
            _show_done(one)

    CALL.ui.result(done, command=f"egress {verb}", show=show)


@egress_app.command("explain")
def egress_explain(
    url: Annotated[str, typer.Argument(metavar="URL", help="https://host/path, host:port or host.")],
    method: Annotated[str, typer.Option("--method", help="The HTTP method.")] = "GET",
    run: RunOption = None,
) -> None:
    """Whether a URL may be reached, by which rule, and what to type; nothing is sent."""
    from agent_container.commands.egress_explain import explain

    found = explain(CALL.context, url, method=method, run=run)

    def show() -> None:
        ui = CALL.ui
        ui.text(f"{'allowed' if found.allowed else 'refused'}: {found.host}:{found.port}")
        ui.fields(
            (
                ("because", found.reason),
                ("rule", f"{found.rule}, from {found.origin}" if found.rule else ""),
                ("TLS", found.tls),
                ("credential", found.credential),
                ("private ranges", " ".join(found.addresses)),
                (
                    "policy",
                    f"{found.digest[:19]}{'' if found.session else ', of the next sandbox: nothing is running'}",
                ),
            )
        )
        if found.next_command:
            ui.info(f"to change that: {found.next_command}")

    CALL.ui.result(found, command="egress explain", show=show)


@egress_app.command("log")
def egress_log(
    run: RunOption = None,
    last: Annotated[int, typer.Option("-n", "--last", min=0, help="How many, the newest.")] = 50,
    denied: Annotated[bool, typer.Option("--denied", help="Refusals alone.")] = False,
    host: Annotated[str, typer.Option("--host", help="Of this host, name or address; `*` for any part.")] = "*",
    kind: Annotated[list[str] | None, typer.Option("--kind", help="decision, lookup, connection, ...")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what happens.")] = False,
) -> None:
    """The receipts of a live sandbox or of a record: every decision, lookup, connection and dropped packet."""
    from agent_container.commands.egress_log import Wanted, read_log
    from agent_egress.receipts import KINDS

    unknown = sorted(set(kind or ()) - KINDS)
    if unknown:
        raise UsageError(f"no receipt is of kind {unknown[0]}", details=[f"there are: {', '.join(sorted(KINDS))}"])
    wanted = Wanted(denied=denied, host=host, kinds=tuple(kind or ()))
    count = 0
    for receipt in read_log(CALL.context, run=run, wanted=wanted, last=last, follow=follow):
        count += 1
        _stream(receipt, "egress log")
    if CALL.json:
        CALL.ui.result({"receipts": count}, command="egress log")
    elif not count:
        CALL.ui.info("nothing of that kind")


@egress_app.command("watch")
def egress_watch(run: RunOption = None) -> None:
    """Refusals as they happen, grouped; on a terminal, a row's number allows what it shows."""
    from agent_container.commands.egress import change_rules
    from agent_container.commands.egress_log import Wanted, read_log

    stop = threading.Event()
    context = CALL.context
    if CALL.json or not CALL.ui.interactive:
        for receipt in read_log(context, run=run, wanted=Wanted(denied=True), last=0, follow=True):
            _stream(receipt, "egress watch")
        return
    receipts = read_log(context, run=run, wanted=Wanted(), last=2000, follow=True, stop=stop.is_set)
    from agent_container.ui.watch import watch_board

    def allow(row: Row, save: bool) -> str:
        ports = () if row.port in (None, 443, 80) else (row.port,)
        return "; ".join(change_rules(context, "allow", row.host, ports=ports, run=run, save=save).words)

    watch_board(receipts, allow=allow, stop=stop)


def _stream(receipt: Receipt, command: str) -> None:
    from agent_container.ui.views import show_receipt

    CALL.ui.stream(receipt, command=command, show=lambda: show_receipt(CALL.ui, receipt))
