"""The effective policy: every rule with its origin, and nothing that nobody asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent_container.credentials import Credential, SecretBytes, bind
from agent_container.errors import SpecError, UsageError
from agent_container.render.sidecar_files import DEFAULT_CREDENTIAL_HEADERS
from agent_container.spec import ProjectSpec, default_spec, load_spec
from agent_container.stack_policy import (
    GrantedCredential,
    contradictions,
    effective_policy,
    granted_credentials,
    how_seen,
    sandbox_variables,
)
from agent_egress.names import canonical_header
from agent_egress.policy import Policy, decide_address, decide_name
from agent_egress.rules import Binding


def load(text: str) -> ProjectSpec:
    return load_spec(text.encode(), path=Path("agent-container.yaml"), default_name="acme")


def stored(name: str, kind: str = "generic", *hosts: str) -> Credential:
    more = {"hosts": hosts or ("api.test",), "paths": ("/v1/**",)} if kind == "generic" else {}
    return Credential(name, kind, SecretBytes(b"x"), bind(kind, **more))  # type: ignore[arg-type]


SPEC = """\
agent: demo
egress:
  allow:
    - github.com
    - {host: git.test, ports: [22]}
    - {host: llm.lan, ports: [1234], addresses: [10.20.0.0/16]}
    - 10.30.0.0/16
  deny: [ads.test, "*.github.com"]
