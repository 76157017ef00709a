"""Files for the agent's HOME: what is written, what stays, and what a hostile HOME cannot make the runner do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
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


def link_file(home: Path) -> None:
    (home / ".agent").mkdir()
    (home / ".agent" / "settings.json").symlink_to(home.parent / "outside.json")


def fifo(home: Path) -> None:
    (home / ".agent").mkdir()
    os.mkfifo(home / ".agent" / "settings.json")


def fifo_beside(home: Path) -> None:
    (home / ".agent").mkdir()
    os.mkfifo(home / ".agent" / ".settings.json.agent-container")


def huge(home: Path) -> None:
    (home / ".agent").mkdir()
    with (home / ".agent" / "settings.json").open("wb") as stream:
        stream.truncate(1 << 40)


REPLACED = {"a link": link_file, "a FIFO": fifo, "a FIFO under the staged name": fifo_beside, "a terabyte": huge}


@pytest.mark.parametrize("make", REPLACED.values(), ids=REPLACED)
def test_what_an_agent_left_there_is_replaced(runner: RunningRunner, home: Path, make: Callable[[Path], None]) -> None:
    make(home)
    for path in (home / ".agent", *(home / ".agent").iterdir()):
        own(path)
    assert put(runner, file('{"a":1}'))["changed"] == [".agent/settings.json"]
    target = home / ".agent" / "settings.json"
    assert not target.is_symlink() and target.read_text() == '{"a":1}'
    assert not (home.parent / "outside.json").exists()


def link_directory(home: Path) -> None:
    (home.parent / "elsewhere").mkdir(mode=0o777)
    (home / ".agent").symlink_to(home.parent / "elsewhere")


def plain_file(home: Path) -> None:
    (home / ".agent").write_text("")


def directory_in_place(home: Path) -> None:
    (home / ".agent" / "settings.json").mkdir(parents=True)


REFUSED = {
    "a link to a directory": link_directory,
    "a file for a directory": plain_file,
    "a directory for a file": directory_in_place,
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_put_is_named(runner: RunningRunner, home: Path, make: Callable[[Path], None]) -> None:
    make(home)
    own(home / ".agent")
    answer = put(runner, file("{}"))
    assert answer["error"]["code"] == "home" and ".agent/settings.json" in answer["error"]["message"]
    elsewhere = home.parent / "elsewhere"
    if elsewhere.exists():
        assert list(elsewhere.iterdir()) == []
        shutil.rmtree(elsewhere)


@pytest.mark.parametrize("files", [7, [7], [{"path": "a", "text": 1, "how": "replace"}], [file("", how="x")]])
def test_a_request_that_makes_no_sense_is_refused(runner: RunningRunner, home: Path, files: object) -> None:
    assert runner.connect().ask("home.put", files=files)["ok"] is False
    assert list(home.iterdir()) == []
