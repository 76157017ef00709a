"""`credential set / show / ls / rm`: the sealed store of secrets, each with the binding that its user gives it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agent_container.commands.context import Context
from agent_container.commands.credential_sources import fetch
from agent_container.credential_kinds import KINDS
from agent_container.credential_reference import Reference
from agent_container.credentials import (
    Binding,
    Credential,
    Place,
    SecretBytes,
    bind,
    new_credential,
    parse_credential,
    read_secret,
)
from agent_container.errors import NotRunning


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
    repositories: tuple[str, ...] = ()


@dataclass(frozen=True)
class CredentialRow:
    """A credential without its secret."""

    name: str
    kind: str
    hosts: tuple[str, ...]
    header: str
    env: tuple[str, ...]
    reference: str | None = None
    """Where the secret is fetched from each time; None where it is sealed itself."""
    set_at: datetime | None = None
    used_at: datetime | None = None
    """When a sandbox was last given it."""

    def cells(self, now: datetime) -> tuple[str, ...]:
        """For a table."""
        age = "?" if self.set_at is None else _ago(self.set_at, now)
        return self.name, self.kind, ", ".join(self.hosts), age, _ago(self.used_at, now)


@dataclass(frozen=True)
class CredentialDetail:
    """All of a credential but its secret."""

    row: CredentialRow
    binding: Binding
    used_by: str | None
    """The session that was last given it."""

    def fields(self, now: datetime) -> tuple[tuple[str, str], ...]:
        """For people."""
        binding, row = self.binding, self.row
        used = f"{_ago(row.used_at, now)}, session {self.used_by}" if self.used_by else "never"
        return (
            ("name", row.name),
            ("kind", row.kind),
            ("secret", "sealed" if row.reference is None else f"fetched from {row.reference}"),
            *(field for place in binding.places for field in _place_fields(place)),
            ("variables", ", ".join(binding.env) or "none"),
            ("set", "?" if row.set_at is None else _ago(row.set_at, now)),
            ("last used", used),
        )


def _place_fields(place: Place) -> tuple[tuple[str, str], ...]:
    return (
        ("hosts", ", ".join(f"{host}:{place.port}" for host in place.hosts)),
        ("methods", ", ".join(place.methods)),
        *(("path" if index == 0 else "", path) for index, path in enumerate(place.paths)),
        ("header", f"{place.header}: {' | '.join(place.formats)}"),
    )


def _ago(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "never"
    seconds = max((now - at).total_seconds(), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"


def notice_of(kind: str) -> tuple[str, ...]:
    """What a user should know before a credential of this kind works for an agent."""
    return KINDS[kind].notice


def set_credential(ctx: Context, name: str, request: BindingRequest, *, secret: bytes | Reference) -> CredentialRow:
    """Seals a secret, or the place where it is, under `name` with its binding, in place of the one before. Raises
    UsageError; SourceFailed when a place gives no secret."""
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
        repositories=request.repositories,
    )
    value = checked_value(ctx, secret)
    credential = new_credential(name, kind, value=value, binding=binding, set_at=ctx.now())
    ctx.store.credentials.save(name, credential.encode())
    return row_of(ctx, credential)


def checked_value(ctx: Context, secret: bytes | Reference) -> SecretBytes | Reference:
    """What is to be sealed. A place is asked once, so that its mistake is said now and not by a run."""
    value, notice = read_secret(fetch(ctx, secret) if isinstance(secret, Reference) else secret)
    if isinstance(secret, Reference):
        return secret
    if notice is not None:
        ctx.report(f"Note: {notice}")
    return value


def list_credentials(ctx: Context) -> tuple[CredentialRow, ...]:
    """Every credential, without its secret."""
    found = ((name, ctx.store.credentials.load(name)) for name in ctx.store.credentials.names())
    return tuple(row_of(ctx, parse_credential(body, name=name)) for name, body in found if body is not None)


def show_credential(ctx: Context, name: str) -> CredentialDetail:
    """All of one but its secret. Raises NotRunning when there is none."""
    credential = load_credential(ctx, name)
    used = ctx.store.used.load(name)
    return CredentialDetail(row_of(ctx, credential), credential.binding, used.session if used else None)


def load_credential(ctx: Context, name: str) -> Credential:
    """One credential. Raises NotRunning when there is none."""
    body = ctx.store.credentials.load(name)
    if body is None:
        raise missing(name)
    return parse_credential(body, name=name)


def remove_credential(ctx: Context, name: str) -> str:
    """Removes it. Raises NotRunning when there is none."""
    if not ctx.store.credentials.remove(name):
        raise missing(name)
    ctx.store.used.forget(name)
    return name


def missing(name: str) -> NotRunning:
    """The error for a name that nothing has."""
    return NotRunning(f"there is no credential {name}", hint="agent-container credential ls")


def row_of(ctx: Context, credential: Credential) -> CredentialRow:
    """A credential without its secret."""
    binding, used = credential.binding, ctx.store.used.load(credential.name)
    return CredentialRow(
        name=credential.name,
        kind=credential.kind,
        hosts=tuple(dict.fromkeys(host for place in binding.places for host in place.hosts)),
        header=binding.header,
        env=binding.env,
        reference=None if credential.reference is None else credential.reference.shown,
        set_at=credential.set_at,
        used_at=used.at if used else None,
    )
