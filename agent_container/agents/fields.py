"""Reads the fields of an agent's JSON lines, whose types nobody vouches for: each has a default, and none raises."""

from __future__ import annotations

import json
import math

MAX_COUNT = 2**53
MAX_ROWS = 1000


def text(row: dict[str, object], key: str) -> str:
    """A string; anything else that is there as JSON text."""
    value = row.get(key)
    return value if isinstance(value, str) else "" if value is None else as_json(value)


def count(row: dict[str, object], key: str) -> int:
    """A whole number that a counter can hold; 0 for all else."""
    value = row.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else 0


def dollars(row: dict[str, object], key: str) -> float | None:
    """An amount that can be added up."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        amount = float(value)
    except OverflowError:
        return None
    return amount if math.isfinite(amount) and 0 <= amount < MAX_COUNT else None


def mapping(row: dict[str, object], key: str) -> dict[str, object]:
    """An object; an empty one for all else."""
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def rows(row: dict[str, object], key: str) -> list[dict[str, object]]:
    """The objects of a list, as far as any real one is long: a line of 16 MiB can hold a million."""
    value = row.get(key)
    return [item for item in value[:MAX_ROWS] if isinstance(item, dict)] if isinstance(value, list) else []


def as_json(value: object) -> str:
    """A parsed value as JSON text again, as short as it can be."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return ""
