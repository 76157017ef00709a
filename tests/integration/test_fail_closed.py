"""When a part of the boundary fails, before a run or in the middle of it: the user is told which part, the record is
written, nothing is left half up, and not one packet leaves.

Parts are broken the way they break: by what is rendered for them (a copy of the source tree with another template), by
a slow program in a sidecar image of its own, or by signals to the processes of a sidecar that runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.world import Done, World, copied_tree, docker

OWNER = 1234 if os.getuid() == 0 else os.getuid()
DIRECT_PORT = 9000
"""Of the double; no rule allows it and no proxy stands before it."""
AGENT = """
read -r rounds
for round in $(seq "$rounds"); do
  echo "$round $(curl -s -o /dev/null -m 10 -w %%{http_code} https://demo.acme.test/sse)"
  (echo x >/dev/tcp/%(address)s/%(port)d) 2>/dev/null && echo LEAK
  (echo x >/dev/udp/%(address)s/%(port)d) 2>/dev/null
  sleep 0.2
done
"""
SIGNAL = """
import os, sys
for pid in {name for name in os.listdir("/proc") if name.isdigit()} - {str(os.getpid())}:
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    except OSError:
        continue
    if sys.argv[1].encode() in line:
        os.kill(int(pid), int(sys.argv[2]))
        print(pid)
