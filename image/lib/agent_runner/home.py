"""Files that an agent must find in its HOME before it starts. HOME outlives a standing sandbox, and the agent may have
put anything there: nothing is followed, nothing is waited for, and what cannot be read as its kind is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Any, List, Mapping, Sequence

from .lines import write_all

MAX_BYTES = 16 * 1024 * 1024
"""Of a file that is merged into; a larger one is replaced."""
MERGE, IF_ABSENT, REPLACE = "merge-json", "if-absent", "replace"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HomeRefused(Exception):
    """A file that cannot be put; says which and why."""


def put_files(home: str, files: Sequence[Mapping[str, Any]]) -> List[str]:
    """Writes the files, each `{"path", "text", "how"}`, and returns the paths that changed. Raises: HomeRefused."""
    return [file["path"] for file in files if _put(home, file)]


def _put(home: str, file: Mapping[str, Any]) -> bool:
    path, how = file.get("path"), file.get("how")
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise HomeRefused(f"{path!r} is no path below HOME")
    if how not in (MERGE, IF_ABSENT, REPLACE) or not isinstance(file.get("text"), str):
        raise HomeRefused(f"{path}: 'how' or 'text' cannot be used")
    try:
        directory = _open_below(home, parts[:-1])
        try:
            return _write(directory, parts[-1], file["text"].encode(), how)
        finally:
            os.close(directory)
    except OSError as error:
        raise HomeRefused(f"{path} cannot be put in HOME: {os.strerror(error.errno or 0)}") from error


def _open_below(home: str, parts: Sequence[str]) -> int:
    fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=fd)
            inner = os.open(part, DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
    except OSError:
        os.close(fd)
        raise
    return fd


def _write(directory: int, name: str, text: bytes, how: str) -> bool:
    there = _read(directory, name)
    if how == IF_ABSENT and there is not None:
        return False
    wanted = _merged(there, text) if how == MERGE and there is not None else text
    if wanted == there:
        return False
    new = f".{name}.agent-container"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        write_all(fd, wanted)
    finally:
        os.close(fd)
    os.replace(new, name, src_dir_fd=directory, dst_dir_fd=directory)
    return True


def _read(directory: int, name: str) -> bytes | None:
    """The regular file of this name; None when there is none of a size that can be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return None
        return stream.read(MAX_BYTES + 1)


def _merged(there: bytes, text: bytes) -> bytes:
    try:
        old, new = json.loads(there), json.loads(text)
        if not isinstance(old, dict) or not isinstance(new, dict):
            return text
        merged = _merge(old, new)
        # Its own layout stays where nothing is to be changed.
        return there if merged == old else json.dumps(merged, indent=2).encode() + b"\n"
    except (ValueError, RecursionError):
        return text


def _merge(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merge(old[key], value) if key in old else value for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return old + [item for item in new if item not in old]
    return new
