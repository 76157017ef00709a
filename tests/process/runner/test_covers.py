"""Which hidden paths are no mount points (any more), from what the kernel says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "image" / "lib"))

from agent_runner import covers
from agent_runner.covers import missing, watch
from agent_runner.loop import Loop, Timer

TREE = "100 90 8:1 /home/user/src /workspace rw,nosuid - ext4 /dev/sda1 rw\n"
HIDDEN = "101 100 8:1 /state/sessions/1/empty /workspace/.env ro,nosuid - ext4 /dev/sda1 rw\n"

ROWS = {
    "hidden": (TREE + HIDDEN, []),
    "not any more": (TREE, ["/workspace/.env"]),
    "another beside": (TREE + HIDDEN.replace(".env", ".env2"), ["/workspace/.env"]),
    "half a line": (TREE + HIDDEN[:40], ["/workspace/.env"]),
    "nothing at all": ("", ["/workspace/.env"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_missing(name: str) -> None:
    text, expected = ROWS[name]
    assert missing(["/workspace/.env"], text) == expected


ESCAPED = {
    "a space and a tab": ("my\\040own\\011.env", "my own\t.env"),
    "what looks escaped": ("a\\134040b", "a\\040b"),
}


@pytest.mark.parametrize("name", ESCAPED)
def test_names_are_read_as_the_kernel_writes_them(name: str) -> None:
    written, path = ESCAPED[name]
    assert missing([f"/workspace/{path}"], HIDDEN.replace(".env", written)) == []


class Once(Loop):
    """What is due is called at once, and never again."""

    def later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return Timer(callback)


def test_what_is_no_mount_point_at_the_start_ends_it_and_so_does_what_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[str] = []
    watch(Once(), ["/workspace/.env"], end=ends.append)
    assert "/workspace/.env is hidden" in ends.pop()
    watch(Once(), ["/proc"], end=ends.append)
    assert ends == []
    monkeypatch.setattr(covers, "_read", lambda _fd: 1 // 0)
    watch(Once(), ["/proc"], end=ends.append)
    assert ends == ["the mounts cannot be read (ZeroDivisionError)"]
