"""Which host paths may be seen in a sandbox at all: the refusals of the threat model's second layer, after every link
is resolved.

What is mounted where is `plan`'s business; targets are checked by the spec, and once more here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import SpecError, UsageError
from agent_container.spec_types import parse_target
from agent_container.stack import Mount
from agent_container.workspace.tree import MAX_ENTRIES, engine_text, entries, is_special

SECRET_NAMES = (".ssh", ".gnupg", ".aws", ".docker")
"""Refused wherever they stand in a path."""
SYSTEM_TREES = ("/run", "/proc", "/sys", "/dev", "/var/lib/docker", "/var/lib/containerd")
"""Refused with all that lies inside: sockets of services, devices, and every other container's files."""
SYSTEM_EXACTLY = ("/", "/home", "/root", "/etc", "/var", "/boot")


@dataclass(frozen=True)
class HostPaths:
    """Paths of this host that a sandbox never sees."""

    home: Path
    stores: tuple[Path, ...]
    """Directories of ours: records, sealed credentials, keys, state."""


@dataclass(frozen=True)
class MountRequest:
    """A mount as the spec asks for it."""

    source: str
    target: str
    read_only: bool = True


def refusal(path: Path, host: HostPaths) -> str | None:
    """Why a resolved path may not be seen in a sandbox; None when it may."""
    home = Path(os.path.realpath(host.home))
    if home.is_relative_to(path):
        return "it is your home directory" if path == home else "your home directory lies inside it"
    if str(path) in SYSTEM_EXACTLY:
        return "it belongs to the system"
    for name in SECRET_NAMES:
        if name in path.parts:
            return f"{name} holds keys"
        real = Path(os.path.realpath(home / name))
        if real.exists() and _touches(path, real):
            return f"it {_relation(path, real)} {real}, which is your {name}"
    for store in host.stores:
        real = Path(os.path.realpath(store))
        if _touches(path, real):
            return f"it {_relation(path, real)} {real}, which holds records and sealed credentials"
    for tree in (Path(name) for name in SYSTEM_TREES):
        if path.is_relative_to(tree):
            return f"{tree} belongs to the system"
        if tree.is_relative_to(path) and tree.exists():
            return f"{tree} lies inside it"
    return _same_as_taboo(path, [home, *(Path(os.path.realpath(store)) for store in host.stores)])


def _touches(path: Path, other: Path) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)


def _relation(path: Path, other: Path) -> str:
    return "is" if path == other else "lies inside" if path.is_relative_to(other) else "contains"


def _same_as_taboo(path: Path, taboo: Iterable[Path]) -> str | None:
    """The same directory under another name: a bind mount of the host is no link and resolves to itself."""
    known = {}
    for one in taboo:
        if one.exists():
            status = one.stat()
            known[(status.st_dev, status.st_ino)] = one
    for step in (path, *path.parents):
        status = step.stat()
        found = known.get((status.st_dev, status.st_ino))
        if found is not None and (step == path or found not in path.parents):
            return f"{step} is {found} under another name"
    return None


def check_mount_source(
    path: Path,
    *,
    host: HostPaths,
    workspace: Path | None = None,
    max_entries: int = MAX_ENTRIES,
) -> Path:
    """The path with every link resolved, if a sandbox may see it. Raises: UsageError saying why not, and nothing is
    ever created.

    `workspace` is the project's root: what is named inside it must stay inside it, since an agent can swap a
    directory for a link.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        words = (
            "there is no such file or directory"
            if isinstance(error, FileNotFoundError)
            else str(error.strerror).lower()
        )
        raise UsageError(f"{path}: {words}; it is not created for you") from None
    except ValueError:
        raise UsageError("a path cannot hold a NUL character") from None
    if workspace is not None:
        named = Path(os.path.normpath(path))
        if named.is_relative_to(workspace) and not real.is_relative_to(workspace):
            raise UsageError(f"{path} leads out of the project, to {real}", hint=f"name {real} itself if you mean it")
    if reason := refusal(real, host):
        shown = f"{path}" if real == path else f"{path} (that is {real})"
        raise UsageError(f"{shown} may not be seen in a sandbox: {reason}")
    mode = real.stat().st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise UsageError(
            f"{path} is neither a file nor a directory: a socket, a FIFO or a device reaches beyond the sandbox"
        )
    if stat.S_ISDIR(mode):
        for number, entry in enumerate(entries(real, into_git=True)):
            if number >= max_entries:
                raise UsageError(f"{path} holds more than {max_entries} files; mount a part of it")
            if is_special(entry):
                inner = os.path.relpath(entry.path, real)
                raise UsageError(
                    f"{path} holds {inner}, a socket, a FIFO or a device: even read-only it would reach this host",
                    hint="mount a directory without it",
                )
    return real


def plan_mounts(requests: Sequence[MountRequest], *, root: Path, host: HostPaths) -> tuple[Mount, ...]:
    """The spec's mounts, sources resolved. Raises: SpecError with a line for every mount that cannot be."""
    mistakes: list[str] = []
    mounts: list[Mount] = []
    for number, request in enumerate(requests):
        try:
            mounts.append(_mount(request, root=root, host=host, taken=[mount.target for mount in mounts]))
        except (UsageError, ValueError) as error:
            mistakes.append(f"mounts[{number}]: {error}")
    if mistakes:
        raise SpecError(f"{len(mistakes)} of the spec's mounts cannot be made", details=mistakes)
    return tuple(mounts)


def _mount(request: MountRequest, *, root: Path, host: HostPaths, taken: Sequence[str]) -> Mount:
    target = parse_target(request.target)
    if not request.source:
        raise UsageError("the source is empty")
    if target in taken:
        raise UsageError(f"{target} is the target of two mounts")
    source = request.source
    if source == "~" or source.startswith("~/"):
        source = str(host.home / source[2:])
    real = check_mount_source(root / source, host=host, workspace=root)
    return Mount(kind="bind", source=engine_text(real), target=target, read_only=request.read_only)
