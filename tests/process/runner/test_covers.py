"""Which mounts hide something, and which of them are gone, from what the kernel says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "image" / "lib"))

from agent_runner.covers import hidden_mounts, missing

TREE = "100 90 8:1 /home/user/src /workspace rw,nosuid - ext4 /dev/sda1 rw\n"
HIDDEN = "101 100 8:1 /state/sessions/1/empty /workspace/.env ro,nosuid - ext4 /dev/sda1 rw\n"

ROWS = {
    "a hidden file": (TREE + HIDDEN, {"/workspace/.env"}),
    "a hidden directory": (HIDDEN.replace("empty", "empty.d").replace(".env", "keys"), {"/workspace/keys"}),
    "a protected file is none": (HIDDEN.replace("sessions/1/empty", "src/.husky"), set()),
    "the tree itself is none, whatever its name": (TREE.replace("/home/user/src", "/home/user/empty"), set()),
    "what lies elsewhere is none": (HIDDEN.replace("/workspace/.env", "/workspaces/.env"), set()),
    "a name with a space and a tab": (HIDDEN.replace(".env", "my\\040own\\011.env"), {"/workspace/my own\t.env"}),
    "a name that looks escaped": (HIDDEN.replace(".env", "a\\134040b"), {"/workspace/a\\040b"}),
    "half a line": ("101 100 8:1 /state\n\n", set()),
}


@pytest.mark.parametrize("name", ROWS)
def test_hidden_mounts(name: str) -> None:
    text, expected = ROWS[name]
    assert hidden_mounts(text) == expected


def test_what_is_gone_is_named() -> None:
    both = TREE + HIDDEN + HIDDEN.replace(".env", "b/.env")
    assert missing(hidden_mounts(both), both) == []
    assert missing(hidden_mounts(both), TREE + HIDDEN) == ["/workspace/b/.env"]
    assert missing(hidden_mounts(both), TREE) == ["/workspace/.env", "/workspace/b/.env"]
