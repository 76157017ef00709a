"""The YAML reader within small limits: a hostile file is refused by a process that could not afford to expand it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from agent_container.spec_yaml import MAX_BYTES


def _laughs() -> bytes:
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    rows += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    return "\n".join([*rows, "env: *a9"]).encode()


def _merges() -> bytes:
    rows = ["m0: &m0 {k: v}"]
    rows += [f"m{n}: &m{n} {{<<: [*m{n - 1},*m{n - 1}]}}" for n in range(1, 19)]
    return "\n".join(rows).encode()


BOMBS = {
    "nine levels of nine aliases": _laughs(),
    "merge keys that double": _merges(),
    "a thousand aliases": b"a: &a x\nb: [" + b"*a," * 1000 + b"]",
    "brackets to the cap": b"a: " + b"[" * (MAX_BYTES - 10),
    "braces to the cap": b"a: " + b"{" * (MAX_BYTES - 10),
    "dashes to the cap": b"- " * (MAX_BYTES // 2 - 5),
    "question marks to the cap": b"? " * (MAX_BYTES // 2 - 5),
    "values to the cap": b"a: [" + b"x," * (MAX_BYTES // 2 - 10) + b"]",
    "keys to the cap": b"".join(b"k%05d: v\n" % n for n in range(MAX_BYTES // 11)),
    "one long scalar": b"name: " + b"x" * (MAX_BYTES - 10),
    "digits without end": b"a: " + b"1" * (MAX_BYTES - 10),
    "colons without end": b"a: " + b"1:" * (MAX_BYTES // 2 - 10),
    "unknown keys in thousands": b"".join(b"q%05d:\n" % n for n in range(9000)),
}

_LOAD = """
import sys
from pathlib import Path
from agent_container.errors import SpecError
from agent_container.spec import load_spec
try:
    load_spec(sys.stdin.buffer.read(), path=Path("agent-container.yaml"), default_name="a")
except SpecError as error:
    assert sum(map(len, error.details)) < 50_000
    sys.exit(2)
"""


def _limited() -> None:
    # Generous for a slow machine; what these files would cost without the caps is minutes and gigabytes.
    resource.setrlimit(resource.RLIMIT_CPU, (4, 4))
    resource.setrlimit(resource.RLIMIT_DATA, (160 * 1024**2, 160 * 1024**2))


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_a_hostile_file_is_refused_within_small_limits(data: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOAD], input=data, preexec_fn=_limited, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (2, "")
