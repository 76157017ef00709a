"""The real coding agents, headless and by hand, each with its key, against doubles of their model services."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.screen import at_screen
from tests.support.search import EVERY_FILE, Search
from tests.support.world import Done, World, docker

SAY = "Done as you said."
TASK = f"""Please do this.
RUN: printf 'second line\\n' >> README && printf new > made.txt
RUN: git add -A && git commit -qm 'the agent was here' && git log --oneline | head -1
SAY: {SAY}
"""
IDLE = "idle: 4m"
LIMITS = f"limits: {{time: 5m, {IDLE}}}\n"


@dataclass(frozen=True)
class Agent:
    """One agent, its service and its key."""

    name: str
    kind: str
    host: str
    header: str
    prefix: str
    says_401: str
    """What it makes of a key that its service does not know."""
    model: str = ""
    costs: bool = False

    @property
    def spec(self) -> str:
        model = f"model: {self.model}\n" if self.model else ""
        return f"version: 1\nagent: {self.name}\n{model}{LIMITS}"


AGENTS = {
    "claude": Agent("claude", "anthropic", "api.anthropic.com", "x-api-key", "", "Invalid API key", costs=True),
    "codex": Agent("codex", "openai", "api.openai.com", "Authorization", "Bearer ", "401"),
    "gemini": Agent(
        "gemini", "google", "generativelanguage.googleapis.com", "x-goog-api-key", "", "401", "gemini-2.5-pro"
    ),
    "opencode": Agent(
        "opencode",
        "anthropic",
        "api.anthropic.com",
        "x-api-key",
        "",
        "invalid x-api-key",
        "anthropic/claude-sonnet-4-5",
        costs=True,
    ),
    "pi": Agent(
        "pi", "anthropic", "api.anthropic.com", "x-api-key", "", "401", "anthropic/claude-sonnet-4-5", costs=True
    ),
}


@pytest.fixture(scope="module")
def keys(world: World) -> dict[str, str]:
    """The real keys by kind, sealed."""
    made = {agent.kind: f"sk-real-{secrets.token_urlsafe(32)}" for agent in AGENTS.values()}
    for kind, key in made.items():
        world.agc("credential", "set", kind, cwd=world.path / "home", stdin=key.encode() + b"\n")
    return made


@pytest.fixture(scope="module", params=AGENTS.values(), ids=AGENTS)
def agent(request: pytest.FixtureRequest) -> Agent:
    found = request.param
    assert isinstance(found, Agent)
    return found


@pytest.fixture(scope="module")
def project(world: World, keys: dict[str, str], agent: Agent) -> Path:
    assert keys
    return world.project(f"with-{agent.name}", agent.spec)


@pytest.fixture(scope="module")
def first(world: World, project: Path, agent: Agent) -> Iterator[Done]:
    """A run that went well."""
    world.ask("clear")
    yield world.agc("--json", "run", TASK, cwd=project)


def model_requests(world: World, agent: Agent) -> list[Any]:
    return [one for one in world.requests(agent.host) if one["method"] == "POST" and "count_tokens" not in one["path"]]


def test_a_run_edits_commits_and_says_what_it_did(first: Done, world: World, project: Path, agent: Agent) -> None:
    host, said = first.host, first.result["agent"]
    assert (host["outcome"], host["basis"]) == ("succeeded", "agent"), first.result
    assert (host["workspace"]["commits"], host["workspace"]["files_changed"]) == (1, 2)
    assert said["final_message"] == SAY and said["session"]
    assert sum(row["calls"] for row in said["tool_calls"]) == 2
    assert said["tokens"]["input"] > 0 and said["tokens"]["output"] > 0
    assert (said["cost_usd"] is not None and said["cost_usd"] > 0) is agent.costs
    assert world.agc("runs", "apply", cwd=project).code == 0
    branch = f"agent/{host['run']}"
    assert world.git(project, "show", f"{branch}:README") == "hello\nsecond line"
    assert world.git(project, "log", "-1", "--format=%s", branch) == "the agent was here"


def test_the_service_saw_the_real_key_and_never_the_placeholder(
    first: Done, world: World, agent: Agent, keys: dict[str, str]
) -> None:
    assert first.host
    asked = model_requests(world, agent)
    assert asked
    for one in asked:
        given = {name.lower(): value for name, value in one["headers"]}
        assert given[agent.header.lower()] == agent.prefix + keys[agent.kind]
    others = [one for one in world.ask("log")["requests"] if one not in asked]
    assert not [one for one in others if keys[agent.kind] in json.dumps(one)]


def test_its_egress_is_verified(first: Done, world: World, project: Path) -> None:
    assert first.host["egress"]["verified"] == "verified"
    world.agc("verify-egress", first.host["run"], cwd=project)


def test_a_run_is_resumed(first: Done, world: World, project: Path, agent: Agent) -> None:
    more = "RUN: cat made.txt && printf more >> made.txt\nSAY: Went on.\n"
    done = world.agc("--json", "run", "--resume", first.host["run"], more, cwd=project)
    host, said = done.host, done.result["agent"]
    assert (host["outcome"], said["final_message"]) == ("succeeded", "Went on."), done.result
    assert host["previous_run"] == first.host["run"] and host["workspace"]["commits"] == 1
    assert said["session"] == first.result["agent"]["session"] or agent.name == "claude"
    assert 0 < said["tokens"]["input"] < 3 * first.result["agent"]["tokens"]["input"] / 2, "its own tokens alone"
    patch = (world.place(host["run"]) / "workspace.patch").read_text()
    assert "second line" in patch and "+newmore" in patch, "the work of both is in it"


def test_a_service_that_refuses_twice_and_then_answers_ends_nothing(
    world: World, keys: dict[str, str], project: Path, agent: Agent
) -> None:
    assert keys
    done = world.agc("--json", "run", "RUN: echo one\nDOUBLE: 429 x2\nSAY: Got over it.\n", cwd=project)
    assert (done.host["outcome"], done.result["agent"]["final_message"]) == ("succeeded", "Got over it."), done.result


def test_what_is_no_name_of_a_session_is_not_given_to_it(first: Done, world: World, project: Path) -> None:
    path = world.place(first.host["run"]) / "record.json"
    published = path.read_text()
    session = first.result["agent"]["session"]
    assert session in published
    try:
        path.write_text(published.replace(session, "--help"))
        done = world.agc("run", "--resume", first.host["run"], "Go on.", cwd=project, code=2)
    finally:
        path.write_text(published)
    assert "called its session '--help' there" in done.err.decode(), done.err


FAILURES = {
    "answers 401": ("DOUBLE: 401", "failed", "{says_401}"),
    "answers 500": ("DOUBLE: 500", "failed", "500|Internal|overloaded|error"),
    "never answers": ("DOUBLE: hang", "timeout", "{host}"),
    "is refused by policy": ("", "failed", "{host} was refused"),
    "is stopped by its user": ("RUN: touch started && sleep 600", "interrupted", "stopped by its user"),
}
STATUS = {"failed": 10, "timeout": 11, "interrupted": 130}


@pytest.fixture(scope="module")
def failed(world: World, keys: dict[str, str], agent: Agent) -> dict[str, Done]:
    """Five runs that go wrong, all at the same time."""
    assert keys
    plain = world.project(f"failing-{agent.name}", agent.spec)
    hasty = world.project(f"hasty-{agent.name}", agent.spec.replace(IDLE, "idle: 30s"))
    denied = world.project(f"refused-{agent.name}", agent.spec + f"egress: {{deny: [{agent.host}]}}\n")

    def run(case: str) -> Done:
        directive, outcome, _ = FAILURES[case]
        if outcome == "interrupted":
            return stopped(world, plain, directive, key=keys[agent.kind])
        project = hasty if outcome == "timeout" else plain if directive else denied
        return world.agc("--json", "run", f"Try.\n{directive}\n", cwd=project, code=None)

    with ThreadPoolExecutor(len(FAILURES)) as pool:
        return dict(zip(FAILURES, pool.map(run, FAILURES), strict=True))


def stopped(world: World, project: Path, directive: str, *, key: str) -> Done:
    """A run that its user stops once its agent works, and after everything in its sandbox was searched for the key."""
    with world.start("--json", "run", f"{directive}\n", cwd=project, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = process.stdout.readline()
        rows = world.agc("--json", "runs", cwd=project).result
        (run,) = [row["run"] for row in rows if row["task"].strip() == directive]
        until = time.monotonic() + 120
        # Not every agent says what it is about to do.
        while docker("exec", world.container("agent", run), "test", "-e", "/workspace/started", check=False).returncode:
            assert time.monotonic() < until, "its tool was never called"
            time.sleep(0.2)
        argv = ["docker", "exec", world.container("agent", run), "/bin/sh", "-c", EVERY_FILE]
        assert Search(key.encode()).output(argv, "the sandbox") > 100_000
        world.agc("runs", "stop", run, cwd=project)
        seen += process.stdout.read()
    return Done((), process.returncode, seen, b"")


@pytest.mark.parametrize("case", FAILURES)
def test_a_run_that_goes_wrong_says_how(failed: dict[str, Done], agent: Agent, case: str) -> None:
    _, outcome, words = FAILURES[case]
    done = failed[case]
    assert done.host["outcome"] == outcome, (done.host["reason"], done.host["notes"], done.result["agent"])
    expected = words.format(host=re.escape(agent.host), says_401=agent.says_401)
    assert re.search(expected, done.host["reason"]), done.host["reason"]
    assert done.code == STATUS[outcome]
    assert done.host["basis"] == ("agent" if outcome == "failed" else "host")
    assert done.host["egress"]["verified"] == "verified"
    if outcome == "interrupted":
        assert done.host["workspace"]["files_changed"] == 1, "what it had done is kept"


def test_the_key_is_nowhere_but_in_its_seal(
    first: Done, failed: dict[str, Done], world: World, keys: dict[str, str], agent: Agent
) -> None:
    search = Search(keys[agent.kind].encode())
    for done in (first, *failed.values()):
        search.bytes(done.out + done.err, "what the tool printed")
    assert any((world.place(first.host["run"]) / "home").rglob("*")), "its transcript is part of the record"
    assert search.tree(world.data) > 20
    search.tree(world.state)


MANY = "".join(f"RUN: echo {number}\n" for number in range(8))
BUDGETS = {
    "requests, counted by the sidecar": ("model_requests: 3", "limits.model_requests"),
    "bytes, counted by the sidecar": ("model_bytes: 40k", "limits.model_bytes"),
    "turns, by its own count": ("turns: 3", "limits.turns|limit that it was given"),
}


@pytest.mark.parametrize("case", BUDGETS)
def test_a_budget_ends_the_run(world: World, keys: dict[str, str], agent: Agent, case: str) -> None:
    assert keys
    limit, words = BUDGETS[case]
    spec = agent.spec.replace(IDLE, f"{IDLE}, {limit}")
    project = world.project(f"budget-{agent.name}-{limit[:8].strip(':')}-{case[:5].strip(',')}", spec)
    done = world.agc("--json", "run", MANY, cwd=project, code=12)
    assert done.host["outcome"] == "budget" and re.search(words, done.host["reason"]), done.host["reason"]
    calls = sum(row["calls"] for row in done.result["agent"]["tool_calls"])
    assert 0 < calls < 8, done.result["agent"]
    assert done.host["egress"]["verified"] == "verified"


EIGHT = tuple(f"{name}-{number}" for number in range(4) for name in ("claude", "codex"))


def test_eight_runs_of_two_agents_side_by_side_on_one_repository(world: World, keys: dict[str, str]) -> None:
    assert keys
    project = world.project("crowded", None, accept=False)
    for name in ("claude", "codex"):
        world.agc("build", "--agent", name, cwd=project)

    def run(mark: str) -> Done:
        task = f"RUN: echo {mark} > {mark}.txt && git add -A && git commit -qm {mark}\nSAY: {mark} is done.\n"
        return world.agc("--json", "run", "--agent", mark.partition("-")[0], task, cwd=project, code=None)

    with ThreadPoolExecutor(len(EIGHT)) as pool:
        done = dict(zip(EIGHT, pool.map(run, EIGHT), strict=True))
    for mark, one in done.items():
        assert one.host["outcome"] == "succeeded", (mark, one.host["reason"])
        assert one.result["agent"]["final_message"] == f"{mark} is done."
        assert one.host["versions"]["agent"] == mark.partition("-")[0]
        assert one.host["egress"]["verified"] == "verified"
        world.agc("runs", "apply", one.host["run"], cwd=project)
        branch = f"agent/{one.host['run']}"
        assert world.git(project, "diff", "--name-only", "main", branch) == f"{mark}.txt"
        assert world.git(project, "show", f"{branch}:{mark}.txt") == mark
    for apart in ("session", "run"):
        assert len({one.host[apart] for one in done.values()}) == len(EIGHT)
    assert len({one.host["egress"]["chain_head"] for one in done.values()}) == len(EIGHT)
    assert len({one.result["agent"]["session"] for one in done.values()}) == len(EIGHT)
    assert [world.objects(one.host["session"]) for one in done.values()] == [[]] * len(EIGHT)


def test_a_key_that_the_shell_holds_is_offered_once(world: World, keys: dict[str, str]) -> None:
    key = f"sk-shell-{secrets.token_urlsafe(32)}"
    project = world.project("keyless", None, accept=False)
    fresh = {"XDG_DATA_HOME": str(world.path / "keyless-data"), "XDG_CONFIG_HOME": str(world.path / "keyless-config")}
    build = ("build", "--agent", "claude")
    missing = world.agc("--json", *build, cwd=project, code=2, env=fresh)
    assert missing.error["hint"] == "agent-container credential set anthropic"
    shell = {**fresh, "ANTHROPIC_API_KEY": key}
    refused = world.agc("--json", "--no-input", *build, cwd=project, code=2, env=shell)
    assert refused.error["hint"] == "agent-container credential set anthropic --from-env ANTHROPIC_API_KEY"
    for answer, code in (("n", 2), ("y", 0)):
        with at_screen(world, *build, cwd=project, env=shell) as screen:
            screen.until("Use ANTHROPIC_API_KEY of this shell")
            screen.type(f"{answer}\r")
            assert screen.ended() == code, screen.text
            assert key not in screen.text
    world.agc(*build, cwd=project, env=fresh)
    assert Search(key.encode()).tree(world.path / "keyless-data") > 0
    assert key not in keys.values()
