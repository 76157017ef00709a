"""Decoys and the secrets they stand for: finding a decoy in a request in whatever coding, and the one place where the
real credential replaces it. Pure; that the request may go out at all was decided before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from agent_egress.policy import bindings_for
from agent_egress.rules import Binding, Policy
from agent_egress.squidline import Question

MIN_DECOY = 12
MAX_SECRET = 8192


class SecretRefused(ValueError):
    """A credential that cannot be used; the message never holds its secret."""


@dataclass(frozen=True)
class Secret:
    """One credential of the session."""

    name: str
    decoy: str = field(repr=False)
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for what, text in (("decoy", self.decoy), ("secret", self.secret)):
            if not text.isascii() or not text.isprintable() or " " in text or not text:
                raise SecretRefused(f"credential {self.name[:64]!r}: its {what} is not one printable word")
        if len(self.decoy) < MIN_DECOY or len(self.secret) > MAX_SECRET:
            raise SecretRefused(f"credential {self.name[:64]!r}: decoy too short or secret too long")
        if self.decoy in self.secret or self.secret in self.decoy:
            raise SecretRefused(f"credential {self.name[:64]!r}: decoy and secret contain each other")


def rotated(held: Iterable[object], changes: Iterable[object]) -> list[object]:
    """The session's credentials as they were put, with other secrets for some names; without those whose new secret is
    null. Raises: SecretRefused, for a name that the session does not have too; the message never holds a secret."""
    secrets: dict[str, str | None] = {}
    for row in changes:
        if not isinstance(row, Mapping) or set(row) != {"name", "secret"} or not isinstance(row["secret"], str | None):
            raise SecretRefused("credentials: expected objects with name and secret")
        secrets[str(row["name"])] = row["secret"]
    found: list[object] = []
    for row in held:
        name = row.get("name") if isinstance(row, Mapping) else None
        if isinstance(row, Mapping) and name in secrets:
            secret = secrets.pop(str(name))
            if secret is None:
                continue
            Secret(name=str(name), decoy=str(row["decoy"]), secret=secret)
            row = {**row, "secret": secret}  # noqa: PLW2901
        found.append(row)
    if secrets:
        raise SecretRefused(f"this session has no credential {', '.join(sorted(secrets))[:64]}")
    return found


def needles(decoy: str) -> tuple[str, ...]:
    """The decoy, and what it looks like inside base64 of a longer text, at each of the three alignments."""
    found = [decoy]
    raw = decoy.encode("ascii")
    for shift, skipped in ((0, 0), (1, 2), (2, 3)):
        coded = base64.b64encode(b"\0" * shift + raw).decode("ascii")
        part = coded[skipped : (shift + len(raw)) * 8 // 6]
        found += [part, part.replace("+", "-").replace("/", "_")]
    return tuple(dict.fromkeys(found))


class Vault:
    """The session's credentials, as last put."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._by_name = {secret.name: secret for secret in secrets}
        self._needles = tuple(
            (needle, secret.name) for secret in self._by_name.values() for needle in needles(secret.decoy)
        )

    def get(self, name: str) -> Secret | None:
        """The credential of this name, when it was put."""
        return self._by_name.get(name)

    def find(self, text: str) -> str:
        """The name of a credential whose decoy stands in the text, plain, percent-escaped (twice at most) or in
        base64."""
        if not self._needles or not text:
            return ""
        texts = [text]
        if "%" in text:
            once = unquote(text)
            texts += [once, unquote(once)]
        for needle, name in self._needles:
            if any(needle in candidate for candidate in texts):
                return name
        return ""


@dataclass(frozen=True)
class Swap:
    """What becomes of a request's credentials: nothing, an injection, or a refusal."""

    header: str = ""
    value: str = field(default="", repr=False)
    credential: str = ""
    """Whose secret is injected, or whose decoy was found where it does not belong."""
    refusal: str = ""
    """In words; empty when the request may go."""
    tripwire: str = ""
    """Where a decoy was found that belongs elsewhere."""


def stray_decoy(vault: Vault, question: Question, *, except_header: str = "") -> Swap | None:
    """The refusal of a request with a decoy in its URL or in a header that squid shows; None when there is none."""
    places = [("the URL", question.raw_path), ("the host", question.host)]
    places += [(f"header {name}", value) for name, value in question.headers if name.lower() != except_header]
    for where, text in places:
        name = vault.find(text)
        if name:
            refusal = f"the placeholder of credential {name} stands in {where}, where it is never replaced"
            return Swap(credential=name, refusal=refusal, tripwire=where)
    return None


def plan_swap(policy: Policy, vault: Vault, question: Question, *, host: str) -> Swap:
    """The injection for an allowed request: only for a decoy in exactly the bound header and format, and only with a
    binding that covers host, port, method and path. Any other value in a bound header is refused: a key that is not
    this session's would carry data to somebody else's account on an allowed host."""
    rows = [row for row in policy.bindings.get(host, ()) if row.port == question.port]
    if not rows:
        return stray_decoy(vault, question) or Swap()
    covering = bindings_for(policy, host=host, port=question.port, method=question.method, raw_path=question.raw_path)
    given = {name.lower(): value for name, value in question.headers}
    chosen = Swap()
    for header in dict.fromkeys(row.header.lower() for row in rows):
        value = given.get(header)
        if value is None:
            continue
        fitting = [row for row in rows if row.header.lower() == header and _replaced(vault, row, value)]
        if not fitting:
            stray = vault.find(value)
            if stray:
                refusal = f"header {header} does not hold the placeholder of credential {stray} in its one form"
                return Swap(credential=stray, refusal=refusal, tripwire=f"header {header}")
            return Swap(refusal=f"header {header} holds a value that is not this session's credential")
        bound = [row for row in fitting if row in covering]
        if not bound:
            return Swap(refusal=f"credential {fitting[0].name} is not bound to {question.method} on this path")
        if chosen.header:
            return Swap(refusal="two credentials in one request")
        replaced = _replaced(vault, bound[0], value)
        chosen = Swap(header=bound[0].header, value=replaced, credential=bound[0].name)
    return stray_decoy(vault, question, except_header=chosen.header.lower()) or chosen


def _replaced(vault: Vault, row: Binding, value: str) -> str:
    """The header's value with the real secret; empty when the value is not the decoy in the row's format."""
    secret = vault.get(row.name)
    if secret is None:
        return ""
    if row.basic_user is None:
        matches = value == row.format.replace("{}", secret.decoy)
        return row.format.replace("{}", secret.secret) if matches else ""
    scheme, _, coded = value.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        user, _, password = base64.b64decode(coded, validate=True).decode("ascii").partition(":")
    except (binascii.Error, UnicodeError):
        return ""
    if password != secret.decoy or row.basic_user not in {"*", user} or not user.isprintable():
        return ""
    return "Basic " + base64.b64encode(f"{user}:{secret.secret}".encode("ascii")).decode("ascii")
