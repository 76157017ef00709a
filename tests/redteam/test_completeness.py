"""Nothing leaves without being told: what the kernel saw dialled and no receipt explains is named at the seal, even
when it is squid itself that dials behind the policy's back; and what cannot be told does not leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from agent_egress import identity
from agent_egress.receipts import Fault, Fields, parse_receipt, verify_chain
from agent_egress.replay import reconcile
from tests.redteam.attempts import OK4, OK6
from tests.redteam.judge import CREDENTIALS, MODEL, NAMES, POLICY, ZONE, run_attempts
from tests.support.net import KEY, Sidecar, World

BEHIND = ("198.51.100.9", "2001:db8:5::9")
CONTROLS = ("control_explicit_http", "control_explicit_https", "control_injection", "control_transparent_https6")


@dataclass(frozen=True)
class Sealed:
    """A session in which squid's uid also dialled by itself."""

    dialled: dict[str, bool]
    receipts: list[Fields]
    faults: tuple[Fault, ...]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.up(zone=ZONE, names=NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def sealed(world: World) -> Sealed:
    """The agent works as ever; something with squid's uid calls a public address of its own choice."""
    with Sidecar.up(world, POLICY, model=MODEL) as sidecar:
        sidecar.must_open()
        assert sidecar.control("credential.put", credentials=CREDENTIALS)["ok"]
        assert all(report["reached"] for report in run_attempts(sidecar.agent(), CONTROLS).values())
        squid = sidecar.agent(change=lambda twin: replace(twin, user=f"{identity.SQUID}:{identity.SQUID}"))
        dialled = {name: bool(r["reached"]) for name, r in run_attempts(squid, ("raw_tcp4", "raw_tcp6")).items()}
        assert sidecar.control("seal", outcome="succeeded")["ok"]
        lines = sidecar.receipts()
        assert verify_chain(lines, key=KEY).status == "verified"
        receipts = [found for found in map(parse_receipt, lines) if found is not None]
    return Sealed(dialled, receipts, reconcile(receipts))


def test_squid_could_dial_at_all(sealed: Sealed) -> None:
    assert sealed.dialled == {"raw_tcp4": True, "raw_tcp6": True}


@pytest.mark.parametrize("address", BEHIND)
def test_what_squid_dialled_by_itself_is_named(sealed: Sealed, address: str) -> None:
    assert [fault.kind for fault in sealed.faults if f"{address}:9000" in fault.detail] == ["unexplained-connection"]


def test_nothing_else_is_left_unexplained(sealed: Sealed) -> None:
    assert len(sealed.faults) == len(BEHIND), sealed.faults


@pytest.mark.parametrize("address", [OK4, OK6])
def test_what_the_policy_let_out_is_in_the_kernels_set_and_explained(sealed: Sealed, address: str) -> None:
    found = [r for r in sealed.receipts if r.get("kind") == "connection" and r.get("address") == address]
    assert found


def _full(files: dict[str, str]) -> None:
    """Room for the canary's own destination and hardly another."""
    old = "size 65535; flags dynamic; counter;"
    assert old in files["nftables.nft"]
    files["nftables.nft"] = files["nftables.nft"].replace(old, "size 1; flags dynamic; counter;")


def test_a_destination_that_cannot_be_written_down_is_not_dialled(world: World) -> None:
    with Sidecar.up(world, POLICY, patch=_full, model=MODEL) as sidecar:
        sidecar.must_open()
        world.clear()
        names = ("control_explicit_http", "control_private_range", "control_spliced", "control_bumped_without_decoy")
        reached = [name for name, report in run_attempts(sidecar.agent(), names).items() if report["reached"]]
        dialled = {(packet[0], packet[2]) for packet in world.log().packets if packet[1] == "tcp" and packet[2] != 53}
        assert sum(":" in address for address, _ in dialled) <= 1
        assert sum(":" not in address for address, _ in dialled) <= 1
        assert len(reached) < len(names)
