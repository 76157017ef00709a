"""Every attempt to get out of a sandbox, one test each, in seven groups; the eighth, the way back to the host, is
`test_way_back`. All are made once against one real sidecar and judged item by item: what the attempt itself reports,
and what arrived in the world behind that nothing allows. That a refusal is the boundary's is shown by `mutants`."""

from __future__ import annotations

import pytest

from tests.redteam.attempts import ATTEMPTS
from tests.redteam.conftest import CONTROLS, Battery

GROUPS = {
    "raw sockets and addresses": ("straight",),
    "names": ("names",),
    "IPv6": ("ipv6",),
    "the shared namespace": ("shared",),
    "identity and capabilities": ("standing",),
    "the proxy": ("proxy", "framing", "budget", "ending"),
    "credentials": ("bodies", "credential", "hunting"),
}
"""The modules of each group."""
REFUSALS = tuple(name for name in ATTEMPTS if not name.startswith("control_"))
FEWEST = 20
"""Of each group: one that shrinks below was lost, not tidied."""


def _module(name: str) -> str:
    found = ATTEMPTS[name]
    return str(getattr(found, "func", found).__module__).rpartition(".")[2]


def test_every_attempt_is_in_a_group_and_no_group_is_thin() -> None:
    counts = {group: sum(_module(name) in modules for name in REFUSALS) for group, modules in GROUPS.items()}
    assert min(counts.values()) >= FEWEST, counts
    assert sum(counts.values()) == len(REFUSALS)


@pytest.mark.quick
@pytest.mark.parametrize("name", CONTROLS)
def test_works(battery: Battery, name: str) -> None:
    assert battery.before[name]["reached"], battery.before[name]


@pytest.mark.quick
@pytest.mark.parametrize("name", CONTROLS)
def test_still_works_after_everything_was_tried(battery: Battery, name: str) -> None:
    assert battery.after[name]["reached"], battery.after[name]


@pytest.mark.quick
@pytest.mark.parametrize("name", REFUSALS)
def test_is_refused(battery: Battery, name: str) -> None:
    assert not battery.reports[name]["reached"], battery.reports[name]


@pytest.mark.quick
def test_the_world_saw_nothing_that_is_not_allowed(battery: Battery) -> None:
    assert battery.outside == {}


def test_contact_that_ends_the_session_was_the_last_attempt_alone(battery: Battery) -> None:
    assert battery.status["cut"]
    assert "trap.test:443 was contacted (connect) (rule: kill trap.test)" in battery.status["killed"]
