"""Runs the stages of bin/test one after another, each within its limit, and closes with one plain total.

Owns the table of stages and the count; bin/test owns what must be there first. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
BIN = PYTHON.parent


@dataclass(frozen=True)
class Stage:
    """One named part of bin/test: commands, or pytest over some directories."""

    name: str
    limit_s: int
    commands: tuple[tuple[str, ...], ...] = ()
    tests: tuple[str, ...] = ()
    marker: str = ""
    beside: tuple[str, ...] = ()
    """Of `tests`, what a second pytest runs at the same time, about half of the work; what is new goes to the first."""


SOURCES = tuple(
    name for name in ("agent_container", "sidecar", "image", "tests", "bin/lib", "examples") if (ROOT / name).is_dir()
)
SCRIPTS = tuple(str(path.relative_to(ROOT)) for path in sorted((ROOT / "bin" / "lib").rglob("*.py")))
STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "lint",
            120,
            (
                ("ruff", "check", "--no-cache", *SOURCES),
                ("ruff", "format", "--no-cache", "--check", *SOURCES),
                ("lint-imports", "--no-cache", "--no-logo"),
            ),
        ),
        Stage("types", 300, (("mypy",), ("mypy", *SCRIPTS))),
        Stage(
            "unit",
            600,
            tests=("tests/unit", "tests/golden"),
            beside=("tests/unit/agents", "tests/unit/egress", "tests/unit/test_records.py", "tests/golden"),
        ),
        Stage("process", 600, tests=("tests/process",), beside=("tests/process/egress", "tests/process/runner")),
        Stage(
            "integration",
            3300,
            tests=("tests/integration",),
            # The first half is the real agents, and what is new.
            beside=tuple(
                f"tests/integration/test_{name}.py"
                for name in (
                    *("checkpoint", "egress_live", "git_ssh", "kill", "killed", "lifecycle", "prove"),
                    *("run", "scanning", "sidecar", "streams"),
                )
            ),
        ),
        Stage("redteam", 1200, tests=("tests/redteam",), beside=("tests/redteam/test_mutants.py",)),
        Stage("quick-integration", 300, tests=("tests/integration", "tests/redteam"), marker="quick"),
        Stage("bench", 1800, tests=("tests/bench",)),
    )
}
DEFAULT = ("lint", "types", "unit", "process", "integration", "redteam")
ALIASES = {"all": DEFAULT, "quick": ("lint", "types", "unit", "process", "quick-integration"), "golden": ("unit",)}


@dataclass(frozen=True)
class Lane:
    """One pytest of a stage, and the name of the file that it counts in."""

    argv: list[str]
    junit: str


@dataclass(frozen=True)
class Result:
    """How one stage ended; the counts are pytest's, zero for other stages."""

    stage: Stage
    ok: bool
    seconds: float
    passed: int = 0
    failed: int = 0
    note: str = ""


def run_limited(argv: list[str], *, seconds: float) -> int | None:
    """The exit status of `argv`, or None when `seconds` were not enough: then its whole process group is ended."""
    return wait_limited(start(argv), seconds=seconds)


def start(argv: list[str], *, output: BinaryIO | None = None) -> subprocess.Popen[bytes]:
    """In a process group of its own; what Python compiles is kept, whatever the shell says: it is seconds a stage."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        argv,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def wait_limited(process: subprocess.Popen[bytes], *, seconds: float) -> int | None:
    """The exit status, or None when `seconds` were not enough: then the whole process group is ended."""
    try:
        return process.wait(timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        end_group(process)
        return None
    except KeyboardInterrupt:
        end_group(process)
        raise


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Interrupt first, so that fixtures can remove their containers; then kill. One that has ended is left alone."""
    if process.poll() is not None:
        return
    for number, grace_s in ((signal.SIGINT, 30), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)
            return


def run_stage(stage: Stage, extra: list[str]) -> Result:
    """Runs all commands of a stage, also past one that fails."""
    started = time.monotonic()
    print(f"\n== {stage.name} (limit {stage.limit_s} s)", flush=True)
    if stage.tests:
        return run_pytest(stage, extra, started)
    failed = []
    for command in stage.commands:
        argv = [str(BIN / command[0]), *command[1:]]
        status = run_limited(argv, seconds=started + stage.limit_s - time.monotonic())
        if status is None:
            return Result(
                stage, False, time.monotonic() - started, note=f"over its limit of {stage.limit_s} s in {command[0]}"
            )
        if status:
            failed.append(" ".join(command[:2]))
    return Result(stage, not failed, time.monotonic() - started, note=", ".join(failed))


