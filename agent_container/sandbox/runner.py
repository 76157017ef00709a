"""The host's half of the runner protocol, version 1: JSON lines over an exec channel to PID 1 of the agent's container.

What the runner reports is the agent's word: it has the agent's uid. The host's own clock decides about limits.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from agent_container.engine.protocol import Channel, Engine
from agent_container.errors import EngineError

VERSION = 1
PROGRAM = ("/usr/bin/python3", "-I", "/opt/agent-container/runner")
CONNECT = (*PROGRAM, "connect")
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Frame:
    """One piece of an agent's output, or its end."""

    seq: int
    channel: str
    """stdout, stderr or exit."""
    data: bytes
    raw: bytes
    """The frame as the runner wrote it: what the spool holds."""
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    detail: str | None = None


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

    def stream(self, turn: str, *, start: int, poll_s: float) -> Iterator[Frame | None]:
        """Frames from sequence number `start` on, then the exit frame; None whenever `poll_s` passes in silence.

        Ends without an exit frame when the conversation is lost.
        """
        self._send({"op": "turn.stream", "turn": turn, "from": start})
        while True:
            try:
                line = self._channel.receive(poll_s)
            except TimeoutError:
                yield None
                continue
            if line is None:
                return
            frame = parse_frame(line)
            if frame is None:
                continue
            yield frame
            if frame.channel == "exit":
                return

    def stop(self, turn: str, *, reason: str) -> None:
        """Asks for a turn's end: TERM to its process group, the grace, then KILL to all that is left."""
        self._ask({"op": "stop", "turn": turn, "reason": reason})

    def interrupt(self, turn: str) -> None:
        """INT to the turn's process group: agents flush what they have."""
        self._ask({"op": "interrupt", "turn": turn})

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


def parse_frame(line: bytes) -> Frame | None:
    """One frame of the stream or of the spool; None for anything that is not one."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("seq"), int):
        return None
    channel = value.get("ch")
    if channel not in ("stdout", "stderr", "exit", "note"):
        return None
    text, packed = value.get("text"), value.get("b64")
    data = b""
    if isinstance(text, str):
        data = text.encode("utf-8", "surrogatepass")
    elif isinstance(packed, str):
        try:
            data = base64.b64decode(packed, validate=True)
        except ValueError:
            return None
    code, signal = value.get("code"), value.get("signal")
    reason, detail = value.get("reason"), value.get("detail")
    return Frame(
        seq=value["seq"],
        channel=channel,
        data=data,
        raw=line,
        exit_code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, str) else None,
        reason=reason if isinstance(reason, str) else None,
        detail=detail if isinstance(detail, str) else None,
    )
