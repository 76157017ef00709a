"""One user with an internet of their own for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.world import World

OPEN: list[World] = []


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    try:
        made.open()
        OPEN.append(made)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module", autouse=True)
def _a_module_sees_what_arrived_for_itself() -> None:
    """Which modules run before, and on which half of the machine, is nothing that a test may depend on."""
    for each in OPEN:
        each.ask("clear")
