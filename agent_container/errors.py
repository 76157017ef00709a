"""Every error that ends a command: one tree, each with its exit status, and words for what failed and what to type.

Only `cli.py` catches these and exits; everything below raises them. The statuses are a contract: docs/reference.
"""

from __future__ import annotations

from collections.abc import Sequence


class AgentContainerError(Exception):
    """A failure that the user can read and act on; `hint` is the next command to type."""

    exit_code = 1

    def __init__(self, message: str, *, details: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = tuple(details)
        self.hint = hint


class UsageError(AgentContainerError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = 2


class Ambiguous(UsageError):
    """A name fits several; `details` names them."""


class SpecError(UsageError):
    """The spec file is wrong; `details` holds one line for every mistake, with its line number."""


class ApprovalNeeded(UsageError):
    """The spec's user has not yet said yes to what it asks for; `diff` shows it, `digest` names it."""

    def __init__(self, message: str, *, diff: Sequence[str], digest: str, hint: str | None = None) -> None:
        super().__init__(message, details=diff, hint=hint)
        self.diff = tuple(diff)
        self.digest = digest


class CredentialMissing(UsageError):
    """The agent needs a credential that is not stored; one of `kinds` would do. `offers` are (kind, variable) of the
    user's own environment that hold one."""

    def __init__(
        self, message: str, *, kinds: Sequence[str], offers: Sequence[tuple[str, str]] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.kinds = tuple(kinds)
        self.offers = tuple(offers)


class EngineError(AgentContainerError):
    """Docker did not do what was asked; `details` holds the line to paste and what it printed."""

    exit_code = 3


class SidecarError(EngineError):
    """The egress sidecar did not come up healthy, so nothing may start; `part` names the component."""

    def __init__(self, message: str, *, part: str, details: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(message, details=details, hint=hint)
        self.part = part


class NotRunning(AgentContainerError):
    """There is no environment or run to act on."""

    exit_code = 4


class NoProgram(AgentContainerError):
    """`exec` was given what the sandbox cannot start; the status is a shell's for it."""

    exit_code = 127


class Tampered(AgentContainerError):
    """A record does not verify: something in it was changed."""

    exit_code = 5


class Unverifiable(AgentContainerError):
    """A record can be neither verified nor refuted: unsealed, its key missing, or nothing there."""

    exit_code = 6


class StoreError(AgentContainerError):
    """The store cannot be read or written; what was there before is still there, nothing half-written is visible."""


class Locked(StoreError):
    """Another process works on the same project or session; `pid` is its process id, 0 when it could not be read."""

    def __init__(self, message: str, *, pid: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.pid = pid
