"""What a command costs before it does anything: against the import of its parser alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.bench.conftest import HANG_S, Bench, measure


@pytest.mark.parametrize("words", [["--help"], ["version"], ["status"], ["runs", "ls"]], ids=" ".join)
def test_a_command_against_the_import_of_typer(bench: Bench, say: Callable[[str], None], words: list[str]) -> None:
    def floor() -> None:
        subprocess.run([sys.executable, "-c", "import typer"], env=bench.environ, timeout=HANG_S, check=True)

    pairs = measure(lambda: bench.agc(*words), floor, pairs=9)
    say(pairs.line(f"agent-container {' '.join(words)}", floor="python -c 'import typer'"))
    assert pairs.ratio > 0
