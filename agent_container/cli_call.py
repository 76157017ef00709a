"""One call of the tool: what the global options said, its context and its printer, shared by every verb's parser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from agent_container.errors import ApprovalNeeded, CredentialMissing, UsageError

if TYPE_CHECKING:
    from agent_container.commands.context import Context
    from agent_container.ui import Ui

T = TypeVar("T")

RunArgument = Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run's id or its beginning; the newest.")]
RecordArgument = Annotated[
    str | None, typer.Argument(metavar="[RUN|DIR]", help="A run's id or its beginning; or a record's directory.")
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The host's public keys: checks the record in DIR by them alone."),
]


class Call:
    """One call of the tool: what the global options said."""

    def __init__(self) -> None:
        self.directory = Path()
        self.spec: Path | None = None
        self.json = False
        self.quiet = False
        self.verbose = False
        self.no_input = False
        self.passphrase_fd: int | None = None
        self.passphrase_file: Path | None = None

    @property
    def ui(self) -> Ui:
        """The printer."""
        from agent_container.ui import Ui

        if not hasattr(self, "_ui"):
            self._ui = Ui(json_output=self.json, quiet=self.quiet, verbose=self.verbose, no_input=self.no_input)
        return self._ui

    @property
    def context(self) -> Context:
        """What commands are given."""
        from agent_container.commands.context import Context

        if not hasattr(self, "_context"):
            ui = self.ui
            self._context = Context(
                directory=self.directory,
                spec_path=self.spec,
                report=ui.finished,
                passphrase_fd=self.passphrase_fd,
                passphrase_file=self.passphrase_file,
                ask=(lambda question: ui.prompt(question, secret=True)) if ui.interactive else None,
            )
        return self._context


CALL = Call()


def approved(call: Callable[[str | None], T], *, accept: str | None, again: str) -> T:
    """Calls with the digest given. Where a key or a yes is missing, says so and asks, then calls again."""
    try:
        return _with_credential(call, accept)
    except ApprovalNeeded as needed:
        ui = CALL.ui
        if not ui.interactive or accept is not None:
            raise
        ui.info(needed.message)
        ui.diff(needed.diff)
        if not ui.confirm("Accept this?", hint=f"{again} --accept {needed.digest[:12]}"):
            raise UsageError("not accepted; nothing was changed") from None
        return call(needed.digest)


def _with_credential(call: Callable[[str | None], T], accept: str | None) -> T:
    """Offers a key that the user's own environment holds, when the agent's is not stored."""
    try:
        return call(accept)
    except CredentialMissing as missing:
        ui = CALL.ui
        if not ui.interactive or not missing.offers:
            raise
        from agent_container.commands.credential import BindingRequest, notice_of, set_credential

        kind, variable = missing.offers[0]
        ui.info(missing.message)
        ui.info("It is sealed on this host and never enters a sandbox: the agent sees a placeholder.")
        for line in notice_of(kind):
            ui.info(line)
        if not ui.confirm(f"Use {variable} of this shell, and keep it as {kind}?", hint=missing.hint):
            raise
        context = CALL.context
        set_credential(context, kind, BindingRequest(kind=kind), secret=context.environ[variable].encode())
        return call(accept)
