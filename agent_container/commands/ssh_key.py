"""`ssh-key show / pin / rotate / retire`: the key with which the sidecar's git gateway reaches a project's forge.

The private half lies sealed in the store and in the memory of sidecars, nowhere else. A rotation makes the new key,
tries it from a live sandbox, and only then uses it; the old one is kept until its user retires it. Each step is one
write of one file, so a crash leaves a key that works, and the same command goes on from there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

from agent_container.commands.context import Context
from agent_container.commands.resolve import read_project_spec
from agent_container.commands.sandboxes import Sandbox, live_sandboxes
from agent_container.errors import AgentContainerError, EngineError, SidecarError, UsageError
from agent_container.keyring import (
    AUTHORITY,
    SSH_PORT,
    KeyRing,
    Pin,
    begin_rotation,
    fingerprint,
    finish_rotation,
    make_key,
    parse_pin,
    parse_ring,
    place_of,
    with_pins,
    without_pins,
)
from agent_container.project import Project, find_project
from agent_container.sandbox.control import NO_GATEWAY, SshKeys
from agent_egress.names import NameRefused, canonical_name

LOCK_WAIT_S = 60.0
SCAN_S = 20
MAX_PIN_BYTES = 256 * 1024
Phase = Literal["made", "switched"]


@dataclass(frozen=True)
class KeyRow:
    """One key, its public half."""

    state: str
    fingerprint: str
    public: str
    created: str


@dataclass(frozen=True)
class PinRow:
    """One host key that is trusted."""

    place: str
    kind: str
    fingerprint: str
    authority: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return self.place, self.kind + (" (authority)" if self.authority else ""), self.fingerprint


@dataclass(frozen=True)
class KeysShown:
    """What `ssh-key show` says."""

    project: str
    keys: tuple[KeyRow, ...]
    pins: tuple[PinRow, ...]


@dataclass(frozen=True)
class Rotated:
    """How far a rotation is."""

    phase: Phase
    """`made`: the new key waits until its server takes it; `switched`: it is used, the old one is kept."""
    key: KeyRow
    words: tuple[str, ...]
    next_command: str


def key_lock(ctx: Context, project: str) -> AbstractContextManager[None]:
    """Held by the one process that changes a project's keys."""
    return ctx.store.lock(f"ssh-key-{project}", what="this project's ssh keys", wait_s=LOCK_WAIT_S)


def load_ring(ctx: Context, project: str) -> KeyRing:
    """The project's keys; an empty ring where there are none."""
    body = ctx.store.ssh_keys.load(project)
    return KeyRing(project) if body is None else parse_ring(body, project=project)


def ensure_key(ctx: Context, project: Project) -> KeyRing:
    """The project's keys, the first one made if there is none."""
    with key_lock(ctx, project.id):
        return _with_key(ctx, project)


def _with_key(ctx: Context, project: Project) -> KeyRing:
    ring = load_ring(ctx, project.id)
    if ring.current is not None:
        return ring
    key = make_key(comment=_comment(project), now=ctx.now())
    ring = _save(ctx, replace(ring, current=key))
    ctx.report(f"Made this project's ssh key; its forge has to know it: {key.public}")
    return ring


def _comment(project: Project) -> str:
    return f"agent-container-{project.id}"


def _save(ctx: Context, ring: KeyRing) -> KeyRing:
    ctx.store.ssh_keys.save(ring.project, ring.encode())
    return ring


def to_hand_over(ring: KeyRing) -> SshKeys:
    """What a sidecar is given of a ring."""
    return SshKeys(
        keys=tuple((key.id, key.private) for _, key in ring.keys),
        current=ring.current.id if ring.current else "",
        known_hosts=ring.known_hosts,
    )


def show_keys(ctx: Context) -> KeysShown:
    """The public halves and the pins; makes the first key. Needs no engine."""
    ring = ensure_key(ctx, _project(ctx))
    keys = tuple(KeyRow(state, key.fingerprint, key.public, key.created) for state, key in ring.keys)
    return KeysShown(ring.project, keys, tuple(map(_pin_row, ring.pins)))


def _pin_row(pin: Pin) -> PinRow:
    return PinRow(pin.place, pin.kind, fingerprint(pin.key), authority=bool(pin.marker))


def _project(ctx: Context) -> Project:
    project = find_project(ctx.directory, ctx.spec_path)
    if project.spec_path is None or not read_project_spec(project).ssh_key:
        raise UsageError("this project's spec does not ask for an ssh key", hint="add `ssh_key: true` to its spec")
    return project


def rotate_key(ctx: Context) -> Rotated:
    """Goes as far as it can: a new key, and once every server takes it, that one. Raises: AgentContainerError while
    the new key is not taken; the old one is used until then."""
    project = _project(ctx)
    with key_lock(ctx, project.id):
        ring = _with_key(ctx, project)
        if ring.previous is not None:
            _put_everywhere(ctx, ring)
            return _rotated("switched", ring, "the key was rotated already; the one before it is still kept")
        made = ring.next is None
        if made:
            ring = _save(ctx, begin_rotation(ring, make_key(comment=_comment(project), now=ctx.now())))
        problems = _try_next(ctx, ring)
        if problems and made:
            return _rotated("made", ring, *problems)
        if problems:
            raise AgentContainerError(
                "the new key is not taken yet; the old one stays in use",
                details=problems,
                hint="add it where the repositories are (agent-container ssh-key show), then the same command again",
            )
        ring = _save(ctx, finish_rotation(ring))
        _put_everywhere(ctx, ring)
        return _rotated("switched", ring, "every repository takes the new key, and it is used from now on")