credentials: [{name: demo, hosts: [api.test]}]
"""


def test_every_rule_says_where_it_comes_from() -> None:
    spec = load(SPEC)
    granted = granted_credentials(spec, [stored("demo", "generic", "api.test", "b.test")])
    policy = effective_policy(spec, agent_hosts=("model.test",), credentials=granted, host_addresses=("198.51.100.1",))
    assert {(rule.text, rule.origin) for rule in policy.rules} == {
        ("allow github.com", "spec egress.allow[0] line 4"),
        ("allow git.test", "spec egress.allow[1] line 5"),
        ("allow llm.lan", "spec egress.allow[2] line 6"),
        ("allow 10.30.0.0/16", "spec egress.allow[3] line 7"),
        ("deny ads.test", "spec egress.deny[0] line 8"),
        ("deny *.github.com", "spec egress.deny[1] line 8"),
        ("allow model.test", "agent demo"),
        ("allow api.test", "credential demo"),
    }
    assert policy.host_addresses == ("198.51.100.1",)
    assert [(row.name, row.host, row.port) for row in policy.credentials] == [("demo", "api.test", 443)]


DECISIONS = {
    "a host that is named": ("github.com", 443, True),
    "its subdomain": ("api.github.com", 443, False),
    "a host in capitals with a dot": ("GITHUB.com.", 443, True),
    "a denied host in capitals with a dot": ("ADS.test.", 443, False),
    "the port of another rule": ("github.com", 22, False),
    "the port of this rule": ("git.test", 22, True),
    "a port that this rule left out": ("git.test", 443, False),
    "a host of a credential": ("api.test", 443, True),
    "the same on a port that would carry the decoy": ("api.test", 80, False),
    "a host that a credential was narrowed away from": ("b.test", 443, False),
    "an address in a range": ("10.30.1.1", 443, True),
    "an address beside it": ("10.31.1.1", 443, False),
    "a host that nobody named": ("evil.test", 443, False),
}


@pytest.mark.parametrize(("host", "port", "allowed"), DECISIONS.values(), ids=DECISIONS)
def test_what_the_spec_comes_to(host: str, port: int, allowed: bool) -> None:
    spec = load(SPEC)
    granted = granted_credentials(spec, [stored("demo", "generic", "api.test", "b.test")])
    policy = effective_policy(spec, agent_hosts=("model.test",), credentials=granted)
    assert decide_name(policy, host, port).allowed is allowed


def test_a_name_reaches_the_private_range_it_was_given_and_no_other() -> None:
    policy = effective_policy(load(SPEC))
    assert decide_address(policy, "llm.lan", "10.20.0.5", 1234).allowed
    assert not decide_address(policy, "llm.lan", "10.21.0.5", 1234).allowed
    assert not decide_address(policy, "github.com", "10.20.0.5", 443).allowed


@pytest.mark.parametrize("text", ["", "egress: {allow: []}", "egress: {allow: }", "egress:\n"])
def test_an_empty_or_absent_list_leaves_only_what_the_agent_needs(text: str) -> None:
    policy = effective_policy(load(text), agent_hosts=("model.test",))
    assert [(rule.text, rule.ports) for rule in policy.rules] == [("allow model.test", (80, 443))]
    assert effective_policy(load(text)).rules == ()


def test_an_agent_of_ones_own_brings_its_hosts_with_their_ports() -> None:
    spec = load("agent:\n  command: [x]\n  hosts:\n  - {host: a.test, ports: [8443]}\n")
    policy = effective_policy(spec, agent_hosts=("a.test",))
    assert [(rule.pattern, rule.ports, rule.origin) for rule in policy.rules] == [
        ("a.test", (8443,), "spec agent.hosts[0] line 4")
    ]


def test_a_default_spec_has_origins_without_lines() -> None:
    policy = effective_policy(default_spec(default_name="a", agent="demo"), agent_hosts=("model.test",))
    assert [rule.origin for rule in policy.rules] == ["agent demo"]


def test_the_policy_is_what_the_sidecar_reads_back() -> None:
    policy = effective_policy(load(SPEC.replace("credentials", "#")))
    assert Policy.parse(policy.encode()).digest == policy.digest


def test_metadata_needs_the_switch_and_the_rule() -> None:
    allowed = effective_policy(load("egress: {allow_metadata: true, allow: [169.254.169.254]}"))
    assert decide_name(allowed, "169.254.169.254", 80).allowed
    switch_alone = effective_policy(load("egress: {allow_metadata: true}"))
    assert not decide_name(switch_alone, "169.254.169.254", 80).allowed


def test_the_agents_own_credential_is_implied() -> None:
    spec = default_spec(default_name="a")
    (granted,) = granted_credentials(
        spec, [stored("mine", "anthropic"), stored("demo")], implied=("anthropic", "anthropic-oauth")
    )
    assert (granted.name, granted.kind) == ("mine", "anthropic")
    policy = effective_policy(spec, credentials=(granted,))
    assert decide_name(policy, "api.anthropic.com", 443).action == "bump"


IMPLIED = {
    "the one that the spec names": ("credentials: [work]", ["work", "anthropic"], "work"),
    "the one called like the kind": ("", ["anthropic", "work"], "anthropic"),
    "the only one": ("", ["work"], "work"),
}


@pytest.mark.parametrize(("text", "names", "chosen"), IMPLIED.values(), ids=IMPLIED)
def test_which_one_is_implied(text: str, names: list[str], chosen: str) -> None:
    store = [stored(name, "anthropic") for name in names]
    assert [
        granted.name for granted in granted_credentials(load(text), store, implied=("anthropic", "anthropic-oauth"))
    ] == [chosen]


def test_several_that_could_be_meant_are_named() -> None:
    store = [stored("home", "anthropic"), stored("work", "anthropic")]
    with pytest.raises(UsageError, match="home, work"):
        granted_credentials(load(""), store, implied=("anthropic", "anthropic-oauth"))


def test_a_missing_credential_is_named_with_the_command_that_sets_it() -> None:
    with pytest.raises(UsageError, match="github, jira") as caught:
        granted_credentials(load("credentials: [github, jira]"), [])
    assert caught.value.hint == "agent-container credential set github"
    with pytest.raises(UsageError, match="anthropic"):
        granted_credentials(load(""), [], implied=("anthropic", "anthropic-oauth"))


def test_a_spec_cannot_widen_a_credential() -> None:
    with pytest.raises(SpecError, match="asks for more"):
        granted_credentials(load("credentials: [{name: demo, hosts: [evil.test]}]"), [stored("demo")])


def test_a_need_that_a_deny_closes_is_said_beforehand() -> None:
    spec = load('agent: demo\negress: {deny: ["*.model.test", api.test]}\ncredentials: [demo]')
    granted = granted_credentials(spec, [stored("demo")])
    policy = effective_policy(spec, agent_hosts=("a.model.test", "b.test"), credentials=granted)
    assert sorted(contradictions(policy)) == [
        "agent demo needs a.model.test, which spec egress.deny[0] line 2 closes",
        "credential demo needs api.test, which spec egress.deny[1] line 2 closes",
    ]


def test_a_profile_that_names_no_host_is_an_error_and_not_a_hole() -> None:
    with pytest.raises(SpecError, match="would not take"):
        effective_policy(load(""), agent_hosts=("*",))


@pytest.mark.parametrize("header", ["x-api-key", "X-API-KEY", "X-Api-Key"])
def test_a_header_has_one_spelling_wherever_it_is_compared(header: str) -> None:
    # squid's notes are compared letter by letter: the kind's `x-api-key` met a sidecar that had `X-Api-Key` listed.
    binding = Binding("a", "api.test", 443, ("POST",), ("/v1",), header, "{}")
    assert Policy.parse(Policy(credentials=(binding,)).encode()).credentials[0].header == "X-Api-Key"
    assert canonical_header(header) in DEFAULT_CREDENTIAL_HEADERS


SEEN = """\
agent: demo
egress:
  inspect: [seen.test, {host: "*.seen.test", ports: [8443]}]
  allow: [ok.test, {host: a.test, tls: inspect}, {host: db.test, ports: [5432]}, "*.w.test", 203.0.113.7, shut.test]
  deny: [ads.test, shut.test]
  kill: [trap.test, "*.trap.test"]
  tripwire: kill
