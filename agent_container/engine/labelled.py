"""What carries our labels in the engine, in one listing a kind; and that what makes such things does not outlive us.

Labels only name candidates. Whose they are, and whether they may go, is for the caller to decide.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_container.engine.protocol import Labelled
from agent_container.stack import LABEL

if TYPE_CHECKING:
    from docker import APIClient

PR_SET_PDEATHSIG = 1


def find_labelled(api: APIClient, session: str | None) -> list[Labelled]:
    """Containers, networks and volumes with the label of any session, or of this one."""
    filters = {"label": [f"{LABEL}.session" + (f"={session}" if session else "")]}
    found = [
        _labelled("container", row, name=str(row["Names"][0]).lstrip("/") if row.get("Names") else str(row["Id"]))
        for row in api.containers(all=True, filters=filters)
    ]
    found += [_labelled("network", row, name=str(row["Name"])) for row in api.networks(filters=filters)]
    found += [_labelled("volume", row, name=str(row["Name"])) for row in api.volumes(filters=filters)["Volumes"] or []]
    return found


def _labelled(kind: Any, row: Mapping[str, Any], *, name: str) -> Labelled:
    labels = row.get("Labels") or {}
    mounts = row.get("Mounts") or []
    return Labelled(
        kind=kind,
        id=str(row.get("Id") or name),
        name=name,
        session=str(labels.get(f"{LABEL}.session", "")),
        project=str(labels.get(f"{LABEL}.project", "")),
        role=str(labels.get(f"{LABEL}.role", "")),
        running=row.get("State") == "running",
        binds=tuple(str(mount.get("Source")) for mount in mounts if mount.get("Type") == "bind"),
    )


def removal_steps(objects: Sequence[Labelled]) -> list[list[Labelled]]:
    """Groups that are removed one after the other: agents that run before sidecars, so that none is ever in an orphaned
    namespace; containers before networks and volumes."""
    in_use = any(row.running and row.kind == "container" and row.role != "egress" for row in objects)
    steps: list[list[Labelled]] = [[], [], []]
    for row in objects:
        last_container = in_use and row.kind == "container" and row.role == "egress"
        steps[2 if row.kind != "container" else 1 if last_container else 0].append(row)
    return [step for step in steps if step]


def die_with_parent() -> Callable[[], None] | None:
    """For a child before its exec: it is killed when this process is (prctl(2), PR_SET_PDEATHSIG).

    A compose that goes on after us would make containers for a session that the next command has closed already.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: after the fork only the call itself is safe

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return ask
