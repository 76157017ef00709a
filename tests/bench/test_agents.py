"""How long an agent takes to say its first word in a run, against the same program started bare in the same image."""

from __future__ import annotations

import secrets
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_container.agents import PROFILES, Work
from agent_container.commands.context import Context
from agent_container.commands.run import RunRequest, run_task
from tests.support.world import World, docker

PAIRS = 5
TASK = "SAY: nothing to do.\n"
KINDS = {"claude": ("anthropic", "ANTHROPIC_API_KEY"), "codex": ("openai", "OPENAI_API_KEY")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    try:
        made.open()
        yield made
    finally:
        made.close()


def _bare(container: str, argv: tuple[str, ...], variable: str) -> float:
    """Seconds until its first line."""
    began = time.perf_counter()
    command = ["docker", "exec", "-i", "-e", f"{variable}=placeholder-for-a-bench", container, *argv]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(TASK.encode())
        process.stdin.close()
        assert process.stdout.readline()
        took = time.perf_counter() - began
        process.kill()
    return took


def _in_a_run(world: World, project: Path) -> float:
    """Seconds from the start of its turn to its first event."""
    marks: dict[str, float] = {}
    context = Context(
        directory=project,
        environ=world.environment,
        report=lambda text: marks.setdefault(text, time.perf_counter()),  # type: ignore[arg-type,return-value]
    )
    done = run_task(
        context, RunRequest(task=TASK), on_event=lambda event: marks.setdefault("first", time.perf_counter()) and None
    )
    assert done.record.host.outcome == "succeeded", done.record.host.reason
    return marks["first"] - marks["Started the agent"]


@pytest.mark.parametrize("name", KINDS)
def test_the_start_of_an_agent(world: World, name: str, say: Callable[[str], None]) -> None:
    kind, variable = KINDS[name]
    key = f"sk-real-{secrets.token_urlsafe(32)}"
    world.agc("credential", "set", kind, cwd=world.path / "home", stdin=key.encode() + b"\n")
    project = world.project(f"bench-{name}", f"version: 1\nagent: {name}\n")
    image = dict(world.agc("--json", "plan", "--clone", cwd=project).result["fields"])["agent image"]
    argv = PROFILES[name].headless(Work(task=TASK)).argv
    container = f"{world.network}-{name}"
    docker("run", "-d", "--rm", "--name", container, "--network", "none", "--entrypoint", "/bin/sleep", image, "600")
    try:
        pairs = [(_in_a_run(world, project), _bare(container, argv, variable)) for _ in range(PAIRS + 1)][1:]
    finally:
        docker("rm", "-f", container, check=False)
    ratio = statistics.median(ours / floor for ours, floor in pairs)
    ours, floor = (statistics.median(column) for column in zip(*pairs, strict=True))
    say(f"{name}: first word after {ours:.2f} s in a run, {floor:.2f} s bare: {ratio:.2f} x ({PAIRS} pairs)")
