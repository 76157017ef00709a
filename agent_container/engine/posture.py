"""Checks what the engine made against what was asked for, between create and start.

It trusts only the engine's own inspect document, never the Compose file: a daemon default, a proxy configuration or an
image's own settings can add what the file left out. One fault is enough to start nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_container.stack import Container, Mount
from agent_egress.identity import DAEMON_UIDS


def check_container(
    raw: Mapping[str, Any], container: Container, *, image_id: str, mounts: Sequence[Mount], network_mode: str | None
) -> list[str]:
    """Every difference that matters, in words; empty when the container is as it should be.

    `raw` is the engine's inspect document; `mounts` are all mounts with volumes by their real names; `network_mode` is
    `container:<id>` for the agent, None for the sidecar.
    """
    host: Mapping[str, Any] = raw["HostConfig"]
    config: Mapping[str, Any] = raw["Config"]
    faults: list[str] = []

    def expect(name: str, found: object, wanted: object) -> None:
        if found != wanted:
            faults.append(f"{name} is {found!r}, expected {wanted!r}")

    expect("image", raw["Image"], image_id)
    expect("user", config["User"], container.user)
    faults += hardening_faults(raw, cap_add=container.cap_add, network_mode=network_mode)
    expect("log driver", (host.get("LogConfig") or {}).get("Type"), "local")
    expect("pids limit", host.get("PidsLimit"), container.limits.pids)
    expect("memory limit", host.get("Memory"), container.limits.memory_bytes or 0)
    expect("sysctls", host.get("Sysctls") or {}, dict(container.sysctls))
    expect("environment", _environment_faults(config["Env"] or [], container), [])
    faults += _mount_faults(raw, host, mounts)
    if container.service == "agent":
        faults += _uid_faults(container.user)
    return list(dict.fromkeys(faults))


def hardening_faults(raw: Mapping[str, Any], *, cap_add: Sequence[str], network_mode: str | None) -> list[str]:
    """What must hold for every container of ours whatever it is for; `network_mode` is None for the sidecar. Empty when
    it does."""
    host: Mapping[str, Any] = raw["HostConfig"]
    faults: list[str] = []

    def expect(name: str, found: object, wanted: object) -> None:
        if found != wanted:
            faults.append(f"{name} is {found!r}, expected {wanted!r}")

    expect("privileged", host.get("Privileged"), False)
    expect("read-only root filesystem", host.get("ReadonlyRootfs"), True)
    expect("dropped capabilities", _caps(host.get("CapDrop")), {"ALL"})
    expect("added capabilities", _caps(host.get("CapAdd")), set(cap_add))
    expect("process namespace", host.get("PidMode"), "")
    expect("ipc namespace", host.get("IpcMode"), "private")
    expect("user namespace", host.get("UsernsMode"), "")
    expect("host name namespace", host.get("UTSMode"), "")
    expect("added groups", host.get("GroupAdd") or [], [])
    expect("devices", host.get("Devices") or [], [])
    expect("device requests", host.get("DeviceRequests") or [], [])
    expect("device rules", host.get("DeviceCgroupRules") or [], [])
    expect("volumes from", host.get("VolumesFrom") or [], [])
    expect("published ports", host.get("PortBindings") or {}, {})
    expect("publish all ports", host.get("PublishAllPorts"), False)
    expect("restart policy", (host.get("RestartPolicy") or {}).get("Name"), "no")
    expect("core dump limit", [u for u in host.get("Ulimits") or [] if u["Name"] == "core"], [_NO_CORE])
    expect("masked paths", bool(host.get("MaskedPaths")), True)
    expect("read-only paths", bool(host.get("ReadonlyPaths")), True)
    faults += _security_faults(host.get("SecurityOpt") or [])
    if network_mode is None:
        if host.get("NetworkMode") in ("host", "none") or str(host.get("NetworkMode")).startswith("container:"):
            faults.append(f"network is {host['NetworkMode']!r}, expected one of its own")
        return faults
    expect("network", host.get("NetworkMode"), network_mode)
    return faults + _uid_faults(str(raw["Config"]["User"]))


def _uid_faults(user: str) -> list[str]:
    uid = int(user.split(":", 1)[0] or 0)
    if uid == 0 or uid in DAEMON_UIDS:
        return [f"the agent's uid is {uid}, which belongs to root or to a process of the sidecar"]
    return []


_NO_CORE = {"Name": "core", "Hard": 0, "Soft": 0}
PROXY_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


def _caps(found: Sequence[str] | None) -> set[str]:
    return {cap.removeprefix("CAP_") for cap in found or ()}


def _environment_faults(found: Sequence[str], container: Container) -> list[str]:
    """Names whose value differs from what was asked for, and proxy settings that nobody asked for (values unnamed)."""
    have = dict(entry.partition("=")[::2] for entry in found)
    wanted = dict(container.environment)
    wrong = [name for name, value in wanted.items() if have.get(name) != value]
    return wrong + [name for name in have if name.lower() in PROXY_NAMES and name not in wanted]


def _security_faults(options: Sequence[str]) -> list[str]:
    faults = [f"security option {option!r}" for option in options if "unconfined" in option or "disable" in option]
    if not any(option in ("no-new-privileges", "no-new-privileges:true") for option in options):
        faults.append("no-new-privileges is not set")
    return faults


def _mount_faults(raw: Mapping[str, Any], host: Mapping[str, Any], wanted: Sequence[Mount]) -> list[str]:
    """Mounts are exactly those asked for; a bind that the engine mounts recursively has nothing mounted below it."""
    expected = {(m.target, "bind" if m.kind == "bind" else "volume", m.source, m.read_only) for m in wanted}
    found = {
        (m["Destination"], m["Type"], m["Source"] if m["Type"] == "bind" else m["Name"], not m["RW"])
        for m in raw["Mounts"]
        if m["Type"] != "tmpfs"
    }
    faults = [f"mount {target} of {source} was not asked for" for target, _, source, _ in sorted(found - expected)]
    faults += [f"mount {target} of {source} is missing" for target, _, source, _ in sorted(expected - found)]
    plain = {
        m["Source"]
        for m in host.get("Mounts") or []
        if m["Type"] == "bind" and not (m.get("BindOptions") or {}).get("NonRecursive")
    }
    for source in sorted(plain):
        faults += [f"{below} is mounted below {source}: unmount it, or move it" for below in mounts_below(source)]
    return faults


def mounts_below(directory: str, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """Mount points below a directory (proc(5), field 5, octal escapes)."""
    try:
        text = mountinfo.read_text(errors="surrogateescape")
    except OSError:
        return []
    points = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            points.append(fields[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace"))
    base = directory.rstrip("/") + "/"
    return sorted(point for point in points if point.startswith(base))
