"""The socket: many clients, slow ones, ones that vanish, bad requests; streams from any frame; recovery."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import UID, RunningRunner, alive, text


def test_hello_names_protocol_and_uid_and_the_socket_is_private(runner: RunningRunner) -> None:
    answer = runner.connect().ask("hello", id="x1")
    assert answer["ok"]
    assert answer["protocols"] == [1]
    assert answer["uid"] != 0
    assert answer["id"] == "x1"
    assert answer["volume_writable"]
    assert runner.socket.stat().st_mode & 0o777 == 0o600


def test_it_refuses_to_be_root_and_to_be_anything_but_pid_1(directory: Path) -> None:
    running = RunningRunner(directory)
    ended = running.popen("serve", stderr=subprocess.PIPE)
    assert b"PID 1" in ended.communicate(timeout=60)[1]
    assert ended.returncode == 77
    if os.geteuid() == 0:
        command = [str(directory / "program" / "runner"), "serve", "--subreaper"]
        ended_as_root = subprocess.run(command, env=running.environ, capture_output=True, timeout=60, check=False)
        assert ended_as_root.returncode == 77
        assert b"root" in ended_as_root.stderr


def test_it_is_not_dumpable(runner: RunningRunner) -> None:
    assert runner.process is not None
    assert Path(f"/proc/{runner.process.pid}/environ").stat().st_uid == 0
    frames = runner.run("t1", f"cat /proc/{runner.process.pid}/environ; head -c1 /proc/{runner.process.pid}/mem")
    assert text(frames) == b""
    assert text(frames, "stderr").count(b"ermission denied") == 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param(b"not json", "bad-request", id="not JSON"),
        pytest.param(b"[1]", "bad-request", id="not an object"),
        pytest.param(b'{"v":2,"op":"hello"}', "version", id="a protocol of the future"),
        pytest.param(b'{"op":"fly"}', "unknown-op", id="an unknown operation"),
        pytest.param(b'{"op":["a"]}', "unknown-op", id="an operation that is no string"),
        pytest.param(b'{"op":"turn.start","turn":"../x","argv":["a"]}', "bad-request", id="a turn id with a path"),
        pytest.param(b'{"op":"turn.start","turn":"x"}', "bad-request", id="no argv"),
        pytest.param(b'{"op":"turn.start","turn":"x","argv":[]}', "bad-request", id="an empty argv"),
        pytest.param(b'{"op":"turn.start","turn":"x","argv":["a\\u0000b"]}', "bad-request", id="NUL in argv"),
        pytest.param(b'{"op":"turn.start","turn":"x","argv":["a"],"env":{"A=B":"c"}}', "bad-request", id="a bad name"),
        pytest.param(b'{"op":"turn.start","turn":"x","argv":["a"],"stdin":"!!"}', "bad-request", id="stdin not base64"),
        pytest.param(b'{"op":"turn.start","turn":"x","argv":["a"],"time_s":"soon"}', "bad-request", id="a vague limit"),
        pytest.param(b'{"op":"turn.stream","turn":"nope"}', "unknown-turn", id="a turn that is not there"),
        pytest.param(b'{"op":"pty.input","b64":""}', "not-attached", id="keys without a terminal"),
        pytest.param(b"[" * 100_000, "bad-request", id="deep nesting"),
    ],
)
def test_a_bad_request_is_answered_and_harms_nothing(runner: RunningRunner, line: bytes, code: str) -> None:
    connection = runner.connect()
    connection.socket.sendall(line + b"\n")
    assert connection.line()["error"]["code"] == code
    assert connection.ask("hello")["ok"]


def test_an_endless_request_line_is_refused(runner: RunningRunner) -> None:
    connection = runner.connect()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(40):
            connection.socket.sendall(b"x" * 1024 * 1024)
            time.sleep(0.01)
    assert runner.connect().ask("status")["peak_kib"] < 128 * 1024


def test_any_client_streams_from_any_frame_while_it_runs_and_afterwards(runner: RunningRunner) -> None:
    runner.begin(runner.connect(), "t1", "for i in $(seq 1 300); do echo $i; sleep 0.003; done")
    early, late = runner.connect(), runner.connect()
    frames = early.frames("t1")
    assert text(frames).decode().split() == [str(number) for number in range(1, 301)]
    assert late.frames("t1") == frames
    for first in (2, 64, 65, 66, len(frames) - 1, len(frames)):
        assert runner.connect().frames("t1", first) == frames[first - 1 :]
    assert runner.connect().frames("t1", len(frames) + 50) == frames[-1:]


def test_a_client_that_does_not_read_costs_no_memory_and_slows_nobody(runner: RunningRunner) -> None:
    slow = runner.connect()
    runner.begin(runner.connect(), "t1", "head -c 40000000 /dev/zero | tr '\\0' y")
    slow.send("turn.stream", turn="t1")
    frames = runner.connect().frames("t1")
    assert len(text(frames)) == 40_000_000
    assert runner.connect().ask("status")["peak_kib"] < 64 * 1024
    assert slow.rest() == frames


def test_a_client_that_vanishes_in_mid_stream_hurts_nothing(runner: RunningRunner) -> None:
    for _ in range(5):
        gone = runner.connect()
        gone.send("turn.start", turn="t1", argv=["/bin/sh", "-c", "yes | head -c 3000000"], cwd="/", grace_s=1)
        gone.send("turn.stream", turn="t1")
        gone.socket.recv(10)
        gone.close()
    assert len(text(runner.connect().frames("t1"))) == 3_000_000


def test_a_client_that_shuts_its_writing_half_still_gets_the_whole_stream(runner: RunningRunner) -> None:
    connection = runner.connect()
    runner.begin(connection, "t1", "sleep 0.5; echo done")
    connection.send("turn.stream", turn="t1")
    connection.socket.shutdown(1)
    assert text(connection.rest()) == b"done\n"
    assert connection.reader.read() == b""


def test_connect_bridges_a_pipe_to_the_socket(runner: RunningRunner) -> None:
    bridge = runner.popen("connect", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    requests = [
        {"op": "turn.start", "turn": "t1", "argv": ["/bin/echo", "hi"], "cwd": "/"},
        {"op": "turn.stream", "turn": "t1"},
    ]
    out = bridge.communicate(b"".join(json.dumps(request).encode() + b"\n" for request in requests), timeout=60)[0]
    messages: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert messages[0]["ok"]
    assert text(messages[1:]) == b"hi\n"
    assert bridge.returncode == 0


def test_too_many_clients_are_told_so(runner: RunningRunner) -> None:
    for _ in range(31):
        runner.connect()
    assert runner.connect().ask("hello")["ok"]
    assert runner.connect().line()["error"]["code"] == "too-many"


def test_an_acknowledged_turn_gives_its_space_back(runner: RunningRunner) -> None:
    runner.run("t1", "echo hi")
    connection = runner.connect()
    for _ in range(2):
        assert connection.ask("drain.ack", turn="t1")["ok"]
    assert not (runner.volume / "turns" / "t1" / "spool.jsonl").exists()
    assert connection.ask("turn.stream", turn="t1")["error"]["code"] == "acknowledged"


def test_a_fifo_in_the_way_of_an_acknowledgement_holds_nothing_up(runner: RunningRunner) -> None:
    runner.run("t1", f"mkfifo {runner.volume}/turns/t1/acknowledged.new {runner.volume}/turns/t1/acknowledged")
    assert runner.connect().ask("drain.ack", turn="t1")["ok"]


def test_a_running_turn_cannot_be_acknowledged(runner: RunningRunner) -> None:
    connection = runner.connect()
    runner.begin(connection, "t1", "sleep 600")
    assert connection.ask("drain.ack", turn="t1")["error"]["code"] == "running"


def test_the_containers_stop_ends_the_turn_with_an_exit_frame(runner: RunningRunner) -> None:
    runner.begin(runner.connect(), "t1", "trap '' TERM; setsid sleep 600 & echo $!; wait; sleep 600")
    watcher = runner.connect()
    watcher.send("turn.stream", turn="t1")
    pid = int(watcher.line()["text"])
    assert runner.stop() == 0
    last = (runner.volume / "turns" / "t1" / "spool.jsonl").read_bytes().splitlines()[-1]
    assert json.loads(last)["reason"] == "stopped"
    assert not alive(pid)


def test_a_turn_that_was_running_when_the_runner_died_is_lost_and_still_streams(runner: RunningRunner) -> None:
    runner.begin(runner.connect(), "t1", "echo before; exec sleep 5")
    watcher = runner.connect()
    watcher.send("turn.stream", turn="t1")
    watcher.line()
    runner.stop(signal.SIGKILL)
    with (runner.volume / "turns" / "t1" / "spool.jsonl").open("ab") as spool:
        spool.write(b'{"seq":2,"ch":"stdout","te')
    runner.start()
    frames = runner.connect().frames("t1")
    assert text(frames) == b"before\n"
    assert (frames[-1]["seq"], frames[-1]["reason"]) == (2, "lost")
    assert text(runner.run("t2", "echo after")) == b"after\n"


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(lambda turns: (turns / "link").symlink_to("/etc"), id="a link instead of a turn"),
        pytest.param(lambda turns: os.mkfifo(turns / "t9" / "spool.jsonl"), id="a FIFO as spool"),
        pytest.param(lambda turns: (turns / "t9" / "spool.jsonl").symlink_to("/etc/passwd"), id="a link as spool"),
        pytest.param(lambda turns: (turns / "t9" / "spool.jsonl").write_bytes(b"\0\xff" * 9), id="junk as spool"),
    ],
)
def test_a_hostile_run_volume_does_not_stop_the_runner(directory: Path, plant: Any) -> None:
    running = RunningRunner(directory)
    turns = running.volume / "turns"
    (turns / "t9").mkdir(parents=True)
    plant(turns)
    for path in [turns, *turns.rglob("*")]:
        if os.geteuid() == 0:
            os.chown(path, UID, UID, follow_symlinks=False)
    running.start()
    assert text(running.run("t1", "echo hi")) == b"hi\n"
    assert running.stop() == 0


def test_an_agent_that_deletes_or_cuts_its_own_spool_still_gets_an_exit_frame(runner: RunningRunner) -> None:
    spool = runner.volume / "turns" / "t1" / "spool.jsonl"
    frames = runner.run("t1", f"echo one; sleep 0.3; : > {spool}; sleep 0.3; echo two; rm {spool}")
    assert frames[-1]["reason"] == "exit"
    late = runner.connect()
    late.send("turn.stream", turn="t1")
    lines = [late.reader.readline()]
    while b'"ch":"exit"' not in lines[-1]:  # what the agent did to the lines before is the agent's affair
        lines.append(late.reader.readline())
    assert json.loads(lines[-1])["reason"] == "exit"


def test_a_run_volume_that_cannot_be_written_is_named(runner: RunningRunner) -> None:
    runner.volume.chmod(0o500)
    answer = runner.begin(runner.connect(), "t1", "true")
    assert answer["error"]["code"] == "volume"
    assert str(runner.volume) in answer["error"]["message"]
    assert runner.connect().ask("hello")["volume_writable"] is False
    runner.volume.chmod(0o700)
    assert text(runner.run("t1", "echo hi")) == b"hi\n"
