"""JSON lines: written whole, read without trust."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional


def encode(frame: Dict[str, Any]) -> bytes:
    """One line. ASCII only, so that no reader takes a U+2028 for a line's end."""
    return json.dumps(frame, separators=(",", ":")).encode("ascii") + b"\n"


def write_all(fd: int, data: bytes) -> None:
    """write(2) until all is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def parse(line: bytes) -> Optional[Dict[str, Any]]:
    """A JSON object, or None."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
