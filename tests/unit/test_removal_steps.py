"""Groups in which what carries our labels is removed."""

from __future__ import annotations

from typing import Literal

import pytest

from agent_container.engine.labelled import removal_steps
from agent_container.engine.protocol import Labelled


def row(kind: Literal["container", "network", "volume"], role: str, *, running: bool = False) -> Labelled:
    return Labelled(kind=kind, id=role, name=role, session="s", project="p", role=role, running=running)


NET, HOME = row("network", "net"), row("volume", "home")


@pytest.mark.parametrize(
    ("agent_runs", "expected"),
    [
        (True, [["agent"], ["egress"], ["net", "home"]]),
        (False, [["agent", "egress"], ["net", "home"]]),
    ],
    ids=["a running agent is gone before its sidecar ends", "one that has ended need not be"],
)
def test_containers_come_first(agent_runs: bool, expected: list[list[str]]) -> None:
    objects = [NET, row("container", "agent", running=agent_runs), HOME, row("container", "egress", running=True)]
    assert [[found.role for found in step] for step in removal_steps(objects)] == expected


def test_one_agent_that_runs_keeps_every_sidecar() -> None:
    ended, works = row("container", "agent"), row("container", "agent", running=True)
    egress = row("container", "egress", running=True)
    assert removal_steps([egress, ended, works, egress]) == [[ended, works], [egress, egress]]


def test_nothing_takes_no_step() -> None:
    assert removal_steps([]) == []
