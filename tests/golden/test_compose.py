"""The Compose project of two Stacks, whole; and what must hold for every one, whatever the Stack says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml

from agent_container.render.compose import render_compose
from agent_container.stack import Container, Limits, Mount, Network, Stack, Volume
from agent_container.stack_agent import agent_container
from agent_container.stack_sidecar import sidecar_container

SESSION = "20261129-153359-7f3a2c"


def make_stack(**changes: object) -> Stack:
    stack = Stack(
        session=SESSION,
        project="0123456789ab",
        compose_project="ac-acme-01234567",
        display_name="acme",
        egress=sidecar_container(image="agent-container/egress:1111111111111111"),
        agent=agent_container(
            image="agent-container/agent:2222222222222222",
            user="1001:1001",
            environment=(("LOG_LEVEL", "debug"),),
            workspace=(Mount(kind="volume", source="workspace", target="/workspace"),),
            mounts=(),
            memory_volume=False,
            limits=Limits(pids=2048, memory_bytes=4 * 1024**3, cpus=2.0, swap=True),
        ),
        network=Network(subnet4="10.213.7.16/28"),
        volumes=tuple(
            Volume(key=key, name=f"ac-{SESSION}-{key}") for key in ("receipts", "ca", "run", "home", "workspace")
        ),
        files=(("session.json", "{}\n"),),
    )
    return replace(stack, **changes)  # type: ignore[arg-type]


def services(stack: Stack) -> dict[str, dict[str, object]]:
    return dict(yaml.safe_load(render_compose(stack, files_dir="/state/etc"))["services"])


def test_a_clone(golden: Callable[[str, str], None]) -> None:
    golden("compose-clone.yaml", render_compose(make_stack(), files_dir="/state/etc"))


def test_a_bind_with_ipv6_mounts_and_a_joined_network(golden: Callable[[str, str], None]) -> None:
    base = make_stack()
    agent = agent_container(
        image="agent-container/agent:2222222222222222",
        user="1234:1234",
        environment=(("HASH", "$2b$12$abc"), ("OPEN", "${"), ("TAIL", "hunter$")),
        workspace=(
            Mount(kind="bind", source="/srv/Projet été", target="/workspace"),
            Mount(kind="volume", source="git", target="/workspace/.git"),
            Mount(
                kind="bind",
                source="/srv/Projet été/agent-container.yaml",
                target="/workspace/agent-container.yaml",
                read_only=True,
            ),
        ),
        mounts=(Mount(kind="bind", source="/srv/$data", target="/data", read_only=True),),
        memory_volume=True,
        limits=Limits(pids=64),
    )
    stack = replace(
        base,
        agent=agent,
        display_name="Projet $été",
        network=Network(subnet4="10.213.0.0/28", subnet6="fd12:3456:789a::/64", internal=True, join=("doubles",)),
    )
    golden("compose-bind.yaml", render_compose(stack, files_dir="/state/etc"))


@pytest.mark.parametrize("value", ["m3d$tone$08$x", "$2b$12$abcdefghijk", "hunter$", "${", "a$$b", "${HOME:-x}"])
def test_a_dollar_reaches_the_container_as_it_was_written(value: str) -> None:
    """Compose turns `$$` into `$` and nothing else; so every dollar is doubled, and none is left alone."""
    base = make_stack()
    agent = replace(base.agent, environment=(("V", value),))
    rendered = services(make_stack(agent=agent))["agent"]["environment"]
    assert isinstance(rendered, dict)
    assert rendered["V"].replace("$$", "\0").count("$") == 0
    assert rendered["V"].replace("$$", "$") == value


HOSTILE = Container(service="agent", image="x", user="0:0", cap_add=("NET_ADMIN",), limits=Limits(pids=1))


@pytest.mark.parametrize("service", ["egress", "agent"])
def test_hardening_does_not_depend_on_the_stack(service: str) -> None:
    row = services(make_stack(agent=HOSTILE))[service]
    assert row["read_only"] is True
    assert row["cap_drop"] == ["ALL"]
    assert row["security_opt"] == ["no-new-privileges:true"]
    assert row["restart"] == "no"
    assert row["pull_policy"] == "never"
    assert row["ulimits"] == {"core": 0}
    assert row["logging"] == {"driver": "local", "options": {"max-size": "5m", "max-file": "2"}}
    assert "privileged" not in row and "devices" not in row and "pid" not in row and "ports" not in row


def test_an_agent_never_has_a_network_of_its_own() -> None:
    row = services(make_stack(agent=HOSTILE))["agent"]
    assert row["network_mode"] == "service:egress"
    assert row["depends_on"] == {"egress": {"condition": "service_healthy"}}
    assert "networks" not in row


def test_no_bind_creates_its_source() -> None:
    row = services(make_stack())["egress"]
    binds = [m for m in row["volumes"] if m["type"] == "bind"]  # type: ignore[attr-defined]
    assert binds and all(m["bind"]["create_host_path"] is False for m in binds)


def test_the_sidecar_cannot_swap_its_secrets_to_disk() -> None:
    row = services(make_stack())["egress"]
    assert row["memswap_limit"] == row["mem_limit"]
