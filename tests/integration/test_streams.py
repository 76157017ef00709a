"""Streams that fall silent. A model thinks for minutes; squid's own limits cut a stream that says nothing for a quarter
of an hour. Time is scaled 1:600 here: our two hours are 12 s, squid's default of 900 s is 2 s, the silence is 5 s."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_egress.policy import Binding, Policy, Rule
from tests.redteam.judge import with_attempts
from tests.support.net import Agent, Sidecar, World

OURS = "read_timeout 2 hours"
POLICY = Policy(
    rules=(Rule("allow", "unseen.test"), Rule("inspect", "seen.test"), Rule("allow", "api.test")),
    credentials=(Binding("api", "api.test", 443, ("GET",), ("/**",), "Authorization", "Bearer {}"),),
)
HOSTS = {"spliced": "unseen.test", "opened": "seen.test", "with a credential": "api.test"}
SILENT = """
from attempts.tools import tunnel, request
with tunnel({host!r}) as wrapped:
    wrapped.settimeout(60)
    wrapped.sendall(request("/silent/5", {host!r}))
    received = b""
    try:
        while b"after" not in received:
            data = wrapped.recv(4096)
            if not data:
                break
            received += data
    except OSError:
        pass
    print(b"before" in received, b"after" in received)
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.up(zone={host: {"A": ["198.51.100.7"]} for host in HOSTS.values()}, names=list(HOSTS.values())) as found:
        yield found


def with_timeout(world: World, seconds: int) -> Iterator[Agent]:
    def patch(files: dict[str, str]) -> None:
        assert OURS in files["squid.conf"]
        files["squid.conf"] = files["squid.conf"].replace(OURS, f"read_timeout {seconds} seconds")

    with Sidecar.up(world, POLICY, patch=patch) as sidecar:
        sidecar.must_open()
        yield sidecar.agent()


@pytest.fixture(scope="module")
def ours(world: World) -> Iterator[Agent]:
    yield from with_timeout(world, 12)


@pytest.fixture(scope="module")
def squids(world: World) -> Iterator[Agent]:
    yield from with_timeout(world, 2)


@pytest.mark.parametrize("name", HOSTS)
def test_a_stream_that_is_silent_for_long_goes_on(ours: Agent, name: str) -> None:
    assert ours.run(with_attempts(SILENT.format(host=HOSTS[name]))).split() == ["True", "True"]


@pytest.mark.parametrize("name", HOSTS)
def test_squids_default_would_have_cut_it(squids: Agent, name: str) -> None:
    """What the setting is for: without it, this is what an agent meets."""
    assert squids.run(with_attempts(SILENT.format(host=HOSTS[name]))).split()[1] == "False"
