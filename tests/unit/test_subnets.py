"""Subnets for sandboxes: small, free, and spread so that callers at the same moment rarely meet."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from agent_container.errors import EngineError
from agent_container.subnets import host_routes4, parse_networks4, plan_subnet4, plan_subnet6

POOL = IPv4Network("10.213.0.0/16")


def test_a_subnet_is_a_small_part_of_the_pool() -> None:
    subnet = IPv4Network(plan_subnet4(POOL, used=[], seed="a"))
    assert subnet.prefixlen == 28 and subnet.subnet_of(POOL)


def test_every_subnet_of_a_pool_is_found_before_it_is_full() -> None:
    pool = IPv4Network("10.213.0.0/24")
    used: list[IPv4Network] = []
    for number in range(16):
        used.append(IPv4Network(plan_subnet4(pool, used=used, seed=str(number))))
    assert len(set(used)) == 16
    with pytest.raises(EngineError, match="in use"):
        plan_subnet4(pool, used=used, seed="more")


def test_a_used_range_that_covers_the_pool_leaves_nothing() -> None:
    with pytest.raises(EngineError, match="in use"):
        plan_subnet4(POOL, used=[IPv4Network("10.0.0.0/8")], seed="a")


def test_another_attempt_looks_elsewhere() -> None:
    assert plan_subnet4(POOL, used=[], seed="a") != plan_subnet4(POOL, used=[], seed="a", attempt=1)


def test_a_pool_smaller_than_one_subnet_is_refused() -> None:
    with pytest.raises(EngineError, match="smaller"):
        plan_subnet4(IPv4Network("10.0.0.0/29"), used=[], seed="a")


def test_ipv6_subnets_are_locally_assigned() -> None:
    assert plan_subnet6("a").startswith("fd") and plan_subnet6("a").endswith("::/64")


def test_the_hosts_routes_are_read_without_the_default_one(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert host_routes4(table) == [IPv4Network("192.168.1.0/24")]
    assert host_routes4(tmp_path / "absent") == []


def test_networks_of_the_engine_that_are_not_ipv4_are_left_out() -> None:
    assert parse_networks4(["10.1.0.0/16", "2001:db8::/64", "", "nonsense"]) == [IPv4Network("10.1.0.0/16")]
