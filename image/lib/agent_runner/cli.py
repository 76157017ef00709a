"""`serve`, `connect` and `attach NAME`, and the checks that come before any of them."""

from __future__ import annotations

import os
import resource
import sys

from . import VERSION
from .config import read_paths
from .protect import become_subreaper, protect_self

USAGE = "usage: runner [serve [--subreaper | --hidden PATH ...] | connect | attach NAME | version]"
EXIT_USAGE = 64
EXIT_REFUSED = 77


def serve(*, subreaper: bool, hidden: list[str]) -> int:
    """Idle until a client asks for something; the container's whole life."""
    from . import covers
    from .loop import Loop
    from .runner import Runner, handle_signals
    from .server import Server

    if 0 in (*os.getresuid(), *os.getresgid()):
        sys.stderr.write("runner: refuses to run as root; the agent's uid is never 0\n")
        return EXIT_REFUSED
    if os.getpid() != 1 and not subreaper:
        sys.stderr.write("runner: must be PID 1, so that orphans come back to it\n")
        return EXIT_REFUSED
    if subreaper:
        become_subreaper()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard != resource.RLIM_INFINITY else 4096, hard))
    loop = Loop()
    runner = Runner(read_paths(os.environ), loop=loop, environ=os.environ)
    handle_signals(runner, loop)
    runner.recover_turns()
    if hidden:
        covers.watch(loop, hidden, end=covers.end_container)  # before anything is served
    Server(runner, loop=loop).listen()
    loop.run()
    return 0


def main(argv: list[str]) -> int:
    """The exit status."""
    protect_self()
    try:
        if argv in ([], ["serve"], ["serve", "--subreaper"]):
            return serve(subreaper=argv[-1:] == ["--subreaper"], hidden=[])
        if argv[0] == "serve" and len(argv) % 2 == 1 and set(argv[1::2]) == {"--hidden"}:
            return serve(subreaper=False, hidden=argv[2::2])
        if argv == ["connect"]:
            from .bridge import connect

            return connect(read_paths(os.environ))
        if len(argv) == 2 and argv[0] == "attach":
            from .attach import attach

            return attach(read_paths(os.environ), argv[1])
    except BrokenPipeError:
        return 0  # the other side left; nothing here depends on it
    except OSError as error:
        sys.stderr.write(f"runner: {error}\n")
        return 1
    if argv == ["version"]:
        sys.stdout.write(VERSION + "\n")
        return 0
    sys.stderr.write(USAGE + "\n")
    return EXIT_USAGE
