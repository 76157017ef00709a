"""What a spec asks for, as a flat set of lines that a person can read, and what has changed since they last said yes.

The spec is untrusted: an agent or a pull request may have written it. Nothing of it is applied while it asks for more
than was approved; asking for less needs no yes. The digest covers all that the spec pulls in, so a yes given in a
script (`--accept DIGEST`) cannot be spent on something else. Where approvals are kept is the store's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_container.errors import ApprovalNeeded, UsageError
from agent_container.spec import CredentialUse, Egress, EgressRule, Image, OwnAgent, ProjectSpec
from agent_container.spec_yaml import shown

MAX_LINE = 4000
MIN_ACCEPT = 12
OWN_BRANCHES = "refs/heads/agent/"
RED = "!!"
"""Begins the lines that take something outside the egress policy; the ui shows them in red."""

_OPENED = re.compile(r"(\w+) inspect (\S+) port (\d+): ")

Kind = Literal["grant", "restriction", "amount"]


def _plain(amount: float) -> str:
    return f"{amount:.15g}"


def _size(amount: float, unit: int = 1) -> str:
    """4g, 200m: the largest unit that says it exactly."""
    count = amount * unit
    for letter, factor in (("t", 2**40), ("g", 2**30), ("m", 2**20), ("k", 2**10)):
        if count >= factor and count % factor == 0:
            return f"{count / factor:.15g}{letter}"
    return f"{count:.15g} bytes"


def _duration(amount: float) -> str:
    """2h, 1h30m."""
    if amount != int(amount) or amount <= 0:
        return f"{amount:.15g}s"
    minutes, seconds = divmod(int(amount), 60)
    hours, minutes = divmod(minutes, 60)
    return "".join(f"{count}{letter}" for count, letter in ((hours, "h"), (minutes, "m"), (seconds, "s")) if count)


MEASURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "resources cpus": ("resources cpus", _plain),
    "resources memory, MiB": ("resources memory", lambda amount: _size(amount, 2**20)),
    "resources pids": ("resources pids", _plain),
    "limits time, seconds": ("limits time", _duration),
    "limits idle, seconds": ("limits idle", _duration),
    "limits model requests": ("limits model_requests", _plain),
    "limits model bytes": ("limits model_bytes", _size),
    "limits cost, USD": ("limits cost_usd", _plain),
    "limits turns": ("limits turns", _plain),
}
"""By an amount's text in an approval, which stays what it is: the spec's own key, and how the spec writes a value."""


class Grant(BaseModel):
    """One line of what a spec asks for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Kind
    """A grant widens by being there, a restriction by being gone, an amount by growing."""
    text: str
    amount: float | None = None
    """Of an `amount`: how much; none is without a limit."""
    red: bool = False

    @property
    def line(self) -> str:
        """The text for people, safe on a terminal."""
        if self.kind != "amount":
            return f"{RED} {self.text}" if self.red else self.text
        return f"{MEASURES[self.text][0] if self.text in MEASURES else self.text} {self.measure}"

    @property
    def measure(self) -> str:
        """How much, as the spec writes it. The text and the number are what the digest covers."""
        if self.amount is None:
            # What a missing key means is the field's own: memory is never without a limit.
            return "half of the host" if self.text.startswith("resources memory") else "unlimited"
        return MEASURES[self.text][1](self.amount) if self.text in MEASURES else _plain(self.amount)