credentials: [{name: demo, hosts: [api.test]}]
"""


def seen(text: str) -> dict[str, str]:
    spec = load(text)
    granted = granted_credentials(spec, [stored("demo")])
    policy = effective_policy(spec, agent_hosts=("model.test",), credentials=granted)
    return {rule.text: how_seen(policy, rule) for rule in policy.rules}


def test_each_allowed_host_says_what_is_seen_of_it() -> None:
    unseen = "spliced: bodies not seen by DLP"
    assert seen(SEEN) == {
        "inspect seen.test": "inspected",
        "inspect *.seen.test": "inspected",
        "allow ok.test": unseen,
        "allow a.test": "inspected",
        "allow db.test": "not TLS: bodies not seen by DLP",
        "allow *.w.test": unseen,
        "allow 203.0.113.7": unseen,
        "allow shut.test": "closed by spec egress.deny[1] line 5",
        "allow model.test": unseen,
        "allow api.test": "injected",
        "deny ads.test": "",
        "deny shut.test": "",
        "kill trap.test": "",
        "kill *.trap.test": "",
    }


def test_tls_of_a_whole_spec_is_opened_but_for_what_says_otherwise() -> None:
    found = seen(
        SEEN.replace("  tripwire", "  tls: inspect\n  tripwire").replace("[ok.test", "[{host: ok.test, tls: splice}")
    )
    assert found["allow ok.test"] == "spliced: bodies not seen by DLP"
    assert {found[f"allow {host}"] for host in ("a.test", "db.test", "*.w.test", "model.test")} == {"inspected"}
    assert found["allow api.test"] == "injected"


def test_kill_and_tripwire_reach_the_policy_with_their_origin() -> None:
    policy = effective_policy(load(SEEN.replace("credentials: [{name: demo, hosts: [api.test]}]", "")))
    killed = decide_name(policy, "a.trap.test", 443)
    assert (killed.action, killed.rule) == ("kill", "kill *.trap.test")
    assert killed.origin == "spec egress.kill[1] line 6"
    assert (policy.tripwire, policy.tls) == ("kill", "splice")


def _git_says(host: str, environment: dict[str, str]) -> list[str]:
    git = shutil.which("git")
    assert git is not None
    said = subprocess.run(
        [git, "credential", "fill"],
        input=f"protocol=https\nhost={host}\npath=acme/app.git\n\n",
        env={"PATH": os.environ["PATH"], "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in said.stdout.splitlines() if line.startswith(("username=", "password="))]


def test_git_inside_says_the_placeholder_to_a_forge_and_to_nobody_else() -> None:
    granted = (
        GrantedCredential("github", "github", bind("github", repositories=("acme/app",))),
        GrantedCredential("demo", "generic", bind("generic", hosts=("api.test",), paths=("/x",), env=("DEMO_KEY",))),
    )
    environment = dict(sandbox_variables(granted, {"github": "ghp_decoy", "demo": "decoy-of-demo"}))
    assert environment["GH_TOKEN"] == environment["GITHUB_TOKEN"] == "ghp_decoy"
    assert environment["DEMO_KEY"] == "decoy-of-demo"
    assert environment["GIT_CONFIG_COUNT"] == "1"
    assert _git_says("github.com", environment) == ["username=x-access-token", "password=ghp_decoy"]
    for other in ("api.test", "github.com.evil.test", "github.com:8443"):
        assert _git_says(other, environment) == []
    assert "ghp_decoy" not in environment["GIT_CONFIG_VALUE_0"]
    assert sandbox_variables(granted[1:], {"demo": "d"}) == (("DEMO_KEY", "d"),)


def test_every_place_of_a_credential_is_allowed_and_opened() -> None:
    granted = GrantedCredential("github", "github", bind("github", repositories=("acme/app",)))
    policy = effective_policy(load("version: 1\nagent: demo\n"), credentials=(granted,))
    for host in ("api.github.com", "github.com"):
        assert decide_name(policy, host, 443).action == "bump"
    assert not decide_name(policy, "github.com", 80).allowed
