"""The only printer: results on stdout, progress on stderr, one envelope with `--json`, plain when not a terminal.

Everything passes `clean` on its way, so that nothing a sandbox wrote can move the cursor, hide text or fake a line.
Nothing here decides what a command says; it decides how it looks.
"""

from __future__ import annotations

import getpass
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from agent_container.errors import AgentContainerError, UsageError
from agent_container.ui.clean import clean
from agent_container.ui.envelope import VERSION, envelope, jsonable

if TYPE_CHECKING:
    from rich.console import Console

GOOD, BAD, WARN, FAINT, TITLE = "green", "red", "yellow", "dim", "bold"
SHOW_ELAPSED_S = 1.0


class Step:
    """One running step; `update` changes what it says, `finish` the line that is left of it."""

    def __init__(self, done: str, show: Callable[[str], None]) -> None:
        self.done = done
        self._show = show

    def update(self, text: str) -> None:
        """Says what the step is doing just now; seen on a terminal only."""
        self._show(text)

    def finish(self, done: str) -> None:
        """Replaces the line that stays."""
        self.done = done


class Ui:
    """How one call of the tool talks to its user."""

    def __init__(
        self,
        *,
        json_output: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        no_input: bool = False,
        environ: Mapping[str, str] | None = None,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.json_output = json_output
        self.quiet = quiet
        self.verbose = verbose
        self.no_input = no_input
        self._environ = os.environ if environ is None else environ
        self._stdin = stdin or sys.stdin
        self._stdout = _tolerant(stdout or sys.stdout)
        self._stderr = _tolerant(stderr or sys.stderr)
        self._outlives = False

    def outlive_readers(self) -> None:
        """From here on, output that nobody takes any more (a closed pipe, a terminal that hung up) is dropped: what
        goes on in the sandbox must be brought to its end all the same."""
        self._outlives = True

    # -- progress, on stderr ------------------------------------------------------------------------------------

    @contextmanager
    def step(self, doing: str, done: str | None = None) -> Iterator[Step]:
        """One step: `doing` while it runs (a terminal shows it turning), `done`, in the past tense, when it is over."""
        started = time.monotonic()
        with self._turning(doing) as show:
            step = Step(done or doing, show)
            try:
                yield step
            except BaseException:
                self._line(self._err, f"{self._mark(False)} {doing}", BAD, unless=self.quiet)
                raise
        elapsed = time.monotonic() - started
        suffix = f" ({duration(elapsed)})" if elapsed >= SHOW_ELAPSED_S else ""
        self.finished(step.done + suffix)

    def finished(self, text: str) -> None:
        """A step that is over already, in the past tense."""
        self._line(self._err, f"{self._mark(True)} {text}", GOOD, unless=self.quiet)

    def info(self, text: str) -> None:
        """A remark."""
        self._line(self._err, text, "", unless=self.quiet)

    def detail(self, text: str) -> None:
        """A remark for `--verbose`."""
        self._line(self._err, text, FAINT, unless=not self.verbose)

    def warn(self, text: str) -> None:
        """Something that the user should look at; `-q` does not hide it."""
        self._line(self._err, f"warning: {text}", WARN)

    def diff(self, lines: Sequence[str]) -> None:
        """A difference, `+` and `-` in colour; on stderr, since it precedes a question."""
        for line in lines:
            style = GOOD if line.startswith("+") else BAD if line.startswith(("-", "!")) else ""
            self._line(self._err, line, style)

    def error(self, error: AgentContainerError, *, command: str = "") -> None:
        """What failed, its details, and the next command to type; with `--json` the envelope, and the words only where
        more of everything was asked for."""
        if self.json_output:
            self._write(envelope(command, error=error))
            if not self.verbose:
                return
        self._line(self._err, f"error: {error.message}", BAD)
        for detail in error.details:
            self._line(self._err, f"  {detail}", "")
        if error.hint:
            self._line(self._err, f"hint: {error.hint}", TITLE)

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def interactive(self) -> bool:
        """Whether somebody can answer."""
        return not self.no_input and self._stdin.isatty() and self._stderr.isatty()

    def confirm(self, question: str, *, hint: str | None = None, default: bool = False) -> bool:
        """Asks for a yes. Raises UsageError with `hint`, the line to type instead, when nobody can answer."""
        answer = self.prompt(f"{question} [{'Y/n' if default else 'y/N'}]", hint=hint).strip().lower()
        return default if not answer else answer in ("y", "yes")

    def prompt(self, question: str, *, secret: bool = False, hint: str | None = None) -> str:
        """Asks for a line; a secret is not shown. Raises UsageError when nobody can answer."""
        if not self.interactive:
            raise UsageError(f"cannot ask: {question}", hint=hint)
        text = clean(question) + " "
        if secret:
            return getpass.getpass(text, stream=self._stderr)
        self._stderr.write(text)
        self._stderr.flush()
        line = self._stdin.readline()
        if not line:
            raise UsageError(f"no answer to: {question}", hint=hint)
        return line.rstrip("\r\n")

    # -- results, on stdout -------------------------------------------------------------------------------------

    def result(self, result: object, *, command: str, show: Callable[[], None] | None = None) -> None:
        """The command's answer: the envelope with `--json`, else whatever `show` prints."""
        if self.json_output:
            self._write(envelope(command, result=result))
        elif show is not None:
            show()

    def stream(self, event: object, *, command: str, show: Callable[[], None] | None = None) -> None:
        """One line of a streaming command; its last line is `result`."""
        if self.json_output:
            self._write(
                json.dumps({"version": VERSION, "command": command, "event": jsonable(event)}, ensure_ascii=True)
            )
        elif show is not None:
            show()

    def text(self, text: str, *, style: str = "") -> None:
        """A line of the answer."""
        self._line(self._out, text, style)

    def block(self, text: str, *, style: str = "") -> None:
        """Lines of the answer: newlines and tabs are kept."""
        self._line(self._out, text.rstrip("\n"), style, lines=True)

    def heading(self, text: str) -> None:
        """A title over what follows."""
        self._line(self._out, "", "")
        self._line(self._out, text, TITLE)

    def fields(self, rows: Sequence[tuple[str, str]]) -> None:
        """Names and values, values aligned; rows without a value are left out."""
        shown = [(name, value) for name, value in rows if value]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self._line(self._out, f"{name:<{width}}  {clean(value)}", "")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, styles: Sequence[str] = ()) -> None:
        """A table; `styles` gives one style a row. On a terminal it folds to the width, else nothing is cut."""
        cells = [[clean(cell) for cell in row] for row in rows]
        if self._stdout.isatty():
            self._rich_table(headers, cells, styles)
            return
        widths = [max(len(cell) for cell in column) for column in zip(headers, *cells, strict=True)]
        for row in [list(headers), *cells]:
            self._write("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())

    def raw(self, data: bytes) -> None:
        """Bytes for a file or a pipe, as they are; for a terminal, cleaned."""
        buffer = getattr(self._stdout, "buffer", None)
        if self._stdout.isatty() or buffer is None:
            self._write(clean(data.decode("utf-8", "backslashreplace"), lines=True), end="")
            return
        self._stdout.flush()
        buffer.write(data)
        buffer.flush()

    # -- below ---------------------------------------------------------------------------------------------------

    @cached_property
    def _out(self) -> Console:
        return self._console(self._stdout)

    @cached_property
    def _err(self) -> Console:
        return self._console(self._stderr)

    def _console(self, stream: TextIO) -> Console:
        from rich.console import Console

        # No markup, emoji or highlighting: a string is shown as it is, whatever it contains.
        return Console(
            file=stream, markup=False, emoji=False, highlight=False, soft_wrap=True, _environ=dict(self._environ)
        )

    def _line(self, console: Console, text: str, style: str, *, unless: bool = False, lines: bool = False) -> None:
        if unless:
            return
        safe = clean(text, lines=lines)
        with self._reaching(self._stderr if console is self._err else self._stdout):
            if console.is_terminal:
                from rich.text import Text

                console.print(Text(safe, style=style))
            else:
                print(safe, file=console.file, flush=True)

    def _write(self, line: str, *, end: str = "\n") -> None:
        with self._reaching(self._stdout):
            self._stdout.write(line + end)
            self._stdout.flush()

    @contextmanager
    def _reaching(self, stream: TextIO) -> Iterator[None]:
        try:
            yield
        except OSError:
            if not self._outlives:
                raise
            # What is still buffered would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    @contextmanager
    def _turning(self, doing: str) -> Iterator[Callable[[str], None]]:
        if self.quiet or not self._err.is_terminal:
            yield lambda _: None
            return
        from rich.text import Text

        with self._err.status(Text(clean(doing))) as status:
            yield lambda text: status.update(Text(clean(text)))

    def _rich_table(self, headers: Sequence[str], cells: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style=TITLE)
        for header in headers:
            table.add_column(Text(header), overflow="fold")
        for number, row in enumerate(cells):
            table.add_row(*(Text(cell) for cell in row), style=styles[number] if number < len(styles) else "")
        self._out.print(table, soft_wrap=False)

    def _mark(self, good: bool) -> str:
        encoding = (getattr(self._stderr, "encoding", None) or "ascii").lower().replace("-", "")
        if encoding == "utf8" and self._err.is_terminal:
            return "✓" if good else "✗"
        return "ok:" if good else "failed:"


def _tolerant(stream: TextIO) -> TextIO:
    """The same stream; what its encoding cannot say is written as an escape instead of ending the command."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(count: int) -> str:
    """Bytes for people: `0`, `812 B`, `12 kB`, `3.4 MB`."""
    if count < 1000:
        return f"{count} B" if count else "0"
    power = next((power for power in (1, 2, 3) if count < 999.5 * 1000**power), 4)
    amount, unit = count / 1000**power, ("kB", "MB", "GB", "TB")[power - 1]
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
