"""The sidecar's rendered files, whole; and what no value may do to them."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network

import pytest

from agent_container.render.sidecar_files import SidecarConfig, SidecarConfigError, render_sidecar_files
from agent_container.render.templates import UnsafeValue, render_template
from agent_egress.floors import FLOOR4, FLOOR6
from agent_egress.identity import SQUID
from agent_egress.policy import Binding, Policy, Rule
from agent_egress.repositories import Repository
from agent_egress.ruleset import rule_counts

SESSION = "20261129-153359-7f3a2c"
PEM = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUZXhhbXBsZQ==\n-----END CERTIFICATE-----\n"
POLICY = Policy(
    rules=(
        Rule("allow", "github.com", origin="spec egress.allow[0]"),
        Rule("allow", "llm.lan", ports=(1234,), addresses=("10.20.0.0/16",), origin="spec egress.allow[1]"),
        Rule("deny", "ads.example.com", origin="spec egress.deny[0]"),
    ),
    host_addresses=("198.51.100.1",),
    credentials=(Binding("demo", "api.test", 443, ("GET", "POST"), ("/v1/messages",), "Authorization", "Bearer {}"),),
)


def config(**changes: object) -> SidecarConfig:
    settings: dict[str, object] = {
        "session": SESSION,
        "project": "0123456789ab",
        "agent_uid": 1001,
        "policy": POLICY,
        "resolvers": ("203.0.113.53", "2001:db8::53"),
    }
    return SidecarConfig(**{**settings, **changes})  # type: ignore[arg-type]


CASES = {
    "dual": config(),
    "git": config(
        git=True, policy=Policy(git=(Repository("git.test", 22, "git", "acme/api.git", origin="spec git[0]"),))
    ),
    "ipv4": config(ipv6=False, resolvers=("203.0.113.53",), credential_headers=("Authorization",), upstream_ca=PEM),
}


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_the_golden_ones(case: str, golden: Callable[[str, str], None]) -> None:
    for name, text in render_sidecar_files(CASES[case]):
        golden(f"sidecar-{case}/{name}", text)


@pytest.mark.parametrize("case", CASES)
def test_every_layer_holds_every_floor(case: str) -> None:
    files = dict(render_sidecar_files(CASES[case]))
    for network in (*FLOOR4, *FLOOR6):
        assert f"acl floor dst {network}\n" in files["squid.conf"]
        assert f"private-address: {network}\n" in files["unbound.conf"]
        assert str(network) in files["nftables.nft"]


def test_the_rules_cover_both_families_with_and_without_ipv6() -> None:
    for case in CASES.values():
        rules = dict(render_sidecar_files(case))["nftables.nft"]
        assert "@floor6" in rules
        assert "table inet egress" in rules
        assert "flush ruleset" not in [line.strip() for line in rules.splitlines() if not line.startswith("#")]
        assert rules.count("policy drop;") == 3


def test_statements_are_counted_as_they_stand() -> None:
    counts = rule_counts(dict(render_sidecar_files(config()))["nftables.nft"])
    assert set(counts) == {
        "pre", "output", "refused", "replies", "squid_out", "dial", "unbound_out", "floor", "rej", "input", "forward",
    }  # fmt: skip
    assert counts["forward"] == 0
    assert counts["unbound_out"] == 3


def test_no_secret_and_no_key_is_rendered() -> None:
    text = "".join(text for _, text in render_sidecar_files(config()))
    assert "PRIVATE KEY" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"session": "x; accept"}, "session"),
        ({"project": "Z"}, "project"),
        ({"agent_uid": SQUID}, "agent_uid"),
        ({"agent_uid": 0}, "agent_uid"),
        ({"resolvers": ()}, "resolvers"),
        ({"resolvers": ("127.0.0.53",)}, "resolvers"),
        ({"resolvers": ("resolver.example",)}, "resolvers"),
        ({"resolvers": ("fe80::1%eth0",)}, "resolvers"),
        ({"credential_headers": ("X-Key }\nallow",)}, "credential_headers"),
        ({"credential_headers": ("X-Key", "x-key")}, "credential_headers"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"upstream_ca": "/etc/passwd"}, "upstream_ca"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(SidecarConfigError) as caught:
        config(**changes)
    assert any(line.startswith(words) for line in caught.value.details)


@pytest.mark.parametrize("text", ["a\nb", "a;b", "a{b}", "a # b", 'a" "b', "$x", "}", "%{a}{b}"])
def test_nothing_can_end_its_statement(text: str) -> None:
    with pytest.raises(UnsafeValue):
        render_template("unbound.conf.j2", {"session": text})


def test_a_template_s_unknown_name_is_an_error() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        render_template("unbound.conf.j2", {"session": "1"})


def test_floors_are_networks() -> None:
    assert all(str(ip_network(str(network))) == str(network) for network in (*FLOOR4, *FLOOR6))
