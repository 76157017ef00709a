"""What the escape battery is told to aim at: an attempt that has no aim proves nothing, and must say so."""

from __future__ import annotations

import pytest

from agent_container.commands.prove import facts_about
from agent_container.engine.protocol import ContainerState
from agent_egress import attempts_outward
from agent_egress.policy import Policy
from agent_egress.prober import Attempt, Facts, try_out
from agent_egress.rules import Rule

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
