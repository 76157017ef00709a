"""`run` and the records that it leaves: every outcome, every way to give a task, approval, and the work's way home."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.world import DEMO, Done, World

OWN = "version: 1\nagent: {command: %s}\n"
CAT = OWN % "[/bin/cat]"
ODD = "--help $(touch /tmp/ace-pwned)`id`; \"q\" 'q' \\ !! {} %s $HOME \U0001f600 {task}\n\tsecond\r\nline"


def said(done: Done) -> str:
    """What the agent printed, from the stream of events."""
    events = [line["event"] for line in done.lines if "event" in line]
    return "".join(event.get("text", "") + "\n" for event in events if event["type"] == "agent.output")


def nothing_left(world: World, run: str) -> bool:
    return world.objects(run) == []


# --- giving a task ---


@pytest.fixture(scope="module")
def cat(world: World) -> Path:
    """A project whose agent prints the task that comes on its stdin."""
    return world.project("cat", CAT)


REFUSED_TASKS = {
    "nothing": ((), b"", "give one task"),
    "two tasks": (("one", "-F", "task"), b"", "give one task"),
    "an empty argument": (("",), b"", "empty"),
    "blanks": (("  \n",), b"", "empty"),
    "an argument that is not UTF-8": ((os.fsdecode(b"a\xff"),), b"", "not UTF-8: byte 2 is 0xff"),
    "an empty file": (("-F", "empty"), b"", "empty"),
    "a file that is not UTF-8": (("-F", "latin"), b"", "latin is not UTF-8: byte 4 is 0xe9"),
    "a file with a NUL": (("-F", "nul"), b"", "NUL"),
    "no such file": (("-F", "missing"), b"", "missing"),
    "empty stdin": (("-",), b"", "stdin is empty"),
    "stdin that is not UTF-8": (("-",), b"\xfe", "stdin is not UTF-8"),
    "a verb of `runs`": (("ls",), b"", "agent-container runs ls"),
    "an option of nobody": (("--frobnicate",), b"", "frobnicate"),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", REFUSED_TASKS)
def test_what_is_no_task_is_refused_by_name_and_starts_nothing(name: str, world: World, cat: Path) -> None:
    for file, content in {"empty": b"", "latin": b"caf\xe9", "nul": b"a\0b"}.items():
        (cat / file).write_bytes(content)
    arguments, stdin, expected = REFUSED_TASKS[name]
    before = world.sessions()
    done = world.agc("run", *arguments, cwd=cat, stdin=stdin, code=2)
    assert expected in done.text
    assert "Traceback" not in done.text
    assert world.sessions() == before


@pytest.mark.parametrize("how", ["an argument", "a file", "stdin"])
def test_a_task_reaches_the_agent_as_it_was_written(how: str, world: World, cat: Path) -> None:
    (cat / "task").write_bytes(ODD.encode())
    arguments = {"an argument": ("--", ODD), "a file": ("-F", "task"), "stdin": ("-",)}[how]
    done = world.agc("--json", "run", *arguments, cwd=cat, stdin=ODD.encode() if how == "stdin" else b"")
    assert said(done).rstrip("\n") == ODD
    assert done.host["task"] == ODD
    assert not Path("/tmp/ace-pwned").exists()


def test_a_task_within_an_argument_is_one_argument(world: World) -> None:
    project = world.project("printf", OWN % '[/usr/bin/printf, "[%s]", "{task}", "last"]')
    done = world.agc("--json", "run", "--", ODD, cwd=project)
    assert said(done).rstrip("\n") == f"[{ODD}][last]"


# --- how a run ends ---

SHORT = DEMO + "limits: {time: 10s}\n"
SILENT = DEMO + "limits: {idle: 6s}\n"
ABSENT = OWN % "[/nonexistent/agent]"
OUTCOMES = {
    "a good result": (DEMO, "shell: echo done", "succeeded", 0, "agent", "reported success"),
    "a bad result": (DEMO, "fail 3", "failed", 10, "agent", "failed as asked"),
    "a status after success": (DEMO, "exit 7 after success", "failed", 10, "agent", "status 7"),
    "no result": (DEMO, "exit 0 without result", "failed", 10, "agent", "without reporting a result"),
    "garbage in between": (DEMO, "garbage", "succeeded", 0, "agent", "reported success"),
    "a result and no end": (DEMO, "hang after result", "succeeded", 0, "agent", "reported its result"),
    "a child that stays": (DEMO, "stubborn child", "succeeded", 0, "agent", "reported success"),
    "too long": (SHORT, "sleep 600", "timeout", 11, "host", "limits.time"),
    "too long and deaf": (SHORT, "stubborn", "timeout", 11, "host", "limits.time"),
    "too silent": (SILENT, "sleep 600", "timeout", 11, "host", "limits.idle"),
    "no such program": (ABSENT, "hello", "never-started", 15, "host", "/nonexistent/agent"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_has_its_status_its_reason_and_whose_word_it_is(name: str, world: World) -> None:
    spec, task, outcome, code, basis, reason = OUTCOMES[name]
    project = world.project(f"outcome-{name.replace(' ', '-')}", spec)
    done = world.agc("--json", "run", task, cwd=project, code=code)
    host = done.host
    assert (host["outcome"], host["basis"]) == (outcome, basis)
    assert reason in host["reason"]
    assert world.record(host["run"]) == done.result
    assert nothing_left(world, host["run"])
    assert world.agc("runs", "verify", cwd=project).code == 0
    if task == "fail 3":
        assert done.result["agent"]["exit_code"] == 3
    if name == "a result and no end":
        assert any("after its result" in note for note in host["notes"])
    if name == "garbage in between":
        raw = world.agc("runs", "logs", "--raw", cwd=project).out
        assert b'"b64"' in raw  # what is no text is kept as it came


def test_a_detached_run_is_followed_listed_and_stopped(world: World) -> None:
    project = world.project("detached")
    started = world.agc("--json", "run", "--detach", "sleep 600", cwd=project).result
    run = started["run"]
    (row,) = world.agc("--json", "runs", cwd=project).result
    assert (row["run"], row["state"]) == (run, "running")
    assert run in world.agc("ls", cwd=project).text
    world.agc("runs", "show", run, cwd=project, code=4)
    with world.start("--json", "runs", "attach", run, cwd=project, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        first, second = (json.loads(follower.stdout.readline())["event"] for _ in range(2))
        assert [(event["type"], event["seq"]) for event in (first, second)] == [
            ("run.started", 1),
            ("agent.session", 2),
        ]
        assert first["at"] is not None and second["at"] is not None
        so_far = world.agc("--json", "runs", "logs", run, cwd=project).lines
        assert [line["event"]["type"] for line in so_far[:2]] == ["run.started", "agent.session"]
        assert [line["event"]["seq"] for line in so_far[:-1]] == list(range(1, len(so_far)))
        assert so_far[-1]["result"] == {"events": len(so_far) - 1, "under_way": True}
        assert f"runs attach {run}" in world.agc("runs", "logs", cwd=project).err.decode()
        assert b'"ch":"stdout"' in world.agc("runs", "logs", "--raw", cwd=project).out
        stopped = world.agc("--json", "runs", "stop", run[:18], cwd=project).result
        assert stopped == {"run": run, "outcome": "interrupted"}
        last = json.loads(follower.stdout.read().splitlines()[-1])
    assert last["result"]["host"]["outcome"] == "interrupted"
    assert follower.returncode == 130
    assert world.record(run)["host"]["basis"] == "host"
    assert nothing_left(world, run)
    world.agc("runs", "stop", cwd=project, code=4)


def test_a_detached_run_goes_on_by_itself_and_runs_nothing_of_the_project(world: World, tmp_path: Path) -> None:
    planted = f"open({str(tmp_path / 'pwned')!r}, 'w')\n"
    modules = ("typer.py", "yaml.py", "agent_container/__init__.py", "sitecustomize.py")
    project = world.project("alone", **dict.fromkeys(modules, planted))
    run = world.agc("--json", "run", "-d", "shell: sleep 2; echo alone", cwd=project).result["run"]
    until = time.monotonic() + 120
    while not list((world.data / "runs").glob(f"*/{run}/record.json")) and time.monotonic() < until:
        time.sleep(0.2)
    assert world.record(run)["host"]["outcome"] == "succeeded"
    assert not (tmp_path / "pwned").exists()


# --- approval ---


def test_a_spec_is_asked_for_once_and_again_when_it_widens(world: World) -> None:
    project = world.project("asked", DEMO + "egress: {allow: [api.acme.test]}\n", accept=False)
    spec = project / "agent-container.yaml"
    before = world.sessions()

    def ask(*arguments: str, code: int = 2) -> Done:
        return world.agc("--json", "run", *arguments, "shell: true", cwd=project, code=code)

    asked = ask()
    digest = asked.error["digest"]
    assert f"--accept {digest[:12]}" in asked.error["hint"]
    assert any("api.acme.test" in line for line in asked.error["details"])
    assert digest[:12] in world.agc("run", "x", cwd=project, code=2).err.decode()
    for wrong in ("0" * 12, digest[:11], "yes", ""):
        ask("--accept", wrong)
    assert world.sessions() == before
    assert ask("--accept", digest[:12], code=0).host["outcome"] == "succeeded"
    for words in ("allow: [api.acme.test, other.acme.test]", "allow: ['*.acme.test']", "allow_metadata: true"):
        spec.write_text(DEMO + f"egress: {{{words}}}\n")
        assert ask().error["digest"] != digest
    ask("--accept", digest[:12])  # a yes to another spec
    spec.write_text(DEMO + "egress: {allow: [api.acme.test], deny: [other.acme.test]}\n")
    world.agc("build", cwd=project)  # narrower: nobody is asked


def test_a_directory_without_a_spec_gets_the_defaults_and_is_told_so(world: World) -> None:
    project = world.project("bare", None, accept=False)
    before = sorted(path.name for path in project.iterdir())
    approvals = sorted((world.state / "trust").rglob("*"))
    # Nothing but the user's own command line asks for anything here, so nobody is asked back.
    done = world.agc("run", "--agent", "demo", "shell: true", cwd=project)
    assert sorted((world.state / "trust").rglob("*")) == approvals
    assert "no agent-container.yaml; the defaults hold, with agent demo" in done.err.decode()
    assert sorted(path.name for path in project.iterdir()) == before
    assert "no agent is called nobody" in world.agc("run", "--agent", "nobody", "x", cwd=project, code=2).text


# --- records ---


def test_a_run_is_read_checked_and_brought_home_as_a_branch(world: World) -> None:
    project = world.project("records", **{"slugs.py": "def slug(): pass\n"})
    work = "shell: echo more >>README; echo new >new; git add -A; git commit -qm work; echo left >loose"
    done = world.agc("--json", "run", work, cwd=project)
    run = done.host["run"]
    live = [line["event"] for line in done.lines[:-1]]
    kept = [json.loads(line) for line in (world.place(run) / "events.jsonl").read_text().splitlines()]
    assert len(live) > 3 and [event["seq"] for event in live] == list(range(1, len(live) + 1))
    assert [(event["seq"], event["type"]) for event in live] == [(e["seq"], e["type"]) for e in kept[: len(live)]]

    def runs(*arguments: str, code: int = 0) -> Done:
        return world.agc("--json", "runs", *arguments, cwd=project, code=code)

    (row,) = runs("ls").result
    assert (row["run"], row["state"], row["agent"]) == (run, "succeeded", "demo")
    shown = runs("show").result
    assert shown["record"] == world.record(run)
    assert "agent" not in world.git(project, "for-each-ref")  # nothing is fetched until it is asked for
    logs = runs("logs", run)
    kinds = [line["event"]["type"] for line in logs.lines[:-1]]
    assert (kinds[0], kinds[-1]) == ("run.started", "run.finished")
    assert [line["event"]["seq"] for line in logs.lines[:-1]] == list(range(1, len(kinds) + 1))
    raw = world.agc("runs", "logs", "--raw", cwd=project).out
    frames = [json.loads(line) for line in raw.splitlines()]
    assert frames[-1]["ch"] == "exit"
    assert b"+more" in world.agc("runs", "diff", cwd=project).out
    applied = runs("apply").result
    branch = f"agent/{run}"
    assert applied["branch"] == branch
    assert world.git(project, "rev-parse", branch) == world.git(project, "rev-parse", f"refs/agent-runs/{run}")
    assert world.git(project, "show", f"{branch}:new") == "new"
    assert world.git(project, "show", f"{branch}:loose") == "left"
    assert (project / "README").read_text() == "hello\n"
    assert world.git(project, "status", "--porcelain") == ""
    assert runs("verify").result["findings"] == []
    assert world.agc("--json", "verify-egress", run[:17], cwd=project).result["findings"] == []


def test_what_changed_nothing_is_not_offered(world: World) -> None:
    project = world.project("unchanged")
    (project / "README").write_text("not committed\n")
    assert "runs apply" not in world.agc("run", "shell: true", cwd=project).text
    assert "runs apply" in world.agc("run", "shell: echo more >>README", cwd=project).text


def test_a_plain_directory_gets_its_files_back(world: World) -> None:
    project = world.project("plain", git=False)
    world.agc("run", "shell: echo more >>README; mkdir -p sub/deep; echo new >sub/deep/new", cwd=project)
    assert (project / "README").read_text() == "hello\n"
    applied = world.agc("--json", "runs", "apply", cwd=project).result
    assert applied["branch"] is None
    assert ((project / "README").read_text(), (project / "sub/deep/new").read_text()) == ("hello\nmore\n", "new\n")
    (project / "README").write_text("mine\n")
    assert world.agc("runs", "apply", cwd=project, code=None).code != 0
    assert (project / "README").read_text() == "mine\n"


def test_what_the_host_runs_or_obeys_is_held_up(world: World) -> None:
    project = world.project("sensitive", **{"package.json": "{}\n"})
    world.agc("run", "shell: mkdir .husky; echo 'id' >.husky/pre-commit; echo more >>README", cwd=project)
    held = world.agc("--json", "runs", "apply", cwd=project, code=2)
    assert any(".husky/pre-commit" in line for line in held.error["details"])
    assert "agent/" not in world.git(project, "branch", "--list")
    assert not (project / ".husky").exists()
    world.agc("runs", "apply", "--accept-sensitive", cwd=project)
    assert "agent/" in world.git(project, "branch", "--list")


def test_a_spec_that_the_agent_edits_confines_it_all_the_same(world: World) -> None:
    project = world.project("edited")
    spec = (project / "agent-container.yaml").read_bytes()
    wider = "egress: {allow: [api.acme.test]}\\nmounts: [{source: /, target: /host}]\\n"
    edit = f"shell: printf '{wider}' >>agent-container.yaml"
    first = world.agc("--json", "run", edit, cwd=project).host
    held = world.agc("--json", "runs", "apply", cwd=project, code=2)
    assert any("agent-container.yaml" in line for line in held.error["details"])
    assert (project / "agent-container.yaml").read_bytes() == spec
    second = world.agc("--json", "run", "shell: ls /host; ! curl -sf https://api.acme.test/", cwd=project).host
    assert second["digests"]["spec"] == first["digests"]["spec"]
    assert world.requests("api.acme.test") == []


def test_nothing_of_the_callers_environment_is_inside(world: World) -> None:
    project = world.project("environment", OWN % "[/usr/bin/env]")
    environment = {
        "AWS_SECRET_ACCESS_KEY": "leaked-1",
        "ANTHROPIC_API_KEY": "leaked-2",
        "SSH_AUTH_SOCK": "/leaked-3",
        "COMPOSE_PROJECT_NAME": "leaked-4",
        "GIT_DIR": "/leaked-5",
    }
    (project / ".env").write_text("COMPOSE_PROJECT_NAME=leaked-6\nPATH=/leaked-7\n")
    done = world.agc("--json", "run", "x", cwd=project, env=environment)
    assert "leaked" not in done.out.decode()
    shutil.rmtree(project)
