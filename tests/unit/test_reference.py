"""docs/reference.md is what the program says of itself today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "bin" / "lib" / "reference.py", "--check"], check=False)
    assert done.returncode == 0, "run bin/docs and commit docs/reference.md"
