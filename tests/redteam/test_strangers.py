"""Who may answer whom: a port that a daemon left and the agent took, a daemon that listens where it should not,
somebody outside who calls in. Each with the rules as they are, where no handshake ends, and without the rule."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from agent_egress import identity
from tests.redteam.judge import NAMES, POLICY, ZONE
from tests.redteam.surgery import Surgery
from tests.support.net import AGENT_UID, PYTHON, Agent, Sidecar, World, docker

MARK = "    meta skuid { 64101, 64102, 64103, 64104, 64105, 64106, 0 } ct state new ct mark set 0x1\n"
MARKED = "    ct mark 0x1 counter name reply_drop drop\n"
DAEMON = "    meta skuid { 64101, 64102, 64103, 64104, 64105, 64106 } counter name reply_drop drop\n"
INPUT = ("type filter hook input priority 0; policy drop;", "type filter hook input priority 0; policy accept;")
OUTWARD = ('    oifname "lo" accept\n    drop\n', '    oifname "lo" accept\n    accept\n')
LISTEN = """
import socket
with socket.create_server(("0.0.0.0", {port})) as server:
    print("listening", flush=True)
    server.settimeout(120)
    while True:
        peer, _ = server.accept()
        peer.sendall(b"stranger")
        peer.close()
"""
DIAL = """
import socket
try:
    with socket.create_connection(({address!r}, {port}), 2) as sock:
        print("connected", sock.recv(20) == b"stranger")
except OSError as error:
    print(type(error).__name__)
"""


@dataclass(frozen=True)
class Stranger:
    """Who listens, who dials, and which rules have to go before they meet."""

    name: str
    listener: int
    port: int
    dialer: str
    """`root` of the sidecar, the `agent`, or the `world`."""
    edits: tuple[tuple[str, str], ...]


STRANGERS = (
    Stranger("a call of a daemon is not marked", AGENT_UID, identity.PROXY_PORT, "root", ((MARK, ""),)),
    Stranger("a marked call may be answered", AGENT_UID, identity.PROXY_PORT, "root", ((MARKED, ""),)),
    Stranger("a daemon may answer anybody", identity.POLICY, 5555, "agent", ((DAEMON, ""),)),
    Stranger("the world may call, and be answered", AGENT_UID, 7777, "world", (INPUT, OUTWARD)),
)


@dataclass(frozen=True)
class Place:
    """A sidecar without squid, whose supervisor does not look."""

    world: World
    surgery: Surgery
    agent: Agent


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with World.up(zone=ZONE, names=NAMES) as world, Sidecar.up(world, POLICY) as sidecar:
        sidecar.must_open()
        surgery = Surgery(sidecar, POLICY)
        with surgery.held():
            surgery.end(identity.SQUID)
            yield Place(world, surgery, sidecar.agent())


@pytest.fixture
def meet(place: Place, stranger: Stranger) -> Iterator[Stranger]:
    """Somebody listens."""
    uid = stranger.listener
    twin = place.surgery.sidecar.agent(change=lambda container: replace(container, user=f"{uid}:{uid}"))
    argv = ["docker", "exec", "-i", twin.name, PYTHON, "-u", "-c", LISTEN.format(port=stranger.port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield stranger
        docker("rm", "-f", twin.name)
        process.wait(timeout=60)


def _dialled(place: Place, stranger: Stranger) -> str:
    sidecar = place.surgery.sidecar
    address = "127.0.0.1"
    if stranger.dialer == "world":
        networks = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = docker("inspect", "-f", networks, sidecar.name).strip()
    code = DIAL.format(address=address, port=stranger.port)
    if stranger.dialer == "root":
        return sidecar.execute(code).strip()
    if stranger.dialer == "agent":
        return place.agent.run(code).strip()
    return docker("exec", "-i", place.world.name, PYTHON, "-", stdin=code).strip()


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: stranger.name.replace(" ", "-"))
def test_strangers_meet_without_the_rule_alone(place: Place, meet: Stranger) -> None:
    text = place.surgery.original["nftables.nft"]
    for old, new in meet.edits[:-1]:  # where two hold the same, one is enough
        assert old in text
        with place.surgery.changed({"nftables.nft": text.replace(old, new)}):
            assert not _dialled(place, meet).startswith("connected")
    assert not _dialled(place, meet).startswith("connected")
    for old, new in meet.edits:
        assert old in text
        text = text.replace(old, new)
    with place.surgery.changed({"nftables.nft": text}):
        assert _dialled(place, meet) == "connected True"
