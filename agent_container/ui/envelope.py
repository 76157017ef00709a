"""The `--json` envelope: one versioned object for every command, and how typed results become JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import PurePath

from pydantic import BaseModel

from agent_container.errors import AgentContainerError

VERSION = 1


def envelope(command: str, *, result: object = None, error: AgentContainerError | None = None) -> str:
    """One line. ASCII only, so that nothing in it can reach a terminal as an escape sequence."""
    row = {
        "version": VERSION,
        "command": command,
        "ok": error is None,
        "result": None if error is not None and result is None else jsonable(result),
        "error": None if error is None else _error(error),
    }
    return json.dumps(row, ensure_ascii=True, allow_nan=False)


def jsonable(value: object) -> object:
    """A typed result as JSON values. Raises TypeError for what has no obvious form, such as bytes."""
    if value is None or isinstance(value, (bool, int, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, BaseModel):
        return jsonable(value.model_dump(mode="json", by_alias=True))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((jsonable(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _error(error: AgentContainerError) -> dict[str, object]:
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "details": list(error.details),
        "hint": error.hint,
        "exit_code": error.exit_code,
        **({"digest": error.digest} if hasattr(error, "digest") else {}),
    }
