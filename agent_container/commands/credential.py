"""`credential set / ls / rm`: the sealed store of secrets, each with the binding that its user gives it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agent_container.commands.context import Context
from agent_container.credential_kinds import KINDS
from agent_container.credentials import (
    MAX_SECRET_BYTES,
    Binding,
    bind,
    new_credential,
    parse_credential,
    read_secret,
)
from agent_container.errors import NotRunning, UsageError


@dataclass(frozen=True)
class BindingRequest:
    """What the user says of where a credential may be used; an empty field leaves the kind's."""

    kind: str | None
    hosts: tuple[str, ...] = ()
    port: int | None = None
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    header: str | None = None
    formats: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


@dataclass(frozen=True)
class CredentialRow:
    """A credential without its secret."""

    name: str
    kind: str
    hosts: tuple[str, ...]
    header: str
    env: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return self.name, self.kind, ", ".join(self.hosts), self.header, ", ".join(self.env)


def notice_of(kind: str) -> tuple[str, ...]:
    """What a user should know before a credential of this kind works for an agent."""
    return KINDS[kind].notice


def set_credential(ctx: Context, name: str, request: BindingRequest, *, secret: bytes) -> CredentialRow:
    """Seals a secret under `name` with its binding, in place of the one before. Raises UsageError."""
    kind = request.kind or (name if name in KINDS else "generic")
    binding = bind(
        kind,
        hosts=request.hosts or None,
        port=request.port,
        methods=tuple(method.upper() for method in request.methods) or None,
        paths=request.paths or None,
        header=request.header,
        formats=request.formats or None,
        env=request.env or None,
    )
    value, notice = read_secret(secret)
    if notice is not None:
        ctx.report(f"Note: {notice}")
    credential = new_credential(name, kind, secret=value, binding=binding)
    ctx.store.credentials.save(name, credential.encode())
    return _row(name, kind, binding)


def read_secret_from(
    source: BinaryIO | Path, *, variable: str | None = None, environ: dict[str, str], report: Callable[[str], None]
) -> bytes:
    """The secret's bytes from a variable, a file or an open stream. Raises UsageError."""
    if variable is not None:
        value = environ.get(variable)
        if value is None:
            raise UsageError(f"the variable {variable} is not set")
        return value.encode("utf-8", "surrogateescape")
    if not isinstance(source, Path):
        return source.read(MAX_SECRET_BYTES + 2)
    try:
        # A FIFO to which nobody writes is empty instead of waited for; one of `<(command)` has its writer.
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(fd, True)
        with os.fdopen(fd, "rb") as stream:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode) and mode & 0o066:
                report(f"Note: other users of this machine may read or change {source}: chmod 600, or remove it now")
            return stream.read(MAX_SECRET_BYTES + 2)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None


def list_credentials(ctx: Context) -> tuple[CredentialRow, ...]:
    """Every credential, without its secret."""
    rows = []
    for name in ctx.store.credentials.names():
        body = ctx.store.credentials.load(name)
        if body is not None:
            credential = parse_credential(body, name=name)
            rows.append(_row(name, credential.kind, credential.binding))
    return tuple(rows)


def remove_credential(ctx: Context, name: str) -> str:
    """Removes it. Raises NotRunning when there is none."""
    if not ctx.store.credentials.remove(name):
        raise NotRunning(f"there is no credential {name}", hint="agent-container credential ls")
    return name


def _row(name: str, kind: str, binding: Binding) -> CredentialRow:
    return CredentialRow(name=name, kind=kind, hosts=binding.hosts, header=binding.header, env=binding.env)