def run_pytest(stage: Stage, extra: list[str], started: float) -> Result:
    """Runs pytest over a stage's directories; the counts come from its JUnit files, never from its words."""
    directories = [name for name in stage.tests if (ROOT / name).is_dir()]
    if not directories:
        return Result(stage, True, 0.0, note="no tests yet")
    # Arguments of a developer's own mean one pytest: what they name may be in either half.
    beside = [name for name in stage.beside if (ROOT / name).exists()] if not extra else []
    first = [*(name for name in directories if name not in beside), *(f"--ignore={name}" for name in beside)]
    with tempfile.TemporaryDirectory(prefix="agent-container-test-") as scratch:
        lanes = [
            Lane(argv=_pytest_argv(stage, words, Path(scratch) / f"{number}.xml") + extra, junit=f"{number}.xml")
            for number, words in enumerate([first, beside] if beside else [first])
        ]
        statuses = run_lanes(lanes, Path(scratch), until=started + stage.limit_s)
        counts = [read_junit(Path(scratch) / lane.junit) for lane in lanes]
    passed, failed, skipped = (sum(column) for column in zip(*counts, strict=True))
    seconds = time.monotonic() - started
    if None in statuses:
        return Result(stage, False, seconds, passed, failed + 1, f"over its limit of {stage.limit_s} s")
    note = f"{skipped} skipped: a test that cannot run here is a failure" if skipped else ""
    if any(sum(row) == 0 for row in counts):
        note = "no test was executed"
    return Result(stage, not any(statuses) and not note, seconds, passed, failed, note)


def _pytest_argv(stage: Stage, words: list[str], junit: Path) -> list[str]:
    argv = [str(PYTHON), "-m", "pytest", *words, f"--junitxml={junit}", "--durations=5"]
    return [*argv, "-m", stage.marker] if stage.marker else argv


def run_lanes(lanes: list[Lane], scratch: Path, *, until: float) -> list[int | None]:
    """Runs the first here and the others beside it; their words follow at the end, since mixed nobody reads them."""
    texts = [scratch / f"{lane.junit}.txt" for lane in lanes[1:]]
    others: list[subprocess.Popen[bytes]] = []
    try:
        for lane, text in zip(lanes[1:], texts, strict=True):
            with text.open("wb") as sink:
                others.append(start(lane.argv, output=sink))
        statuses = [run_limited(lanes[0].argv, seconds=until - time.monotonic())]
        for process in others:
            statuses.append(wait_limited(process, seconds=until - time.monotonic()))
    finally:
        for process in others:
            end_group(process)  # nothing, where it has ended
        for text in texts:
            print(text.read_text(errors="replace") if text.exists() else "", end="", flush=True)
    return statuses


def read_junit(path: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests; zeros where pytest did not live to write the file."""
    if not path.is_file():
        return 0, 0, 0
    total = bad = skipped = 0
    for suite in ET.parse(path).getroot().iter("testsuite"):
        total += int(suite.get("tests", 0))
        bad += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return max(total - bad - skipped, 0), bad, skipped


def main(argv: list[str]) -> int:
    """Stage names, then what follows `--` for pytest."""
    cut = argv.index("--") if "--" in argv else len(argv)
    wanted, extra = argv[:cut], argv[cut + 1 :]
    names: list[str] = []
    for word in wanted or list(DEFAULT):
        if word not in STAGES and word not in ALIASES:
            print(f"error: no stage {word!r}; there are: {' '.join([*STAGES, *ALIASES])}", file=sys.stderr)
            return 2
        names += [name for name in ALIASES.get(word, (word,)) if name not in names]
    results = [run_stage(STAGES[name], extra) for name in names]
    print()
    for result in results:
        words = "ok" if result.ok else "FAILED"
        print(
            f"{result.stage.name:<18} {words:<7} {result.seconds:7.1f} s" + (f"  {result.note}" if result.note else "")
        )
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    if any(STAGES[name].tests for name in names):
        if passed + failed == 0:
            print("no test was executed")
        print(f"{passed} passed, {failed} failed", flush=True)
        return 0 if all(r.ok for r in results) and passed and not failed else 1
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
