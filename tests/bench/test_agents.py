"""How long an agent takes to say its first word in a run, against the same program started bare in the same image, with
the same settings in its HOME and its model's service reached directly."""

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
from agent_container.events import Event, RunStarted
from tests.support.world import World, docker

pytestmark = pytest.mark.timeout(3600)
PAIRS = 5
TASK = "SAY: nothing to do.\n"
KINDS = {
    "claude": ("anthropic", "ANTHROPIC_API_KEY", ""),
    "codex": ("openai", "OPENAI_API_KEY", ""),
    "gemini": ("google", "GEMINI_API_KEY", ""),
    "opencode": ("anthropic", "ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5"),
    "pi": ("anthropic", "ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    try:
        made.open()
        yield made
    finally:
        made.close()


def _bare(container: str, argv: tuple[str, ...], environment: dict[str, str]) -> float:
    """Seconds until its first line."""
    variables = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    command = ["docker", "exec", "-i", *variables, container, *argv]
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(TASK.encode())
        process.stdin.close()
        assert process.stdout.readline()
        took = time.perf_counter() - began
        process.kill()
    return took


def _in_a_run(world: World, project: Path) -> float:
    """Seconds from the start of its turn to the first event that is its own."""
    marks: dict[str, float] = {}

    def take(event: Event) -> None:
        if not isinstance(event, RunStarted):
            marks.setdefault("first", time.perf_counter())

    context = Context(
        directory=project,
        environ=world.environment,
        report=lambda text: marks.setdefault(text, time.perf_counter()),  # type: ignore[arg-type]
    )
    done = run_task(context, RunRequest(task=TASK), on_event=take)
    assert done.record.host.outcome == "succeeded", done.record.host.reason
    return marks["first"] - marks["Started the agent"]


@pytest.mark.parametrize("name", KINDS)
def test_the_start_of_an_agent(world: World, name: str, say: Callable[[str], None]) -> None:
    kind, variable, model = KINDS[name]
    profile = PROFILES[name]
    key = f"sk-real-{secrets.token_urlsafe(32)}"
    world.agc("credential", "set", kind, cwd=world.path / "home", stdin=key.encode() + b"\n")
    spec = f"version: 1\nagent: {name}\n" + (f"model: {model}\n" if model else "")
    project = world.project(f"bench-{name}", spec)
    image = dict(world.agc("--json", "plan", "--clone", cwd=project).result["fields"])["agent image"]
    argv = profile.headless(Work(task=TASK, model=model or None)).argv
    ca = "/ca.pem"
    trust = dict.fromkeys(("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"), ca)
    environment = {**dict(profile.environment), **trust, variable: "placeholder-for-a-bench"}
    container = f"{world.network}-{name}"
    docker(
        "run", "-d", "--rm", "--name", container, "--network", world.network, "--dns", world.address,
        "-v", f"{world.path / 'upstream.pem'}:{ca}:ro", "--entrypoint", "/bin/sleep", image, "3600",
    )  # fmt: skip
    try:
        for file in profile.home({kind: environment[variable]}):
            put = 'mkdir -p "$HOME/$(dirname "$0")" && printf %s "$1" > "$HOME/$0"'
            docker("exec", container, "/bin/sh", "-c", put, file.path, file.text)
        pairs = [(_in_a_run(world, project), _bare(container, argv, environment)) for _ in range(PAIRS + 1)][1:]
    finally:
        docker("rm", "-f", container, check=False)
    ratio = statistics.median(ours / floor for ours, floor in pairs)
    ours, floor = (statistics.median(column) for column in zip(*pairs, strict=True))
    say(f"{name}: first word after {ours:.2f} s in a run, {floor:.2f} s bare: {ratio:.2f} x ({PAIRS} pairs)")
