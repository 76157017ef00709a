"""The wheel works as the checkout does: same data files, same programs, no way back to the sources. Needs no Docker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ("templates", "image", "sidecar")

SPEC = """\
version: 1
agent: demo
workspace:
  mode: clone
egress:
  allow: [api.example]
"""


def run(argv: list[str], *, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        cwd=out,
        env=dict(os.environ),
    )
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and this one's packages behind it; returns its bin directory."""
    top = tmp_path_factory.mktemp("installed")
    run([sys.executable, "-m", "venv", "--without-pip", str(top / "venv")], cwd=top, env=dict(os.environ))
    python = top / "venv" / "bin" / "python"
    run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)],
        cwd=top,
        env=dict(os.environ),
    )
    # A .pth inside an added directory is not read, so the editable checkout stays out of reach.
    purelib = next((top / "venv" / "lib").glob("python*/site-packages"))
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A user without anything: no checkout on the path, a home of its own."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "LC_ALL"}}
    return {**kept, "HOME": str(tmp_path)}


def tracked(directory: str) -> set[str]:
    listing = subprocess.run(["git", "ls-files", "-z", directory], cwd=ROOT, capture_output=True, check=True).stdout
    return {name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()}


def test_it_holds_every_file_of_templates_image_and_sidecar_unchanged(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for directory in DATA:
            files = tracked(directory)
            assert files
            for name in files:
                packed = f"agent_container/_data/{name}"
                assert packed in names
                assert archive.read(packed) == (ROOT / name).read_bytes()
        assert "agent_egress/__init__.py" in names
        assert not [name for name in names if "__pycache__" in name or name.startswith(("tests/", "bin/"))]


def test_it_says_its_version_outside_the_checkout(installed: Path, tmp_path: Path, env: dict[str, str]) -> None:
    for program in ("agent-container", "agc"):
        done = run([str(installed / program), "version", "--json"], cwd=tmp_path, env=env)
        assert json.loads(done.stdout)["result"]["version"]


def test_nothing_is_loaded_from_the_checkout(installed: Path, tmp_path: Path, env: dict[str, str]) -> None:
    code = (
        "import agent_container, agent_egress, agent_container.resources as r\n"
        "print(agent_container.__file__, agent_egress.__file__, r.data_dir(), sep='\\n')"
    )
    done = run([str(installed / "python"), "-c", code], cwd=tmp_path, env=env)
    places = done.stdout.splitlines()
    assert len(places) == 3
    for place in places:
        assert Path(place).is_relative_to(installed.parent)
    assert {path.name for path in Path(places[2]).iterdir()} == set(DATA)


def test_it_renders_what_the_checkout_renders(installed: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """Image tags are hashes of the data files: the same output means that both would use the same images."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "agent-container.yaml").write_text(SPEC)
    programs = (installed / "agent-container", Path(sys.executable).parent / "agent-container")
    # The host's own addresses are part of what is rendered: a Docker network that comes or goes between the two is no
    # difference of the programs.
    for _ in range(5):
        outputs = [
            re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "SESSION", run([str(program), "render"], cwd=project, env=env).stdout)
            for program in programs
        ]
        if outputs[0] == outputs[1]:
            break
    assert outputs[0] == outputs[1]
    assert "api.example" in outputs[0]
