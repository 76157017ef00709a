"""What the escape battery is told to aim at: an attempt that has no aim proves nothing, and must say so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_container.commands.context import Context
from agent_container.commands.credential import BindingRequest, set_credential
from agent_container.commands.prove import _no_secret, facts_about
from agent_container.credential_reference import Reference
from agent_container.engine.protocol import ContainerState
from agent_container.store import Store
from agent_egress import attempts_outward
from agent_egress.policy import Policy
from agent_egress.prober import Attempt, Facts, try_out
from agent_egress.rules import Rule
from tests.support.keyring import MemoryKeyring

NETWORK = {"IPAddress": "198.51.100.2", "IPPrefixLen": 28, "Gateway": "198.51.100.1"}
EGRESS = ContainerState(
    id="e", name="egress", image_id="i", status="running", exit_code=0, health="healthy", started_at="", pid=1,
    labels=(), oom_killed=False, health_words="", raw={"NetworkSettings": {"Networks": {"one": NETWORK}}},
)  # fmt: skip


def test_resolvers_gateways_and_neighbours_are_aimed_at() -> None:
    facts = facts_about(EGRESS, Policy(), resolvers=("203.0.113.53",))
    assert facts.resolvers == ("203.0.113.53",)
    assert facts.gateways == ("198.51.100.1",)
    assert facts.neighbours == ("198.51.100.14",)
    assert facts.kills == ()


def test_what_a_kill_rule_is_over_is_known() -> None:
    rules = (Rule("kill", "203.0.113.53"), Rule("kill", "198.51.100.0/28"))
    facts = facts_about(EGRESS, Policy(rules), resolvers=("203.0.113.53",))
    assert set(facts.kills) == {"203.0.113.53", "198.51.100.1", "198.51.100.14"}


@pytest.mark.parametrize("name", ["gateway", "name_from_resolvers", "resolver_other_port"])
def test_an_attempt_without_an_aim_says_that_it_was_left_out(name: str) -> None:
    run = getattr(attempts_outward, name)
    found = try_out(Attempt(name, "raw", "", run), Facts())
    assert not found.tried
    assert found.detail.startswith("left out: there is no")


def test_what_a_reference_gave_this_sandbox_is_looked_for_too(tmp_path: Path) -> None:
    ctx = Context(directory=tmp_path, environ={"TOKEN": "sk-test-SECRET", "OTHER": "sk-other-SECRET"})
    ctx.store = Store(tmp_path / "data", tmp_path / "state", keyring=MemoryKeyring()).prepare()
    binding = BindingRequest(kind=None, hosts=("api.test",), paths=("/x",))
    for name, variable in (("mine", "TOKEN"), ("other", "OTHER")):
        set_credential(ctx, name, binding, secret=Reference("env", (variable,)))
    sandbox: Any = SimpleNamespace(
        state=SimpleNamespace(id="20261130-120000-aaaaaa", decoys=(("mine", "placeholder-1"),))
    )
    shown = dataclasses.replace(EGRESS, raw={"Env": ["KEY=sk-other-SECRET"]})
    assert _no_secret(ctx, sandbox, EGRESS, shown) == (True, "1 secrets looked for")
    shown = dataclasses.replace(EGRESS, raw={"Env": ["KEY=sk-test-SECRET"]})
    assert _no_secret(ctx, sandbox, EGRESS, shown) == (False, "that of mine stands there")
    ctx.environ = {}
    assert _no_secret(ctx, sandbox, shown) == (
        True,
        "0 secrets looked for; not that of mine, which could not be fetched",
    )
