"""Drains real volumes through a real engine: what an agent can put there is refused by name, and the rest arrives."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_container.drain import RAW, Caps, Source, drain
from agent_container.engine.connection import connect
from agent_container.engine.docker import DockerEngine
from agent_container.store import Store
from tests.support.records import PROJECT, RUN

IMAGE = "debian:trixie-slim"
LABEL = f"agent-container.test={os.getpid()}"
MIB = 1024 * 1024

HOSTILE = r"""
set -e
mkdir -p /vol/t/sub && cd /vol/t
printf 'good' > good.jsonl; printf 'deep' > sub/deep.txt; printf 'é' > 'naïve name.txt'
chmod 000 good.jsonl
ln -s /etc/shadow events.jsonl
ln -s /home/u/.aws/credentials t.jsonl
ln -s . loop
ln -s /etc etc
ln good.jsonl hard.jsonl
mkfifo x.jsonl
mkdir egress.jsonl
touch "$(printf 'a\nb.jsonl')" '..%2f..%2fx' "$(printf 'esc\033[2J')" "$(printf 'bad\377')"
truncate -s 300M sparse.jsonl
chmod u+s sub/deep.txt
printf 'last' > zzz.jsonl
"""


def docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def engine(tmp_path: Path) -> DockerEngine:
    return DockerEngine(connect(os.environ, state_dir=tmp_path / "engine"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", tmp_path / "state").prepare()


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"acd-{secrets.token_hex(4)}"
    docker("volume", "create", "--label", LABEL, name)
    yield name
    docker("volume", "rm", "--force", name)


def create(volume: str, script: str) -> str:
    return docker(
        "create", "--label", LABEL, "--name", f"acd-{secrets.token_hex(4)}", "--network", "none",
        "--volume", f"{volume}:/vol", IMAGE, "sh", "-c", script,
    )  # fmt: skip


@pytest.fixture
def hostile(volume: str) -> Iterator[str]:
    container = create(volume, HOSTILE)
    docker("start", "--attach", container)
    yield container
    docker("rm", "--force", container)


@pytest.mark.quick
def test_a_hostile_volume_is_drained_without_following_or_waiting(
    engine: DockerEngine, store: Store, hostile: str
) -> None:
    place = store.runs.place(PROJECT, RUN)
    caps = Caps(file_bytes=2 * MIB, stream_bytes=400 * MIB)
    with store.runs.staging(place) as staged:
        source = Source(
            "the transcript", "transcript", lambda: engine.read_archive(hostile, "/vol/t"), tree=True, caps=caps
        )
        report = drain(staged, [source])
        got = {p.relative_to(staged).as_posix(): p.stat() for p in staged.rglob("*") if not p.is_dir()}
        links = [path for path in staged.rglob("*") if path.is_symlink()]
        good = (staged / "transcript/good.jsonl").read_bytes() if "transcript/good.jsonl" in got else b""
    assert links == []
    # Of two names of one file the engine packs the first as the file and the second as a link to it.
    assert set(got) == {
        "transcript/good.jsonl",
        "transcript/sub/deep.txt",
        "transcript/naïve name.txt",
        "transcript/sparse.jsonl",
        "transcript/zzz.jsonl",
    }
    assert good == b"good"
    assert all(info.st_mode & 0o7777 == 0o600 and info.st_uid == os.geteuid() for info in got.values())
    assert got["transcript/sparse.jsonl"].st_size == 2 * MIB
    assert report.truncated == (f"transcript/sparse.jsonl: cut at {2 * MIB} of {300 * MIB} bytes",)
    refused = "\n".join(report.refused)
    for name, why in [
        ("t/events.jsonl", "a symbolic link"),
        ("t/t.jsonl", "a symbolic link"),
        ("t/loop", "a symbolic link"),
        ("t/etc", "a symbolic link"),
        ("t/hard.jsonl", "a hard link"),
        ("t/x.jsonl", "a fifo"),
        ("t/a\nb.jsonl", "a hostile name"),
        ("t/..%2f..%2fx", "a hostile name"),
        ("t/esc\x1b[2J", "a hostile name"),
        ("t/bad\\xff", "a hostile name"),
    ]:
        assert f"transcript: {name}: {why}" in refused
    assert len(report.refused) == 10
    assert report.complete


@pytest.mark.quick
@pytest.mark.parametrize("name", ["events.jsonl", "x.jsonl", "egress.jsonl", "loop", "etc/passwd", "nosuch"])
def test_a_spool_that_is_something_else_is_a_loss_and_brings_nothing(
    name: str, engine: DockerEngine, tmp_path: Path, hostile: str
) -> None:
    report = drain(tmp_path, [Source("the spool", RAW, lambda: engine.read_archive(hostile, f"/vol/t/{name}"))])
    body = (tmp_path / RAW).read_bytes() if (tmp_path / RAW).exists() else b""
    # A linked directory is resolved by the engine inside the container: never on this host.
    assert b"shadow" not in body
    if name == "etc/passwd":
        assert (
            body
            == docker("run", "--rm", "--network", "none", "--label", LABEL, IMAGE, "cat", "/etc/passwd").encode()
            + b"\n"
        )
    else:
        assert body == b""
        assert not report.complete


def test_a_container_that_is_gone_is_a_loss_that_names_it(engine: DockerEngine, tmp_path: Path) -> None:
    report = drain(tmp_path, [Source("the spool", RAW, lambda: engine.read_archive("acd-nosuch", "/vol/spool.jsonl"))])
    assert len(report.lost) == 1
    assert report.lost[0].startswith("records lost: the spool: ")


def test_a_drain_while_the_agent_writes_is_a_beginning_of_the_one_after(
    engine: DockerEngine, tmp_path: Path, volume: str
) -> None:
    script = 'i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo "line $i" >> /vol/spool.jsonl; done; sleep 600'
    container = create(volume, script)
    docker("start", container)
    try:
        bodies = []
        for number in range(100):
            into = tmp_path / str(number)
            into.mkdir()
            drain(into, [Source("the spool", RAW, lambda: engine.read_archive(container, "/vol/spool.jsonl"))])
            if (into / RAW).exists():
                bodies.append((into / RAW).read_bytes())
            if bodies and bodies[-1].endswith(b"line 3000\n"):
                break
            time.sleep(0.05)
        final = b"".join(b"line %d\n" % number for number in range(1, 3001))
        assert bodies[-1] == final
        assert all(final.startswith(body) for body in bodies)
    finally:
        docker("rm", "--force", container)
