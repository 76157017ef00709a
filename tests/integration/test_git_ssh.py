"""git over ssh as its user meets it: a real sshd, the project's key in the sidecar and nowhere in the sandbox, what the
gateway lets through and what it refuses, and a key that is exchanged under an agent that goes on working."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from agent_egress.receipts import parse_receipt
from tests.support.forge import Forge
from tests.support.world import World, docker

HOST = "git.acme.test"
API, READ, OTHER = "acme/api.git", "srv/git/acme/read.git", "acme/other.git"
SPEC = f"""version: 1
agent: demo
ssh_key: true
git:
  - git@{HOST}:{API}
  - {{repo: "ssh://git@{HOST}/{READ}", push: []}}
"""


@dataclass(frozen=True)
class Bench:
    """A project with a key, its environment, and the forge."""

    world: World
    project: object
    forge: Forge

    def agc(self, *arguments: str, code: int | None = 0, stdin: bytes = b"") -> str:
        done = self.world.agc(*arguments, cwd=self.project, code=code, stdin=stdin)  # type: ignore[arg-type]
        return done.text

    def result(self, *arguments: str) -> dict[str, object]:
        return self.world.agc("--json", *arguments, cwd=self.project).result  # type: ignore[arg-type, no-any-return]

    def sh(self, script: str, *, code: int | None = 0) -> str:
        return self.agc("exec", "/bin/sh", "-c", script, code=code)


@pytest.fixture(scope="module")
def before(world: World) -> Iterator[tuple[Bench, dict[str, str]]]:
    """The environment up, and what git read before its user had pinned or authorised anything."""
    with Forge.up(world.network, repositories=(API, f"/{READ}", OTHER)) as forge:
        world.ask("zone", zone={HOST: {"A": [forge.address]}})
        project = world.project("over-ssh", SPEC)
        bench = Bench(world, project, forge)
        shown = bench.result("ssh-key", "show")
        bench.agc("up", "--clone")
        fetch = f"git ls-remote git@{HOST}:{API}"
        said = {"unpinned": bench.sh(fetch, code=128)}
        bench.agc("ssh-key", "pin", HOST, "--from-file", "-", stdin=forge.pin(HOST).encode())
        said["unknown"] = bench.sh(fetch, code=128)
        forge.authorize(str(shown["keys"][0]["public"]))  # type: ignore[index]
        try:
            yield bench, said
        finally:
            bench.agc("down", "-v", "--force", code=None)


@pytest.fixture(scope="module")
def bench(before: tuple[Bench, dict[str, str]]) -> Bench:
    """A clone in /tmp/api with a branch of work."""
    found = before[0]
    found.sh(
        f"""set -e; cd /tmp; git clone -q git@{HOST}:{API} api; cd api
        git config user.name agent; git config user.email agent@sandbox.test; git checkout -q -b agent/work
        echo more > more; git add more; git commit -qm work; git tag v1"""
    )
    return found


def test_before_a_host_s_key_is_pinned_nothing_is_sent_and_the_agent_reads_why(
    before: tuple[Bench, dict[str, str]],
) -> None:
    assert f"{HOST} showed a host key that is not pinned" in before[1]["unpinned"]
    assert f"agent-container ssh-key pin {HOST}" in before[1]["unpinned"]


def test_before_the_forge_knows_the_key_the_agent_reads_what_its_user_does(
    before: tuple[Bench, dict[str, str]],
) -> None:
    assert f"{HOST} does not take this project's ssh key" in before[1]["unknown"]


def test_its_own_branches_are_fetched_and_pushed(bench: Bench) -> None:
    bench.sh("cd /tmp/api && git push -q origin agent/work && git fetch -q && git pull -q --no-rebase origin main")
    head = bench.sh("cd /tmp/api && git rev-parse HEAD").split()[0]
    assert bench.forge.refs(API)["refs/heads/agent/work"] == head
    bench.sh(f"cd /tmp && git clone -q --depth 1 ssh://git@{HOST}/{API} shallow && test -f shallow/README")


REFUSED = {
    "a push to main": ("cd /tmp/api && git push origin HEAD:main", "refs/heads/main may not be pushed"),
    "a tag": ("cd /tmp/api && git push origin v1", "refs/tags/v1 may not be pushed"),
    "a deletion": ("cd /tmp/api && git push origin :agent/work", "refs/heads/agent/work may not be deleted"),
    "one bad ref among good ones": ("cd /tmp/api && git push origin HEAD:agent/b HEAD:main", "refs/heads/main may not"),
    "push options": ("cd /tmp/api && git push -o merge origin HEAD:agent/c", "push options are not let through"),
    "a push where only fetching is": (f"cd /tmp/api && git push git@{HOST}:{READ} HEAD:agent/x", "not pushed to"),
    "another repository": (f"git ls-remote git@{HOST}:{OTHER}", "no repository of the spec's `git` is this one"),
    "a way up": (f"git ls-remote git@{HOST}:acme/x/../api.git", "has `.` or `..` in it"),
    "another account": (f"git ls-remote root@{HOST}:{API}", "no repository of the spec's `git` is this one"),
    "another host": (f"git ls-remote git@other.acme.test:{API}", "on that host and port"),
    "another port": (f"git ls-remote ssh://git@{HOST}:2222/{API}", "on that host and port"),
    "an archive": (f"git archive --remote git@{HOST}:{API} HEAD", "neither a fetch nor a push"),
    "a shell": (f"$GIT_SSH_COMMAND git@{HOST}", "only git's fetch and push go over ssh here"),
    "a tunnel": (f"$GIT_SSH_COMMAND -N -L 9:127.0.0.1:22 git@{HOST}", "only git's fetch and push"),
    "a token for large files": (
        f"$GIT_SSH_COMMAND git@{HOST} \"git-lfs-authenticate '{API}' download\"",
        "neither a fetch nor a push",
    ),
    "a command behind the path": (
        f"$GIT_SSH_COMMAND git@{HOST} \"git-upload-pack '{API}'; id\"",
        "neither a fetch nor a push",
    ),
}


@pytest.fixture(scope="module")
def refusals(bench: Bench) -> dict[str, str]:
    """What each case read; asked in one go, since each `exec` starts anew."""
    refs = bench.forge.refs(API)
    parts = [f"echo '=== {name}'; ({script}) 2>&1; echo status $?" for name, (script, _) in REFUSED.items()]
    text = bench.sh("\n".join(parts), code=None)
    assert bench.forge.refs(API) == refs
    return dict(part.split("\n", 1) for part in text.split("=== ")[1:])


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_words(refusals: dict[str, str], case: str) -> None:
    assert REFUSED[case][1] in refusals[case]
    assert "status 0" not in refusals[case]


def test_the_socket_takes_nothing_but_a_request(bench: Bench) -> None:
    ask = """import socket, sys
