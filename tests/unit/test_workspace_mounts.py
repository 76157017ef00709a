"""The second layer's refusals as a table."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent_container.errors import SpecError, UsageError
from agent_container.workspace.mounts import HostPaths, MountRequest, check_mount_source, plan_mounts


@pytest.fixture
def host(tmp_path: Path) -> HostPaths:
    for name in ("home/user/work/project/data", "home/user/.ssh", "home/user/dotfiles/aws/x", "home/user/data/store"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/user/.aws").symlink_to(tmp_path / "home/user/dotfiles/aws")
    (tmp_path / "home/user/.ssh/id").write_text("key")
    (tmp_path / "home/user/file").write_text("x")
    (tmp_path / "alias").symlink_to(tmp_path / "home/user")
    return HostPaths(home=tmp_path / "home/user", stores=(tmp_path / "home/user/data/store",))


REFUSED = {
    "the root": ("/", "home directory lies inside"),
    "the home directory": ("HOME", "your home directory"),
    "the home directory under another name": ("HOME/../../alias", "your home directory"),
    "an ancestor of the home directory": ("HOME/..", "home directory lies inside"),
    "keys": ("HOME/.ssh", ".ssh holds keys"),
    "one key": ("HOME/.ssh/id", ".ssh holds keys"),
    "keys by way of dots": ("HOME/work/../.ssh", ".ssh holds keys"),
    "where a secret directory's link leads": ("HOME/dotfiles/aws", "which is your .aws"),
    "what contains it": ("HOME/dotfiles", "contains"),
    "what lies in it": ("HOME/dotfiles/aws/x", "lies inside"),
    "our stores": ("HOME/data/store", "records and sealed credentials"),
    "what contains our stores": ("HOME/data", "contains"),
    "processes": ("/proc/self", "/proc belongs to the system"),
    "the root by way of a process": ("/proc/self/root", "home directory lies inside"),
    "devices": ("/dev/shm", "/dev belongs to the system"),
    "kernel": ("/sys", "/sys belongs to the system"),
    "sockets of services": ("/run", "/run belongs to the system"),
    "the system's configuration": ("/etc", "belongs to the system"),
    "nothing": ("HOME/missing", "no such file or directory; it is not created"),
    "a path through a file": ("HOME/file/x", "not a directory"),
    "a NUL": ("HOME/\0", "NUL"),
}


@pytest.mark.parametrize(("path", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(host: HostPaths, path: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_mount_source(Path(path.replace("HOME", str(host.home))), host=host)
    assert not (host.home / "missing").exists()


def test_what_is_left_is_resolved_and_mounted(host: HostPaths) -> None:
    link = host.home / "work/link"
    link.symlink_to(host.home / "work/project")
    assert check_mount_source(link, host=host) == host.home / "work/project"
    assert check_mount_source(host.home / "file", host=host) == host.home / "file"


def test_a_source_named_inside_the_project_must_stay_inside(host: HostPaths) -> None:
    project = host.home / "work/project"
    outside = host.home / "work/elsewhere"
    outside.mkdir()
    (project / "swapped").symlink_to(outside)
    (project / "inner").symlink_to("data")
    with pytest.raises(UsageError, match="leads out of the project, to"):
        check_mount_source(project / "swapped", host=host, workspace=project)
    assert check_mount_source(project / "inner", host=host, workspace=project) == project / "data"
    assert check_mount_source(outside, host=host, workspace=project) == outside


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def test_a_socket_in_a_git_directory_counts_too(host: HostPaths) -> None:
    (host.home / "work/project/.git").mkdir()
    make_socket(host.home / "work/project/.git/ipc")
    with pytest.raises(UsageError, match="holds .git/ipc"):
        check_mount_source(host.home / "work/project", host=host)


@pytest.mark.parametrize("make", [make_fifo, make_socket])
def test_sockets_and_fifos_are_refused_alone_and_in_a_tree(host: HostPaths, make: object) -> None:
    special = host.home / "work/x/deep/special"
    special.parent.mkdir(parents=True)
    make(special)  # type: ignore[operator]
    with pytest.raises(UsageError, match="neither a file nor a directory"):
        check_mount_source(special, host=host)
    with pytest.raises(UsageError, match="holds deep/special"):
        check_mount_source(host.home / "work/x", host=host)


def test_a_directory_too_large_to_look_at_is_refused(host: HostPaths) -> None:
    for number in range(5):
        (host.home / f"work/project/{number}").touch()
    with pytest.raises(UsageError, match="more than 3 files"):
        check_mount_source(host.home / "work/project", host=host, max_entries=3)


def test_every_mistake_is_named_with_its_place(host: HostPaths) -> None:
    project = host.home / "work/project"
    requests = [
        MountRequest("~/file", "/data/file"),
        MountRequest("./data", "/data/dir", read_only=False),
        MountRequest("", "/a"),
        MountRequest("./nope.json", "/b"),
        MountRequest("./data", "rel/path"),
        MountRequest("./data", "/etc/x"),
        MountRequest("./data", "/opt/agent-container/lib"),
        MountRequest("./data", "/workspace/.git"),
        MountRequest("./data", "/data/dir"),
        MountRequest("~/.ssh", "/keys"),
    ]
    mounts = plan_mounts(requests[:2], root=project, host=host)
    assert [(m.source, m.target, m.read_only) for m in mounts] == [
        (str(host.home / "file"), "/data/file", True),
        (str(project / "data"), "/data/dir", False),
    ]
    with pytest.raises(SpecError) as caught:
        plan_mounts(requests, root=project, host=host)
    assert [line.split(":")[0] for line in caught.value.details] == [f"mounts[{number}]" for number in range(2, 10)]
    assert sorted(path.name for path in project.iterdir()) == ["data"]
