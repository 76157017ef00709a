"""JSON objects of a policy, read key by key: whatever is wrong is noted with where it stands, and nothing is raised, so
that all mistakes come out at once. What the keys mean is `rules`'s."""

from __future__ import annotations

from collections.abc import Callable


class Row:
    """One JSON object being read: every problem is noted, none raised."""

    def __init__(self, value: object, where: str, problems: list[str], keys: str) -> None:
        self.where, self.problems = where, problems
        self.value: dict[str, object] = {}
        if not isinstance(value, dict):
            problems.append(f"{where}: expected an object")
            return
        self.value = value
        problems.extend(f"{where}: unknown key {key!r}" for key in value if key not in keys.split())

    def text(self, key: str, default: str | None = None) -> str:
        """A text; a key that is missing is its default, or a mistake where there is none."""
        value = self.value.get(key, default)
        if isinstance(value, str) and len(value) <= 512:
            return value
        self.problems.append(f"{self.where}.{key}: expected a text")
        return ""

    def one_of(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of a few words."""
        value = self.text(key, default)
        if value not in choices:
            words = ", ".join(choice for choice in choices if choice)
            self.problems.append(f"{self.where}.{key}: expected one of {words}, found {value!r}")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false when missing."""
        value = self.value.get(key, False)
        if not isinstance(value, bool):
            self.problems.append(f"{self.where}.{key}: expected true or false")
        return value is True

    def rows(self, key: str, limit: int = 20_000) -> list[object]:
        """A list; empty when missing."""
        value = self.value.get(key, [])
        if isinstance(value, list) and len(value) <= limit:
            return value
        self.problems.append(f"{self.where}.{key}: expected a list")
        return []

    def texts(self, key: str, check: Callable[[str], str | None]) -> tuple[str, ...]:
        """A list of texts; `check` says what is wrong with one."""
        found = []
        for index, value in enumerate(self.rows(key, 500)):
            problem = check(value) if isinstance(value, str) and len(value) <= 512 else "expected a text"
            if problem is not None:
                self.problems.append(f"{self.where}.{key}[{index}]: {value!r}: {problem}")
            else:
                found.append(str(value))
        return tuple(found)

    def port(self, value: object, key: str) -> int:
        """A TCP port."""
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536:
            return value
        self.problems.append(f"{self.where}.{key}: {value!r} is not a port")
        return 0
