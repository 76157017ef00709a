"""Forty environments at once: what one more costs to bring up, and what all of them cost while nobody works in them."""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.conftest import HANG_S, Bench

MANY = 40
AT_A_TIME = 2
IDLE_S = 20.0


def _used_cpu_s() -> float:
    """Processor seconds of the whole machine, idle and waiting left out."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / 100


def _used_memory_bytes() -> int:
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(rows["MemTotal"].split()[0]) - int(rows["MemAvailable"].split()[0])) * 1024


def _projects(bench: Bench) -> list[Bench]:
    found = []
    for number in range(MANY):
        path = bench.project.parent / f"many-{number}"
        path.mkdir()
        (path / "agent-container.yaml").write_text((bench.project / "agent-container.yaml").read_text())
        found.append(dataclasses.replace(bench, project=path))
    return found


def test_forty_environments_at_once(bench: Bench, say: Callable[[str], None]) -> None:
    projects = _projects(bench)
    for project in projects:
        digest = next(
            word
            for line in project.agc("plan", check=False).stdout.splitlines()
            if line.startswith("digest ")
            for word in line.split()[1:]
        )
        project.agc("build", "--accept", digest)

    def up(project: Bench) -> float:
        began = time.perf_counter()
        project.agc("up")
        return time.perf_counter() - began

    memory = _used_memory_bytes()
    alone = up(projects[0])
    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            took = list(pool.map(up, projects[1:]))
        total = time.perf_counter() - began
        states = [project.agc("status").stdout for project in projects]
        assert all("running" in state for state in states), states
        used, began = _used_cpu_s(), time.perf_counter()
        time.sleep(IDLE_S)
        idle = (_used_cpu_s() - used) / (time.perf_counter() - began)
        each = (_used_memory_bytes() - memory) / MANY / 2**20
        first, last = statistics.median(took[:5]), statistics.median(took[-5:])
        say(f"{MANY} environments, {AT_A_TIME} at a time: {total:.0f} s; alone one took {alone:.1f} s")
        say(f"  the last five against the first five: {last / first:.2f} x")
        say(f"  while idle: {idle / MANY:.3f} processors and {each:.0f} MiB each")
    finally:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda project: project.agc("down", "-v", "--force", check=False), projects))
    left = subprocess.run(
        ["docker", "ps", "-aq", "--filter", "name=^/ac-many-"], capture_output=True, check=True, timeout=HANG_S
    )
    assert left.stdout == b""
