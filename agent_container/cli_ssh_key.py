"""The parsers of `ssh-key`: the key by which a project reaches its repositories, and the hosts' keys that it trusts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agent_container.cli_call import CALL
from agent_container.errors import UsageError

ssh_key_app = typer.Typer(help="The project's ssh key, which never enters its sandbox.", no_args_is_help=True)


@ssh_key_app.command("show")
def ssh_key_show() -> None:
    """The public key, to be added where the repositories are; the first call makes it."""
    from agent_container.commands.ssh_key import show_keys

    shown = show_keys(CALL.context)

    def show() -> None:
        ui = CALL.ui
        for row in shown.keys:
            ui.text(row.public)
            ui.info(f"{row.state}, {row.fingerprint}, made {row.created}")
        if shown.pins:
            ui.table(("host", "key", "fingerprint"), [row.cells for row in shown.pins])
        else:
            ui.info("no host key is pinned yet: agent-container ssh-key pin HOST --scan")

    CALL.ui.result(shown, command="ssh-key show", show=show)


@ssh_key_app.command("pin")
def ssh_key_pin(
    host: Annotated[str, typer.Argument(metavar="HOST[:PORT]")],
    scan: Annotated[bool, typer.Option("--scan", help="Ask the host itself, and you.")] = False,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Take its lines of a known_hosts file; `-` is stdin.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget what is pinned for it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Without asking.")] = False,
) -> None:
    """Trust a host's own keys, beside those that are pinned already."""
    from agent_container.commands.ssh_key import host_of, pin_rows, read_pins, remove_pins, save_pins, scan_pins

    if sum((scan, from_file is not None, remove)) != 1:
        raise UsageError("say one of --scan, --from-file FILE and --remove")
    name, port = host_of(host)
    if remove:
        rows = remove_pins(CALL.context, name, port)
    else:
        if from_file is None:
            pins = scan_pins(name, port)
        else:
            body = sys.stdin.buffer.read() if str(from_file) == "-" else _read(from_file)
            pins = read_pins(body, host=name, port=port)
        for row in pin_rows(pins):
            CALL.ui.info("  ".join(row.cells))
        question = f"Are these {host}'s own, as it publishes them?"
        if scan and not yes and not CALL.ui.confirm(question, hint=f"agent-container ssh-key pin {host} --scan --yes"):
            raise UsageError("nothing was pinned")
        rows = save_pins(CALL.context, pins)

    def show() -> None:
        CALL.ui.table(("host", "key", "fingerprint"), [row.cells for row in rows])

    CALL.ui.result(rows, command="ssh-key pin", show=show)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


@ssh_key_app.command("rotate")
def ssh_key_rotate() -> None:
    """A new key beside the old one; the same command again uses it once every repository takes it."""
    from agent_container.commands.ssh_key import rotate_key

    rotated = rotate_key(CALL.context)

    def show() -> None:
        CALL.ui.text(rotated.key.public)
        for line in rotated.words:
            CALL.ui.info(line)
        if rotated.phase == "made":
            CALL.ui.info(f"add it where the repositories are, then: {rotated.next_command}")
        else:
            CALL.ui.info(f"remove the old key where the repositories are, then: {rotated.next_command}")

    CALL.ui.result(rotated, command="ssh-key rotate", show=show)


@ssh_key_app.command("retire")
def ssh_key_retire() -> None:
    """Forget the key before the current one."""
    from agent_container.commands.ssh_key import retire_key

    row = retire_key(CALL.context)
    CALL.ui.result(row, command="ssh-key retire", show=lambda: CALL.ui.text(f"retired {row.fingerprint}"))
