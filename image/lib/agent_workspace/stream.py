"""The stream between `pack` and `unpack`: a length, a JSON header, the bytes of an index, and a git pack or a tar
to the end."""

from __future__ import annotations

import json
import os
from typing import Any

from agent_workspace.git import Failed

MAX_HEADER_BYTES = 256 * 1024 * 1024
PREFIX = 12


def write_header(out: int, header: dict[str, Any], index: bytes = b"") -> None:
    """Writes everything that stands before the payload."""
    body = json.dumps({**header, "index_bytes": len(index)}).encode()
    _write(out, f"{len(body):{PREFIX - 1}d}\n".encode() + body + index)


def read_header(source: int) -> tuple[dict[str, Any], bytes]:
    """Reads the header and the index; `source` then stands at the payload's first byte."""
    prefix = _read(source, PREFIX)
    length = int(prefix) if prefix.strip().isdigit() else MAX_HEADER_BYTES + 1
    if length > MAX_HEADER_BYTES:
        raise Failed("this is not a stream of `pack`")
    header: dict[str, Any] = json.loads(_read(source, length))
    return header, _read(source, int(header["index_bytes"]))


def _write(out: int, body: bytes) -> None:
    view = memoryview(body)
    while view:
        view = view[os.write(out, view) :]


def _read(source: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(source, min(length, 1 << 20))
        if not part:
            raise Failed("the stream of `pack` ends too early")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
