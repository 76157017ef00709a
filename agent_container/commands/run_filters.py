"""What a user types to find runs: labels, moments, costs and patterns become one `RunQuery`. One error says all that is
wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TypeVar

from agent_container.errors import UsageError
from agent_container.records import Outcome
from agent_container.run_facts import LABEL_CHARS, LABEL_KEY_CHARS, MAX_LABELS, RunQuery

STATES = (*(outcome.value for outcome in Outcome), "running", "orphaned", "taken down", "unreadable")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_AGO = re.compile(r"(\d{1,6})\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_COST = re.compile(r"(<=|>=|<|>|=)?\s*\$?(\d{1,9}(?:\.\d{1,9})?)")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")

T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """The options as they were typed."""

    projects: Sequence[str] = ()
    labels: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    agents: Sequence[str] = ()
    models: Sequence[str] = ()
    since: str | None = None
    until: str | None = None
    costs: Sequence[str] = ()
    changed: Sequence[str] = ()
    contacted: Sequence[str] = ()
    limit: int | None = None


def parse_query(wanted: Wanted, *, now: datetime, project_id: str | None) -> RunQuery:
    """The question. `project_id` is where the user stands, None for everywhere. Raises UsageError naming every option
    that says nothing."""
    faults: list[str] = []

    def read(option: str, values: Iterable[str], parse: Callable[[str], T]) -> tuple[T, ...]:
        found = []
        for value in values:
            try:
                found.append(parse(value))
            except ValueError as bad:
                faults.append(f"{option} {value!r}: {bad}")
        return tuple(found)

    def moment(option: str, value: str | None, *, end: bool = False) -> float | None:
        values = [value] if value is not None else []
        return next(iter(read(option, values, lambda text: parse_moment(text, now, end=end))), None)

    query = RunQuery(
        project_id=project_id,
        projects=read("--project", wanted.projects, _pattern),
        labels=read("--label", wanted.labels, _label_wanted),
        outcomes=read("--outcome", wanted.outcomes, _outcome),
        agents=read("--agent", wanted.agents, _pattern),
        models=read("--model", wanted.models, _pattern),
        since=moment("--since", wanted.since),
        until=moment("--until", wanted.until, end=True),
        costs=read("--cost", wanted.costs, _cost),
        changed=read("--changed", wanted.changed, _path),
        contacted=read("--contacted", wanted.contacted, _pattern),
        limit=wanted.limit,
    )
    if wanted.limit is not None and wanted.limit < 1:
        faults.append(f"--limit {wanted.limit}: a number of runs, from 1")
    if query.since is not None and query.until is not None and query.since >= query.until:
        faults.append("--since is not before --until")
    if faults:
        one = len(faults) == 1
        raise UsageError(
            faults[0] if one else f"{len(faults)} filters say nothing", details=() if one else faults,
            hint="agent-container runs ls --help",
        )  # fmt: skip
    return query


def parse_labels(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """`KEY=VALUE` words as sorted pairs. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        try:
            key, value = _label(word)
        except ValueError as bad:
            raise UsageError(f"--label {word!r}: {bad}", hint="agent-container run --label ticket=ABC-12 ...") from None
        if found.setdefault(key, value) != value:
            raise UsageError(f"--label {key} is given twice, as {found[key]!r} and as {value!r}")
    if len(found) > MAX_LABELS:
        raise UsageError(f"{len(found)} labels, and a run has {MAX_LABELS} at most")
    return tuple(sorted(found.items()))


def parse_age(text: str, *, option: str) -> timedelta:
    """`30d`, `12h`. Raises UsageError."""
    found = _AGO.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"{option} {text!r}: a time like 30d, 12h or 8w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def parse_size(text: str, *, option: str) -> int:
    """`500m`, `2g`, in bytes. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,12})\s*([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise UsageError(f"{option} {text!r}: a size like 500m or 2g")
    power: int = " kmgt".index(found[2] or " ")
    return int(found[1]) * int(1000**power)


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ValueError("KEY=VALUE is wanted")
    return _key(key), _value(value)


def _label_wanted(word: str) -> tuple[str, str | None]:
    key, equals, value = word.partition("=")
    return _key(key), _value(value) if equals else None


def _key(key: str) -> str:
    if not _KEY.fullmatch(key) or len(key) > LABEL_KEY_CHARS:
        raise ValueError(f"a key has letters, digits and . _ / - only, {LABEL_KEY_CHARS} at most")
    return key


def _value(value: str) -> str:
    if len(value) > LABEL_CHARS or not value.isprintable():
        raise ValueError(f"a value is printable text on one line, {LABEL_CHARS} characters at most")
    return value


def _outcome(word: str) -> str:
    if word in STATES:
        return word
    near = get_close_matches(word, STATES, n=1, cutoff=0.5)
    raise ValueError(f"did you mean {near[0]}?" if near else f"one of {', '.join(STATES)}")


def _pattern(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("a name, or a pattern with *")
    return text


def _path(text: str) -> str:
    name = text.removeprefix("./")
    if not name or "\0" in name or name.startswith("/"):
        raise ValueError("a path in the project, a directory of it, or a pattern with *")
    return name


def _cost(text: str) -> tuple[str, float]:
    found = _COST.fullmatch(text.strip())
    if found is None:
        raise ValueError("an amount like '>1.50' or '<0.10', in US dollars")
    return found[1] or ">=", float(found[2])


def parse_moment(text: str, now: datetime, *, end: bool = False) -> float:
    """Seconds since the epoch: a day or a moment in the user's own time, or so long ago; a day's end is the day after.
    Raises ValueError in words."""
    ago = _AGO.fullmatch(text.strip().lower())
    try:
        if ago is not None:
            return (now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})).timestamp()
        found = datetime.fromisoformat(text.strip())
        moment = found if found.tzinfo is not None else found.astimezone()
        if end and _DAY.fullmatch(text.strip()):
            moment += timedelta(days=1)
        return moment.astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("a day like 2026-11-29, a moment like 2026-11-29T15:00, or so long ago: 7d, 12h") from None