def _rotated(phase: Phase, ring: KeyRing, *words: str) -> Rotated:
    key = ring.next if phase == "made" else ring.current
    assert key is not None  # noqa: S101 - a rotation has one
    row = KeyRow("next" if phase == "made" else "current", key.fingerprint, key.public, key.created)
    return Rotated(phase, row, words, f"agent-container ssh-key {'rotate' if phase == 'made' else 'retire'}")


def _try_next(ctx: Context, ring: KeyRing) -> tuple[str, ...]:
    """Why the next key cannot be used yet; empty when every repository's server takes it."""
    assert ring.next is not None  # noqa: S101 - the caller made it
    live, _ = _put_everywhere(ctx, ring)
    for sandbox in live:
        repositories = sandbox.control.policy().policy.git
        if not repositories:
            continue
        found = []
        for row in repositories:
            taken, words = sandbox.control.test_ssh(key=ring.next.id, repository=row.text)
            if not taken:
                found.append(f"{row.host} {row.path}: {words or 'it does not take the key'}")
        return tuple(found)
    return ("no sandbox with a repository is running, and the key is tried from one: agent-container up",)


def retire_key(ctx: Context) -> KeyRow:
    """Forgets the key before the current one. Raises: UsageError when there is none."""
    project = _project(ctx)
    with key_lock(ctx, project.id):
        ring = load_ring(ctx, project.id)
        old = ring.previous
        if old is None:
            raise UsageError("there is no old key to retire", hint="agent-container ssh-key rotate")
        _put_everywhere(ctx, _save(ctx, replace(ring, previous=None)))
    return KeyRow("retired", old.fingerprint, old.public, old.created)


def _put_everywhere(ctx: Context, ring: KeyRing) -> tuple[tuple[Sandbox, ...], tuple[str, ...]]:
    """Hands the ring to every live sandbox of the project; those that took it, and the sessions that did not."""
    took, failed = [], []
    for sandbox in live_sandboxes(ctx):
        try:
            sandbox.control.put_ssh(to_hand_over(ring))
            took.append(sandbox)
        except EngineError as error:
            if isinstance(error, SidecarError) and NO_GATEWAY in error.message:
                continue
            failed.append(sandbox.state.id)
            ctx.report(f"Note: {sandbox.words} did not take the keys, and goes on with the old ones: {error}")
    return tuple(took), tuple(failed)


# --- host keys ---


def host_of(text: str) -> tuple[str, int]:
    """A host, and its port where one stands behind a colon. Raises: UsageError."""
    name, _, port = text.partition(":")
    try:
        number = int(port) if port else SSH_PORT
        if not 0 < number < 65536:
            raise ValueError
        return canonical_name(name), number
    except (NameRefused, ValueError):
        raise UsageError(f"{text!r} is no host: write git.example.com or git.example.com:2222") from None


def scan_pins(host: str, port: int) -> tuple[Pin, ...]:
    """What the host shows now, asked by this machine's ssh-keyscan. Raises: UsageError."""
    argv = ["ssh-keyscan", "-T", "10", "-p", str(port), "-t", "ed25519,ecdsa,rsa", "--", host]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=SCAN_S, check=False, env={"PATH": "/usr/bin:/bin"})
    except FileNotFoundError:
        raise UsageError(
            "this machine has no ssh-keyscan", hint="install openssh-client, or give --from-file"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{host}:{port} did not answer within {SCAN_S} s") from None
    rows = [line.split()[-2:] for line in done.stdout.decode("utf-8", "replace").splitlines() if line[:1] != "#"]
    pins = tuple(
        parse_pin(f"{place_of(host, port)} {kind} {key}") for kind, key in (row for row in rows if len(row) == 2)
    )
    if not pins:
        raise UsageError(
            f"{host}:{port} showed no host key", details=done.stderr.decode(errors="replace").splitlines()[-2:]
        )
    return pins


def read_pins(body: bytes, *, host: str, port: int) -> tuple[Pin, ...]:
    """The lines of a known_hosts file that are this host's. Raises: UsageError when there is none."""
    place = place_of(host, port)
    lines = body[:MAX_PIN_BYTES].decode("utf-8", "replace").splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith("#")]
    pins = tuple(parse_pin(line) for line in kept if place in line.replace(AUTHORITY, "").split()[:1])
    if not pins:
        raise UsageError(f"no line begins with {place}")
    return pins


def pin_rows(pins: tuple[Pin, ...]) -> tuple[PinRow, ...]:
    """For people to compare."""
    return tuple(map(_pin_row, pins))


def save_pins(ctx: Context, pins: tuple[Pin, ...]) -> tuple[PinRow, ...]:
    """Trusts them, beside those that are there; live sandboxes too."""
    return _change_pins(ctx, lambda ring: with_pins(ring, pins))


def remove_pins(ctx: Context, host: str, port: int) -> tuple[PinRow, ...]:
    """Forgets a host's."""
    return _change_pins(ctx, lambda ring: without_pins(ring, place_of(host, port)))


def _change_pins(ctx: Context, change: Callable[[KeyRing], KeyRing]) -> tuple[PinRow, ...]:
    project = _project(ctx)
    with key_lock(ctx, project.id):
        ring = _save(ctx, change(_with_key(ctx, project)))
        _put_everywhere(ctx, ring)
    return pin_rows(ring.pins)


def unpinned(ring: KeyRing, places: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """Hosts of repositories whose key nobody has pinned: nothing can be fetched there."""
    pinned = {pin.place for pin in ring.pins}
    return tuple(sorted({f"{host}:{port}" for host, port in places if place_of(host, port) not in pinned}))
