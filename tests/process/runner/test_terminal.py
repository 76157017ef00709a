"""Terminals that the runner keeps: joined, left, rejoined, resized; nobody who watches can hold up the program."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Connection, RunningRunner, alive, text


def start(runner: RunningRunner, shell: str, **fields: Any) -> Connection:
    connection = runner.connect()
    argv = fields.pop("argv", ["/bin/sh", "-c", shell])
    answer = connection.ask("pty.start", name="agent", argv=argv, cwd="/", rows=30, cols=100, **fields)
    assert answer["ok"], answer
    return connection


def join(runner: RunningRunner, rows: int = 30, cols: int = 100) -> Connection:
    connection = runner.connect()
    assert connection.ask("pty.attach", name="agent", rows=rows, cols=cols)["ok"]
    return connection


def read_until(connection: Connection, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        message = connection.line()
        assert message["ch"] == "pty", (message, seen)
        seen += base64.b64decode(message["b64"])
    return seen


def type_keys(connection: Connection, keys: bytes) -> None:
    connection.send("pty.input", b64=base64.b64encode(keys).decode())


def test_the_program_has_a_terminal_of_the_asked_size_and_its_end_is_told(runner: RunningRunner) -> None:
    start(runner, "tty; stty size; read line; echo got:$line; exit 7")
    client = join(runner)
    assert b"/dev/pts/" in read_until(client, b"30 100")
    type_keys(client, b"hello\n")
    read_until(client, b"got:hello")
    message = client.line()
    while message["ch"] == "pty":
        message = client.line()
    assert message == {"ch": "exit", "code": 7, "signal": None}
    listed = client.ask("pty.list")["terminals"]
    assert [(row["name"], row["live"]) for row in listed] == [("agent", False)]


def test_starting_it_again_is_harmless_while_it_lives(runner: RunningRunner) -> None:
    connection = start(runner, "sleep 600")
    pid = connection.ask("pty.list")["terminals"][0]["pid"]
    start(runner, "echo other")
    assert connection.ask("pty.list")["terminals"][0]["pid"] == pid


def test_it_goes_on_without_watchers_and_shows_the_scrollback_to_who_rejoins(runner: RunningRunner) -> None:
    start(runner, "echo first; while read line; do echo got:$line; done")
    for word in (b"one", b"two"):
        client = join(runner)
        seen = read_until(client, b"first")
        type_keys(client, word + b"\n")
        seen += read_until(client, b"got:" + word)
        client.close()
    assert b"got:one" in seen


def test_two_watchers_see_the_same_and_either_may_type_and_resize(runner: RunningRunner) -> None:
    start(runner, "trap 'stty size' WINCH; echo up; while :; do read line && echo got:$line; done")
    one, two = join(runner), join(runner)
    read_until(one, b"up")
    read_until(two, b"up")
    type_keys(two, b"x\n")
    read_until(one, b"got:x")
    read_until(two, b"got:x")
    one.send("pty.resize", rows=41, cols=141)
    read_until(two, b"41 141")


def test_a_watcher_who_does_not_read_holds_nothing_up_and_costs_no_memory(runner: RunningRunner) -> None:
    start(runner, "head -c 20000000 /dev/zero | tr '\\0' z; echo; echo over; sleep 600")
    join(runner)
    client = join(runner)
    read_until(client, b"over")
    assert runner.connect().ask("status")["peak_kib"] < 64 * 1024


def test_a_terminals_processes_outlive_a_turn_and_the_turns_do_not(runner: RunningRunner) -> None:
    client = start(runner, "setsid sleep 601 & echo pid:$!:; while :; do sleep 1; done")
    client = join(runner)
    orphan = int(read_until(client, b":\r\n").split(b":")[1])
    frames = runner.run("t1", "(setsid sleep 602 & echo $!)")
    assert not alive(int(text(frames)))
    assert alive(orphan)
    assert client.ask("pty.list")["terminals"][0]["live"]


def test_stopping_it_hangs_up_and_then_kills(runner: RunningRunner) -> None:
    start(runner, "trap '' HUP TERM; echo up; while :; do sleep 600; done")
    client = join(runner)
    read_until(client, b"up")
    assert runner.connect().ask("pty.stop", name="agent", grace_s=0.2)["ok"]
    message = client.line()
    while message["ch"] == "pty":
        message = client.line()
    assert message["signal"] == "SIGKILL"


def test_a_program_that_cannot_start_is_an_error(runner: RunningRunner) -> None:
    answer = runner.connect().ask("pty.start", name="agent", argv=["/no/such"], cwd="/")
    assert not answer["ok"]
    assert "/no/such" in answer["error"]["message"]


class Screen:
    """`runner attach` on a pseudo-terminal, as `docker exec -it` starts it."""

    def __init__(self, runner: RunningRunner, rows: int = 25, cols: int = 90) -> None:
        self.master, slave = pty.openpty()
        self.resize(rows, cols)
        self.slave = slave
        self.process = runner.popen(
            "attach",
            "agent",
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def until(self, wanted: bytes) -> bytes:
        seen = b""
        deadline = time.monotonic() + 60
        while wanted not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([self.master], [], [], 1)[0]:
                seen += os.read(self.master, 65536)
        return seen

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=60)
        for fd in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(fd)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def screens(runner: RunningRunner) -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def test_attach_joins_resizes_detaches_and_rejoins(runner: RunningRunner, screens: list[Screen]) -> None:
    start(runner, "trap 'stty size' WINCH; echo up; while :; do read line && echo got:$line; done")
    first = Screen(runner)
    screens.append(first)
    first.until(b"25 90")
    first.type(b"hello\r")
    first.until(b"got:hello")
    first.resize(33, 77)
    first.until(b"33 77")
    before = termios.tcgetattr(first.slave)[3]
    first.type(b"\x10\x11")
    first.until(b"detached")
    assert first.process.wait(timeout=60) == 0
    assert before & termios.ICANON == 0
    assert termios.tcgetattr(first.slave)[3] & termios.ICANON
    second = Screen(runner)
    screens.append(second)
    second.until(b"got:hello")
    second.type(b"\x10a\r")
    second.until(b"got:")


def test_attach_ends_with_the_programs_status(runner: RunningRunner, screens: list[Screen]) -> None:
    start(runner, "echo up; read line; exit 9")
    screen = Screen(runner)
    screens.append(screen)
    screen.until(b"up")
    screen.type(b"\r")
    assert screen.process.wait(timeout=60) == 9


def test_attach_to_nothing_says_so(runner: RunningRunner) -> None:
    ended = runner.popen("attach", "nope", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert b"there is no terminal 'nope'" in ended.communicate(timeout=60)[1]
    assert ended.returncode == 1


def test_a_killed_attach_leaves_the_program_alone(runner: RunningRunner, screens: list[Screen]) -> None:
    start(runner, "echo up; while :; do read line && echo got:$line; done")
    screen = Screen(runner)
    screens.append(screen)
    screen.until(b"up")
    screen.process.send_signal(signal.SIGKILL)
    screen.process.wait(timeout=60)
    client = join(runner)
    type_keys(client, b"still\n")
    read_until(client, b"got:still")
