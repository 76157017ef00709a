"""`runner attach NAME`: joins the terminal that it stands on to one that the runner keeps."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty
from contextlib import suppress
from typing import Any, Dict, Optional, Tuple

from .bridge import dial
from .config import Paths
from .lines import write_all

DETACH = b"\x10\x11"
"""ctrl-p ctrl-q, as in docker attach."""


def _terminal_size() -> Tuple[int, int]:
    with suppress(OSError):
        rows, cols = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))[:2]
        if rows and cols:
            return rows, cols
    return 24, 80


class _Attachment:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._pending = b""
        self._held = b""

    def ask(self, operation: str, **fields: Any) -> None:
        self.connection.sendall(json.dumps({"v": 1, "op": operation, **fields}).encode() + b"\n")

    def keys(self, data: bytes) -> bool:
        """Send what was typed; False when it was the detach sequence."""
        data, self._held = self._held + data, b""
        before, found, _after = data.partition(DETACH)
        if not found and before.endswith(DETACH[:1]):
            before, self._held = before[:-1], DETACH[:1]
        if before:
            self.ask("pty.input", b64=base64.b64encode(before).decode("ascii"))
        return not found

    def receive(self) -> Optional[Dict[str, Any]]:
        """Print what came; the final message, or None while there is none."""
        data = self.connection.recv(262144)
        if not data:
            return {"ok": False, "error": {"message": "the runner went away"}}
        lines = (self._pending + data).split(b"\n")
        self._pending = lines.pop()
        for line in lines:
            message: Dict[str, Any] = json.loads(line)
            if message.get("ch") == "pty":
                write_all(1, base64.b64decode(message["b64"]))
            elif message.get("ch") == "exit" or message.get("ok") is False or message.get("op") == "pty.detach":
                return message
        return None


def attach(paths: Paths, name: str) -> int:
    """Join the terminal until its program ends (its status), or ctrl-p ctrl-q, or stdin's end (0)."""
    attachment = _Attachment(dial(paths))
    is_terminal = os.isatty(0)
    before = termios.tcgetattr(0) if is_terminal else None
    wake_r, wake_w = os.pipe()
    for fd in (wake_r, wake_w):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGWINCH, lambda _number, _frame: None)
    rows, cols = _terminal_size()
    attachment.ask("pty.attach", name=name, rows=rows, cols=cols)
    try:
        if is_terminal:
            tty.setraw(0, termios.TCSADRAIN)  # what was typed meanwhile is not lost
        final = _run(attachment, wake_r)
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
    if final is None or (final.get("op") == "pty.detach" and final.get("ok")):
        sys.stderr.write("\r\ndetached\r\n")
        return 0
    if final.get("ok") is False:
        sys.stderr.write(final["error"]["message"] + "\n")
        return 1
    return final["code"] if final.get("code") is not None else 128 + signal.Signals[final["signal"]]


def _run(attachment: _Attachment, wake_r: int) -> Optional[Dict[str, Any]]:
    sources = [0, attachment.connection.fileno(), wake_r]
    while True:
        for fd in select.select(sources, [], [])[0]:
            if fd == wake_r:
                os.read(wake_r, 64)
                rows, cols = _terminal_size()
                attachment.ask("pty.resize", rows=rows, cols=cols)
            elif fd == 0:
                data = os.read(0, 65536)
                if not data:  # answered after what was asked before, so that a refusal is still heard
                    sources.remove(0)
                    attachment.ask("pty.detach")
                elif not attachment.keys(data):
                    return None
            else:
                final = attachment.receive()
                if final is not None:
                    return final
