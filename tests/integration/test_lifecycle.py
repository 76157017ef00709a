"""Signals, lost drivers, dead and restarted sidecars, commands at once, objects without a store: on a real engine.

Every case ends with everything taken down and nothing left, see `leftovers`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.home import HANG_S, Home, docker, leftovers, objects

QUICK = '["true"]'
WORKS = '["sh", "-c", "echo working; sleep 3000"]'
WORKS_A_WHILE = '["sh", "-c", "echo working; sleep 15; echo done"]'
TICKS = '["sh", "-c", "for n in $(seq 60); do echo tick $n; sleep 1; done"]'
ECHOES = '["sh", "-c", "echo {task} > mine; sleep 2; echo {task}"]'


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Callable[[str], Home]]:
    """A user whose agent is the command given; afterwards all is taken down and nothing may be left."""
    homes: list[Home] = []

    def make(command: str) -> Home:
        spec = f"version: 1\nname: ack-life\nagent: {{command: {command}}}\negress: {{allow: []}}\n"
        home = Home(tmp_path / f"user{len(homes)}").make(spec)
        home.approve()
        homes.append(home)
        return home

    yield make
    for home in homes:
        down = home.run("down", "--orphans", "-v")
        assert down.status == 0, down.output
        assert leftovers(home) == []


def working(home: Home) -> str:
    """The run whose agent has printed its first word."""
    session = home.wait_for("running")
    spool = f"/var/lib/agent-container/run/turns/{session}/spool.jsonl"
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        agent = home.container(session, "agent")
        if docker("exec", agent, "sh", "-c", f"grep -c working {spool} || true") == ["1"]:
            return session
        time.sleep(0.5)
    raise AssertionError("the agent printed nothing")


def processes(home: Home) -> list[str]:
    """What runs in containers of the project."""
    return [name for name in objects(home.project_id()) if name.startswith("container ")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_agent_works_ends_it_and_writes_interrupted(
    number: signal.Signals, user: Callable[[str], Home]
) -> None:
    home = user(WORKS)
    run = home.start("run", "work")
    session = working(home)

    run.signal(number)

    done = run.end()
    assert done.status == 130, done.output
    assert home.records()[session]["host"]["outcome"] == "interrupted"
    assert processes(home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_sandbox_comes_up_ends_that_at_once(
    number: signal.Signals, user: Callable[[str], Home]
) -> None:
    home = user(WORKS)
    run = home.start("run", "work")
    session = home.wait_for("created")

    run.signal(number)

    done = run.end()
    assert done.status == 130, done.output
    host = home.records()[session]["host"]
    assert (host["outcome"], processes(home)) == ("interrupted", [])
    directory = home.data / "runs" / home.project_id() / session
    assert not (directory / "raw.jsonl").exists(), "the agent was started"


def test_a_signal_while_the_record_is_drained_changes_neither_record_nor_status(user: Callable[[str], Home]) -> None:
    home = user(QUICK)
    run = home.start("run", "work")
    session = home.wait_for("draining")

    run.signal(signal.SIGTERM)

    done = run.end()
    assert done.status == 0, done.output
    assert home.records()[session]["host"]["outcome"] == "succeeded"


def test_a_second_interrupt_leaves_what_the_next_command_finishes(user: Callable[[str], Home]) -> None:
    home = user(WORKS)
    run = home.start("run", "work")
    session = working(home)

    run.signal(signal.SIGINT)
    home.wait_for("draining")
    run.signal(signal.SIGINT)

    done = run.end()
    assert done.status == 130, done.output
    assert home.run("down", "--orphans").status == 0
    assert home.records()[session]["host"]["outcome"] == "interrupted"


def test_a_terminal_that_hangs_up_ends_the_agent_and_the_record_is_whole(user: Callable[[str], Home]) -> None:
    home = user(WORKS)
    ours, theirs = pty.openpty()
    run = home.start("run", "work", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    session = working(home)

    os.close(ours)  # every write fails from here on
    run.signal(signal.SIGHUP)

    assert run.end().status == 130
    assert home.records()[session]["host"]["outcome"] == "interrupted"
    assert processes(home) == []


def test_a_reader_that_goes_away_does_not_end_the_run(user: Callable[[str], Home]) -> None:
    home = user('["sh", "-c", "sleep 3; echo one; sleep 1; echo two"]')
    reader, writer = os.pipe()
    run = home.start("run", "work", stdout=writer)
    os.close(writer)
    os.close(reader)

    assert run.end().status == 0
    assert [row["host"]["outcome"] for row in home.records().values()] == ["succeeded"]


def test_a_run_whose_driver_was_killed_is_shown_left_to_work_and_stopped_on_request(
    user: Callable[[str], Home],
) -> None:
    home = user(WORKS)
    run = home.start("run", "work")
    session = working(home)
    run.signal(signal.SIGKILL)
    run.end()

    status = home.run("status")
    assert status.status == 0 and session in status.output and "runs stop" in status.output, status.output
    down = home.run("down")
    assert down.status == 0 and "still works without a driver" in down.output, down.output
    assert len(processes(home)) == 2, "the agent was not left to work"
    stopped = home.run("runs", "stop")
    assert stopped.status == 0, stopped.output
    host = home.records()[session]["host"]
    assert (host["outcome"], processes(home)) == ("interrupted", [])


def test_attach_drives_a_run_to_its_record_when_its_driver_was_killed(user: Callable[[str], Home]) -> None:
    home = user(WORKS_A_WHILE)
    run = home.start("run", "work")
    session = working(home)
    run.signal(signal.SIGKILL)
    run.end()

    attached = home.run("runs", "attach")

    assert attached.status == 0, attached.output
    assert home.records()[session]["host"]["outcome"] == "succeeded"


def test_the_tool_killed_under_eight_runs_loses_none(user: Callable[[str], Home]) -> None:
    """Their drivers end all at once; what follows instead is stopped for a while, or finds the container paused."""
    home = user(TICKS)
    runs = [home.start("run", "work") for _ in range(8)]
    sessions: list[str] = []
    deadline = time.monotonic() + HANG_S
    while len(sessions) < len(runs) and time.monotonic() < deadline:
        time.sleep(1)
        sessions = [session for session, row in home.sessions().items() if row["phase"] == "running"]
    assert len(sessions) == len(runs)
    for run in runs:
        run.signal(signal.SIGKILL)
    for run in runs:
        run.end()
    *followed, ended, left = sessions

    docker("kill", home.container(ended, "agent"))
    refused = home.run("runs", "recover", ended)
    assert refused.status == 4 and "agent's container is exited (status 137)" in refused.output, refused.output
    following = [home.start("runs", "recover", session) for session in followed]
    time.sleep(5)
    following[0].signal(signal.SIGSTOP)
    docker("pause", home.container(followed[1], "agent"))
    time.sleep(8)
    docker("unpause", home.container(followed[1], "agent"))
    following[0].signal(signal.SIGCONT)
    for each in following:
        done = each.end()
        assert done.status == 0, done.output
    assert home.run("runs", "attach", left).status == 0
    assert home.run("runs", "recover").status == 0

    records = home.records()
    assert sorted(records) == sorted(sessions)
    for session, record in records.items():
        lost = session == ended
        assert record["host"]["outcome"] == ("lost" if lost else "succeeded"), record["host"]
        assert record["host"]["egress"]["verified"] == "verified", "its sidecar outlived it"
        raw = (home.data / "runs" / home.project_id() / session / "raw.jsonl").read_text()
        found = [int(number) for number in re.findall(r"tick (\d+)", raw)]
        assert found == list(range(1, len(found) + 1)) and (lost or len(found) == 60)


def test_three_runs_at_once_keep_apart(user: Callable[[str], Home]) -> None:
    home = user(ECHOES)
    tasks = [f"task-{secrets.token_hex(8)}" for _ in range(3)]
    runs = [home.start("run", task) for task in tasks]

    ended = [run.end() for run in runs]

    assert [done.status for done in ended] == [0, 0, 0], [done.output for done in ended]
    records = home.records()
    assert sorted(row["host"]["task"] for row in records.values()) == sorted(tasks)
    for id_, row in records.items():
        directory = home.data / "runs" / home.project_id() / id_
        mine = row["host"]["task"]
        for name in ("raw.jsonl", "workspace.patch", "events.jsonl"):
            text = (directory / name).read_text()
            assert mine in text, (name, text)
            assert not any(other in text for other in tasks if other != mine), name
        assert row["host"]["egress"]["verified"] == "verified"


def test_up_and_up_and_redeploy_at_once_leave_one_environment(user: Callable[[str], Home]) -> None:
    home = user(QUICK)
    started = [home.start(verb) for verb in ("up", "up", "redeploy")]

    ended = [command.end() for command in started]

    assert [done.status for done in ended] == [0, 0, 0], [done.output for done in ended]
    assert len(processes(home)) == 2
    assert [row["phase"] for row in home.sessions().values()].count("running") == 1
    assert "nothing to do" in home.run("up").output


def test_a_sidecar_that_is_killed_ends_the_run_as_lost_and_the_next_one_works(user: Callable[[str], Home]) -> None:
    home = user(WORKS_A_WHILE)
    run = home.start("run", "work")
    session = working(home)

    docker("kill", home.container(session, "egress"))

    done = run.end()
    assert done.status == 14, done.output
    host = home.records()[session]["host"]
    assert (host["outcome"], host["basis"]) == ("lost", "host")
    assert "egress sidecar" in host["reason"]
    assert home.run("runs", "verify", session).status == 6, "an unsealed chain is neither verified nor tampered"
    assert home.run("run", "again").status == 0


@pytest.mark.parametrize("harm", ["restart", "kill", "rm"])
def test_an_environment_whose_sidecar_was_harmed_is_not_called_running_and_up_heals_it(
    harm: str, user: Callable[[str], Home]
) -> None:
    home = user(QUICK)
    assert home.run("up").status == 0
    session = home.wait_for("running")
    egress = home.container(session, "egress")
    docker(harm, *(["-f"] if harm == "rm" else []), egress)

    status = json.loads(home.run("--json", "status").output)["result"]
    assert status["state"] != "running" and status["amiss"], status
    if harm == "restart":
        assert "stale" in " ".join(status["amiss"])
    refused = home.run("exec", "true")
    assert refused.status == 4 and "agent-container up" in refused.output, refused.output

    up = home.run("up")
    assert up.status == 0, up.output
    assert json.loads(home.run("--json", "status").output)["result"]["state"] == "running"
    assert home.run("exec", "true").status == 0
    assert session in home.records()


def test_what_a_lost_store_had_made_is_removed_only_on_request_and_another_stores_never(
    user: Callable[[str], Home],
) -> None:
    home = user(QUICK)
    assert home.run("up").status == 0
    session = home.wait_for("running")
    foreign = f"ack-{secrets.token_hex(4)}"
    labels = {"session": "20200101-000000-abcdef", "project": "0123456789ab", "role": "network"}
    words = [word for key, text in labels.items() for word in ("--label", f"agent-container.{key}={text}")]
    docker("network", "create", "--internal", *words, foreign)
    try:
        (home.state / "sessions" / session).rename(home.path / "lost")
        assert home.run("down").status == 0
        assert len(processes(home)) == 2, "a label alone is no reason"

        down = home.run("down", "--all", "--orphans")

        assert down.status == 0, down.output
        assert session in down.output
        assert f"left alone, since it names no project of yours; session {labels['session']}" in down.output
        assert processes(home) == []
        assert docker("network", "ls", "-q", "--filter", f"name={foreign}")
    finally:
        docker("network", "rm", foreign)
