"""Runs the table of mutants: each on a real sidecar with an agent's twin, with the attempts that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agent_container.stack import Container
from tests.redteam.attempts import ATTEMPTS
from tests.redteam.attempts.ending import LAST
from tests.redteam.judge import CREDENTIALS, MODEL, NAMES, POLICY, ZONE, run_attempts, seen_outside
from tests.redteam.mutants import MUTANTS, Mutant
from tests.support.net import Agent, Sidecar, World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.up(zone=ZONE, names=NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def unchanged(world: World) -> Iterator[Sidecar]:
    """For mutants of the agent alone: they share a sidecar."""
    with Sidecar.up(world, POLICY, model=MODEL) as sidecar:
        _open(sidecar)
        yield sidecar


def _open(sidecar: Sidecar) -> None:
    sidecar.must_open()
    assert sidecar.control("credential.put", credentials=CREDENTIALS)["ok"]


def _reds(world: World, sidecar: Sidecar, agent: Agent, mutant: Mutant) -> set[str]:
    world.clear()
    reports = run_attempts(agent, mutant.attempts)
    if set(mutant.attempts) & set(LAST):
        assert sidecar.control("restore")["ok"]  # the others share it
    reds = {name for name, report in reports.items() if report["reached"] is not name.startswith("control_")}
    return reds | set(seen_outside(world.log()))


def _patch(mutant: Mutant) -> Callable[[dict[str, str]], None]:
    def patch(files: dict[str, str]) -> None:
        for name, old, new in mutant.edits:
            assert old in files[name], f"{mutant.name}: {name} has no {old!r}"
            files[name] = files[name].replace(old, new)

    return patch


def _same(container: Container) -> Container:
    return container


def test_the_table_names_attempts_that_exist() -> None:
    named = {name for mutant in MUTANTS for name in mutant.attempts}
    assert named <= set(ATTEMPTS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_unchanged_nothing_is_red(world: World, unchanged: Sidecar) -> None:
    named = tuple(dict.fromkeys(name for mutant in MUTANTS for name in mutant.attempts))
    assert _reds(world, unchanged, unchanged.agent(), Mutant("unchanged", named)) == set()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_rule_taken_away_is_missed(world: World, unchanged: Sidecar, mutant: Mutant) -> None:
    change = mutant.agent or _same
    if not mutant.edits and mutant.sidecar is None:
        agent = unchanged.agent(change=change, no_new_privileges=not mutant.new_privileges)
        reds = _reds(world, unchanged, agent, mutant)
    else:
        with Sidecar.up(world, POLICY, patch=_patch(mutant), change=mutant.sidecar or _same, model=MODEL) as sidecar:
            if mutant.closed:
                assert sidecar.open()["error"]["part"] == mutant.closed
                return
            _open(sidecar)
            reds = _reds(world, sidecar, sidecar.agent(change=change), mutant)
    assert reds >= set(mutant.red), f"still refused: {set(mutant.red) - reds}"
    assert not reds & set(mutant.still), f"no longer refused: {reds & set(mutant.still)}"
