"""bin/lib/stages.py: the counts, the limit and the closing line that CI reads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def stages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stages", ROOT / "bin" / "lib" / "stages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["stages"] = module
    spec.loader.exec_module(module)
    return module


def junit(path: Path, *, tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> Path:
    path.write_text(
        f'<testsuites><testsuite tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"/>'
        "</testsuites>"
    )
    return path


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"tests": 5}, (5, 0, 0)),
        ({"tests": 5, "failures": 1, "errors": 1}, (3, 2, 0)),
        ({"tests": 5, "skipped": 5}, (0, 0, 5)),
        ({"tests": 0}, (0, 0, 0)),
    ],
)
def test_counts_come_from_the_junit_file(
    stages: ModuleType, tmp_path: Path, counts: dict[str, int], expected: tuple[int, ...]
) -> None:
    assert stages.read_junit(junit(tmp_path / "j.xml", **counts)) == expected


def test_a_missing_junit_file_counts_nothing(stages: ModuleType, tmp_path: Path) -> None:
    assert stages.read_junit(tmp_path / "none.xml") == (0, 0, 0)


def fake_stage(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, body: str, tmp_path: Path, *, limit_s: int = 60
) -> None:
    """One stage `only`, whose pytest runs over a directory with one file of `body`."""
    directory = tmp_path / "suite"
    directory.mkdir()
    (directory / "test_it.py").write_text(body)
    monkeypatch.setattr(stages, "PYTHON", Path(sys.executable))
    # Only what pyproject.toml names: the other plugins would be most of such a small pytest's time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    monkeypatch.setitem(stages.STAGES, "only", stages.Stage("only", limit_s, tests=(str(directory),)))


@pytest.mark.parametrize(
    ("body", "status", "last_line"),
    [
        ("def test_a(): pass\n", 0, "1 passed, 0 failed"),
        ("def test_a(): pass\ndef test_b(): raise ValueError\n", 1, "1 passed, 1 failed"),
        ("", 1, "0 passed, 0 failed"),
        (
            "def test_a(): __import__('pytest').importorskip('absent_module')\ndef test_b(): pass\n",
            1,
            "1 passed, 0 failed",
        ),
        ("raise SystemExit(3)\n", 1, None),
    ],
    ids=["green", "one test fails", "no test is a failure", "a skipped test is a failure", "pytest itself dies"],
)
def test_exit_status_and_last_line(
    stages: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    body: str,
    status: int,
    last_line: str | None,
) -> None:
    fake_stage(stages, monkeypatch, body, tmp_path)
    assert stages.main(["only"]) == status
    if last_line is not None:
        assert capsys.readouterr().out.splitlines()[-1] == last_line


def test_a_stage_over_its_limit_is_named_and_ended(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_stage(stages, monkeypatch, "import time\ndef test_a(): time.sleep(600)\n", tmp_path, limit_s=2)
    assert stages.main(["only"]) == 1
    out = capsys.readouterr().out
    assert "over its limit of 2 s" in out
    assert "failed" in out.splitlines()[-1]


def fake_lanes(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, first: str, beside: str, limit_s: int = 60
) -> None:
    """One stage `only`, one of whose two files runs beside the other."""
    fake_stage(stages, monkeypatch, first, tmp_path)
    other = tmp_path / "suite" / "test_other.py"
    other.write_text(beside)
    stage = stages.Stage("only", limit_s, tests=(str(tmp_path / "suite"),), beside=(str(other),))
    monkeypatch.setitem(stages.STAGES, "only", stage)


MEETS = """
import pathlib, time
def test_meets():
    here = pathlib.Path(__file__)
    here.with_suffix(".began").touch()
    until = time.monotonic() + 60
    while len(list(here.parent.glob("*.began"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
"""
PASSES, FAILS = "def test_a(): pass\n", "def test_b(): raise ValueError('beside')\n"


@pytest.mark.parametrize(
    ("first", "beside", "status", "last_line"),
    [
        (MEETS, MEETS, 0, "2 passed, 0 failed"),
        (PASSES, FAILS, 1, "1 passed, 1 failed"),
        (FAILS, PASSES, 1, "1 passed, 1 failed"),
        (PASSES, "", 1, "1 passed, 0 failed"),
        (PASSES, "raise SystemExit(3)\n", 1, "1 passed, 1 failed"),
    ],
    ids=["both at the same time", "one beside fails", "one here fails", "none is beside", "pytest beside dies"],
)
def test_two_lanes_are_counted_as_one_stage(
    stages: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    first: str,
    beside: str,
    status: int,
    last_line: str,
) -> None:
    fake_lanes(stages, monkeypatch, tmp_path, first=first, beside=beside)
    assert stages.main(["only"]) == status
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == last_line
    assert ("ValueError" in out) == (FAILS in (first, beside))


def test_a_lane_over_the_limit_is_ended_with_the_other(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_lanes(
        stages,
        monkeypatch,
        tmp_path,
        first=PASSES,
        beside="import time\ndef test_a(): time.sleep(600)\n",
        limit_s=3,
    )
    assert stages.main(["only"]) == 1
    out = capsys.readouterr().out
    assert "over its limit of 3 s" in out
    assert out.splitlines()[-1] == "1 passed, 1 failed"


def test_arguments_of_ones_own_go_to_one_pytest(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_lanes(stages, monkeypatch, tmp_path, first=PASSES, beside=FAILS)
    assert stages.main(["only", "--", "-k", "test_b"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


def test_what_runs_beside_is_there(stages: ModuleType) -> None:
    named = [name for stage in stages.STAGES.values() for name in stage.beside]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_failing_stage_does_not_hide_the_next(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_stage(stages, monkeypatch, "def test_a(): pass\n", tmp_path)
    monkeypatch.setattr(stages, "BIN", Path("/bin"))
    monkeypatch.setitem(stages.STAGES, "broken", stages.Stage("broken", 10, (("false",), ("true",))))
    assert stages.main(["broken", "only"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"


def test_an_unknown_stage_is_a_usage_error(stages: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["unti"]) == 2
    assert "there are: lint" in capsys.readouterr().err
