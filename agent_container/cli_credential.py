"""The parser of `credential`: the sealed store of secrets, and what its key is locked with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_container.cli_call import CALL
from agent_container.errors import UsageError

if TYPE_CHECKING:
    from agent_container.credential_reference import Reference

credential_app = typer.Typer(help="The sealed store of credentials.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Stdin = Annotated[bool, typer.Option("--stdin", help="Read it from stdin; without a terminal that is the default.")]
FromEnv = Annotated[str | None, typer.Option("--from-env", metavar="NAME", help="Take it from a variable.")]
FromFile = Annotated[Path | None, typer.Option("--from-file", metavar="FILE", help="Take it from a file.")]
FromKeyring = Annotated[
    str | None, typer.Option("--from-keyring", metavar="SERVICE/USER", help="Take it from the keyring.")
]
FromCommand = Annotated[
    str | None,
    typer.Option("--from-command", metavar="'PROGRAM ...'", help="Take what a program prints (op, pass, vault)."),
]
AsReference = Annotated[
    bool, typer.Option("--reference", help="Keep the place instead of the value; it is asked at each use.")
]


@credential_app.command("set")
def credential_set(
    name: Annotated[str, typer.Argument(help="Its name; one that is a kind's name has that kind.")],
    kind: Annotated[str | None, typer.Option("--kind", help="anthropic, openai, github, npm, generic, ...")] = None,
    host: Annotated[list[str] | None, typer.Option("--host", help="A host that may get it.")] = None,
    port: Annotated[int | None, typer.Option("--port")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="An HTTP method.")] = None,
    path: Annotated[
        list[str] | None, typer.Option("--path", help="A path template: /, /v1/* (one part), /v1/** (one or more).")
    ] = None,
    header: Annotated[str | None, typer.Option("--header", help="The header that carries it.")] = None,
    form: Annotated[list[str] | None, typer.Option("--format", help="How: 'Bearer {}'.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="The variable of the placeholder.")] = None,
    repo: Annotated[
        list[str] | None, typer.Option("--repo", metavar="OWNER/NAME", help="A forge's: only this repository.")
    ] = None,
    stdin: Stdin = False,
    from_env: FromEnv = None,
    from_file: FromFile = None,
    from_keyring: FromKeyring = None,
    from_command: FromCommand = None,
    reference: AsReference = False,
) -> None:
    """Seal a secret; it is asked for, or read from stdin, a file or elsewhere, and never an argument."""
    from agent_container.commands.credential import BindingRequest, notice_of, set_credential

    request = BindingRequest(
        kind=kind,
        hosts=tuple(host or ()),
        port=port,
        methods=tuple(method or ()),
        paths=tuple(path or ()),
        header=header,
        formats=tuple(form or ()),
        env=tuple(env or ()),
        repositories=tuple(repo or ()),
    )
    _choose_lock()
    place = _place(from_env=from_env, from_file=from_file, from_keyring=from_keyring, from_command=from_command)
    secret = _secret(name, "set", place, stdin=stdin, reference=reference)
    row = set_credential(CALL.context, name, request, secret=secret)
    for line in notice_of(row.kind):
        CALL.ui.info(line)
    CALL.ui.result(row, command="credential set", show=lambda: CALL.ui.text(f"sealed {row.name} ({row.kind})"))


@credential_app.command("rotate")
def credential_rotate(
    name: Name,
    stdin: Stdin = False,
    from_env: FromEnv = None,
    from_file: FromFile = None,
    from_keyring: FromKeyring = None,
    from_command: FromCommand = None,
    reference: AsReference = False,
) -> None:
    """Another secret under the same name and binding; live sandboxes use it from their next request on."""
    from agent_container.commands.credential import show_credential
    from agent_container.commands.credential_rotate import rotate_credential

    ui = CALL.ui
    place = _place(from_env=from_env, from_file=from_file, from_keyring=from_keyring, from_command=from_command)
    followed = show_credential(CALL.context, name).row.reference is not None and place is None and not stdin
    secret = None if followed else _secret(name, "rotate", place, stdin=stdin, reference=reference)
    done = rotate_credential(CALL.context, name, secret=secret)

    def show() -> None:
        ui.text(f"rotated {done.name}; live sandboxes that have it: {len(done.sandboxes)}")
        for problem in done.failed:
            ui.warn(f"not handed to session {problem}")

    ui.result(done, command="credential rotate", show=show)
    if done.failed:
        raise typer.Exit(1)


@credential_app.command("show")
def credential_show(name: Name) -> None:
    """A credential's kind, binding, age and last use; never its secret."""
    from agent_container.commands.credential import show_credential

    detail = show_credential(CALL.context, name)
    now = CALL.context.now()
    CALL.ui.result(detail, command="credential show", show=lambda: CALL.ui.fields(detail.fields(now)))


