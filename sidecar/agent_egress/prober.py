"""How attempts to get past the boundary are registered, made and judged; what is tried stands in `attempts_outward` and
`attempts_inside`. An attempt that gets no refusal at all counts as one that got through."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

WORKERS = 16
MAX_DETAIL = 200


@dataclass(frozen=True)
class Facts:
    """What the host tells the battery about this sandbox."""

    resolvers: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    """Addresses on the sidecar's own networks, where nobody is: what gets through goes there even from a network
    without a way out."""
    kills: tuple[str, ...] = ()
    """Hosts whose contact would end the session, by the user's own rule: they are left alone."""
    leave_out: tuple[str, ...] = ()
    """Hosts that this sandbox's own policy allows: the proxy is not asked for them."""

    @classmethod
    def parse(cls, text: str) -> Facts:
        """From one JSON object of lists of texts. Raises: ValueError, TypeError."""
        document = json.loads(text)
        if not isinstance(document, dict):
            raise TypeError("expected an object")
        return cls(**{str(name): tuple(map(str, values)) for name, values in document.items()})

    def spare(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Those of the hosts that may be contacted. Raises Refused when there is none."""
        left = tuple(host for host in hosts if host not in self.kills)
        if not left:
            raise LeftOut("left out: a kill rule is over it")
        return left


class Refused(Exception):
    """The boundary refused, in words: what an attempt hopes for in vain."""


class LeftOut(Exception):
    """An attempt that is not made here, in words why: it says nothing about the boundary."""


Run = Callable[[Facts], str]
"""Returns how it got through, in words; raises Refused, or an OSError that is a refusal, when it did not."""


@dataclass(frozen=True)
class Attempt:
    """One way out."""

    name: str
    group: str
    what: str
    run: Run
    core: bool = False
    """Part of what is tried before a sandbox is given its credentials."""
    alone: bool = False
    """It forks, so no threads may run beside it."""


@dataclass(frozen=True)
class Finding:
    """What became of one attempt."""

    name: str
    group: str
    what: str
    tried: bool
    """Whether it was made at all."""
    held: bool
    detail: str
    seconds: float


ATTEMPTS: list[Attempt] = []


def attempt(group: str, *, core: bool = False, alone: bool = False) -> Callable[[Run], Run]:
    """Registers a function under its own name; its docstring says what is tried."""

    def register(run: Run) -> Run:
        what = (run.__doc__ or "").removesuffix(".")
        ATTEMPTS.append(Attempt(run.__name__, group, what, run, core=core, alone=alone))
        return run

    return register


def try_out(one: Attempt, facts: Facts) -> Finding:
    """Makes one attempt. A `control` must get through: where nothing works, no refusal means anything."""
    began = time.monotonic()
    through, detail, tried = True, "", True
    try:
        detail = one.run(facts)
    except LeftOut as error:
        through, detail, tried = one.group == "control", str(error), False
    except TimeoutError:
        through, detail = True, "no refusal came: it went somewhere, or into nothing"
    except (Refused, OSError, ValueError) as error:
        through, detail = False, str(error) or type(error).__name__
    held = through if one.group == "control" else not through
    seconds = round(time.monotonic() - began, 3)
    return Finding(one.name, one.group, one.what, tried, held, detail[:MAX_DETAIL], seconds)


def try_all(attempts: Iterable[Attempt], facts: Facts) -> list[Finding]:
    """In the order of the table; those that may be together are."""
    chosen = list(attempts)
    found = {one.name: try_out(one, facts) for one in chosen if one.alone}
    rest = [one for one in chosen if not one.alone]
    with ThreadPoolExecutor(WORKERS) as pool:
        found.update(zip((one.name for one in rest), pool.map(lambda one: try_out(one, facts), rest), strict=True))
    return [found[one.name] for one in chosen]


def row(finding: Finding) -> Mapping[str, object]:
    """For the host."""
    return {
        "name": finding.name,
        "group": finding.group,
        "what": finding.what,
        "tried": finding.tried,
        "held": finding.held,
        "detail": finding.detail,
        "seconds": finding.seconds,
    }
