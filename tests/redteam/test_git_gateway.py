"""Runs the table of the git gateway's mutants on one sidecar, with a real sshd behind it: with every rule in place the
controls work and nothing else does; without one, what it held back gets through."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from agent_container.stack import Container, Mount
from agent_egress.policy import Policy
from agent_egress.repositories import Repository
from tests.redteam.mutants import Mutant
from tests.redteam.mutants_git import GIT, NFT
from tests.redteam.surgery import Surgery
from tests.support.forge import Forge, forge_image, key_id, make_pair
from tests.support.net import Agent, Sidecar, World
from tests.support.world import ROOT

HOST, API, OTHER = "git.test", "acme/api.git", "acme/other.git"
POLICY = Policy(git=(Repository(HOST, 22, "git", API, origin="spec git[0]"),))
_BANNER = """
import socket
s = socket.create_connection(({address!r}, {port}), timeout=5)
if {connect}:
    s.sendall(b'CONNECT git.test:22 HTTP/1.1\\r\\nHost: git.test:22\\r\\n\\r\\n')
data = b''
while b'SSH-2.0' not in data:
    chunk = s.recv(4096)
    if not chunk: raise SystemExit(1)
    data += chunk
"""


def _python(**values: object) -> str:
    return "python3 - <<'END'\n" + _BANNER.format(**values) + "END"


ATTEMPTS = {
    "control_fetch": f"git ls-remote git@{HOST}:{API}",
    "control_push": "git push -f origin HEAD:agent/work",
    "push_main": "git commit -q --allow-empty -m again; git push origin HEAD:main",
    "push_tag": "git push origin HEAD:refs/tags/$(date +%s%N)",
    "delete_a_branch": "git push origin HEAD:agent/gone; git push origin :agent/gone",
    "another_repository": f"git ls-remote git@{HOST}:{OTHER}",
    "through_the_proxy": _python(address="127.0.0.1", port=3128, connect=True),
    "as_the_gateway": _python(address="127.0.0.2", port=3128, connect=True),
    "straight_to_the_forge": "{straight}",
}


@dataclass
class Bench:
    """An open sidecar with its keys, the forge, and agents by how they were changed."""

    surgery: Surgery
    forge: Forge
    agents: dict[object, Agent] = field(default_factory=dict)

    def agent(self, mutant: Mutant) -> Agent:
        if mutant.agent not in self.agents:
            self.agents[mutant.agent] = self.surgery.sidecar.agent(change=lambda twin: _twin(twin, mutant))
            self.sh(self.agents[mutant.agent], _CLONE)
        return self.agents[mutant.agent]

    def sh(self, agent: Agent, script: str) -> bool:
        argv = ["docker", "exec", "-i", agent.name, "/bin/sh", "-c", script]
        return subprocess.run(argv, capture_output=True, check=False, timeout=120).returncode == 0

    def reached(self, mutant: Mutant) -> set[str]:
        """Of the attempts that the mutant names, those that got through; of controls, those that did not."""
        found, agent = set(), self.agent(mutant)
        straight = _python(address=self.forge.address, port=22, connect=False)
        for name in mutant.attempts:
            script = ATTEMPTS[name].replace("{straight}", straight)
            if self.sh(agent, f"cd /tmp/api 2>/dev/null; {script}") is not name.startswith("control_"):
                found.add(name)
        return found

    def put(self, policy: Policy) -> None:
        answer = self.surgery.sidecar.control("policy.put", policy=json.loads(policy.encode()))
        assert answer["ok"], answer


_CLONE = f"""cd /tmp && git clone -q git@{HOST}:{API} api && cd api
git config user.name agent && git config user.email agent@sandbox.test
echo more > more && git add more && git commit -qm more"""


def _twin(twin: Container, mutant: Mutant) -> Container:
    changed = replace(
        twin,
        image=forge_image(),
        mounts=(
            *twin.mounts,
            Mount("volume", "git", "/etc/agent-container/git", read_only=True),
            Mount("bind", str(ROOT / "image" / "git-ssh"), "/opt/git-ssh", read_only=True),
        ),
        environment=(("GIT_SSH_COMMAND", "/opt/git-ssh"), ("GIT_SSH_VARIANT", "ssh"), ("HOME", "/tmp")),
    )
    return mutant.agent(changed) if mutant.agent else changed


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with (
        World.up(zone={}, names=(HOST,)) as world,
        Forge.up(world.network, repositories=(API, OTHER)) as forge,
        Sidecar.up(world, POLICY, git=True) as sidecar,
    ):
        world.ask({"op": "zone", "zone": {HOST: {"A": [forge.address]}}})
        sidecar.must_open()
        pair = make_pair()
        forge.authorize(pair.public)
        name = key_id(pair.public)
        put = sidecar.control("ssh.put", keys={name: pair.private}, current=name, known_hosts=forge.pin(HOST))
        assert put["ok"], put
        yield Bench(Surgery(sidecar, POLICY), forge)


def test_unchanged_nothing_is_red(bench: Bench) -> None:
    assert bench.reached(Mutant("unchanged", tuple(ATTEMPTS))) == set()


def _judge(bench: Bench, mutant: Mutant) -> None:
    reds = bench.reached(mutant)
    assert reds >= set(mutant.red), f"still refused: {set(mutant.red) - reds}"
    assert not reds & set(mutant.still), f"no longer refused: {reds & set(mutant.still)}"


@pytest.mark.parametrize("mutant", GIT, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_rule_taken_away_is_missed(bench: Bench, mutant: Mutant) -> None:
    bench.agent(mutant)
    if not mutant.file:
        _judge(bench, mutant)
    elif mutant.file == NFT:
        text = bench.surgery.original[NFT]
        assert mutant.old in text
        with bench.surgery.held(), bench.surgery.changed({NFT: text.replace(mutant.old, mutant.new)}):
            _judge(bench, mutant)
    else:
        text = POLICY.encode().decode()
        assert mutant.old in text
        bench.put(Policy.parse(text.replace(mutant.old, mutant.new).encode()))
        try:
            _judge(bench, mutant)
        finally:
            bench.put(POLICY)