@credential_app.command("ls")
def credential_ls() -> None:
    """Names, kinds and hosts, age and last use; never a secret."""
    from agent_container.commands.credential import list_credentials

    rows = list_credentials(CALL.context)

    def show() -> None:
        if not rows:
            CALL.ui.info("no credential is stored: agent-container credential set NAME")
            return
        now = CALL.context.now()
        CALL.ui.table(("name", "kind", "hosts", "set", "last used"), [row.cells(now) for row in rows])

    CALL.ui.result(rows, command="credential ls", show=show)


@credential_app.command("rm")
def credential_rm(name: Name) -> None:
    """Remove one, and take it from live sandboxes."""
    from agent_container.commands.credential_rotate import withdraw_credential

    ui = CALL.ui
    done = withdraw_credential(CALL.context, name)

    def show() -> None:
        ui.text(f"removed {done.name}" + (f", and from {len(done.sandboxes)} live sandboxes" if done.sandboxes else ""))
        for problem in done.failed:
            ui.warn(f"not taken from session {problem}")

    ui.result(
        {"removed": done.name, "sandboxes": done.sandboxes, "failed": done.failed}, command="credential rm", show=show
    )
    if done.failed:
        raise typer.Exit(1)


@credential_app.command("lock")
def credential_lock(
    lock: Annotated[str | None, typer.Argument(metavar="[LOCK]", help="keyring, passphrase or file.")] = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="The old key is lost: start with a new one; what it sealed stays shut.")
    ] = False,
) -> None:
    """What the store's key is locked with; with a word, lock it with that and seal everything anew."""
    from agent_container.commands.credential_lock import change_lock, show_lock

    ui = CALL.ui
    if lock is None:
        state = show_lock(CALL.context)
        ui.result(state, command="credential lock", show=lambda: ui.fields(state.fields))
        return
    changed = change_lock(CALL.context, lock, abandon=abandon)

    def show() -> None:
        ui.text(f"locked with {changed.lock}; files sealed anew: {changed.resealed}")
        for path in changed.left:
            ui.warn(f"{path} opens with no known key: left as it is")

    ui.result(changed, command="credential lock", show=show)


def _choose_lock() -> None:
    """Asked once, before the first credential of a store: what its key is to be locked with."""
    from agent_container.commands.credential_lock import change_lock, choices

    ui = CALL.ui
    # Somebody has to be there to answer, and to have asked for more than the secret of a script.
    offered = choices(CALL.context) if ui.interactive else ()
    if not offered:
        return
    ui.info("Credentials are sealed on this host. What is the key to be locked with?")
    for kind, protects in offered:
        ui.info(f"  {kind}: {protects}")
    words = "/".join(kind for kind, _ in offered)
    answer = ui.prompt(f"{words} [{offered[0][0]}]").strip() or offered[0][0]
    change_lock(CALL.context, answer)


def _place(
    *, from_env: str | None, from_file: Path | None, from_keyring: str | None, from_command: str | None
) -> Reference | None:
    """The place that was named, None when none was. Raises UsageError for two."""
    from agent_container.credential_reference import parse_reference

    places = [
        parse_reference("env", from_env, directory=Path()) if from_env is not None else None,
        parse_reference("file", str(from_file), directory=Path()) if from_file is not None else None,
        parse_reference("keyring", from_keyring, directory=Path()) if from_keyring is not None else None,
        parse_reference("command", from_command, directory=Path()) if from_command is not None else None,
    ]
    named = [place for place in places if place is not None]
    if len(named) > 1:
        raise UsageError("several places for one secret", details=[place.shown for place in named])
    return named[0] if named else None


def _secret(name: str, verb: str, place: Reference | None, *, stdin: bool, reference: bool) -> bytes | Reference:
    """The secret, from the place that was named, from stdin, or from whoever sits there. Raises UsageError."""
    from agent_container.commands.credential_sources import READ_BYTES, fetch

    if place is not None and stdin:
        raise UsageError("--stdin and another place exclude each other")
    if reference:
        if place is None:
            raise UsageError(
                "--reference needs a place that can be asked again",
                hint="--from-env NAME, --from-file FILE, --from-keyring SERVICE/USER or --from-command 'PROGRAM ...'",
            )
        return place
    if place is not None:
        return fetch(CALL.context, place)
    if stdin or not sys.stdin.isatty():
        return sys.stdin.buffer.read(READ_BYTES)
    hint = f"agent-container credential {verb} {name} < FILE"
    return CALL.ui.prompt(f"secret of {name}:", secret=True, hint=hint).encode("utf-8", "surrogateescape")
