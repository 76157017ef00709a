"""Throughput and latency through the sidecar, spliced and bumped, against the same client straight to the server."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

from agent_egress.policy import Binding, Policy, Rule
from tests.support.net import CA_TARGET, LABEL, PYTHON, Sidecar, World, docker, sidecar_image

ROUNDS = 3
ADDRESS = "198.51.100.7"
CLIENT = Path(__file__).with_name("client.py").read_text()
HOSTS = {"spliced": "splice.bench.test", "bumped": "bump.bench.test"}
UNITS = {
    "bulk": "MB/s in one stream",
    "rate": "requests/s, 8 kept-alive connections",
    "latency": "ms median of those",
    "new": "new connections/s",
    "first": "ms to the first byte of a streamed answer",
    "posts": "requests/s with a body of 8 KB, one kept-alive connection",
    "upload": "MB/s of one upload",
}
POLICY = Policy(
    rules=tuple(Rule("allow", host, origin="bench") for host in HOSTS.values()),
    credentials=(Binding("bench", HOSTS["bumped"], 443, ("GET", "POST"), ("/**",), "Authorization", "Bearer {}"),),
)


def test_the_way_through_the_sidecar_against_none(say: Callable[[str], None]) -> None:
    zone = {host: {"A": [ADDRESS]} for host in HOSTS.values()}
    found: dict[str, dict[str, list[float]]] = {}
    with World.up(zone=zone, names=list(HOSTS.values())) as world, Sidecar.up(world, POLICY) as sidecar:
        sidecar.must_open()
        agent = sidecar.agent()

        def direct(host: str) -> str:
            code = f"import pathlib; pathlib.Path('/tmp/ca.pem').write_text({world.ca_pem!r})\n{CLIENT}"
            arguments = [host, "", "/tmp/ca.pem", "-", ADDRESS]
            return docker(
                "run", "--rm", "-i", "--label", LABEL, "--network", world.network, "--tmpfs", "/tmp",
                "--entrypoint", PYTHON, sidecar_image(), "-", *arguments, stdin=code, timeout_s=600,
            )  # fmt: skip

        for _ in range(ROUNDS):
            for way, host in HOSTS.items():
                ours = json.loads(agent.run(CLIENT, host, "", f"{CA_TARGET}/bundle.pem", "127.0.0.1:3128", "-"))
                floor = json.loads(direct(host))
                for name in UNITS:
                    found.setdefault(way, {}).setdefault(name, []).append(ours[name] / floor[name])
                    found.setdefault(way, {}).setdefault(f"{name}-ours", []).append(ours[name])
    for way, rows in found.items():
        for name, unit in UNITS.items():
            ratio, ours = statistics.median(rows[name]), statistics.median(rows[f"{name}-ours"])
            say(f"{way}: {ratio:.2f} x direct, {ours:.1f} {unit} ({ROUNDS} rounds)")
    assert set(found) == set(HOSTS)


def test_what_scanning_bodies_costs(say: Callable[[str], None]) -> None:
    """The same requests through two sidecars in turn, of which one hands no body to its scanner."""

    def unscanned(files: dict[str, str]) -> None:
        files["squid.conf"] = files["squid.conf"].replace("acl scan note scan_ yes", "acl scan note scan_ never")

    host = HOSTS["bumped"]
    zone = {host: {"A": [ADDRESS]}}
    found: dict[str, list[float]] = {}
    with (
        World.up(zone=zone, names=[host]) as world,
        Sidecar.up(world, POLICY) as scanning,
        Sidecar.up(world, POLICY, patch=unscanned) as plain,
    ):
        agents = []
        for sidecar in (scanning, plain):
            sidecar.must_open()
            credentials = [{"name": "bench", "decoy": "decoy-0123456789ab", "secret": "secret-0123456789ab"}]
            assert sidecar.control("credential.put", credentials=credentials)["ok"]
            agents.append(sidecar.agent())
        for _ in range(ROUNDS):
            with_it, without = (
                json.loads(agent.run(CLIENT, host, "", f"{CA_TARGET}/bundle.pem", "127.0.0.1:3128", "-"))
                for agent in agents
            )
            for name in UNITS:
                found.setdefault(name, []).append(with_it[name] / without[name])
                found.setdefault(f"{name}-ours", []).append(with_it[name])
    for name, unit in UNITS.items():
        ratio, ours = statistics.median(found[name]), statistics.median(found[f"{name}-ours"])
        say(f"scanned: {ratio:.2f} x unscanned, {ours:.1f} {unit} ({ROUNDS} rounds)")
    assert set(found) >= set(UNITS)
