"""The locks: everything hashed, nothing about where it comes from, and what is tested is what is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")


def pins(name: str) -> dict[str, tuple[str, int]]:
    """Package to version and number of hashes."""
    found: dict[str, tuple[str, int]] = {}
    for block in re.split(r"\n(?=[a-z0-9])", (ROOT / name).read_text()):
        match = re.match(r"([a-z0-9-]+)==(\S+)", block)
        if match:
            found[match[1]] = (match[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}", block)))
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~;\[ ]", entry)[0].lower().replace("_", "-") for entry in requirements}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_has_hashes(lock: str) -> None:
    assert pins(lock)
    assert not [name for name, (_, hashes) in pins(lock).items() if hashes == 0]


@pytest.mark.parametrize("lock", LOCKS)
def test_no_line_says_where_packages_come_from(lock: str) -> None:
    lines = [line for line in (ROOT / lock).read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in lines if "://" in line or re.match(r"-|\s+-(?!-hash)", line)]


def test_both_locks_agree_and_cover_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime, dev = pins(LOCKS[0]), pins(LOCKS[1])
    assert {name: pin for name, pin in dev.items() if name in runtime} == runtime
    backend = project["build-system"]["requires"]
    assert names([*project["project"]["dependencies"], *backend]) <= set(runtime)
    assert names(project["project"]["optional-dependencies"]["dev"]) <= set(dev)
