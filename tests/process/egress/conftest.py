"""Fixtures of the sidecar's daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.egress.harness import Sidecar, end, make


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    made = make(tmp_path)
    yield made
    end(made)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One set of daemons for a module: starting Python is what takes the time."""
    made = make(tmp_path_factory.mktemp("sidecar"))
    yield made
    end(made)
