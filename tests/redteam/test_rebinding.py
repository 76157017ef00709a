"""A resolver that is the agent's accomplice: answers that change with every question, that mix a public address with
one of the floor, that lead there by aliases or inside an IPv6 address. Thousands of requests at once, and the world
sees no packet to an address that no rule allows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import pytest

from agent_egress.floors import FLOOR4, FLOOR6
from agent_egress.policy import Policy, Rule
from agent_egress.receipts import parse_receipt
from agent_egress.replay import reconcile
from tests.redteam.attempts import METADATA, OK4, OK6, PRIVATE
from tests.redteam.judge import with_attempts
from tests.support.net import Log, Sidecar, World

ROUNDS = 30_000
LONGEST_S = 75
"""Past it the rounds end, however many were made; then the fewest must have been."""
FEWEST = 3_000
MAPPED = "::ffff:a4d:9"
NAT64 = "64:ff9b::a4d:9"
ZONE: dict[str, dict[str, list[str]]] = {
    "flip.test": {"flip": [OK4, PRIVATE, METADATA, "127.0.0.1"]},
    "mixed.test": {"A": [OK4, PRIVATE], "AAAA": [OK6, "fd00:ec2::254"]},
    "mixed2.test": {"A": [METADATA, OK4]},
    "alias.test": {"CNAME": ["inner.lan.test"]},
    "inner.lan.test": {"A": [PRIVATE]},
    "alias6.test": {"CNAME": ["inner6.lan.test"]},
    "inner6.lan.test": {"AAAA": ["fd00::9"]},
    "mapped.test": {"AAAA": [MAPPED]},
    "nat64.test": {"AAAA": [NAT64]},
    "both.test": {"A": [PRIVATE], "AAAA": [MAPPED, NAT64, "2002:a4d:9::1", "fe80::1"]},
    "loop.test": {"A": ["127.0.0.1"], "AAAA": ["::1"]},
    "zero.test": {"A": ["0.0.0.0"], "AAAA": ["::"]},
    "carrier.test": {"A": ["100.64.0.9", "198.18.0.9", "224.0.0.1"]},
    "steady.test": {"A": [OK4]},
}
NAMES = tuple(name for name in ZONE if ".lan." not in name)
POLICY = Policy(rules=tuple(Rule("allow", name, ports=(8080,)) for name in NAMES))
CLIENTS = """
import asyncio, collections, json, time
names, rounds, until = {names!r}, {rounds}, time.monotonic() + {longest}
tally, done = collections.Counter(), 0
async def one(name):
    reader, writer = await asyncio.open_connection("127.0.0.1", 3128)
    try:
        head = f"GET http://{{name}}:8080/{{done}} HTTP/1.1\\r\\nHost: {{name}}:8080\\r\\n"
        writer.write(f"{{head}}Connection: close\\r\\n\\r\\n".encode())
        data = await asyncio.wait_for(reader.read(-1), 15)
    finally:
        writer.close()
    status = data[9:12].decode("latin-1")
    tally[name + " " + status] += 1
    for word in (b'"address": "10.', b'"address": "169.254.', b'"address": "127.', b'"address": "fd'):
        tally["PRIVATE"] += word in data
async def client(number):
    global done
    while done < rounds and time.monotonic() < until:
        done += 1
        try:
            await one(names[done % len(names)])
        except (OSError, asyncio.TimeoutError) as error:
            tally[type(error).__name__] += 1
async def main():
    await asyncio.gather(*(client(number) for number in range(64)))
    print(json.dumps({{"done": done, "tally": tally}}))
asyncio.run(main())
"""


class Rounds:
    """What the clients counted, what the world saw, and what the chain holds."""

    def __init__(self, world: World, sidecar: Sidecar) -> None:
        agent = sidecar.agent()
        world.clear()
        code = CLIENTS.format(names=list(NAMES), rounds=ROUNDS, longest=LONGEST_S)
        counted = json.loads(agent.run(with_attempts(code)))
        self.done = int(counted["done"])
        self.tally: dict[str, int] = counted["tally"]
        self.log: Log = world.log()
        assert sidecar.control("seal", outcome="succeeded")["ok"]
        self.receipts = [found for found in map(parse_receipt, sidecar.receipts()) if found is not None]


@pytest.fixture(scope="module")
def rounds() -> Iterator[Rounds]:
    with World.up(zone=ZONE, names=NAMES) as world, Sidecar.up(world, POLICY) as sidecar:
        sidecar.must_open()
        yield Rounds(world, sidecar)


def test_there_were_enough_rounds_and_the_allowed_ones_passed(rounds: Rounds) -> None:
    assert rounds.done >= FEWEST, rounds.tally
    each = rounds.done // len(NAMES)
    assert rounds.tally.get("steady.test 200", 0) >= each * 9 // 10, rounds.tally
    assert rounds.tally.get("mixed.test 200", 0) > 0, "a name with one public address is still a name"


def test_no_packet_went_to_an_address_of_the_floor(rounds: Rounds) -> None:
    floor = (*FLOOR4, *FLOOR6, ip_network("64:ff9b::/96"), ip_network("2002::/16"), ip_network("::ffff:0:0/96"))
    seen = {packet[0] for packet in rounds.log.packets if packet[2]}
    assert OK4 in seen
    inside = [a for a in seen if any(ip_address(a) in n for n in floor if n.version == ip_address(a).version)]
    assert inside == []


def test_no_answer_came_from_one(rounds: Rounds) -> None:
    assert rounds.tally.get("PRIVATE", 0) == 0


@pytest.mark.parametrize("name", ["alias", "alias6", "mapped", "nat64", "both", "loop", "zero", "carrier"])
def test_a_name_that_is_private_whichever_way_reaches_nobody(rounds: Rounds, name: str) -> None:
    assert rounds.tally.get(f"{name}.test 200", 0) == 0
    assert sum(count for key, count in rounds.tally.items() if key.startswith(f"{name}.test ")) > 0


def test_every_address_that_was_dialled_is_explained(rounds: Rounds) -> None:
    assert reconcile(rounds.receipts) == ()
