"""The demo agent outside its image: its task on the example project, and the bad days that other tests rely on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.test")


def demo(task: str, cwd: Path) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and events; a line that is none is left out."""
    command = [sys.executable, str(ROOT / "image" / "demo"), "--", task]
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    events = []
    for line in done.stdout.split(b"\n"):
        try:
            events.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return done.returncode, events


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "demo", path, ignore=shutil.ignore_patterns("__pycache__"))
    for arguments in (("init", "-q"), ("add", "-A"), (*IDENTITY, "commit", "-q", "-m", "start")):
        subprocess.run(["git", *arguments], cwd=path, check=True)
    return path


def test_it_repairs_the_example_takes_notes_and_commits(project: Path) -> None:
    status, events = demo("make the tests pass", project)
    assert (status, events[-1]["type"], events[-1]["ok"]) == (0, "result", True)
    tests = [event["ok"] for event in events if event["type"] == "tool_result" and "Ran" in event["output"]]
    assert tests == [False, True]
    log = subprocess.run(["git", "log", "--oneline", "--stat"], cwd=project, capture_output=True, text=True, check=True)
    assert "NOTES.md" in log.stdout
    assert "slugs.py" in log.stdout
    assert subprocess.run(["git", "status", "--short"], cwd=project, capture_output=True, check=True).stdout == b""


def test_outside_its_image_it_tries_no_escape_and_looks_at_nothing(project: Path) -> None:
    _status, events = demo("make the tests pass", project)
    assert not {"fetch", "connect", "search"} & {event.get("name") for event in events}


def test_a_directory_without_the_example_gets_notes_and_no_commit(tmp_path: Path) -> None:
    status, events = demo("anything", tmp_path)
    assert (status, events[-1]["ok"]) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["NOTES.md"]


@pytest.mark.parametrize(
    ("task", "status", "last"),
    [
        ("fail 3", 3, ("result", False)),
        ("exit 1 after success", 1, ("result", True)),
        ("exit 0 without result", 0, ("message", None)),
        ("shell: echo hi; exit 2", 1, ("result", False)),
        ("shell: true", 0, ("result", True)),
        ("sleep 0.01", 0, ("result", True)),
        ("line 1 MB", 0, ("result", True)),
        ("garbage", 0, ("result", True)),
    ],
)
def test_a_bad_day_by_the_words_of_the_task(
    tmp_path: Path, task: str, status: int, last: tuple[str, bool | None]
) -> None:
    ended, events = demo(task, tmp_path)
    assert ended == status
    assert (events[-1]["type"], events[-1].get("ok")) == last
    assert events[0]["type"] == "session"


@pytest.mark.parametrize("arguments", [[], ["task"], ["--help"]])
def test_it_takes_one_task_after_two_dashes(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "image" / "demo"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 64
    assert b"usage" in done.stderr
