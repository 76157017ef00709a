"""A credential's change in ten live environments: from the command to the last sidecar's word that it holds."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.bench.conftest import HANG_S, Bench, measure

MANY = 10
AT_A_TIME = 2
PAIRS = 5
SPEC = 'version: 1\nagent: {command: ["true"]}\nworkspace: {mode: clone}\ncredentials: [key]\n'


def _secretly(bench: Bench, *words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "agent_container.cli", "--no-input", "--json", *words],
        cwd=bench.project,
        env=bench.environ,
        input=b"sk-bench-" + os.urandom(16).hex().encode(),
        capture_output=True,
        timeout=HANG_S,
        check=True,
    )
    result: dict[str, object] = json.loads(done.stdout)["result"]
    return result


def test_a_rotation_in_ten_live_environments(bench: Bench, say: Callable[[str], None]) -> None:
    _secretly(bench, "credential", "set", "key", "--host", "api.test", "--path", "/x", "--env", "KEY")
    _secretly(bench, "credential", "set", "alone", "--host", "api.test", "--path", "/x")
    projects = []
    for number in range(MANY):
        path = bench.project.parent / f"rotated-{number}"
        path.mkdir()
        (path / "agent-container.yaml").write_text(SPEC)
        project = dataclasses.replace(bench, project=path)
        refused = project.agc("--json", "build", check=False)
        project.agc("build", "--accept", json.loads(refused.stdout)["error"]["digest"])
        projects.append(project)
    try:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda project: project.agc("up"), projects))

        def everywhere() -> None:
            done = _secretly(bench, "credential", "rotate", "key")
            assert len(done["sandboxes"]) == MANY and done["failed"] == []  # type: ignore[arg-type]

        pairs = measure(everywhere, lambda: _secretly(bench, "credential", "rotate", "alone"), pairs=PAIRS)
        say(pairs.line(f"a rotation in {MANY} live environments", floor="one that nobody holds", aim="2 s"))
    finally:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda project: project.agc("down", "-v", "--force", check=False), projects))
