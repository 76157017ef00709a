"""What agents do on bad days, by the words of the task. A task that begins with none of them is the demo's own task.

shell: CMD                  run CMD, report it; the outcome is its exit status
sleep N                     say nothing for N seconds, then succeed
spam N MB / line N MB       print that much, in lines or in one line, then succeed
fail N                      a result that is an error, exit status N
exit N after success        a good result, then exit status N
exit 0 without result       stop in mid-work
hang after result           a good result, and never exit
stubborn child              leave a child in a session of its own that ignores TERM, then succeed
stubborn                    ignore INT and TERM, and never end
fork storm                  children that leave children, until the limits stop them
garbage                     half lines, NUL, invalid UTF-8, deep nesting, then succeed
ask                         wait for an answer that nobody gives
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import Callable, List, Match, Pattern, Tuple

from .output import Output

FOREVER_S = 24 * 3600
MIB = 1024 * 1024
STUBBORN_CHILD = "trap '' TERM INT HUP; while :; do sleep 3600; done"


def _shell(output: Output, match: Match[str]) -> int:
    command = match[1]

    def run() -> Tuple[bool, str]:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.returncode == 0, f"exit {done.returncode}\n" + done.stdout.decode("utf-8", "replace")

    ok, said = output.tool("shell", command, run)
    output.result(ok, said.split("\n", 1)[0])
    return 0 if ok else 1


def _sleep(output: Output, match: Match[str]) -> int:
    output.message(f"I sleep for {match[1]} seconds.")
    time.sleep(float(match[1]))
    output.result(True, "slept")
    return 0


def _spam(output: Output, match: Match[str]) -> int:
    piece = (b"x" * 1023 + b"\n") * 64 if match[1] == "spam" else b"x" * 65536
    for _ in range(int(match[2]) * MIB // len(piece)):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.write(b"\n")
    output.result(True, f"printed {match[2]} MB")
    return 0


def _fail(output: Output, match: Match[str]) -> int:
    output.event("error", message="the task asked me to fail")
    output.result(False, "failed as asked")
    return int(match[1])


def _exit_after_success(output: Output, match: Match[str]) -> int:
    output.result(True, "done, whatever my exit status says")
    return int(match[1])


def _exit_without_result(output: Output, _match: Match[str]) -> int:
    output.message("I stop here.")
    return 0


def _hang_after_result(output: Output, _match: Match[str]) -> int:
    output.result(True, "done, but I do not go")
    time.sleep(FOREVER_S)
    return 0


def _stubborn_child(output: Output, _match: Match[str]) -> int:
    child = subprocess.Popen(["/bin/sh", "-c", STUBBORN_CHILD], start_new_session=True)
    output.message(f"My child {child.pid} stays.")
    output.result(True, "done")
    return 0


def _stubborn(output: Output, _match: Match[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    output.message("I do not listen to signals.")
    time.sleep(FOREVER_S)
    return 0


def _fork_storm(output: Output, _match: Match[str]) -> int:
    output.message("I fork.")
    end = time.monotonic() + 5
    while time.monotonic() < end:  # bounded: a broken limit must not take the machine
        try:
            pid = os.fork()
        except OSError:
            time.sleep(0.01)
            continue
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if os.fork():
                os._exit(0)
            time.sleep(60)
            os._exit(0)
    output.result(True, "forked")
    return 0


def _garbage(output: Output, _match: Match[str]) -> int:
    sys.stdout.buffer.write(b'{"type":"message","te\n\xff\xfe\0\n' + b"[" * 5000 + b'\n"text"\n{"type":"result"}\n')
    sys.stdout.buffer.write('{"type":"message","text":"a\u2028b"}\n'.encode())
    sys.stdout.flush()
    output.result(True, "done, between other things")
    return 0


def _ask(output: Output, _match: Match[str]) -> int:
    output.message("Shall I go on? [y/N]")
    try:
        with open("/dev/tty", encoding="utf-8") as terminal:
            terminal.readline()
    except OSError:
        time.sleep(FOREVER_S)
    return 0


BEHAVIOURS: List[Tuple[Pattern[str], Callable[[Output, Match[str]], int]]] = [
    (re.compile(pattern, re.DOTALL), behaviour)
    for pattern, behaviour in [
        (r"shell: (.+)", _shell),
        (r"sleep ([0-9.]+)", _sleep),
        (r"(spam|line) ([0-9]+) MB", _spam),
        (r"fail ([0-9]+)", _fail),
        (r"exit ([0-9]+) after success", _exit_after_success),
        (r"exit 0 without result", _exit_without_result),
        (r"hang after result", _hang_after_result),
        (r"stubborn child", _stubborn_child),
        (r"stubborn", _stubborn),
        (r"fork storm", _fork_storm),
        (r"garbage", _garbage),
        (r"ask", _ask),
    ]
]
