"""Fetching a secret from where its user says it is. What a program says on stderr is never shown: it may hold it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.credential_program import WORKING_DIRECTORY, fence, locate, told
from agent_container.credential_reference import Reference
from agent_container.credentials import MAX_SECRET_BYTES, Credential, SecretBytes, read_secret
from agent_container.errors import AgentContainerError, UsageError

COMMAND_LIMIT_S = 30.0
READ_BYTES = MAX_SECRET_BYTES + 2


class SourceFailed(AgentContainerError):
    """The place that a credential refers to gave no secret."""


def secret_of(ctx: Context, credential: Credential) -> SecretBytes:
    """The secret itself: what is sealed, or what its reference leads to now. Raises AgentContainerError, naming the
    credential and its place."""
    if credential.reference is None:
        assert credential.secret is not None  # noqa: S101 - one of the two is there
        return credential.secret
    try:
        return read_secret(fetch(ctx, credential.reference))[0]
    except AgentContainerError as error:
        raise SourceFailed(
            f"credential {credential.name} could not be fetched from {credential.reference.shown}: {error.message}",
            details=error.details,
            hint=error.hint or f"agent-container credential rotate {credential.name}",
        ) from None


def fetch(ctx: Context, reference: Reference) -> bytes:
    """The bytes that the place holds. Raises UsageError, SourceFailed, Unverifiable."""
    if reference.source == "env":
        return read_variable(reference.words[0], ctx.environ)
    if reference.source == "file":
        return read_secret_file(Path(reference.words[0]), report=ctx.report)
    if reference.source == "keyring":
        service, user = reference.words
        text = ctx.store.keys.keyring.get(user, service=service)
        if text is None:
            raise SourceFailed(f"the keyring has no entry {service}/{user}")
        return text.encode("utf-8", "surrogateescape")
    # Looked at again: the project is another one than when it was set, or a link leads elsewhere by now.
    fenced = fence(ctx.directory, ctx.environ)
    program = locate(reference.words[0], ctx.environ, fenced=fenced)
    return run_command((program, *reference.words[1:]), told(ctx.environ, fenced=fenced))


def read_variable(name: str, environ: Mapping[str, str]) -> bytes:
    """A variable's value. Raises UsageError."""
    value = environ.get(name)
    if value is None:
        raise UsageError(f"the variable {name} is not set")
    return value.encode("utf-8", "surrogateescape")


def read_secret_file(path: Path, *, report: Callable[[str], None]) -> bytes:
    """A file's beginning, as much as a secret may have. Raises UsageError."""
    try:
        # A FIFO to which nobody writes is empty instead of waited for; one of `<(command)` has its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(fd, True)
        with os.fdopen(fd, "rb") as stream:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode) and mode & 0o066:
                report(f"Note: other users of this machine may read or change {path}: chmod 600, or remove it now")
            return stream.read(READ_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def run_command(argv: tuple[str, ...], environ: Mapping[str, str], *, limit_s: float = COMMAND_LIMIT_S) -> bytes:
    """What a program prints, without a shell. Ended with all that it started after `limit_s`, or once it has printed
    more than a secret may have. Raises SourceFailed."""
    try:
        process = subprocess.Popen(
            argv,
            cwd=WORKING_DIRECTORY,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise SourceFailed(f"{argv[0]} cannot be started: {error.strerror}") from None
    deadline = time.monotonic() + limit_s
    try:
        assert process.stdout is not None  # noqa: S101 - narrows the type
        said = _read(process.stdout.fileno(), argv[0], deadline)
        try:
            status = process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise SourceFailed(f"{argv[0]} did not end within {limit_s:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if status != 0:
        raise SourceFailed(
            f"{argv[0]} ended with status {status}",
            details=("what it said is not shown, it may hold the secret: run it by hand to see",),
        )
    return said


def _read(fd: int, program: str, deadline: float) -> bytes:
    said = b""
    while len(said) < READ_BYTES:
        ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            raise SourceFailed(f"{program} printed no secret in time", details=("it was ended",))
        piece = os.read(fd, READ_BYTES - len(said))
        if not piece:
            return said
        said += piece
    raise SourceFailed(f"{program} printed more than a secret may have, {MAX_SECRET_BYTES} bytes")
