"""Keeps unit tests on this side of the wall: no Docker, no network but loopback, nothing written to the user's home.

An audit hook sees what a patched module would miss (C code, names imported early). It cannot be removed, so it only
acts while a test of this directory runs. `test_guard.py` proves it.
"""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import os
import pwd
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REAL_HOME = Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
ALLOWED_BELOW_HOME = tuple(
    Path(text).resolve()
    for text in (HERE.parents[1], sys.prefix, sysconfig.get_paths()["purelib"], tempfile.gettempdir())
)
ENGINES = frozenset({"docker", "docker-compose", "podman", "nerdctl", "ctr"})
_running = False
HOME = pytest.StashKey[str]()


class ReachedOutside(BaseException):
    """A unit test tried to leave; not an Exception, so that no `except Exception` hides it."""


def _is_loopback(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else str(host or "")
    if text in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _check_address(address: object) -> None:
    if isinstance(address, tuple):
        if not _is_loopback(address[0]):
            raise ReachedOutside(f"a unit test may not reach {address[0]}")
    elif isinstance(address, str | bytes):
        name = Path(os.fsdecode(address)).resolve().name
        if name.partition(".")[0] in ENGINES | {"containerd"}:
            raise ReachedOutside(f"a unit test may not reach the engine at {os.fsdecode(address)}")


def _check_open(path: object, flags: object) -> None:
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if not writes or not isinstance(path, str | bytes | os.PathLike):
        return
    target = Path(os.path.realpath(os.fsdecode(path)))
    if target.is_relative_to(REAL_HOME) and not any(target.is_relative_to(top) for top in ALLOWED_BELOW_HOME):
        raise ReachedOutside(f"a unit test may not write {target}")


def _audit(event: str, args: tuple[object, ...]) -> None:
    if not _running:
        return
    if event in ("socket.connect", "socket.sendto"):
        _check_address(args[1])
    elif event == "socket.getaddrinfo" and not _is_loopback(args[0]):
        raise ReachedOutside(f"a unit test may not look up {args[0]}")
    elif event == "subprocess.Popen" and Path(os.fsdecode(args[0])).name in ENGINES:  # type: ignore[arg-type]
        raise ReachedOutside(f"a unit test may not start {args[0]}")
    elif event == "open":
        _check_open(args[0], args[2])


sys.addaudithook(_audit)


@contextlib.contextmanager
def _empty_home(config: pytest.Config) -> Iterator[str]:
    """One directory serves all tests that leave it empty; after one that does not, there is another."""
    home = config.stash.get(HOME, "") or tempfile.mkdtemp(prefix="ac-unit-home-")
    config.stash[HOME] = home
    yield home
    if os.listdir(home):  # noqa: PTH208 - two thousand times
        shutil.rmtree(home)
        del config.stash[HOME]


@contextlib.contextmanager
def _no_fsync(item: pytest.Item) -> Iterator[None]:
    """The disk's own speed is paid for where durability is the subject, and nowhere else."""
    if item.path.name == "test_store.py":
        yield
        return
    real, os.fsync = os.fsync, lambda fd: None
    try:
        yield
    finally:
        os.fsync = real


def _put_back(before: dict[str, str]) -> None:
    """The environment as it was; only what differs is written, two thousand times."""
    for name in [name for name in os.environ if name not in before]:
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def pytest_collection_finish() -> None:
    """What was imported stays to the end: no hunt for garbage in it while tests run."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last home goes."""
    shutil.rmtree(config.stash.get(HOME, ""), ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Close the wall around fixtures and test alike, and point every home at an empty directory."""
    global _running  # noqa: PLW0603 - an audit hook has no other memory
    if not item.path.is_relative_to(HERE):
        return (yield)
    before = dict(os.environ)
    with _empty_home(item.config) as home, _no_fsync(item):
        for name in [name for name in os.environ if name.startswith("XDG_") or name.upper().endswith("_PROXY")]:
            del os.environ[name]
        os.environ.update(HOME=home, DOCKER_HOST=f"unix://{home}/no-docker.sock")
        _running = True
        try:
            return (yield)
        finally:
            _running = False
            _put_back(before)
