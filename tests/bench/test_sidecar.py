"""What the sidecar itself costs: a decision's way through the helper, a cold start, memory while idle."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent_egress.policy import Policy, Rule
from tests.bench.conftest import measure
from tests.process.egress.harness import POLICY, end, make
from tests.process.egress.test_decider import line, put_credentials, start_decider
from tests.support.net import LABEL, PYTHON, Sidecar, World, docker, sidecar_image

ONE_BY_ONE, TOGETHER, DEEP = 3000, 20000, 64
# The floor: a helper that answers without asking anybody.
ECHO = "import os\nwhile data := os.read(0, 65536): os.write(1, b''.join(b'OK\\n' for _ in data.splitlines()))"


def _one_by_one(helper: subprocess.Popen[bytes], question: bytes) -> list[float]:
    """Seconds of each round trip."""
    assert helper.stdin is not None and helper.stdout is not None
    took = []
    for _ in range(ONE_BY_ONE):
        began = time.perf_counter()
        helper.stdin.write(question)
        assert helper.stdout.read(4096)
        took.append(time.perf_counter() - began)
    return took


def _together(helper: subprocess.Popen[bytes]) -> float:
    """Decisions a second with so many under way, each on a channel of its own."""
    assert helper.stdin is not None and helper.stdout is not None
    began, asked, answered = time.perf_counter(), 0, 0
    while answered < TOGETHER:
        batch = min(DEEP - (asked - answered), TOGETHER - asked)
        if batch > 0:
            helper.stdin.write(b"".join(line(channel=number) for number in range(asked, asked + batch)))
            asked += batch
        answered += helper.stdout.read(65536).count(b"\n")
    return TOGETHER / (time.perf_counter() - began)


def test_a_decision_through_the_helper(tmp_path: Path, say: Callable[[str], None]) -> None:
    many = [{"action": "allow", "pattern": f"*.h{n}.test", "origin": f"spec egress.allow[{n}]"} for n in range(500)]
    floor = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        bare = _one_by_one(floor, line(channel=1))
        for name, rules in (("7 rules", []), ("500 rules more", many)):
            root = tmp_path / name.replace(" ", "-")
            root.mkdir()
            sidecar = make(root)
            try:
                sidecar.put_policy({**POLICY, "rules": [*many_of(rules), *many_of(POLICY["rules"])]})
                sidecar.start_audit("--max-receipts", "1000000")
                start_decider(sidecar)
                put_credentials(sidecar)
                helper = sidecar.start("relay", "--socket", sidecar.path("policy.sock"), pipes=True)
                question = line(channel=1)
                took = _one_by_one(helper, question)
                rate = _together(helper)
            finally:
                end(sidecar)
            for part, place in (("p50", 0.5), ("p99", 0.99)):
                ours, theirs = (sorted(rows)[int(len(rows) * place)] for rows in (took, bare))
                say(f"a decision, {name}, {part}: {ours / theirs:.1f} x an echo ({ours * 1e6:.0f} us)")
            say(f"decisions with {DEEP} under way, {name}: {rate:.0f}/s, each with its receipt")
    finally:
        floor.kill()
        floor.communicate()


def many_of(rules: object) -> list[object]:
    assert isinstance(rules, list)
    return rules


def test_a_cold_start_and_memory_while_idle(say: Callable[[str], None]) -> None:
    policy = Policy(rules=(Rule("allow", "one.bench.test", origin="bench"),))
    ready: list[float] = []
    with World.up(zone={}, names=["one.bench.test"]) as world:

        def cold() -> None:
            with Sidecar.up(world, policy) as sidecar:
                began = time.perf_counter()
                sidecar.must_open()
                ready.append(time.perf_counter() - began)

        def bare() -> None:
            docker("run", "--rm", "--label", LABEL, "--network", world.network, "--entrypoint", PYTHON,
                   sidecar_image(), "-c", "")  # fmt: skip

        pairs = measure(cold, bare, pairs=5)
        say(pairs.line("a sidecar from nothing, and gone again", floor="an empty container"))
        say(f"of it, from the key to ready: {statistics.median(ready) * 1000:.0f} ms (aim 150)")
        with Sidecar.up(world, policy) as sidecar:
            sidecar.must_open()
            time.sleep(5)
            shown = docker("stats", "--no-stream", "--format", "{{json .}}", sidecar.name)
            say(f"idle memory: {json.loads(shown)['MemUsage']} (aim 70 MB)")
