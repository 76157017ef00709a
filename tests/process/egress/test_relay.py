"""squid's end of the line, against a policy process of the test's own: whatever that one does, squid gets an answer."""

from __future__ import annotations

import io
import socket
import subprocess
from collections.abc import Iterator

import pytest

from agent_egress.wire import listen_unix
from tests.process.egress.harness import Sidecar


class Squid:
    """The relay's other end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and isinstance(process.stdout, io.RawIOBase)
        self.stdin = process.stdin
        self.reader = io.BufferedReader(process.stdout)

    def ask(self, data: bytes) -> None:
        self.stdin.write(data)

    def answer(self) -> bytes:
        return self.reader.readline()


@pytest.fixture
def policy(sidecar: Sidecar) -> Iterator[socket.socket]:
    with listen_unix(sidecar.path("policy.sock")) as sock:
        sock.settimeout(60)
        yield sock


def start(sidecar: Sidecar, deadline_s: str = "60") -> Squid:
    options = ("--socket", sidecar.path("policy.sock"), "--deadline-s", deadline_s)
    return Squid(sidecar.start("relay", *options, pipes=True))


def test_lines_and_answers_go_through_in_any_order(sidecar: Sidecar, policy: socket.socket) -> None:
    squid = start(sidecar)
    peer, _ = policy.accept()
    with peer:
        squid.ask(b"1 a b\n2 c")
        assert peer.recv(100) == b"1 a b\n"
        squid.ask(b" d\n")
        assert peer.recv(100) == b"2 c d\n"
        peer.sendall(b"2 OK x=1\n1 ER")
        assert squid.answer() == b"2 OK x=1\n"
        peer.sendall(b"R y=2\n")
        assert squid.answer() == b"1 ERR y=2\n"


def test_a_batch_travels_as_one(sidecar: Sidecar, policy: socket.socket) -> None:
    squid = start(sidecar)
    peer, _ = policy.accept()
    with peer:
        lines = b"".join(b"%d q\n" % number for number in range(400))
        squid.ask(lines)
        received = b""
        while len(received) < len(lines):
            received += peer.recv(65536)
        assert received == lines
        peer.sendall(b"".join(b"%d OK\n" % number for number in range(400)))
        assert [squid.answer() for _ in range(400)] == [b"%d OK\n" % number for number in range(400)]


def test_when_the_policy_process_dies_what_waits_is_refused_and_the_next_question_reaches_its_successor(
    sidecar: Sidecar, policy: socket.socket
) -> None:
    squid = start(sidecar)
    peer, _ = policy.accept()
    squid.ask(b"1 a\n2 b\n")
    peer.recv(100)
    peer.close()
    assert {squid.answer().split(b" ")[0] for _ in range(2)} == {b"1", b"2"}
    squid.ask(b"3 c\n")
    successor, _ = policy.accept()
    with successor:
        assert successor.recv(100) == b"3 c\n"
        successor.sendall(b"3 OK\n")
        assert squid.answer() == b"3 OK\n"


def test_without_a_policy_process_everything_is_refused_and_the_relay_stays(sidecar: Sidecar) -> None:
    squid = start(sidecar)
    for number in range(3):
        squid.ask(b"%d a\n" % number)
        answer = squid.answer()
        assert answer.startswith(b"%d ERR message=" % number) and b"action_=deny" in answer
    squid.ask(b"7 x CONNECT git.test 22 -\n8 x CONNECT ok.test 443 -\n")
    assert squid.answer().endswith(b"action_=term\n"), "ssh would wait for ever in front of a 403 inside TLS"
    assert squid.answer().endswith(b"action_=deny\n")
    assert sidecar.processes["relay"].poll() is None


def test_a_hung_policy_process_is_refused_after_the_deadline_and_its_late_answer_meets_nobody(
    sidecar: Sidecar, policy: socket.socket
) -> None:
    squid = start(sidecar, deadline_s="0.2")
    peer, _ = policy.accept()
    squid.ask(b"1 a\n")
    assert squid.answer().startswith(b"1 ERR")
    peer.recv(100)
    # squid uses channel 1 again; what the hung process says about the old one must not answer the new.
    fresh, _ = policy.accept()
    with peer, fresh:
        squid.ask(b"1 b\n")
        assert fresh.recv(100) == b"1 b\n"
        with pytest.raises(OSError):
            for _ in range(100):
                peer.sendall(b"1 OK\n")
        fresh.sendall(b"1 ERR mine\n")
        assert squid.answer() == b"1 ERR mine\n"


def test_an_answer_that_nobody_asked_for_is_dropped(sidecar: Sidecar, policy: socket.socket) -> None:
    squid = start(sidecar)
    peer, _ = policy.accept()
    with peer:
        peer.sendall(b"9 OK\ngarbage\n\n")
        squid.ask(b"1 a\n")
        peer.recv(100)
        peer.sendall(b"1 OK\n1 OK again\n")
        squid.ask(b"2 b\n")
        peer.recv(100)
        peer.sendall(b"2 OK\n")
        assert [squid.answer(), squid.answer()] == [b"1 OK\n", b"2 OK\n"]


def test_it_leaves_when_squid_does(sidecar: Sidecar, policy: socket.socket) -> None:
    squid = start(sidecar)
    squid.stdin.close()
    assert sidecar.processes["relay"].wait(timeout=60) == 0
