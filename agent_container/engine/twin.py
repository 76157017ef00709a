"""A container like another one in all that the engine holds it to, with a program of ours in the place of its own: what
it may do, the other may do. Told from the engine's own inspect document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEFT_OUT = ("Binds", "Mounts", "ContainerIDFile", "AutoRemove", "Links", "VolumesFrom", "LogConfig")
"""Its files are not what is tried, and a twin leaves no log."""


def twin_config(
    raw: Mapping[str, Any], *, image: str, argv: Sequence[str], labels: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """What the engine is asked for; `raw` is the inspect document of the other one."""
    kept = {name: value for name, value in raw["HostConfig"].items() if name not in LEFT_OUT and value is not None}
    return {
        "Image": image,
        "Entrypoint": [],
        "Cmd": list(argv),
        "User": raw["Config"]["User"],
        "Env": [],
        "Labels": dict(labels),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {**kept, "LogConfig": {"Type": "none", "Config": {}}},
    }


def differences(raw: Mapping[str, Any], twin: Mapping[str, Any]) -> list[str]:
    """What the engine made otherwise than the one that it was to be like; empty for a twin."""
    names = {*raw["HostConfig"], *twin["HostConfig"]} - {*LEFT_OUT}
    return sorted(
        name for name in names if (raw["HostConfig"].get(name) or None) != (twin["HostConfig"].get(name) or None)
    )
