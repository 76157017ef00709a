"""The board of `egress watch` on a terminal: rows with numbers that stay, and keys that allow what a row shows. A key
binds to the number that was typed, and only once the question about it stands on the screen."""

from __future__ import annotations

import os
import queue
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_container.commands.egress_watch import Board, Row
from agent_container.errors import AgentContainerError
from agent_container.ui.clean import clean, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agent_container.commands.egress_log import Receipt

WAKE_S = 0.2
KEYS = "number, Enter: allow it   q: quit"

Allow = Callable[[Row, bool], str]
"""Allows what a row shows, in the spec too where the flag says so; what was done, in words."""


def watch_board(receipts: Iterator[Receipt], *, allow: Allow, stop: threading.Event) -> None:
    """Shows the board until the user quits or the sandbox ends. `stop` ends `receipts`."""
    from rich.console import Console
    from rich.live import Live

    arrived: queue.Queue[Receipt | BaseException | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(receipts, arrived), daemon=True)
    reader.start()
    screen = _Screen(allow)
    console = Console(markup=False, emoji=False, highlight=False)
    try:
        with _keys() as key, Live(screen.show(console.height), console=console, auto_refresh=False) as live:
            while not screen.quits and _take(arrived, screen):
                pressed = key(WAKE_S)
                if pressed:
                    screen.press(pressed)
                live.update(screen.show(console.height), refresh=True)
    finally:
        stop.set()
        reader.join(timeout=5)


def _read(receipts: Iterator[Receipt], arrived: queue.Queue[Receipt | BaseException | None]) -> None:
    try:
        for receipt in receipts:
            arrived.put(receipt)
    except Exception as error:  # it is the main thread's to report
        arrived.put(error)
    arrived.put(None)


def _take(arrived: queue.Queue[Receipt | BaseException | None], screen: _Screen) -> bool:
    """What has come since the last look; false when nothing more will."""
    while not arrived.empty():
        item = arrived.get()
        if item is None:
            return False
        if isinstance(item, BaseException):
            raise item
        screen.board.add(item)
    return True


class _Screen:
    """What is shown, and what a key means at this moment."""

    def __init__(self, allow: Allow) -> None:
        self.board = Board()
        self.quits = False
        self._allow = allow
        self._typed = ""
        self._asked: Row | None = None
        self._said = ""

    def press(self, key: str) -> None:
        """One key."""
        if self._asked is not None:
            self._answer(self._asked, key)
        elif key.isascii() and key.isdigit():
            self._typed = (self._typed + key)[:4]
        elif key in ("\r", "\n") and self._typed:
            self._choose(int(self._typed))
            self._typed = ""
        elif key in ("\x7f", "\b", "\x1b"):
            self._typed = ""
        elif key in ("q", "\x03", "\x04"):
            self.quits = True

    def _choose(self, number: int) -> None:
        row = self.board.row(number)
        self._said = ""
        if row is None:
            self._said = f"there is no row {number}"
        elif not row.allowable:
            self._said = f"row {number} was not refused for want of a rule: {row.why}"
        else:
            self._asked = row

    def _answer(self, row: Row, key: str) -> None:
        self._asked = None
        if key not in ("y", "s"):
            self._said = "nothing was changed"
            return
        try:
            self._said = self._allow(row, key == "s")
        except AgentContainerError as error:
            self._said = "; ".join([error.message, *error.details[:2]])

    def show(self, height: int) -> RenderableType:
        """The table's last rows that fit, and the line that keys act on."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("", "refused", "times", "why"):
            table.add_column(header, overflow="ellipsis", no_wrap=True)
        for row in self.board.rows[-max(3, height - 5) :]:
            cells = (str(row.number), one_line(row.what, width=70), str(row.count), one_line(row.why, width=60))
            table.add_row(*(Text(clean(cell)) for cell in cells), style="" if row.allowable else "dim")
        lines: list[RenderableType] = [table if self.board.rows else Text("nothing was refused yet")]
        if self.board.unlisted:
            lines.append(Text(f"and {self.board.unlisted} more that are not listed"))
        if self._asked is not None:
            where = self._asked.host + (f":{self._asked.port}" if self._asked.port else "")
            lines.append(Text(clean(f"allow {where}?  y: for this sandbox   s: and in the spec   n: no"), style="bold"))
        else:
            lines.append(Text(clean(" ".join(part for part in (self._said, self._typed or KEYS) if part))))
        return Group(*lines)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for one key; the terminal is put back as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def key(wait_s: float) -> str:
        if not select.select([descriptor], [], [], wait_s)[0]:
            return ""
        data = os.read(descriptor, 16)
        if not data:
            return "q"
        return data.decode("ascii", "replace")[:1]

    try:
        tty.setcbreak(descriptor)
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
