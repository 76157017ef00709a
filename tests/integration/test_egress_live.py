"""The live policy through the command line: changed while the sandbox works, acknowledged with the digest in force,
and written into the record of what happened."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_container.commands.egress_watch import Board
from tests.support.world import DEMO, Done, World

REFUSED_403 = "403"
"""A refusal reaches an agent as an answer that it can read, inside TLS."""
OWNER = 1234 if os.getuid() == 0 else os.getuid()
SPEC = DEMO + "egress:\n  allow:\n    - api.acme.test  # the service\n  deny: [other.acme.test]\n"


@pytest.fixture(scope="module")
def live(world: World) -> Iterator[Path]:
    """One standing environment for the whole file."""
    project = world.project("live", SPEC)
    if os.getuid() == 0:
        subprocess.run(["chown", "-hR", f"{OWNER}:{OWNER}", str(project)], check=True)
    up(world, project)
    yield project
    world.agc("down", "-v", cwd=project)


def up(world: World, project: Path, mode: str = "--bind") -> Any:
    """`up`, with a yes where one is asked for."""
    digest = world.digest(project, mode)
    accept = ("--accept", digest) if digest else ()
    return world.agc("--json", "up", mode, *accept, cwd=project).result


def fetch(world: World, project: Path, url: str) -> str:
    """The status that curl gets in the sandbox; `000` for none."""
    script = f"curl -s -o /tmp/out -m 20 -w '%{{http_code}}' {url} || true"
    return world.agc("exec", "/bin/sh", "-c", script, cwd=project).out.decode().strip()[-3:]


def egress(world: World, project: Path, *arguments: str, code: int | None = 0) -> Done:
    return world.agc("--json", "egress", *arguments, cwd=project, code=code)


def rules(world: World, project: Path) -> dict[tuple[str, str], Any]:
    found = egress(world, project, "ls").result
    return {(row["action"], row["pattern"]): row for row in found["rules"]}


def test_a_host_is_allowed_denied_and_removed_while_the_sandbox_works(world: World, live: Path) -> None:
    assert fetch(world, live, "https://demo.acme.test/") == REFUSED_403
    allowed = egress(world, live, "allow", "https://demo.acme.test/some/page").result
    assert allowed["changed"]
    assert allowed["digest"].startswith("sha256:")
    assert egress(world, live, "ls").result["digest"] == allowed["digest"]
    assert fetch(world, live, "https://demo.acme.test/") == "200"
    again = egress(world, live, "allow", "DEMO.acme.test.").result
    assert (again["changed"], again["digest"]) == (False, allowed["digest"])
    row = rules(world, live)["allow", "demo.acme.test"]
    assert row["origin"] == "live"
    assert row["allowed"] > 0
    denied = egress(world, live, "deny", "demo.acme.test").result
    assert denied["digest"] != allowed["digest"]
    assert fetch(world, live, "https://demo.acme.test/") == REFUSED_403
    egress(world, live, "rm", "demo.acme.test")
    assert not {pattern for _, pattern in rules(world, live) if pattern == "demo.acme.test"}
    assert fetch(world, live, "https://demo.acme.test/") == REFUSED_403


REFUSED = {
    "what is no host": (("allow", "a b"), 2, "not something that a rule can name"),
    "another rule closes it": (("allow", "other.acme.test"), 2, "stays closed on port 443"),
    "no such rule": (("rm", "nowhere.acme.test"), 2, "no rule is over exactly"),
    "loopback": (("allow", "127.0.0.1"), 2, "not something that a rule can name"),
    "metadata": (("allow", "169.254.169.254"), 2, "allow_metadata"),
    "too wide": (("allow", "0.0.0.0/0"), 2, "too wide"),
    "a run that is none": (("ls", "--run", "2999"), 4, "no sandbox 2999"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_hold_is_refused_whole(world: World, live: Path, name: str) -> None:
    arguments, code, words = REFUSED[name]
    before = egress(world, live, "ls").result["digest"]
    done = egress(world, live, *arguments, code=code)
    assert words in json.dumps(done.error), done
    assert egress(world, live, "ls").result["digest"] == before


def test_a_cut_ends_a_live_tunnel_at_once_and_restore_brings_it_back(world: World, live: Path) -> None:
    script = "curl -sN -m 60 https://api.acme.test/hold; echo ended $?"
    with world.start("exec", "/bin/sh", "-c", script, cwd=live, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not world.requests("api.acme.test") and time.monotonic() < deadline:
            time.sleep(0.1)
        cut = egress(world, live, "cut").result
        assert cut[0]["changed"]
        out, _ = process.communicate(timeout=30)
    assert b"ended 0" not in out
    assert fetch(world, live, "https://api.acme.test/") == REFUSED_403
    assert egress(world, live, "ls").result["cut"]
    assert not egress(world, live, "explain", "https://api.acme.test/").result["allowed"]
    assert not egress(world, live, "cut").result[0]["changed"]
    held = egress(world, live, "allow", "demo.acme.test").result
    assert "everything is cut" in " ".join(held["words"])
    assert fetch(world, live, "https://demo.acme.test/") == REFUSED_403
    restored = egress(world, live, "restore").result
    assert restored[0]["changed"]
    assert fetch(world, live, "https://api.acme.test/") == "200"
    assert fetch(world, live, "https://demo.acme.test/") == "200"
    egress(world, live, "rm", "demo.acme.test")


def test_explain_says_what_the_sandbox_then_meets(world: World, live: Path) -> None:
    for url, allowed in {
        "https://api.acme.test/x": True,
        "https://other.acme.test/": False,
        "https://refused.acme.test/": False,
    }.items():
        said = egress(world, live, "explain", url).result
        assert said["allowed"] is allowed, said
        assert (fetch(world, live, url) == "200") is allowed
    assert said["next_command"] == "agent-container egress allow refused.acme.test"
    assert egress(world, live, "explain", "https://other.acme.test").result["rule"] == "deny other.acme.test"


def test_the_log_shows_what_was_refused_and_follows(world: World, live: Path) -> None:
    fetch(world, live, "https://refused.acme.test/")
    rows = [line["event"] for line in egress(world, live, "log", "--denied", "--host", "refused.acme.test").lines[:-1]]
    assert {row["kind"] for row in rows} >= {"decision"}
    assert all(row["action"] == "deny" for row in rows)
    text = world.agc("egress", "log", "-n", "5", cwd=live).out.decode()
    assert len(text.splitlines()) == 5
    argv = ("--json", "egress", "log", "--follow", "-n", "0", "--host", "*.acme.test")
    with world.start(*argv, cwd=live, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        fetch(world, live, "https://late.acme.test/")
        seen = json.loads(process.stdout.readline())
        process.terminate()
    assert seen["event"]["host"] == "late.acme.test"


def test_up_puts_a_new_policy_in_force_without_ending_what_works(world: World, live: Path) -> None:
    session = world.agc("--json", "status", cwd=live).result["session"]
    egress(world, live, "allow", "demo.agent-container.test")
    spec = live / "agent-container.yaml"
    before = spec.read_text()
    spec.write_text(before.replace("  deny:", "    - refused.acme.test\n  deny:"))
    done = up(world, live)
    assert (done["session"], done["changed"], done["changes"]) == (session, True, ["egress policy changed"])
    assert fetch(world, live, "https://refused.acme.test/") == "200"
    assert fetch(world, live, "https://demo.agent-container.test/") == "200"
    assert not world.agc("--json", "up", "--bind", cwd=live).result["changed"]
    spec.write_text(before)
    assert world.agc("--json", "up", "--bind", cwd=live).result["session"] == session
    assert fetch(world, live, "https://refused.acme.test/") == REFUSED_403


def test_saving_keeps_the_spec_as_it_was_written_and_needs_no_second_yes(world: World, live: Path) -> None:
    session = world.agc("--json", "status", cwd=live).result["session"]
    spec = live / "agent-container.yaml"
    before, owner = spec.read_text(), spec.stat().st_uid
    done = egress(world, live, "allow", "demo.acme.test", "--save").result
    assert "saved in agent-container.yaml" in done["words"]
    assert spec.read_text() == before.replace("# the service\n", "# the service\n    - demo.acme.test\n")
    assert spec.stat().st_uid == owner
    # The mount that keeps it from the agent still holds: it would be gone with a new file in the old one's place.
    world.agc("exec", "/bin/sh", "-c", "echo '# mine' >>agent-container.yaml", cwd=live, code=None)
    assert "# mine" not in spec.read_text()
    assert world.digest(live, "--bind") == ""
    assert up(world, live)["session"] == session
    assert rules(world, live)["allow", "demo.acme.test"]["origin"].startswith("spec egress.allow[1]")
    egress(world, live, "rm", "demo.acme.test", "--save")
    assert spec.read_text() == before


def test_two_changes_at_once_both_hold(world: World, live: Path) -> None:
    hosts = [f"host{number}.acme.test" for number in range(4)]
    processes = [world.start("egress", "allow", host, cwd=live) for host in hosts]
    assert [process.wait(timeout=120) for process in processes] == [0] * len(hosts)
    found = rules(world, live)
    assert all(("allow", host) in found for host in hosts)


def test_the_board_keeps_its_numbers_and_a_key_allows_what_its_row_shows(world: World, live: Path) -> None:
    with world.terminal("egress", "watch", cwd=live) as terminal:
        fetch(world, live, "https://first.acme.test/")
        terminal.expect(b"first.acme.test")
        fetch(world, live, "https://board.acme.test/")
        terminal.expect(b"board.acme.test")
        board = Board()
        for line in egress(world, live, "log", "-n", "2000").lines[:-1]:
            board.add(line["event"])
        assert {row.host for row in board.rows if not row.host.endswith(".test")} == set(), "what the tool itself tried"
        terminal.type(str(next(row.number for row in board.rows if row.host == "board.acme.test")).encode())
        time.sleep(0.5)
        terminal.type(b"\r")
        terminal.expect(b"allow board.acme.test:443?")
        terminal.type(b"y")
        terminal.expect(b"allowed board.acme.test")
        terminal.type(b"q")
        assert terminal.wait() == 0
    assert fetch(world, live, "https://board.acme.test/") == "200", egress(world, live, "log", "-n", "20").out.decode()


def test_what_was_changed_live_verifies_when_all_is_gone(world: World) -> None:
    project = world.project("live-record", SPEC)
    session = up(world, project, "--clone")["session"]
    egress(world, project, "allow", "demo.acme.test")
    assert fetch(world, project, "https://demo.acme.test/") == "200"
    egress(world, project, "cut")
    egress(world, project, "restore")
    egress(world, project, "deny", "demo.acme.test")
    assert fetch(world, project, "https://demo.acme.test/") == REFUSED_403
    world.agc("down", "-v", cwd=project)
    verified = world.agc("--json", "verify-egress", session, cwd=project).result
    assert (verified["exit_code"], verified["findings"]) == (0, [])
    kinds = [line["event"]["kind"] for line in egress(world, project, "log", "--run", session, "-n", "1000").lines[:-1]]
    assert kinds.count("policy") >= 4
    assert {"cut", "restore", "seal"} <= set(kinds)
