"""Turns: what is printed arrives byte-exact and in order, limits hold, and nothing is left running."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from .conftest import RunningRunner, alive, text


def test_frames_are_numbered_and_spooled_before_they_are_sent(runner: RunningRunner) -> None:
    frames = runner.run("t1", "echo out; echo err >&2; exit 3")
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert text(frames) == b"out\n"
    assert text(frames, "stderr") == b"err\n"
    assert (frames[-1]["code"], frames[-1]["signal"], frames[-1]["reason"]) == (3, None, "exit")
    spool = runner.volume / "turns" / "t1" / "spool.jsonl"
    assert [json.loads(line) for line in spool.read_bytes().splitlines()] == frames
    assert json.loads((spool.parent / "start.json").read_bytes())["turn"] == "t1"
    assert spool.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "task",
    ["--help", "$(touch pwn)`id`", "line1\n\"q\" 's' \\ end", "emoji \U0001f600 !", "\u2028 and \x85"],
)
def test_an_argument_reaches_the_agent_byte_exact_and_no_shell_sees_it(runner: RunningRunner, task: str) -> None:
    frames = runner.run("t1", "", argv=["/usr/bin/printf", "%s", task])
    assert text(frames) == task.encode()
    assert list(runner.workspace.iterdir()) == []


def test_stdin_is_given_and_then_at_its_end(runner: RunningRunner) -> None:
    data = b"x" * 300_000
    assert text(runner.run("t1", "wc -c", stdin=base64.b64encode(data).decode())) == b"300000\n"
    assert text(runner.run("t2", "wc -c")) == b"0\n"


def test_the_environment_is_the_containers_with_the_requests_changes(runner: RunningRunner) -> None:
    frames = runner.run("t1", "env; umask", env={"A": "1=2", "PATH": "/bin:/usr/bin", "HOME": None})
    lines = text(frames).decode().splitlines()
    assert "A=1=2" in lines
    assert "PATH=/bin:/usr/bin" in lines
    assert lines[-1] == "0022"
    assert not any(line.startswith(("HOME=", "AGENT_CONTAINER_RUN")) for line in lines)


def test_invalid_utf8_and_nul_arrive_byte_exact_and_split_characters_stay_text(runner: RunningRunner) -> None:
    pieces = (r"a\000b", r"\303", r"\251", r"\377\376z")
    frames = runner.run("t1", "; sleep 0.1; ".join(f"printf '{piece}'" for piece in pieces))
    assert text(frames) == b"a\0b\xc3\xa9\xff\xfez"
    assert [frame["text"] for frame in frames if "text" in frame] == ["a\0b", "\u00e9"]
    assert base64.b64decode(next(frame["b64"] for frame in frames if "b64" in frame)) == b"\xff\xfez"


def test_half_a_character_at_the_end_is_not_lost(runner: RunningRunner) -> None:
    assert text(runner.run("t1", r"printf 'a\303'")) == b"a\xc3"


def test_one_huge_line_costs_little_memory_and_stops_at_the_spools_cap(runner: RunningRunner) -> None:
    frames = runner.run("t1", "head -c 30000000 /dev/zero | tr '\\0' x; sleep 60", spool_bytes=20_000_000)
    marker = next(frame for frame in frames if frame["ch"] == "truncated")
    assert marker["max_bytes"] == 20_000_000
    assert frames[-1]["reason"] == "output"
    assert frames[-1]["discarded_bytes"] > 0
    assert 19_000_000 < len(text(frames)) <= 20_000_000
    assert (runner.volume / "turns" / "t1" / "spool.jsonl").stat().st_size < 20_100_000
    assert all(len(frame.get("text", "")) <= 32768 for frame in frames)
    assert runner.connect().ask("status")["peak_kib"] < 64 * 1024


@pytest.mark.parametrize(
    ("fields", "shell", "reason"),
    [
        pytest.param({"time_s": 0.5}, "while :; do echo .; sleep 0.1; done", "time", id="a turn that goes on printing"),
        pytest.param({"idle_s": 0.5}, "echo hello; sleep 600", "idle", id="a turn that falls silent"),
        pytest.param({"idle_s": 0.5, "time_s": 600}, "trap '' TERM; sleep 600", "idle", id="a turn that ignores TERM"),
    ],
)
def test_limits_end_a_turn(runner: RunningRunner, fields: dict[str, Any], shell: str, reason: str) -> None:
    frames = runner.run("t1", shell, **fields)
    assert frames[-1]["reason"] == reason
    assert frames[-1]["signal"] in ("SIGTERM", "SIGKILL")
    assert frames[-1]["detail"]


def test_output_puts_off_the_idle_limit(runner: RunningRunner) -> None:
    frames = runner.run("t1", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done", idle_s=1)
    assert frames[-1]["reason"] == "exit"


def test_a_daemonised_child_that_ignores_term_does_not_outlive_its_turn(runner: RunningRunner) -> None:
    shell = "setsid sh -c 'trap \"\" TERM HUP INT; echo $$; exec sleep 600' & sleep 0.5"
    frames = runner.run("t1", shell)
    assert frames[-1]["reason"] == "exit"
    assert frames[-1]["left_killed"] >= 1
    assert not alive(int(text(frames)))


def test_orphans_are_reaped(runner: RunningRunner) -> None:
    frames = runner.run("t1", "for i in 1 2 3; do (sh -c 'sleep 0.1 & echo $!' &); done; sleep 1")
    assert len(text(frames).split()) == 3
    assert runner.process is not None
    children = [stat.read_text() for stat in runner.directory.glob("none")]
    assert children == []
    for pid in text(frames).split():
        assert not alive(int(pid))


@pytest.mark.parametrize(
    ("operation", "reason", "number"), [("interrupt", "interrupted", "SIGINT"), ("stop", "stopped", "SIGTERM")]
)
def test_interrupt_and_stop_signal_the_group(runner: RunningRunner, operation: str, reason: str, number: str) -> None:
    connection = runner.connect()
    runner.begin(connection, "t1", "", argv=["/bin/sleep", "600"])
    assert connection.ask(operation, turn="t1", reason="the user said so")["ok"]
    final = connection.frames("t1")[-1]
    assert (final["reason"], final["signal"], final["detail"]) == (reason, number, "the user said so")


def test_a_second_stop_does_not_wait_for_the_grace(runner: RunningRunner) -> None:
    connection = runner.connect()
    runner.begin(connection, "t1", "trap '' TERM; echo up; while :; do sleep 1; done", grace_s=3600)
    watcher = runner.connect()
    watcher.send("turn.stream", turn="t1")
    assert watcher.line()["text"] == "up\n"
    connection.ask("stop", turn="t1")
    connection.ask("stop", turn="t1")
    final = watcher.rest()[-1]
    assert (final["reason"], final["signal"]) == ("stopped", "SIGKILL")


def test_an_agent_may_end_well_when_it_is_interrupted(runner: RunningRunner) -> None:
    connection = runner.connect()
    runner.begin(connection, "t1", "trap 'echo bye; exit 0' INT; echo up; while :; do sleep 0.1; done")
    watcher = runner.connect()
    watcher.send("turn.stream", turn="t1")
    watcher.line()
    connection.ask("interrupt", turn="t1")
    frames = watcher.rest()
    assert text(frames) == b"bye\n"
    assert (frames[-1]["code"], frames[-1]["reason"]) == (0, "interrupted")


@pytest.mark.parametrize("fields", [{"argv": ["/no/such/program"]}, {"cwd": "/no/such/directory"}])
def test_a_program_that_cannot_start_ends_the_turn(runner: RunningRunner, fields: dict[str, Any]) -> None:
    frames = runner.run("t1", "true", **fields)
    assert len(frames) == 1
    assert (frames[0]["reason"], frames[0]["code"]) == ("spawn", None)
    assert "/no/such" in frames[0]["detail"]


def test_one_turn_at_a_time_and_asking_again_is_harmless(runner: RunningRunner) -> None:
    connection = runner.connect()
    assert runner.begin(connection, "t1", "sleep 600")["existing"] is False
    assert runner.begin(connection, "t1", "sleep 600")["existing"] is True
    assert runner.begin(connection, "t1", "sleep 700")["error"]["code"] == "exists"
    assert runner.begin(connection, "t2", "true")["error"]["code"] == "busy"
    connection.ask("stop", turn="t1")
    connection.frames("t1")
    assert text(runner.run("t2", "echo next")) == b"next\n"
