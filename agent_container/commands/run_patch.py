"""What a record's patch says was changed, file by file. The patch is the work of a program that runs next to the agent:
what does not read as git writes it is passed over, and a name is no more than a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_container.drain import file_pieces
from agent_container.errors import AgentContainerError
from agent_container.frames import split_lines
from agent_container.sandbox.closing import PATCH

MAX_HEADER = 16 * 1024
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HUNK = re.compile(rb"@@ -\d{1,18}(?:,(\d{1,18}))? \+\d{1,18}(?:,(\d{1,18}))? @@")


@dataclass(frozen=True)
class FileChange:
    """One file of a patch."""

    path: str
    insertions: int = 0
    deletions: int = 0
    binary: bool = False
    kind: str = "changed"
    """`changed`, `added` or `removed`."""


def read_patch(directory: Path) -> Iterator[FileChange]:
    """The files of a record's patch, in its order; none where there is no patch, or it cannot be read."""
    if not (directory / PATCH).is_file():
        return
    now: FileChange | None = None
    left = right = insertions = deletions = 0
    binary, kind = False, "changed"

    def done() -> Iterator[FileChange]:
        if now is not None:
            yield FileChange(now.path, insertions, deletions, binary, kind)

    try:
        for line in split_lines(file_pieces(directory / PATCH), max_bytes=MAX_HEADER):
            text = line.data
            if left > 0 or right > 0:
                # Inside a hunk, whose size its header says: no content reads as a header.
                mark = text[:1]
                insertions, deletions = insertions + (mark == b"+"), deletions + (mark == b"-")
                left, right = left - (mark not in {b"+", b"\\"}), right - (mark not in {b"-", b"\\"})
            elif text.startswith(b"diff --git "):
                yield from done()
                path = None if line.cut else header_path(text.removeprefix(b"diff --git ").rstrip(b"\r"))
                now = FileChange(path) if path is not None else None
                insertions, deletions, binary, kind = 0, 0, False, "changed"
            elif found := _HUNK.match(text):
                left, right = (int(count) if count is not None else 1 for count in found.groups())
            elif text.startswith((b"GIT binary patch", b"Binary files ")):
                binary = True
            elif text.startswith(b"new file mode"):
                kind = "added"
            elif text.startswith(b"deleted file mode"):
                kind = "removed"
    except AgentContainerError:
        pass
    yield from done()


def changed_paths(directory: Path) -> Iterator[str]:
    """Their names alone."""
    return (change.path for change in read_patch(directory))


def header_path(names: bytes) -> str | None:
    """The second of `a/PATH b/PATH`; both are the same, since a rename is shown as two changes."""
    text = names.decode("utf-8", "backslashreplace")
    if text.startswith('"'):
        found = _QUOTED.findall(text)
        return _unquoted(found[-1]).removeprefix("b/") if found else None
    half = (len(text) - 1) // 2
    first, second = text[:half], text[half + 1 :]
    fits = first.startswith("a/") and second.startswith("b/") and first[2:] == second[2:]
    return second[2:] if fits else None


def _unquoted(text: str) -> str:
    """A name as git quotes it: C escapes, octal for bytes."""

    def byte(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word, 8) & 0xFF) if word[0] in "01234567" else chr(_ESCAPES.get(word, ord(word[0])))

    raw = re.sub(r"\\([0-7]{1,3}|.)", byte, text.encode("utf-8").decode("latin-1"))
    return raw.encode("latin-1", "replace").decode("utf-8", "backslashreplace")
