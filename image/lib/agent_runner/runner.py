"""The runner itself: turns and terminals by name, reaping, recovery of earlier turns, the container's end."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from typing import Any, Callable, Dict, List, Mapping, Tuple

from .config import NAME, TERMINALS_MAX, TURNS_KEPT_MAX, Paths
from .loop import Loop
from .spool import write_file
from .terminal import Terminal
from .turn import LiveTurn, Request, Turn, recover

STOP_GRACE_S = 3.0
"""Less than the engine's own stop timeout, so that exit frames are written before its SIGKILL."""


class Refused(Exception):
    """The request cannot be served; `code` is for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Runner:
    """All state of one container's life."""

    def __init__(self, paths: Paths, *, loop: Loop, environ: Mapping[str, str]) -> None:
        self.paths = paths
        self.turns: Dict[str, Turn] = {}
        self.terminals: Dict[str, Terminal] = {}
        self.on_turn: Callable[[Turn], None] = lambda _turn: None
        self.on_terminal: Callable[[Terminal], None] = lambda _terminal: None
        self._loop = loop
        self._environ = dict(environ)
        self.home = self._environ.get("HOME") or "/"
        self._stopping = False

    def recover_turns(self) -> None:
        """Serve what an earlier runner left on this volume. Links and oddities are left alone."""
        try:
            names = sorted(os.listdir(self.paths.turns))[-TURNS_KEPT_MAX:]
        except OSError:
            return
        for name in names:
            directory = os.path.join(self.paths.turns, name)
            with contextlib.suppress(OSError):
                if NAME.match(name) and stat.S_ISDIR(os.lstat(directory).st_mode):
                    self.turns[name] = recover(name, directory, changed=self._turn_changed)

    def start_turn(self, request: Request) -> Tuple[Turn, bool]:
        """The turn and whether it existed; asking again with the same argv is harmless. Raises: Refused, SpoolError."""
        known = self.turns.get(request.turn)
        if known is not None:
            if known.argv and list(known.argv) != request.argv:
                raise Refused("exists", f"turn {request.turn} exists with another command")
            return known, True
        if self._stopping:
            raise Refused("stopping", "the container is stopping")
        busy = [turn.name for turn in self.turns.values() if turn.live]
        if busy:
            raise Refused("busy", f"turn {busy[0]} is running")
        if len(self.turns) >= TURNS_KEPT_MAX:
            self._forget_oldest()
        directory = os.path.join(self.paths.turns, request.turn)
        turn = LiveTurn(request, directory, loop=self._loop, spared=self._spared, changed=self._turn_changed)
        self.turns[request.turn] = turn
        try:
            turn.start(self._environ)
        except Exception:
            del self.turns[request.turn]
            raise
        return turn, False

    def find_turn(self, name: str) -> Turn:
        """Raises: Refused."""
        if name not in self.turns:
            raise Refused("unknown-turn", f"there is no turn {name!r}")
        return self.turns[name]

    def stop_turn(self, name: str, reason: str, detail: str | None, number: int) -> Turn:
        """Raises: Refused. A turn that has ended is not an error."""
        turn = self.find_turn(name)
        if isinstance(turn, LiveTurn):
            turn.stop(reason, detail, number=number)
        return turn

    def acknowledge(self, name: str) -> Turn:
        """The host has stored the turn: free its space. Raises: Refused, OSError."""
        turn = self.find_turn(name)
        if turn.live:
            raise Refused("running", f"turn {name} has not ended")
        if not turn.acknowledged:
            write_file(os.path.join(self.paths.turns, name, "acknowledged"), b"")
            turn.acknowledged = True
            turn.spool.discard()
        return turn

    def start_terminal(
        self, name: str, argv: List[str], *, changes: Mapping[str, Any], cwd: str, rows: int, cols: int
    ) -> bool:
        """Whether it was running already. Raises: Refused, OSError, ValueError."""
        known = self.terminals.get(name)
        if known is not None and known.live:
            return True
        if self._stopping:
            raise Refused("stopping", "the container is stopping")
        if known is None and len(self.terminals) >= TERMINALS_MAX:
            raise Refused("too-many", f"there are {TERMINALS_MAX} terminals already")
        terminal = Terminal(name, loop=self._loop, changed=self._terminal_changed)
        terminal.start(argv, environ=self._environ, changes=changes, cwd=cwd, rows=rows, cols=cols)
        self.terminals[name] = terminal
        return False

    def find_terminal(self, name: str) -> Terminal:
        """Raises: Refused."""
        if name not in self.terminals:
            raise Refused("unknown-terminal", f"there is no terminal {name!r}")
        return self.terminals[name]

    def reap(self) -> None:
        """Wait for everything that has ended, ours and orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for turn in self.turns.values():
                if isinstance(turn, LiveTurn) and turn.pid == pid and turn.live:
                    turn.reaped(status)
            for terminal in self.terminals.values():
                if terminal.pid == pid and terminal.live:
                    terminal.reaped(status)

    def shut_down(self) -> None:
        """The container is told to stop: end everything within the grace, then leave the loop."""
        if self._stopping:
            return
        self._stopping = True
        for terminal in self.terminals.values():
            terminal.stop(STOP_GRACE_S)
        for turn in self.turns.values():
            if isinstance(turn, LiveTurn) and turn.live:
                turn.stop_once("stopped", "the container was stopped")
                self._loop.later(STOP_GRACE_S, lambda turn=turn: turn.stop("stopped"))
        self._leave_when_quiet(100)

    def _leave_when_quiet(self, checks: int) -> None:
        live: List[Any] = [*self.turns.values(), *self.terminals.values()]
        if checks and any(item.live for item in live):
            self._loop.later(0.05, lambda: self._leave_when_quiet(checks - 1))
        else:
            self._loop.later(0.05, self._loop.stop)  # one round more, for clients to get the exit frame

    def _spared(self, ending: Turn) -> Tuple[List[int], List[str]]:
        others: List[Any] = [t for t in self.turns.values() if isinstance(t, LiveTurn) and t.live and t is not ending]
        others += [terminal for terminal in self.terminals.values() if terminal.live]
        return [other.pid for other in others], [other.name for other in others]

    def _forget_oldest(self) -> None:
        for name, turn in self.turns.items():
            if not turn.live:
                turn.spool.close()
                del self.turns[name]
                return

    def _turn_changed(self, turn: Turn) -> None:
        self.on_turn(turn)

    def _terminal_changed(self, terminal: Terminal) -> None:
        self.on_terminal(terminal)


def handle_signals(runner: Runner, loop: Loop) -> None:
    """SIGCHLD reaps; the signals of a container's stop end it."""
    loop.on_signal(signal.SIGCHLD, runner.reap)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.on_signal(number, runner.shut_down)
