"""One world, one sidecar and one agent's twin, in which every attempt is made once: what the battery's files judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.redteam.attempts import ATTEMPTS
from tests.redteam.judge import CREDENTIALS, MODEL, NAMES, POLICY, ZONE, run_attempts, seen_outside
from tests.support.net import Agent, Answer, Sidecar, World

Report = dict[str, dict[str, object]]
CONTROLS = tuple(name for name in ATTEMPTS if name.startswith("control_"))


@dataclass(frozen=True)
class Battery:
    """Every attempt made once, with the controls before and after it: a session that was cut refuses everything."""

    world: World
    sidecar: Sidecar
    agent: Agent
    before: Report
    reports: Report
    after: Report
    outside: dict[str, str]
    status: Answer


@pytest.fixture(scope="package")
def battery() -> Iterator[Battery]:
    """Opened, armed, attacked; not yet sealed."""
    with World.up(zone=ZONE, names=NAMES) as world, Sidecar.up(world, POLICY, model=MODEL) as sidecar:
        sidecar.must_open()
        assert sidecar.control("credential.put", credentials=CREDENTIALS)["ok"]
        agent = sidecar.agent()
        before = run_attempts(agent, CONTROLS)
        world.clear()
        reports = run_attempts(agent)
        outside = seen_outside(world.log())
        status = sidecar.control("status")
        assert sidecar.control("restore")["ok"]  # the last attempt was to touch what ends the session
        yield Battery(world, sidecar, agent, before, reports, run_attempts(agent, CONTROLS), outside, status)
