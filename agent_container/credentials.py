"""A named secret and the binding sealed with it: to which host, port, method, path and header the sidecar may add it.

The binding is the user's word, given when they set the credential; a spec can only narrow it. What `encode` gives holds
the secret and goes to the store's seal and nowhere else. Errors never hold a secret, whatever was wrong with it.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from agent_container.credential_kinds import KINDS, in_repositories
from agent_container.credential_reference import Reference, read_reference
from agent_container.environment import check_env_name
from agent_container.errors import SpecError, StoreError, UsageError
from agent_container.spec import CredentialUse
from agent_container.spec_types import parse_slug
from agent_egress.policy import PolicyError
from agent_egress.rules import Binding as PolicyBinding
from agent_egress.rules import Policy

MAX_SECRET_BYTES = 8192
"""What the sidecar takes."""


_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}", re.ASCII)


class SecretBytes:
    """Bytes that are never printed: not in a repr, a traceback, a JSON dump or a format string."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes themselves."""
        return self._value

    def __repr__(self) -> str:
        return "SecretBytes(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretBytes) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(SecretBytes)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


class Place(BaseModel):
    """Where a credential may be used: exactly these hosts and port, methods, path templates, header and formats."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    hosts: tuple[str, ...]
    port: int = 443
    methods: tuple[str, ...]
    paths: tuple[str, ...]
    """Templates: `*` is one segment, a last `**` any rest."""
    header: str
    formats: tuple[str, ...]
    """`{}` stands for the secret: `Bearer {}`, `token {}`, `Basic b64(USER:{})`."""

    @property
    def git(self) -> bool:
        """Whether git speaks its smart protocol there."""
        return any(path.endswith("/git-upload-pack") for path in self.paths)


class Binding(Place):
    """All places of a credential: this one and `more`."""

    env: tuple[Annotated[str, AfterValidator(check_env_name)], ...] = ()
    """Variables that hold the placeholder in the sandbox."""
    more: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """Each place by itself."""
        return (self, *self.more)

    def rows(self, name: str) -> tuple[PolicyBinding, ...]:
        """The binding as rows of the sidecar's policy, one for each place, host and format."""
        return tuple(
            PolicyBinding(name, host, place.port, place.methods, place.paths, place.header, form)
            for place in self.places
            for host in place.hosts
            for form in place.formats
        )


@dataclass(frozen=True)
class Credential:
    """One entry of the sealed store."""

    name: str
    kind: str
    secret: SecretBytes | None
    """None where a reference stands in its place."""
    binding: Binding
    reference: Reference | None = None
    set_at: datetime | None = None
    """When its user gave this value; None in an older entry."""

    def encode(self) -> bytes:
        """JSON with the secret in it: for sealing only."""
        document: dict[str, object] = {
            "version": 1,
            "name": self.name,
            "kind": self.kind,
            "binding": self.binding.model_dump(mode="json"),
        }
        if self.secret is not None:
            document["secret"] = self.secret.reveal().decode("ascii")
        if self.reference is not None:
            document["reference"] = self.reference.row()
        if self.set_at is not None:
            document["set_at"] = self.set_at.isoformat(timespec="seconds")
        return json.dumps(document, sort_keys=True).encode("ascii")


def parse_credential(body: bytes, *, name: str) -> Credential:
    """The credential that `encode` wrote. Raises: StoreError naming `name` and nothing of the content."""
    try:
        row = json.loads(body)
        if row["version"] != 1 or row["name"] != name or row["kind"] not in KINDS:
            raise ValueError
        if ("secret" in row) == ("reference" in row):
            raise ValueError
        secret = read_secret(row["secret"].encode("ascii"))[0] if "secret" in row else None
        reference = read_reference(row["reference"]) if "reference" in row else None
        set_at = datetime.fromisoformat(row["set_at"]) if "set_at" in row else None
        return Credential(
            name, row["kind"], secret, Binding.model_validate(row["binding"]), reference=reference, set_at=set_at
        )
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        raise StoreError(
            f"the credential {name} is not in a form that this version reads",
            hint=f"agent-container credential set {name}",
        ) from None


def read_secret(raw: bytes) -> tuple[SecretBytes, str | None]:
    """The secret in what the user gave, and a notice when a line end was cut off. Raises: UsageError."""
    value = raw.removesuffix(b"\n").removesuffix(b"\r")
    notice = "a line end at the end of the secret was left out" if value != raw else None
    if not value:
        raise UsageError("the secret is empty")
    if len(value) > MAX_SECRET_BYTES:
        raise UsageError(f"the secret has {len(value)} bytes; the most is {MAX_SECRET_BYTES}")
    if b"\n" in value or b"\r" in value:
        raise UsageError("the secret has a line end inside: it would end the header that carries it")
    bad = next((index for index, byte in enumerate(value) if not 0x20 < byte < 0x7F), None)
    if bad is not None:
        raise UsageError(f"byte {bad + 1} of the secret is no printable ASCII character, so no header carries it")
    return SecretBytes(value), notice


