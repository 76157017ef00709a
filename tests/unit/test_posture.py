"""What the engine made is compared with what was asked for: one row for each difference that must stop a start."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_container.engine.posture import check_container, mounts_below
from agent_container.stack import Container, Limits, Mount

CONTAINER = Container(
    service="agent",
    image="agent-container/agent:1",
    user="1001:1001",
    environment=(("HTTP_PROXY", "http://127.0.0.1:3128"),),
    mounts=(Mount(kind="volume", source="home", target="/home/agent"),),
    limits=Limits(pids=64, memory_bytes=1000),
)
MOUNTS = [Mount(kind="volume", source="ac-x-home", target="/home/agent")]

GOOD: dict[str, Any] = {
    "Image": "sha256:aa",
    "Config": {"User": "1001:1001", "Env": ["HTTP_PROXY=http://127.0.0.1:3128", "PATH=/bin"]},
    "Mounts": [{"Type": "volume", "Name": "ac-x-home", "Destination": "/home/agent", "RW": True, "Source": "/x"}],
    "HostConfig": {
        "Privileged": False,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": None,
        "PidMode": "",
        "IpcMode": "private",
        "UsernsMode": "",
        "UTSMode": "",
        "GroupAdd": None,
        "Devices": None,
        "DeviceRequests": None,
        "DeviceCgroupRules": None,
        "VolumesFrom": None,
        "PortBindings": {},
        "PublishAllPorts": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "local"},
        "PidsLimit": 64,
        "Memory": 1000,
        "Ulimits": [{"Name": "core", "Hard": 0, "Soft": 0}],
        "Sysctls": None,
        "MaskedPaths": ["/proc/kcore"],
        "ReadonlyPaths": ["/proc/sys"],
        "SecurityOpt": ["no-new-privileges:true"],
        "NetworkMode": "container:abc",
        "Mounts": [],
    },
}


def faults(raw: dict[str, Any], container: Container = CONTAINER) -> list[str]:
    return check_container(raw, container, image_id="sha256:aa", mounts=MOUNTS, network_mode="container:abc")


def host(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["HostConfig"].update(changes)


def config(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["Config"].update(changes)


CASES: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("another image stands behind the tag", lambda raw: raw.update(Image="sha256:bb"), "image"),
    ("the image's own user won", config(User="0:0"), "user"),
    ("privileged", host(Privileged=True), "privileged"),
    ("a writable root", host(ReadonlyRootfs=False), "read-only root"),
    ("no capability was dropped", host(CapDrop=None), "dropped capabilities"),
    ("a capability was added", host(CapAdd=["CAP_NET_RAW"]), "added capabilities"),
    ("the host's processes are visible", host(PidMode="host"), "process namespace"),
    ("shared memory with other containers", host(IpcMode="shareable"), "ipc"),
    ("no user namespace by exception", host(UsernsMode="host"), "user namespace"),
    ("the host's name", host(UTSMode="host"), "host name"),
    ("a further group", host(GroupAdd=["docker"]), "groups"),
    ("a device", host(Devices=[{"PathOnHost": "/dev/kvm"}]), "devices"),
    ("a graphics card", host(DeviceRequests=[{"Driver": "nvidia"}]), "device requests"),
    ("a rule for devices", host(DeviceCgroupRules=["a *:* rwm"]), "device rules"),
    ("another container's volumes", host(VolumesFrom=["x"]), "volumes from"),
    ("a published port", host(PortBindings={"80/tcp": [{}]}), "published ports"),
    ("a restart that nobody watches", host(RestartPolicy={"Name": "always"}), "restart"),
    ("a log driver that leaves the host", host(LogConfig={"Type": "syslog"}), "log driver"),
    ("no limit of processes", host(PidsLimit=None), "pids"),
    ("no limit of memory", host(Memory=0), "memory"),
    ("core dumps", host(Ulimits=None), "core dump"),
    ("a sysctl", host(Sysctls={"net.ipv4.ip_forward": "1"}), "sysctls"),
    ("unmasked kernel files", host(MaskedPaths=None), "masked"),
    ("writable kernel files", host(ReadonlyPaths=[]), "read-only paths"),
    ("privileges can be gained", host(SecurityOpt=None), "no-new-privileges"),
    ("no system call filter", host(SecurityOpt=["no-new-privileges:true", "seccomp=unconfined"]), "seccomp"),
    ("no label", host(SecurityOpt=["no-new-privileges:true", "label:disable"]), "label"),
    ("a network of its own", host(NetworkMode="bridge"), "network"),
    ("another sidecar's network", host(NetworkMode="container:def"), "network"),
    ("the user's proxy with its password", config(Env=[*GOOD["Config"]["Env"], "ftp_proxy=http://u:p@x"]), "ftp_proxy"),
    ("another proxy than ours", config(Env=["HTTP_PROXY=http://198.51.100.1"]), "HTTP_PROXY"),
    (
        "a mount that nobody asked for",
        lambda raw: raw["Mounts"].append({"Type": "bind", "Source": "/etc", "Destination": "/e", "RW": False}),
        "not asked for",
    ),
    ("a mount is missing", lambda raw: raw.update(Mounts=[]), "missing"),
    ("a volume is writable by mistake", lambda raw: raw["Mounts"][0].update(RW=False), "missing"),
]


def test_a_container_as_asked_has_no_fault() -> None:
    assert faults(copy.deepcopy(GOOD)) == []


@pytest.mark.parametrize(("change", "named"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_every_difference_is_named(change: Callable[[dict[str, Any]], None], named: str) -> None:
    raw = copy.deepcopy(GOOD)
    change(raw)
    found = faults(raw)
    assert found and any(named in fault for fault in found)


def test_a_value_in_the_environment_is_never_repeated() -> None:
    raw = copy.deepcopy(GOOD)
    raw["Config"]["Env"].append("https_proxy=http://user:hunter2@proxy.example")
    assert not any("hunter2" in fault for fault in faults(raw))


@pytest.mark.parametrize("uid", [0, 64101, 64105])
def test_the_agents_uid_is_never_roots_or_the_sidecars(uid: int) -> None:
    container = Container(service="agent", image="x", user=f"{uid}:{uid}", limits=Limits(pids=1))
    assert any("belongs to root or to a process of the sidecar" in fault for fault in faults(GOOD, container))


def test_mounts_below_a_directory_are_found_whatever_their_name(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "1 0 8:1 / / rw - ext4 x rw\n2 1 8:2 / /srv/a rw - ext4 x rw\n3 2 8:3 / /srv/a/b\\040c rw - ext4 x rw\n"
        "4 1 8:4 / /srv/ab rw - ext4 x rw\n"
    )
    assert mounts_below("/srv/a", mountinfo=info) == ["/srv/a/b c"]
