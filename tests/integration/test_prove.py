"""`prove` in a live sandbox: everything held and signed; and with a rule taken out, the battery says which, and the
core of it gives no sandbox its credentials."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agent_egress import battery, prober
from tests.support.world import DEMO, World, copied_tree, docker

SPEC = DEMO + "egress: {allow: [api.acme.test], kill: [169.254.0.0/16, 10.0.0.0/8, canary.acme.test]}\n"
ASKED_FOR = [one.name for one in prober.ATTEMPTS]
CORE = [one.name for one in prober.ATTEMPTS if one.core]


def up(world: World, project: Path) -> str:
    digest = world.digest(project, "--clone")
    accept = ("--accept", digest) if digest else ()
    return str(world.agc("--json", "up", "--clone", *accept, cwd=project).result["session"])


@pytest.fixture(scope="module")
def proven(world: World) -> Iterator[tuple[Path, Any]]:
    """A standing environment with a credential, and what `prove` said of it."""
    project = world.project("proven", SPEC)
    up(world, project)
    yield project, world.agc("--json", "prove", cwd=project, code=None).result
    world.agc("down", "-v", cwd=project)


def test_everything_is_tried_and_held(proven: tuple[Path, Any]) -> None:
    _, proof = proven
    assert [row for row in proof["rows"] if not row["held"]] == []
    assert [row["name"] for row in proof["rows"] if row["view"] == "sandbox"] == ASKED_FOR
    assert {row["group"] for row in proof["rows"]} >= {
        "raw",
        "ipv6",
        "dns",
        "proxy",
        "namespace",
        "identity",
        "receipts",
    }
    said = {row["name"]: row["detail"] for row in proof["rows"]}
    assert not any("there is no" in said[name] for name in ("name_from_resolvers", "resolver_other_port"))
    assert proof["held"]
    assert proof["seconds"] < 30


def test_the_account_is_signed_and_says_what_it_was_seen_on(world: World, proven: tuple[Path, Any]) -> None:
    _, proof = proven
    signed = json.loads(Path(proof["path"]).read_bytes())
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signed["host_key"]))
    key.verify(base64.b64decode(signed["signature"]), signed["document"].encode())
    document = json.loads(signed["document"])
    assert document["session"] == proof["session"]
    assert {"kernel", "rules", "policy", "sidecar image", "agent image"} <= dict(document["about"]).keys()
    assert Path(proof["path"]).stat().st_mode & 0o077 == 0


def test_it_leaves_nothing_and_does_not_trip_the_users_own_rules(world: World, proven: tuple[Path, Any]) -> None:
    project, proof = proven
    assert docker("ps", "-aq", "--filter", "label=agent-container.role=twin").stdout == b""
    assert world.agc("--json", "status", cwd=project).result["state"] == "running"
    assert not world.agc("--json", "egress", "ls", cwd=project).result["cut"]
    text = world.agc("prove", cwd=project).text
    tried = sum(row["tried"] for row in proof["rows"])
    assert f"held: {tried} of {tried}, {len(proof['rows']) - tried} left out" in text


def test_somebody_else_in_the_namespace_is_seen(world: World, proven: tuple[Path, Any]) -> None:
    project, proof = proven
    egress = world.container("egress", proof["session"])
    image = docker("inspect", "-f", "{{.Image}}", egress).stdout.decode().strip()
    intruder = docker("create", "--network", f"container:{egress}", "--label", "agent-container.test=intruder",
                      "--entrypoint", "/usr/bin/cat", image).stdout.decode().strip()  # fmt: skip
    try:
        done = world.agc("--json", "prove", cwd=project, code=1).result
    finally:
        docker("rm", "-f", intruder)
    assert [row["name"] for row in done["rows"] if not row["held"]] == ["alone"]


def test_nothing_to_prove_is_an_error(world: World, tmp_path: Path) -> None:
    project = world.project("nothing-proven")
    assert world.agc("--json", "prove", cwd=project, code=4).error["message"] == "nothing of this project is running"


OPENED = {
    # what is taken out: (file, old, new), what of the core sees it
    "the last word of the output chain": (
        ("templates/nftables.j2", '    oifname "lo" ip6 daddr ::1 accept\n    goto refused\n', "    accept\n"),
        {"tcp_address", "udp_address", "udp_quic"},
    ),
    "the private ports": (
        (
            "templates/nftables.j2",
            '    oifname "lo" meta l4proto { tcp, udp } th dport {',
            "    meta mark 0x99 tcp dport {",
        ),
        {"private_ports"},
    ),
    "every datagram": (
        (
            "templates/nftables.j2",
            "    type filter hook output priority 0; policy drop;\n",
            "    type filter hook output priority 0; policy drop;\n    meta l4proto udp th dport 9 accept\n",
        ),
        {"udp_address"},
    ),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_rule_taken_out_gives_no_sandbox_its_credentials(world: World, tmp_path: Path, name: str) -> None:
    (file, old, new), seen = OPENED[name]
    tree = copied_tree(tmp_path / "tree", {file: [(old, new)]})
    broken = replace(world, tree=tree)
    project = world.project(f"opened-{len(name)}")
    error = broken.agc("--json", "up", "--clone", cwd=project, code=3).error
    assert "no credential was handed over" in error["message"]
    assert {line.partition(":")[0] for line in error["details"]} >= seen
    assert world.agc("--json", "status", cwd=project, code=None).result["state"] == "down"
    session = world.sessions()[-1]
    assert world.objects(session) == []


def test_every_attempt_can_fail() -> None:
    """One that cannot be told from a success proves nothing."""
    assert len(CORE) >= 12
    assert len(ASKED_FOR) >= 45

    def through(_: prober.Facts) -> str:
        return "it went out"

    def silent(_: prober.Facts) -> str:
        raise TimeoutError

    def refused(_: prober.Facts) -> str:
        raise prober.Refused("no")

    for group in {one.group for one in prober.ATTEMPTS}:
        verdicts = [
            prober.try_out(prober.Attempt("x", group, "", run), prober.Facts()).held
            for run in (through, silent, refused)
        ]
        assert verdicts == ([True, True, False] if group == "control" else [False, False, True])
    assert battery.TABLES
