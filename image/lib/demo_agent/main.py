"""The demo agent's command line, and the choice between its task and its behaviours."""

from __future__ import annotations

import sys
from typing import List

from . import VERSION
from .behaviours import BEHAVIOURS
from .escape import try_to_escape
from .output import Output
from .work import do_task

USAGE = "usage: demo -- TASK | demo --interactive"


def run_task(task: str, output: Output) -> int:
    """The exit status."""
    for pattern, behaviour in BEHAVIOURS:
        match = pattern.fullmatch(task.strip())
        if match:
            return behaviour(output, match)
    output.message(f"My task: {task[:1000]}")
    done = do_task(output)
    held = try_to_escape(output)
    if not held:
        output.result(False, "the sandbox let me out")
        return 1
    output.result(
        done, "the tests pass, NOTES.md is written, and I could not get out" if done else "the tests still fail"
    )
    return 0 if done else 1


def talk() -> int:
    """A terminal: one task a line."""
    output = Output(plain=True)
    sys.stdout.write(f"demo agent {VERSION}. A task, or `exit`.\n")
    while True:
        try:
            task = input("> ").strip()
        except EOFError:
            return 0
        if task == "exit":
            return 0
        if task:
            run_task(task, output)


def main(argv: List[str]) -> int:
    """The exit status."""
    try:
        if argv == ["--interactive"]:
            return talk()
        if len(argv) == 2 and argv[0] == "--":
            output = Output()
            output.event("session", session="demo", version=VERSION)
            return run_task(argv[1], output)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    sys.stderr.write(USAGE + "\n")
    return 64
