"""The wall around unit tests holds."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from pathlib import Path

import pytest

outside = pytest.raises(BaseException, match="a unit test may not")


def test_the_engines_socket_cannot_be_reached() -> None:
    for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"):
        with outside, socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_the_engines_client_cannot_be_started() -> None:
    with outside:
        subprocess.run(["docker", "version"], check=False)


def test_the_network_cannot_be_reached_by_tcp_or_udp() -> None:
    with outside, socket.socket() as client:
        client.connect(("203.0.113.1", 443))
    with outside, socket.socket(socket.AF_INET6) as client:
        client.connect(("2001:db8::1", 443))
    with outside, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("203.0.113.1", 53))


def test_no_name_is_looked_up() -> None:
    with outside:
        socket.getaddrinfo("example.test", 443)


def test_home_is_an_empty_directory_of_its_own() -> None:
    real = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert Path.home() != real
    assert not any(Path.home().iterdir())
    assert not [name for name in os.environ if name.startswith("XDG_")]


def test_the_real_home_is_not_written_to() -> None:
    probe = Path(pwd.getpwuid(os.getuid()).pw_dir) / "agent-container-guard-probe"
    with outside:
        probe.write_text("x")
    assert not probe.exists()


def test_loopback_and_temporary_sockets_stay_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "daemon.sock"))
        server.listen()
        client.connect(str(tmp_path / "daemon.sock"))
