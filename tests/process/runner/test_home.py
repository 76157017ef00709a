"""Files for the agent's HOME: what is written, what stays, and what a hostile HOME cannot make the runner do."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.runner.conftest import UID, RunningRunner


@pytest.fixture
def home(directory: Path, runner: RunningRunner) -> Path:
    """The runner's HOME: the fixture's workspace, which belongs to the agent."""
    runner.stop()
    runner.environ["HOME"] = str(runner.workspace)
    runner.start()
    return runner.workspace


def put(runner: RunningRunner, *files: dict[str, Any]) -> dict[str, Any]:
    return runner.connect().ask("home.put", files=list(files))


def file(text: str, how: str = "merge-json", path: str = ".agent/settings.json") -> dict[str, Any]:
    return {"path": path, "text": text, "how": how}


OLD = {"theme": "dark", "approved": ["one"], "projects": {"/workspace": {"cost": 7}}}
NEW = {"done": True, "approved": ["two"], "projects": {"/workspace": {"trusted": True}}}
BOTH = {
    "theme": "dark",
    "approved": ["one", "two"],
    "projects": {"/workspace": {"cost": 7, "trusted": True}},
    "done": True,
}
BEFORE: dict[str, tuple[str | None, str, str, str]] = {
    "a new one": (None, json.dumps(NEW), "merge-json", json.dumps(NEW)),
    "objects are merged, lists joined": (json.dumps(OLD), json.dumps(NEW), "merge-json", json.dumps(BOTH)),
    "what is no JSON is replaced": ("{", json.dumps(NEW), "merge-json", json.dumps(NEW)),
    "what is no object is replaced": ("[1]", json.dumps(NEW), "merge-json", json.dumps(NEW)),
    "too deep to read is replaced": ("[" * 200_000, json.dumps(NEW), "merge-json", json.dumps(NEW)),
    "the user's own stays": ("mine", "ours", "if-absent", "mine"),
    "none is made": (None, "ours", "if-absent", "ours"),
    "the former goes": ("mine", "ours", "replace", "ours"),
}


@pytest.mark.parametrize(("before", "text", "how", "after"), BEFORE.values(), ids=BEFORE)
def test_what_becomes_of_a_file(
    runner: RunningRunner, home: Path, before: str | None, text: str, how: str, after: str
) -> None:
    target = home / ".agent" / "settings.json"
    if before is not None:
        target.parent.mkdir()
        target.write_text(before)
        for path in (target, target.parent):
            own(path)
    assert put(runner, file(text, how))["ok"] is True
    written = target.read_text()
    assert written == after or json.loads(written) == json.loads(after)
    assert put(runner, file(text, how))["changed"] == [], "asking again changes nothing"


def own(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, UID, UID, follow_symlinks=False)


def test_a_file_is_for_its_owner_alone(runner: RunningRunner, home: Path) -> None:
    put(runner, file("{}"))
    target = home / ".agent" / "settings.json"
    assert (target.stat().st_mode & 0o777, target.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(path.name for path in target.parent.iterdir()) == ["settings.json"]


PATHS = {
    "no path": "",
    "absolute": "/etc/passwd",
    "upwards": "../x",
    "upwards inside": ".agent/../../x",
    "itself": "a/./b",
    "NUL": "a\0b",
    "no file": "a/",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_no_other_path(runner: RunningRunner, home: Path, path: str) -> None:
    assert put(runner, file("{}", path=path))["error"]["code"] == "home"
    assert list(home.iterdir()) == []


SETTINGS = ".agent/settings.json"
STRAY: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "a link to a file": (SETTINGS, "link", lambda at: at.symlink_to(at.parents[2] / "outside" / "file")),
    "a link to nothing": (SETTINGS, "link", lambda at: at.symlink_to(at.parents[2] / "outside" / "new")),
    "a link to itself": (SETTINGS, "link", lambda at: at.symlink_to(at)),
    "a FIFO": (SETTINGS, "FIFO", os.mkfifo),
    "a socket": (SETTINGS, "socket", lambda at: os.mknod(at, stat.S_IFSOCK | 0o600)),
    "a directory": (SETTINGS, "directory", lambda at: (at / "in" / "it").mkdir(parents=True)),
    "a directory that is closed": (SETTINGS, "directory", lambda at: at.mkdir(0)),
    "a terabyte": (SETTINGS, "file", lambda at: os.truncate(os.open(at, os.O_CREAT | os.O_WRONLY), 1 << 40)),
    "a file that is closed": (SETTINGS, "file", lambda at: at.touch(0)),
    "no JSON": (SETTINGS, "file", lambda at: at.write_text("mine: no JSON")),
    "a link for its directory": (".agent", "link", lambda at: at.symlink_to(at.parents[1] / "outside")),
    "a link to nothing for its directory": (".agent", "link", lambda at: at.symlink_to("/nowhere/at/all")),
    "a file for its directory": (".agent", "file", lambda at: at.write_text("mine")),
    "a FIFO for its directory": (".agent", "FIFO", os.mkfifo),
    "a socket for its directory": (".agent", "socket", lambda at: os.mknod(at, stat.S_IFSOCK | 0o600)),
    "a closed directory for its own": (".agent", "directory", lambda at: at.mkdir(0)),
}


@pytest.fixture
def outside(home: Path) -> Iterator[Path]:
    """What a link may point at: open to the runner, and not to be touched by it."""
    directory = home.parent / "outside"
    directory.mkdir()
    directory.chmod(0o777)
    (directory / "file").write_text("theirs")
    (directory / "file").chmod(0o666)
    yield directory
    assert [path.name for path in directory.iterdir()] == ["file"] and (directory / "file").read_text() == "theirs"


@pytest.mark.parametrize(("where", "kind", "make"), STRAY.values(), ids=STRAY)
def test_what_an_agent_left_in_the_way_is_set_aside_and_said(
    runner: RunningRunner, home: Path, outside: Path, where: str, kind: str, make: Callable[[Path], object]
) -> None:
    at = home / where
    at.parent.mkdir(exist_ok=True)
    make(at)
    left = at.lstat()
    for path in {at, at.parent} - {home}:
        own(path)
    answer = put(runner, file('{"a":1}'))
    assert answer["changed"] == [SETTINGS], answer
    [aside] = answer["set_aside"]
    assert (aside["path"], aside["kind"]) == (where, kind)
    target, moved = home / SETTINGS, (home / aside["now"]).lstat()
    assert not target.is_symlink() and target.read_text() == '{"a":1}'
    assert (moved.st_ino, moved.st_size) == (left.st_ino, left.st_size), "it is there still, as it was"
    assert sorted(path.name for path in at.parent.iterdir()) == sorted([at.name, Path(aside["now"]).name])
    again = put(runner, file('{"a":1}'))
    assert (again["changed"], again["set_aside"]) == ([], [])


CLOSED = {"HOME": ".", "its directory": ".agent"}


@pytest.mark.parametrize("mode", [0o000, 0o500])
@pytest.mark.parametrize("where", CLOSED.values(), ids=CLOSED)
def test_a_directory_that_its_owner_closed_is_opened(runner: RunningRunner, home: Path, where: str, mode: int) -> None:
    (home / ".agent").mkdir()
    own(home / ".agent")
    (home / where).chmod(mode)
    answer = put(runner, file('{"a":1}'))
    assert answer["changed"] == [SETTINGS] and (home / SETTINGS).read_text() == '{"a":1}'


@pytest.mark.parametrize("files", [7, [7], [{"path": "a", "text": 1, "how": "replace"}], [file("", how="x")]])
def test_a_request_that_makes_no_sense_is_refused(runner: RunningRunner, home: Path, files: object) -> None:
    assert runner.connect().ask("home.put", files=files)["ok"] is False
    assert list(home.iterdir()) == []
