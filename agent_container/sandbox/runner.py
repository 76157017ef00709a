"""The host's half of the runner protocol, version 1: JSON lines over an exec channel to PID 1 of the agent's container.

What the runner reports is the agent's word: it has the agent's uid. The host's own clock decides about limits.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from agent_container.agents import HomeFile
from agent_container.engine.protocol import Channel, Engine
from agent_container.errors import EngineError
from agent_container.frames import BadLine, Frame, Line, parse_frame

VERSION = 1
PROGRAM = ("/usr/bin/python3", "-I", "/opt/agent-container/runner")
CONNECT = (*PROGRAM, "connect")
ANSWER_TIMEOUT_S = 30.0
MAX_ASIDE = 20


@dataclass(frozen=True)
class Received:
    """A frame, or a line that is none, with the bytes that the runner sent: they are kept as evidence."""

    frame: Frame | BadLine
    raw: bytes


@dataclass(frozen=True)
class TurnRequest:
    """A program to run as the agent, with its limits."""

    turn: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cwd: str
    stdin: bytes
    time_s: float
    idle_s: float
    grace_s: float = 5.0


class RunnerClient:
    """One conversation with a runner; a lost one is replaced by opening another."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    def connect(cls, engine: Engine, container: str) -> Self:
        """Opens a conversation and checks the version."""
        client = cls(engine.open_channel(container, CONNECT))
        client._ask({"op": "hello"})
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def start_turn(self, turn: TurnRequest) -> None:
        """Starts a turn; the same id twice is refused by the runner."""
        self._ask(
            {
                "op": "turn.start",
                "turn": turn.turn,
                "argv": list(turn.argv),
                "env": dict(turn.environment),
                "cwd": turn.cwd,
                "stdin": base64.b64encode(turn.stdin).decode(),
                "time_s": turn.time_s,
                "idle_s": turn.idle_s,
                "grace_s": turn.grace_s,
            }
        )

    def stream(self, turn: str, *, start: int, poll_s: float) -> Iterator[Received | None]:
        """Frames from sequence number `start` on, then the exit frame; None whenever `poll_s` passes in silence.

        Ends without an exit frame when the conversation is lost.
        """
        self._send({"op": "turn.stream", "turn": turn, "from": start})
        number = 0
        while True:
            try:
                line = self._channel.receive(poll_s)
            except TimeoutError:
                yield None
                continue
            if line is None:
                return
            number += 1
            frame = parse_frame(Line(number, line, len(line), ended=True))
            yield Received(frame, line)
            if isinstance(frame, Frame) and frame.channel == "exit":
                return

    def put_home(self, files: Sequence[HomeFile]) -> tuple[str, ...]:
        """Puts files into the agent's HOME, each as its `how` says; harmless to repeat. Returns what stood in the way
        and was set aside, in words."""
        if not files:
            return ()
        rows = self._ask({"op": "home.put", "files": [asdict(file) for file in files]}).get("set_aside")
        return tuple(_set_aside(row) for row in rows[:MAX_ASIDE]) if isinstance(rows, list) else ()

    def stop(self, turn: str, *, reason: str) -> None:
        """Asks for a turn's end: TERM to its process group, the grace, then KILL to all that is left."""
        self._ask({"op": "stop", "turn": turn, "reason": reason})

    def interrupt(self, turn: str, *, reason: str) -> None:
        """The same beginning with INT, for agents that flush what they have on that."""
        self._ask({"op": "interrupt", "turn": turn, "reason": reason})

    def start_pty(
        self, *, name: str, argv: Sequence[str], environment: Mapping[str, str], cwd: str, rows: int, cols: int
    ) -> None:
        """Starts a program on a pty that the runner keeps; harmless when it runs already."""
        self._ask(
            {
                "op": "pty.start",
                "name": name,
                "argv": list(argv),
                "env": dict(environment),
                "cwd": cwd,
                "rows": rows,
                "cols": cols,
            }
        )

    def works(self, turn: str) -> bool:
        """Whether the runner has this turn and has not seen its end."""
        return any(row.get("state") != "ended" for row in self._turns(turn))

    def frames_of(self, turn: str) -> int:
        """How many frames of this turn are kept by now; none of one that was drained."""
        counts = [row.get("seq") for row in self._turns(turn) if not row.get("acknowledged")]
        return max((count for count in counts if isinstance(count, int)), default=0)

    def _turns(self, turn: str) -> list[dict[str, object]]:
        rows = self.status().get("turns")
        known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return [row for row in known if row.get("turn") == turn]

    def status(self) -> dict[str, object]:
        """Turns and ptys that the runner knows."""
        return self._ask({"op": "status"})

    def close(self) -> None:
        """Ends the conversation; what runs goes on."""
        self._channel.close()

    def _send(self, request: dict[str, object]) -> None:
        self._channel.send(json.dumps({"v": VERSION, **request}).encode())

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        operation = request["op"]
        try:
            self._send(request)
            line = self._channel.receive(ANSWER_TIMEOUT_S)
        except (TimeoutError, OSError):
            line = None
        if line is None:
            words = bytes(getattr(self._channel, "stderr", b"")).decode(errors="replace").strip().splitlines()
            raise EngineError(f"the runner gave no answer to {operation}", details=words[-8:])
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            error = answer.get("error") if isinstance(answer, dict) else None
            raise EngineError(f"the runner refused {operation}: {error or 'no reason given'}")
        return answer


def _set_aside(row: object) -> str:
    kind, path, now = (str(row.get(key))[:300] if isinstance(row, dict) else "?" for key in ("kind", "path", "now"))
    return f"in the agent's HOME, what stood at {path} ({kind}) was in the way and is now {now}"