"""
CORRUPT = "open('/run/egress/policy.json', 'w').write('{\"version\": 1, \"rules\": [')"


def spec_of(world: World) -> str:
    script = AGENT % {"address": world.address, "port": DIRECT_PORT}
    return f"version: 1\nagent: {{command: [/bin/bash, -c, {json.dumps(script)}], hosts: [demo.acme.test]}}\n"


def sidecar_python(container: str, script: str, *arguments: str) -> bytes:
    return docker("exec", container, "/usr/bin/python3", "-I", "-c", script, *arguments).stdout


def leaks(world: World) -> int:
    """What arrived at the double around the proxy."""
    return sum(count for _, _, port, count in world.ask("log")["packets"] if port == DIRECT_PORT)


# --- broken from the start ---


@dataclass(frozen=True)
class Broken:
    """A source tree with one part broken, and the word that must name it."""

    changes: dict[str, tuple[tuple[str, str], ...]]
    part: str


NFT, UNBOUND, SQUID = (f"templates/{name}.j2" for name in ("nftables", "unbound.conf", "squid.conf"))
BROKEN = {
    "rules that the kernel refuses": Broken({NFT: (("policy drop", "policy dropp"),)}, "nftables"),
    "a resolver that does not start": Broken({UNBOUND: (("server:", "server:\n  no-such-option: 1"),)}, "unbound"),
    "a proxy that does not start": Broken({SQUID: (("http_port ", "http_port nonsense:x\nhttp_port "),)}, "squid"),
}


@pytest.fixture
def broken(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> tuple[World, Broken]:
    """The same user with a tool that is broken in one part."""
    row = BROKEN[request.param]
    return dataclasses.replace(world, tree=copied_tree(tmp_path / "tree", row.changes)), row


@pytest.mark.parametrize("verb", ["up", "run"])
@pytest.mark.parametrize("broken", BROKEN, indirect=True)
def test_a_part_that_does_not_start_is_named_and_nothing_is_left(
    verb: str, broken: tuple[World, Broken], request: pytest.FixtureRequest
) -> None:
    user, row = broken
    project = user.project(f"broken-{verb}-{row.part}", spec_of(user))
    if os.getuid() == 0:
        subprocess.run(["chown", "-hR", f"{OWNER}:{OWNER}", str(project)], check=True)
    if verb == "up" and (digest := user.digest(project, "--bind")):
        user.agc("up", "--accept", digest, cwd=project, code=3)
    before = set(user.sessions())
    user.ask("clear")
    arguments = ("up",) if verb == "up" else ("run", "5")
    done = user.agc("--json", *arguments, cwd=project, code=3 if verb == "up" else 15)
    told = " ".join((done.error["message"], *done.error["details"]))
    assert row.part in told
    assert "Traceback" not in done.text
    (session,) = set(user.sessions()) - before
    assert user.objects(session) == []
    record = user.record(session)
    assert (record["host"]["outcome"], record["host"]["basis"]) == ("never-started", "host")
    assert row.part in record["host"]["reason"]
    assert user.agc("--json", "ls", cwd=project).result == []
    assert user.agc("--json", "status", cwd=project).result["state"] == "down"
    assert leaks(user) == 0
    assert user.requests("demo.acme.test") == []


def test_rules_that_come_late_let_nothing_out_before(world: World, tmp_path: Path) -> None:
    slow = (
        (
            "    try:\n        load_rules(source)",
            "    import time\n\n    time.sleep(3)\n    try:\n        load_rules(source)",
        ),
    )
    late = dataclasses.replace(world, tree=copied_tree(tmp_path / "tree", {"sidecar/agent_egress/supervisor.py": slow}))
    project = late.project("late", spec_of(late))
    late.ask("clear")
    done = late.agc("--json", "run", "3", cwd=project)
    assert done.host["outcome"] == "succeeded"
    assert leaks(late) == 0
    assert len(late.requests("demo.acme.test")) == 3
    assert done.host["egress"]["verified"] == "verified"


# --- broken in the middle ---


@dataclass
class Working:
    """A run whose agent asks for an allowed host again and again, and tries the direct way each time."""

    world: World
    project: Path
    process: subprocess.Popen[bytes]
    run: str

    @property
    def egress(self) -> str:
        return self.world.container("egress", self.run)

    def statuses(self, count: int) -> list[str]:
        """What the agent got, the next `count` times."""
        found: list[str] = []
        assert self.process.stdout is not None
        while len(found) < count:
            line = self.process.stdout.readline()
            assert line, "the run ended"
            event = json.loads(line).get("event", {})
            if event.get("type") == "agent.output":
                assert "LEAK" not in event["text"]
                found.append(event["text"].split()[-1])
        return found

    def end(self) -> Done:
        """Reads the run to its end."""
        out, err = self.process.communicate(timeout=300)
        return Done((), self.process.returncode, out, err)


@pytest.fixture
def working(world: World, request: pytest.FixtureRequest) -> Iterator[Callable[[int], Working]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(rounds: int) -> Working:
        name = request.node.name
        project = world.project(name, spec_of(world))
        before = set(world.sessions())
        process = world.start("--json", "run", str(rounds), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        processes.append(process)
        world.ask("clear")
        work = Working(world, project, process, "")
        assert work.statuses(2) == ["200", "200"]
        (work.run,) = set(world.sessions()) - before
        return work

    yield start
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=300)


def closed(work: Working, done: Done, *, code: int) -> dict[str, object]:
    """What holds after every end."""
    assert done.code == code, done
    assert work.world.objects(work.run) == []
    assert leaks(work.world) == 0
    host: dict[str, object] = done.host
    assert work.world.record(work.run)["host"] == host
    return host


def test_a_sidecar_that_is_killed_ends_the_run_and_takes_the_network_with_it(working: Callable[[int], Working]) -> None:
    work = working(600)
    docker("kill", work.egress)
    work.world.ask("clear")
    done = work.end()
    host = closed(work, done, code=14)
    assert (host["outcome"], host["basis"]) == ("lost", "host")
    assert "egress sidecar" in str(host["reason"])
    assert work.world.requests("demo.acme.test") == []
    assert "missing-seal" in work.world.agc("runs", "verify", cwd=work.project, code=6).text


def test_a_dead_audit_writer_ends_the_run_and_shuts_the_door(working: Callable[[int], Working]) -> None:
    work = working(600)
    assert sidecar_python(work.egress, SIGNAL, "agent_egress.audit", "9").split()
    host = closed(work, work.end(), code=14)
    assert "egress sidecar" in str(host["reason"])
    seen = len(work.world.requests("demo.acme.test"))
    receipts = [json.loads(line) for line in (work.world.place(work.run) / "receipts.jsonl").read_bytes().splitlines()]
    allowed = [one for one in receipts if one["kind"] == "decision" and one["action"] == "allow"]
    assert seen <= len(allowed)  # no receipt, no connection


def test_a_hung_policy_process_means_no_until_it_is_replaced(working: Callable[[int], Working]) -> None:
    work = working(25)
    assert sidecar_python(work.egress, SIGNAL, "agent_egress.decider", "19").split()
    work.world.ask("clear")
    assert any(status != "200" for status in work.statuses(3))
    host = closed(work, work.end(), code=0)
    egress = host["egress"]
    assert isinstance(egress, dict)
    assert egress["verified"] == "verified"


def test_a_corrupt_policy_means_no(working: Callable[[int], Working]) -> None:
    work = working(12)
    sidecar_python(work.egress, CORRUPT)
    work.statuses(1)  # the one that was under way
    work.world.ask("clear")
    assert "200" not in work.statuses(3)
    closed(work, work.end(), code=0)
    assert work.world.requests("demo.acme.test") == []
