"""One attempt for each row of a table: what differs is the row, and each is named, run and judged by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

from .tools import ATTEMPTS

Case = TypeVar("Case")


def each(cases: Mapping[str, Case]) -> Callable[[Callable[[Case], object]], Callable[[Case], object]]:
    """Registers a function once a row, as `function.row`."""

    def register(function: Callable[[Case], object]) -> Callable[[Case], object]:
        for name, case in cases.items():
            ATTEMPTS[f"{function.__name__}.{name}"] = functools.partial(function, case)
        return function

    return register


def every(*families: str) -> tuple[str, ...]:
    """The names of all attempts of these families: those named so, and their rows."""
    return tuple(name for name in ATTEMPTS if name.partition(".")[0] in families)
