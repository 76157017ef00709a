"""A person at a terminal: what a full-screen program shows, as text, and keys to press. The terminal is pyte's, which
also answers what programs ask of one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyte

from tests.support.world import World

ROWS, COLUMNS = 40, 110
PASTE = "\x1b[200~{}\x1b[201~"


class Screen:
    """The tool on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._screen.write_process_input = lambda data: os.write(master, data.encode())
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        """What is to be seen now."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, text: str, *, timeout_s: float = 120) -> None:
        """Reads until the text stands somewhere on the screen."""
        end = time.monotonic() + timeout_s
        while text not in self.text:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} is not on the screen:\n{self.text}"
            if select.select([self._master], [], [], min(left, 1))[0] and not self._read():
                raise AssertionError(f"ended before it showed {text!r}:\n{self.text}")

    def quiet(self, seconds: float = 1.0, *, timeout_s: float = 60) -> None:
        """Reads until nothing was drawn for a while: a program that is still drawing may lose keys."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and select.select([self._master], [], [], seconds)[0]:
            if not self._read():
                return

    def type(self, text: str) -> None:
        """Keys."""
        os.write(self._master, text.encode())

    def paste(self, text: str) -> None:
        """Several lines at once, as a terminal hands over a clipboard."""
        self.type(PASTE.format(text))

    def resize(self, rows: int, columns: int) -> None:
        """The window gets another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen.resize(rows, columns)

    def ended(self, *, timeout_s: float = 60) -> int:
        """The exit status, once all was read."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if select.select([self._master], [], [], 0.2)[0]:
                if not self._read():
                    break
            elif self._process.poll() is not None:
                break
        return self._process.wait(timeout=max(1, end - time.monotonic()))

    def hang_up(self) -> None:
        """The terminal is gone: its window was closed, or the connection to it lost."""
        with contextlib.suppress(OSError):
            os.close(self._master)
        self._process.wait(timeout=60)

    def close(self) -> None:
        """Ends what still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._master)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other end is closed
            return False
        self._stream.feed(data)
        return bool(data)


@contextlib.contextmanager
def at_screen(world: World, *arguments: str, cwd: Path, **options: Any) -> Iterator[Screen]:
    """Runs the tool with a terminal that is its controlling one, so that a resize reaches it."""
    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = world.start(*arguments, cwd=cwd, preexec_fn=lambda: os.login_tty(slave), close_fds=True, **options)
    os.close(slave)
    screen = Screen(process, master)
    try:
        yield screen
    finally:
        screen.close()