def bind(
    kind: str,
    *,
    hosts: tuple[str, ...] | None = None,
    port: int | None = None,
    methods: tuple[str, ...] | None = None,
    paths: tuple[str, ...] | None = None,
    header: str | None = None,
    formats: tuple[str, ...] | None = None,
    env: tuple[str, ...] | None = None,
    repositories: tuple[str, ...] = (),
) -> Binding:
    """The binding of a new credential: the kind's, with what the user says instead. Raises: UsageError."""
    row = KINDS.get(kind)
    if row is None:
        raise UsageError(f"no kind of credential is called {kind!r}", details=[f"known: {', '.join(KINDS)}"])
    binding: dict[str, Any] = {
        "hosts": _or(hosts, row.hosts),
        "port": row.port if port is None else port,
        "methods": _or(methods, row.methods),
        "paths": _or(paths, row.paths),
        "header": row.header if header is None else header,
        "formats": _or(formats, row.formats),
        "env": _or(env, row.env),
    }
    # What the user says of hosts and paths is all there is: the kind's other places are of its own hosts.
    more = () if hosts is not None or paths is not None else row.more
    binding["more"] = [dataclasses.asdict(place) for place in more]
    if repositories:
        if not row.repositories:
            raise UsageError(f"a credential of kind {kind} is not bound to repositories", hint="--path does it")
        if paths is not None:
            # A template of the user's may reach every repository, and which ones it means cannot be told from it.
            raise UsageError(
                "--repo and --path exclude each other: a repository brings the paths that belong to it",
                hint="--repo OWNER/NAME alone, or every path by --path",
            )
        for place in (binding, *binding["more"]):
            place["paths"] = in_repositories(place["paths"], _checked_repositories(repositories))
    return _checked(kind, binding)


def _checked_repositories(names: tuple[str, ...]) -> tuple[str, ...]:
    bad = [name for name in names if not _REPOSITORY.fullmatch(name)]
    if bad:
        raise UsageError(f"{bad[0]!r} names no repository", hint="--repo OWNER/NAME")
    return tuple(dict.fromkeys(name.removesuffix(".git") for name in names))


def _or(given: tuple[str, ...] | None, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    return otherwise if given is None else given


def _checked(kind: str, values: dict[str, object]) -> Binding:
    """The binding, in the words of the sidecar, which is what enforces it."""
    missing = [f"{key} are missing" for key in ("hosts", "methods", "paths", "formats") if not values[key]]
    if missing:
        raise UsageError(
            f"a credential of kind {kind} needs to know where it may be used",
            details=missing,
            hint="add --host HOST, --path '/**', --method GET (each may be repeated)",
        )
    try:
        binding = Binding.model_validate(values)
        Policy.parse(Policy(credentials=binding.rows("new")).encode())
        policy = Policy.parse(Policy(credentials=binding.model_copy(update={"more": ()}).rows("new")).encode())
    except PolicyError as error:
        raise UsageError("the credential cannot be bound so", details=sorted(set(error.problems))) from None
    except ValidationError as error:
        details = [f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in error.errors(include_input=False)]
        raise UsageError("the credential cannot be bound so", details=details) from None
    hosts = tuple(dict.fromkeys(row.host for row in policy.credentials))
    return binding.model_copy(update={"hosts": hosts})


def new_credential(
    name: str, kind: str, *, value: SecretBytes | Reference, binding: Binding, set_at: datetime | None = None
) -> Credential:
    """A credential under a name that files and the spec can carry. Raises: UsageError."""
    secret, reference = (None, value) if isinstance(value, Reference) else (value, None)
    try:
        return Credential(parse_slug(name), kind, secret, binding, reference=reference, set_at=set_at)
    except ValueError as error:
        raise UsageError(f"{name!r} cannot name a credential: {error}") from None


def narrow(binding: Binding, use: CredentialUse) -> Binding:
    """The part of `binding` that a spec's entry leaves. Raises: SpecError naming everything that would widen it."""
    places = binding.places
    beyond = [
        *(f"host {host}" for host in use.hosts or () if not any(host in place.hosts for place in places)),
        *(f"method {method}" for method in use.methods or () if not any(method in place.methods for place in places)),
        *(f"path {path}" for path in use.paths or () if not any(_in(place, path) for place in places)),
    ]
    if beyond:
        raise SpecError(
            f"credential {use.name}: the spec asks for more than it is bound to",
            details=[f"not in its binding: {what}" for what in beyond],
            hint=f"agent-container credential show {use.name}",
        )
    left = [_part(place, use) for place in places]
    kept = [part for part in left if part.hosts and part.methods and part.paths]
    if not kept:
        raise SpecError(
            f"credential {use.name}: what the spec leaves of it is nothing",
            hint=f"agent-container credential show {use.name}",
        )
    env = (use.env,) if use.env else binding.env
    return Binding(**kept[0].model_dump(include=set(Place.model_fields)), env=env, more=tuple(kept[1:]))


def _in(place: Place, path: str) -> bool:
    return any(covers(outer, path) for outer in place.paths)


def _part(place: Place, use: CredentialUse) -> Place:
    """What a spec's entry leaves of one place."""
    return Place(
        hosts=place.hosts if use.hosts is None else tuple(host for host in use.hosts if host in place.hosts),
        port=place.port,
        methods=place.methods if use.methods is None else tuple(one for one in use.methods if one in place.methods),
        paths=place.paths if use.paths is None else tuple(path for path in use.paths if _in(place, path)),
        header=place.header,
        formats=place.formats,
    )


def covers(outer: str, inner: str) -> bool:
    """Whether every path that the template `inner` matches is matched by `outer` too."""
    wide, thin = outer.split("/"), inner.split("/")
    if wide[-1] == "**":
        head = wide[:-1]
        deep_enough = len(thin) > len(head) and thin[len(head)] != ""
        return deep_enough and all(_covers_segment(w, t) for w, t in zip(head, thin, strict=False))
    return len(wide) == len(thin) and all(_covers_segment(w, t) for w, t in zip(wide, thin, strict=True))


def _covers_segment(wide: str, thin: str) -> bool:
    return wide == thin or (wide == "*" and thin not in ("**", ""))


def rotated(credential: Credential, value: SecretBytes | Reference, *, set_at: datetime | None = None) -> Credential:
    """The same credential, bound as before, with another secret or place of it."""
    secret, reference = (None, value) if isinstance(value, Reference) else (value, None)
    return replace(credential, secret=secret, reference=reference, set_at=set_at)
