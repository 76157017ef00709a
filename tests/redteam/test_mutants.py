"""Runs the tables of mutants: each on a real sidecar with an agent's twin, with the attempts that it names. What
changes the agent alone, the kernel's rules alone, or squid's or unbound's file alone is tried on shared sidecars."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agent_container.stack import Container
from tests.redteam.attempts import ATTEMPTS
from tests.redteam.attempts.ending import LAST
from tests.redteam.judge import CREDENTIALS, MODEL, NAMES, POLICY, ZONE, run_attempts, seen_outside
from tests.redteam.mutants import MUTANTS, Mutant
from tests.redteam.mutants_kernel import KERNEL
from tests.redteam.mutants_proxy import PROXY
from tests.redteam.surgery import RESTARTED, Surgery
from tests.support.net import Agent, Sidecar, World

EVERY = (*MUTANTS, *KERNEL, *PROXY)
NFT = "nftables.nft"


def _kind(mutant: Mutant) -> str:
    """Where it can be tried: `agent`, `kernel`, `daemon`, `mixed`, or on a sidecar of its `own`."""
    files = {name for name, _, _ in mutant.edits}
    spends = any(name.startswith("spend_") for name in mutant.attempts)  # what is used up stays used up
    if mutant.sidecar is not None or mutant.closed or spends or set(mutant.attempts) & set(LAST):
        return "own"
    if not files:
        return "agent"
    if files == {NFT}:
        return "kernel"
    if files <= set(RESTARTED):
        return "daemon"
    return "mixed" if files <= {NFT, *RESTARTED} else "own"


def _of(kind: str) -> list[Mutant]:
    return [mutant for mutant in EVERY if _kind(mutant) == kind]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.up(zone=ZONE, names=NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def shared(world: World) -> Iterator[Surgery]:
    """An open sidecar for all that need none of their own."""
    with Sidecar.up(world, POLICY, model=MODEL) as sidecar:
        _open(sidecar)
        yield Surgery(sidecar, POLICY)


@pytest.fixture(scope="module")
def held(world: World) -> Iterator[Surgery]:
    """Another one, whose supervisor does not look while the kernel's rules are exchanged."""
    with Sidecar.up(world, POLICY, model=MODEL) as sidecar:
        _open(sidecar)
        surgery = Surgery(sidecar, POLICY)
        with surgery.held():
            yield surgery


@pytest.fixture(scope="module")
def twins() -> dict[tuple[str, Mutant | None], Agent]:
    """Agents that mutants share: those whose containers are as they should be."""
    return {}


def _open(sidecar: Sidecar) -> None:
    sidecar.must_open()
    assert sidecar.control("credential.put", credentials=CREDENTIALS)["ok"]


def _same(container: Container) -> Container:
    return container


def _twin(sidecar: Sidecar, mutant: Mutant, twins: dict[tuple[str, Mutant | None], Agent]) -> Agent:
    key = (sidecar.name, mutant if mutant.agent or mutant.without else None)
    if key not in twins:
        twins[key] = sidecar.agent(change=mutant.agent or _same, without=mutant.without)
    return twins[key]


def _reds(world: World, agent: Agent, mutant: Mutant) -> set[str]:
    world.clear()
    reports = run_attempts(agent, mutant.attempts)
    passed = {name for name, report in reports.items() if report["reached"]}
    if mutant.cut:
        return passed
    failed = {name for name in reports if name.startswith("control_")} - passed
    return {name for name in passed if not name.startswith("control_")} | failed | set(seen_outside(world.log()))


def _edited(mutant: Mutant, files: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, old, new in mutant.edits:
        text = found.get(name, files[name])
        assert old in text, f"{mutant.name}: {name} has no {old!r}"
        found[name] = text.replace(old, new)
    return found


def _patch(mutant: Mutant) -> Callable[[dict[str, str]], None]:
    return lambda files: files.update(_edited(mutant, files))


def _judge(mutant: Mutant, reds: set[str]) -> None:
    assert reds >= set(mutant.red), f"still refused: {set(mutant.red) - reds}"
    assert not reds & set(mutant.still), f"no longer refused: {reds & set(mutant.still)}"


def _ids(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "-")


def test_the_table_names_attempts_that_exist() -> None:
    named = {name for mutant in EVERY for name in mutant.attempts}
    assert named <= set(ATTEMPTS)
    assert len({mutant.name for mutant in EVERY}) == len(EVERY)
    assert [mutant.name for mutant in EVERY if not (mutant.red or mutant.still or mutant.closed)] == []


def test_unchanged_nothing_is_red(world: World, shared: Surgery) -> None:
    named = tuple(dict.fromkeys(name for mutant in EVERY for name in mutant.attempts if name not in LAST))
    assert _reds(world, shared.sidecar.agent(), Mutant("unchanged", named)) == set()


@pytest.mark.parametrize("mutant", _of("agent"), ids=_ids)
def test_an_agent_with_more_is_missed(
    world: World, shared: Surgery, twins: dict[tuple[str, Mutant | None], Agent], mutant: Mutant
) -> None:
    _judge(mutant, _reds(world, _twin(shared.sidecar, mutant, twins), mutant))


@pytest.mark.parametrize("mutant", _of("kernel"), ids=_ids)
def test_a_rule_of_the_kernel_taken_away_is_missed(
    world: World, held: Surgery, twins: dict[tuple[str, Mutant | None], Agent], mutant: Mutant
) -> None:
    agent = _twin(held.sidecar, mutant, twins)
    with held.changed(_edited(mutant, held.original), cut=mutant.cut):
        reds = _reds(world, agent, mutant)
    _judge(mutant, reds)


@pytest.mark.parametrize("mutant", _of("daemon"), ids=_ids)
def test_a_rule_of_a_daemon_taken_away_is_missed(
    world: World, shared: Surgery, twins: dict[tuple[str, Mutant | None], Agent], mutant: Mutant
) -> None:
    agent = _twin(shared.sidecar, mutant, twins)
    with shared.changed(_edited(mutant, shared.original)):
        reds = _reds(world, agent, mutant)
    _judge(mutant, reds)


@pytest.mark.parametrize("mutant", _of("mixed"), ids=_ids)
def test_what_several_layers_hold_is_missed_without_all_of_them(
    world: World, shared: Surgery, twins: dict[tuple[str, Mutant | None], Agent], mutant: Mutant
) -> None:
    agent = _twin(shared.sidecar, mutant, twins)
    files = _edited(mutant, shared.original)
    rules = {NFT: files.pop(NFT)}
    with shared.changed(files), shared.held(), shared.changed(rules):
        reds = _reds(world, agent, mutant)
    _judge(mutant, reds)


@pytest.mark.parametrize("mutant", _of("own"), ids=_ids)
def test_a_rule_taken_away_is_missed(world: World, mutant: Mutant) -> None:
    with Sidecar.up(world, POLICY, patch=_patch(mutant), change=mutant.sidecar or _same, model=MODEL) as sidecar:
        if mutant.closed:
            assert sidecar.open()["error"]["part"] == mutant.closed
            return
        _open(sidecar)
        agent = sidecar.agent(change=mutant.agent or _same, without=mutant.without)
        _judge(mutant, _reds(world, agent, mutant))