class Grants(BaseModel):
    """Everything that a spec asks for; `text` is unique in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    grants: tuple[Grant, ...] = ()

    @property
    def digest(self) -> str:
        """64 hex digits of SHA-256 over the encoding."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Canonical JSON, which `parse_grants` reads."""
        rows = [grant.model_dump() for grant in self.grants]
        return json.dumps({"version": self.version, "grants": rows}, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Change:
    """One difference between what was approved and what is asked."""

    sign: Literal["+", "-", "~"]
    text: str
    widens: bool
    red: bool = False

    @property
    def line(self) -> str:
        """The difference for people: `+`, `-` or `~`, and whether it widens."""
        return f"{self.sign} {self.text}{'' if self.widens else ' (narrower)'}"


def parse_grants(body: bytes) -> Grants | None:
    """What `encode` wrote; None for anything else, which then counts as never approved."""
    try:
        return Grants.model_validate_json(body)
    except ValidationError:
        return None


def grants_of(
    spec: ProjectSpec,
    *,
    files: Mapping[str, bytes] | None = None,
    image_digests: Mapping[str, str] | None = None,
    also: Iterable[str] = (),
) -> Grants:
    """What `spec` asks for.

    `files` are the contents of what it includes, by name; `image_digests` what its images resolve to, by reference;
    `also` are lines that follow from it elsewhere (an agent's own hosts).
    """
    found = [
        *_agent(spec),
        *_image(spec.image, image_digests or {}),
        *_workspace(spec),
        *_egress(spec.egress, (*spec.egress.allow, *spec.egress.inspect), "egress"),
        *_refusals(spec.egress),
        *_scanning(spec.egress),
        *(grant for use in spec.credentials for grant in _credential(use)),
        *_git(spec),
        *_texts(f"env {name}={_exact(value)}" for name, value in spec.env.items()),
        *_texts(f"file {_quoted(name)} sha256:{_sha256(body)}" for name, body in (files or {}).items()),
        *_texts(_exact(text) for text in also),
        *_amounts(spec),
    ]
    if spec.egress.allow_metadata:
        found.append(Grant(kind="grant", text="egress allow_metadata: the cloud metadata addresses", red=True))
    unique = {grant.text: grant for grant in found}
    return Grants(grants=tuple(unique[text] for text in sorted(unique)))


def _texts(texts: Iterable[str]) -> Iterable[Grant]:
    return (Grant(kind="grant", text=text) for text in texts)


def _agent(spec: ProjectSpec) -> Iterable[Grant]:
    if isinstance(spec.agent, OwnAgent):
        yield from _texts([f"agent command {_quoted(spec.agent.command)}"])
        yield from _texts(f"agent env {name}={_exact(value)}" for name, value in spec.agent.env.items())
        yield from _texts(f"image package {name}" for name in spec.agent.packages)
        yield from _egress(spec.egress, spec.agent.hosts, "agent")
    else:
        yield from _texts([f"agent {spec.agent}"])
    if spec.model:
        yield from _texts([f"model {_exact(spec.model)}"])


def _image(image: Image, digests: Mapping[str, str]) -> Iterable[Grant]:
    digest = digests.get(image.base)
    yield Grant(kind="grant", text=f"image base {image.base}{f' {_exact(digest)}' if digest else ''}")
    yield from _texts(f"image package {name}" for name in image.packages)
    for index, step in enumerate(image.setup):
        how = f"{'root' if step.root else 'agent'}, {'HOST NETWORK' if step.network else 'no network'}"
        yield Grant(kind="grant", text=f"image setup[{index}] ({how}): {_exact(step.run)}", red=step.network)


def _workspace(spec: ProjectSpec) -> Iterable[Grant]:
    workspace = spec.workspace
    if workspace.mode in (None, "bind"):
        yield Grant(kind="grant", text="workspace bind in `up`: the agent writes to the directory itself")
    if workspace.mode == "bind":
        yield Grant(kind="grant", text="workspace bind in `run`: the agent writes to the directory itself")
    yield from (Grant(kind="restriction", text=f"workspace protect {_exact(path)}") for path in workspace.protect)
    yield from (Grant(kind="restriction", text=f"workspace hide {_exact(path)}") for path in workspace.hide)
    for mount in spec.mounts:
        place = f"{_quoted(mount.source)} at {_quoted(mount.target)}"
        yield Grant(kind="grant", text=f"mount {place}, readable")
        if not mount.read_only:
            yield Grant(kind="grant", text=f"mount {place}, WRITABLE", red=True)
    if spec.memory != "none":
        yield Grant(kind="grant", text=f"memory {spec.memory}")


def _egress(egress: Egress, rules: Iterable[EgressRule], what: str) -> Iterable[Grant]:
    """To be opened is a host's restriction: what it leaves behind is seen. It narrows by being there, and is shown all
    the same, since a user's own TLS is read then."""
    for rule in rules:
        yield from _texts(f"{what} allow {rule.host} port {port}" for port in rule.ports)
        yield from _texts(f"{what} allow {rule.host} to resolve into {text}" for text in rule.addresses)
        if (rule.tls or egress.tls) == "inspect":
            for port in rule.ports:
                yield Grant(kind="restriction", text=f"{what} inspect {rule.host} port {port}: its TLS is opened")
        elif egress.tls == "inspect":
            yield from _texts(f"{what} splice {rule.host} port {port}: its TLS stays unopened" for port in rule.ports)


def _scanning(egress: Egress) -> Iterable[Grant]:
    if egress.dlp == "log":
        yield from _texts(["egress dlp log: keys in bodies to inspected hosts are noted and pass"])
    elif egress.dlp == "off":
        yield from _texts(["egress dlp off: keys in bodies to inspected hosts are not looked for and pass"])


def _refusals(egress: Egress) -> Iterable[Grant]:
    # A kill is a deny and more: to become one narrows, and to be one no longer widens.
    for pattern in (*egress.deny, *egress.kill):
        yield Grant(kind="restriction", text=f"egress deny {pattern}")
    for pattern in egress.kill:
        yield Grant(kind="restriction", text=f"egress kill {pattern}: contact ends the session")
    if egress.tls == "inspect":
        yield Grant(kind="restriction", text="egress tls inspect: TLS with every host is opened, the agent's own too")
    if egress.tripwire == "kill":
        yield Grant(kind="restriction", text="egress tripwire kill: a misplaced placeholder ends the session")


def _credential(use: CredentialUse) -> Iterable[Grant]:
    yield Grant(kind="grant", text=f"credential {use.name}{f' as {use.env}' if use.env else ''}")
    for what, values in (("hosts", use.hosts), ("methods", use.methods), ("paths", use.paths)):
        if values is not None:
            yield Grant(kind="restriction", text=f"credential {use.name} only {what} {_quoted(sorted(set(values)))}")


def _git(spec: ProjectSpec) -> Iterable[Grant]:
    if spec.ssh_key:
        yield from _texts(["ssh_key: the project's ssh key is used for the repositories of `git`"])
    for entry in spec.git or ():
        yield from _texts([f"git fetch {entry.repo}"])
        # What lies elsewhere than the agent's own branches, others build, release or deploy.
        yield from (
            Grant(kind="grant", text=f"git push {entry.repo} {_exact(ref)}", red=not ref.startswith(OWN_BRANCHES))
            for ref in entry.push
        )
        yield from (
            Grant(kind="grant", text=f"git delete {entry.repo} {_exact(ref)}", red=True) for ref in entry.delete
        )


def _amounts(spec: ProjectSpec) -> Iterable[Grant]:
    resources, limits = spec.resources, spec.limits
    amounts: dict[str, float | None] = {
        "resources cpus": resources.cpus,
        "resources memory, MiB": None if resources.memory_bytes is None else resources.memory_bytes / 2**20,
        "resources pids": resources.pids,
        "limits time, seconds": limits.time_s,
        "limits idle, seconds": limits.idle_s,
        "limits model requests": limits.model_requests,
        "limits model bytes": limits.model_bytes,
        "limits cost, USD": limits.cost_usd,
        "limits turns": limits.turns,
    }
    return (Grant(kind="amount", text=text, amount=amount) for text, amount in amounts.items())


def _exact(text: str) -> str:
    """The text safe on a terminal; where that is not the text itself, its digest besides, so that no two look alike."""
    safe = shown(text, MAX_LINE)
    if safe == text and "[sha256:" not in text:
        return text
    return f"{safe} [sha256:{_sha256(text.encode(errors='surrogatepass'))[:16]}]"


def _quoted(value: str | Iterable[str]) -> str:
    """One or more texts with an unmistakable end."""
    return _exact(json.dumps(value if isinstance(value, str) else list(value), ensure_ascii=False))


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def diff(approved: Grants | None, asked: Grants) -> tuple[Change, ...]:
    """Every difference, widenings first, of those the red ones. Against nothing, all that is asked for is new."""
    if approved is None:
        new = (Change("+", grant.line, widens=True, red=grant.red) for grant in asked.grants)
        return tuple(sorted(new, key=_order))
    before = {grant.text: grant for grant in approved.grants}
    after = {grant.text: grant for grant in asked.grants}
    added, gone = after.keys() - before.keys(), before.keys() - after.keys()
    changes = [
        *(Change("+", after[text].line, _widens(after[text], added=True), red=after[text].red) for text in added),
        *(
            Change("-", before[text].line, _widens(before[text], added=False) and not _moot(text, after))
            for text in gone
        ),
        *(_changed(old, after[text]) for text, old in before.items() if text in after and old != after[text]),
    ]
    return tuple(sorted(changes, key=_order))


def _order(change: Change) -> tuple[bool, bool, str, str]:
    return not change.widens, not change.red, change.text, change.sign


def _widens(grant: Grant, *, added: bool) -> bool:
    if grant.kind == "amount":
        return True  # a measure that only one version knows: ask
    return added == (grant.kind == "grant")


def _moot(text: str, after: Mapping[str, Grant]) -> bool:
    """Whether a restriction is gone together with what it restricts: a host that may not be reached at all any more."""
    said = _OPENED.match(text)
    return said is not None and f"{said[1]} allow {said[2]} port {said[3]}" not in after


def _changed(before: Grant, after: Grant) -> Change:
    if before.kind != "amount" or after.kind != "amount":
        return Change("~", f"{before.line} -> {after.line}", widens=True, red=after.red)
    grows = before.amount is not None and (after.amount is None or after.amount > before.amount)
    return Change("~", f"{before.line} -> {after.measure}", widens=grows)


def check(approved: Grants | None, asked: Grants, accept: str | None = None) -> None:
    """Return when `asked` may be applied: approved before, asking for less, or `accept` begins its digest.

    Raises: ApprovalNeeded with the difference; UsageError for an `accept` that is no digest.
    """
    if accept is not None and not re.fullmatch(rf"[0-9a-f]{{{MIN_ACCEPT},64}}", accept):
        raise UsageError(f"--accept wants the digest shown with the difference, at least {MIN_ACCEPT} hex digits of it")
    changes = diff(approved, asked)
    if approved is not None and not any(change.widens for change in changes):
        return
    digest = asked.digest
    if accept is not None and digest.startswith(accept):
        return
    if accept is not None:
        message = f"the spec asks for something else than {accept} names"
    elif approved is None:
        message = "this spec was never approved on this host; it asks for"
    else:
        message = "this spec asks for more than was approved"
    raise ApprovalNeeded(
        message,
        diff=[change.line for change in changes],
        digest=digest,
        hint=f"read it, then add --accept {digest[:MIN_ACCEPT]}",
    )
