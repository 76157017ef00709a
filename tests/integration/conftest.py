"""One user with an internet of their own for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    try:
        made.open()
        yield made
    finally:
        made.close()
