"""Hosts that are inspected and hosts whose contact ends the session, as the user of the tool meets them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world import DEMO, World

SPEC = DEMO + (
    "egress:\n"
    "  inspect: [demo.acme.test]\n"
    "  allow: [other.acme.test, {host: api.acme.test, tls: inspect}]\n"
    "  deny: [trap.acme.test]\n"
    '  kill: [refused.acme.test, "*.trap.acme.test"]\n'
)
ISSUER = "curl -sv -m 20 -o /dev/null -w '%{http_code}' https://HOST/sse/x 2>&1 | grep -E 'issuer:|^200'"
# A stream, then the contact, and how long the stream lived after it.
OUTLIVES = """
curl -sN https://other.acme.test/hold > /tmp/held & held=$!
until [ -s /tmp/held ]; do sleep 0.05; done
CONTACT > /dev/null 2>&1 & before=$(date +%s%N)
wait $held; status=$?
echo "$status $(( ($(date +%s%N) - before) / 1000000 ))"
"""


@pytest.fixture(scope="module")
def standing(world: World) -> Iterator[Path]:
    project = world.project("killing", SPEC)
    world.agc("up", cwd=project)
    yield project
    world.agc("down", "-v", cwd=project)


def sh(world: World, project: Path, line: str) -> str:
    return world.agc("exec", "/bin/sh", "-c", line, cwd=project, code=None).out.decode()


@pytest.mark.parametrize(
    ("host", "opened"),
    [("demo.acme.test", True), ("api.acme.test", True), ("other.acme.test", False)],
    ids=["an inspected host", "an allowed host with tls: inspect", "an allowed host"],
)
def test_the_certificate_says_whether_tls_is_opened(world: World, standing: Path, host: str, opened: bool) -> None:
    found = sh(world, standing, ISSUER.replace("HOST", host))
    assert "200" in found, "curl takes the certificate, and the service answers"
    assert ("O=agent-container" in found) == opened, found


def test_plan_and_status_say_what_is_seen(world: World, standing: Path) -> None:
    seen = {
        "demo.acme.test": "inspected",
        "api.acme.test": "inspected",
        "other.acme.test": "spliced: bodies not seen by DLP",
    }
    rules = world.agc("--json", "plan", cwd=standing).result["rules"]
    assert {rule["pattern"]: rule["tls"] for rule in rules if rule["tls"]} == seen
    assert dict(world.agc("--json", "status", cwd=standing).result["hosts"]) == seen
    assert "bodies not seen by DLP" in world.agc("status", cwd=standing).text


CONTACTS = {
    "a request": ("curl -sm 9 https://refused.acme.test/", "refused.acme.test:443 was contacted", "refused.acme.test"),
    "plain http, in capitals": (
        "curl -sm 9 http://REFUSED.Acme.Test./",
        "refused.acme.test:80 was contacted",
        "refused.acme.test",
    ),
    "a lookup": ("getent hosts x.trap.acme.test", "x.trap.acme.test was looked up", "*.trap.acme.test"),
    "past the proxy, by its name": (
        "curl -sm 9 --noproxy '*' --connect-to a.trap.acme.test:443:other.acme.test:443 https://a.trap.acme.test/",
        "a.trap.acme.test",
        "*.trap.acme.test",
    ),
}


@pytest.mark.parametrize("name", CONTACTS)
def test_contact_cuts_a_standing_environment_and_its_user_restores_it(name: str, world: World, standing: Path) -> None:
    contact, what, pattern = CONTACTS[name]
    status, lived_ms = sh(world, standing, OUTLIVES.replace("CONTACT", contact)).split()
    print(f"the tunnel lived for {lived_ms} ms")
    assert int(status) != 0, "the stream did not end by itself"
    told = world.agc("--json", "status", cwd=standing).result
    assert told["state"] == "cut", told
    (words,) = told["amiss"]
    assert what in words and f"(rule: kill {pattern})" in words and "agent-container egress restore" in words
    assert sh(world, standing, ISSUER.replace("HOST", "other.acme.test")).strip().endswith("200") is False
    assert "nothing to do" in world.agc("up", cwd=standing).text, "only its user's word opens it"
    world.agc("egress", "restore", cwd=standing)
    assert world.agc("--json", "status", cwd=standing).result["state"] == "running"
    assert "200" in sh(world, standing, ISSUER.replace("HOST", "other.acme.test"))


def test_a_denied_host_is_only_denied(world: World, standing: Path) -> None:
    sh(world, standing, "curl -sm 9 https://trap.acme.test/; getent hosts trap.acme.test")
    assert world.agc("--json", "status", cwd=standing).result["state"] == "running"


RUNS = {
    "and goes on": "curl -sm 9 https://refused.acme.test/; sleep 600",
    "and says that all is well at once": "curl -sm 9 https://refused.acme.test/; true",
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_contacts_it_was_killed(name: str, world: World) -> None:
    project = world.project(f"killed-{len(name)}", SPEC)
    done = world.agc("--json", "run", f"shell: {RUNS[name]}", cwd=project, code=13)
    host = done.host
    assert (host["outcome"], host["basis"]) == ("killed", "host")
    assert host["reason"].startswith("refused.acme.test:443 was contacted")
    assert "(rule: kill refused.acme.test)" in host["reason"]
    assert host["egress"]["verified"] == "verified"
    assert any("session ended" in wire["detail"] for wire in host["egress"]["tripwires"])
    assert world.agc("runs", "verify", cwd=project).code == 0
    shown = world.agc("runs", "show", cwd=project).text
    assert "killed" in shown and "kill refused.acme.test" in shown
    receipts = (world.place(host["run"]) / "receipts.jsonl").read_text().splitlines()
    assert json.loads(receipts[-1])["outcome"] == "killed"
    assert not world.requests("refused.acme.test")