for text in (b'null\\n', b'[]\\n', b'{"v":1}\\n', b'\\x00' * 9000 + b'\\n', b'[' * 7000 + b'\\n'):
    s = socket.socket(socket.AF_UNIX); s.connect('/etc/agent-container/git/gateway.sock'); s.sendall(text)
    data = b''
    while chunk := s.recv(4096): data += chunk
    print('refused' in data.decode('latin-1'))
"""
    assert bench.sh(f"python3 -c '{ask.replace(chr(39), chr(34) * 3)}'").split() == ["True"] * 5


def test_the_agent_does_not_reach_the_forge_by_itself(bench: Bench) -> None:
    """Not with a key that it brought along: what is open is open to the gateway alone."""
    connect = "curl -s -o /dev/null -m 9 -w 'answered %{http_connect};' -p -x"
    forge = f"telnet://{HOST}:22 </dev/null"
    text = bench.sh(f"{connect} http://127.0.0.1:3128 {forge}; {connect} http://127.0.0.2:3128 {forge}", code=None)
    assert text.count("answered") == 2
    assert "answered 200" not in text
    assert text.rstrip().endswith("answered 000;")  # to the gateway's own way there is not even a connection


def test_the_private_key_is_nowhere_in_the_agent_s_world(bench: Bench) -> None:
    session = bench.world.sessions()[-1]
    agent = bench.world.container("agent", session)
    script = (
        "grep -rlE 'OPENSSH PRIVATE KE[Y]|b3BlbnNzaC1rZXktdj[E]' /etc /home /tmp /run /var /workspace /root /opt "
        "--exclude-dir=proc 2>/dev/null; env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; "
        "ls -la /etc/agent-container/git; true"
    )
    found = docker("exec", "--user", "0", agent, "/bin/sh", "-c", script).stdout.decode("utf-8", "replace")
    assert "gateway.sock" in found
    assert "PRIVATE KEY" not in found
    assert "b3BlbnNzaC1rZXktdjE" not in found
    assert [line for line in found.splitlines() if line.startswith(("/", "SSH_AUTH_SOCK"))] == []
    stored = b"".join(path.read_bytes() for path in bench.world.path.rglob("*") if path.is_file())
    assert b"OPENSSH PRIVATE KEY" not in stored
    for role in ("agent", "egress"):
        assert "PRIVATE KEY" not in docker("inspect", bench.world.container(role, session)).stdout.decode()


def test_a_key_is_exchanged_under_a_working_agent(bench: Bench) -> None:
    fetch = f"git ls-remote -q git@{HOST}:{API}"
    old = str(bench.result("ssh-key", "show")["keys"][0]["public"])  # type: ignore[index]
    made = bench.result("ssh-key", "rotate")
    assert made["phase"] == "made"
    assert HOST in bench.agc("ssh-key", "rotate", code=1)  # the forge does not know it yet
    bench.sh(fetch)
    new = str(made["key"]["public"])  # type: ignore[index]
    bench.forge.authorize(old, new)
    assert bench.result("ssh-key", "rotate")["phase"] == "switched"
    assert bench.result("ssh-key", "rotate")["phase"] == "switched"
    bench.agc("ssh-key", "retire")
    bench.agc("ssh-key", "retire", code=2)
    bench.forge.authorize(new)
    bench.sh(fetch)
    assert [row["state"] for row in bench.result("ssh-key", "show")["keys"]] == ["current"]  # type: ignore[attr-defined]


def test_a_gateway_that_was_killed_comes_back_with_its_keys(bench: Bench) -> None:
    session = bench.world.sessions()[-1]
    sidecar = bench.world.container("egress", session)
    kill = "import os, signal\nfor p in filter(str.isdigit, os.listdir('/proc')):\n    try:\n"
    kill += (
        "        if os.stat('/proc/' + p).st_uid == 64107: os.kill(int(p), signal.SIGKILL)\n    except OSError: pass"
    )
    docker("exec", sidecar, "/usr/bin/python3", "-c", kill)
    tries = f"for i in $(seq 60); do git ls-remote -q git@{HOST}:{API} && exit 0; sleep 0.5; done; exit 1"
    bench.sh(f"({tries}) >/dev/null 2>&1")


def test_a_narrower_spec_holds_without_a_restart(bench: Bench) -> None:
    spec = bench.project / "agent-container.yaml"  # type: ignore[operator]
    spec.write_text(SPEC.replace(f"  - git@{HOST}:{API}\n", ""))
    session = bench.world.sessions()[-1]
    bench.agc("up", "--clone")
    assert bench.world.sessions()[-1] == session
    assert "no repository of the spec's `git` is this one" in bench.sh(f"git ls-remote git@{HOST}:{API}", code=128)
    bench.sh(f"git ls-remote -q ssh://git@{HOST}/{READ}")


def test_the_receipts_say_all_of_it_and_verify(bench: Bench) -> None:
    session = bench.world.sessions()[-1]
    bench.agc("down")
    record = bench.world.record(session)
    assert record["host"]["egress"]["verified"] == "verified", record["host"]["egress"]
    lines = (bench.world.place(session) / "receipts.jsonl").read_bytes().splitlines()
    rows = [row for row in map(parse_receipt, lines) if row is not None and row["kind"] == "git"]
    pushed = {row["ref"] for row in rows if row.get("action") == "allow" and "ref" in row}
    refused = {row["ref"] for row in rows if row.get("action") == "deny" and "ref" in row}
    assert pushed == {"refs/heads/agent/work"}
    assert refused == {"refs/heads/main", "refs/tags/v1", "refs/heads/agent/work"}
    opened = {row["job"] for row in rows if row.get("action") == "allow" and "job" in row}
    assert opened
    assert {row["job"] for row in rows if row.get("action") == "exit"} >= opened - {max(opened, key=str)}
    assert "OPENSSH" not in json.dumps(rows)
