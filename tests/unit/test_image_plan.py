"""Image plans: what changes the tag and what does not, what a spec cannot smuggle in, and which uid the agent gets."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agent_container.agent_install import AgentInstall
from agent_container.errors import SpecError
from agent_container.image_plan import (
    ImagePlan,
    SetupStep,
    choose_uid,
    plan_agent_image,
    plan_sidecar_image,
)

FILES = {
    "runner": b"program",
    "lib/agent_runner/cli.py": b"code",
    "steps/net/apt": b"#!/bin/sh",
    "steps/last/finish.py": b"",
}
NPM = AgentInstall("native", "@example/agent", "1.2.3", "agent")


def plan(**changes: Any) -> ImagePlan:
    arguments: dict[str, Any] = {
        "base": "debian:trixie-slim",
        "packages": (),
        "setup": (),
        "install": AgentInstall(),
        "uid": 1001,
        "gid": 1001,
        "image_files": FILES,
    }
    return plan_agent_image(**{**arguments, **changes})


def run_lines(image: ImagePlan) -> list[str]:
    return [line for line in image.dockerfile.splitlines() if line.startswith("RUN")]


def test_the_same_inputs_have_the_same_tag_and_its_form_is_fixed() -> None:
    assert plan().tag == plan(packages=["git"]).tag == plan(packages=[]).tag
    assert re.fullmatch(r"agent-container/agent:[0-9a-f]{16}", plan().tag)
    assert plan(packages=["jq", "fd"]).tag == plan(packages=["fd", "jq", "fd"]).tag


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "ubuntu:24.04"},
        {"base_id": "sha256:1"},
        {"packages": ["jq"]},
        {"setup": [SetupStep("true")]},
        {"setup": [SetupStep("true", root=True)]},
        {"install": NPM},
        {"uid": 1002},
        {"gid": 1002},
        {"image_files": {**FILES, "runner": b"other"}},
        {"image_files": {**FILES, "steps/net/apt": b"other"}},
    ],
    ids=",".join,
)
def test_every_input_changes_the_tag(changes: dict[str, Any]) -> None:
    assert plan(**changes).tag != plan().tag


def test_the_hosts_private_ca_is_a_secret_and_not_part_of_the_tag() -> None:
    with_ca = plan(ca=b"-----BEGIN CERTIFICATE-----")
    assert with_ca.tag == plan().tag
    assert with_ca.secrets == {"ca": b"-----BEGIN CERTIFICATE-----"}
    assert plan().secrets == {}
    assert "-----BEGIN CERTIFICATE-----" not in with_ca.dockerfile + repr(with_ca)
    for line in run_lines(plan(packages=["jq"], install=NPM, setup=[SetupStep("a"), SetupStep("b", network=True)])):
        assert ("id=ca" in line) is ("--network=none" not in line), line


def test_another_uid_changes_the_last_layers_only() -> None:
    setup = [SetupStep("make things"), SetupStep("make more", root=True)]
    one, other = plan(setup=setup), plan(setup=setup, uid=4321, gid=4322)
    differing = [
        pair
        for pair in zip(one.dockerfile.splitlines(), other.dockerfile.splitlines(), strict=True)
        if len(set(pair)) > 1
    ]
    assert [right for _left, right in differing] == [
        'RUN --network=none --mount=type=bind,source=steps/last,target=/agent-build ["/usr/bin/python3", "-I", '
        '"/agent-build/finish.py", "--uid", "4321", "--gid", "4322"]',
        "USER 4321:4322",
    ]


def test_other_packages_leave_the_agents_own_stage_alone() -> None:
    def stage(image: ImagePlan) -> str:
        return next(part for part in image.dockerfile.split("\n\n") if "AS agent-program" in part)

    assert stage(plan(install=NPM)) == stage(plan(install=NPM, packages=["jq"], uid=2000, setup=[SetupStep("x")]))
    assert "FROM tools AS agent-program" in stage(plan(install=NPM))
    assert "COPY --from=agent-program /out/ /usr/local/" in plan(install=NPM).dockerfile


def test_setup_runs_as_the_agents_user_without_network_unless_it_says_so() -> None:
    image = plan(
        setup=[SetupStep("one"), SetupStep("two", network=True), SetupStep("three", root=True), SetupStep("four")]
    )
    stage = next(part for part in image.dockerfile.split("\n\n") if "AS setup" in part)
    found = []
    user = "?"
    for line in stage.splitlines():
        if line.startswith("USER"):
            user = line.removeprefix("USER ")
        for word in ("one", "two", "three", "four"):
            if f'"{word}"' in line:
                found.append((word, user, "--network=none" in line))
    agent = "64110:64110"
    assert found == [("one", agent, True), ("two", agent, False), ("three", "0:0", True), ("four", agent, True)]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("[x] --mount=type=bind,target=/x true", id="looks like a mount"),
        pytest.param("cat <<EOF\nFROM scratch\nEOF", id="a here-document"),
        pytest.param("echo ${X:-'`id`'} \\\nUSER root", id="quotes, dollars, a line that continues"),
        pytest.param("true\nRUN touch /pwned", id="a line that would be an instruction"),
        pytest.param('echo "\u2028 \U0001f600 \\u0041"', id="other line ends, emoji, an escape of its own"),
        pytest.param('"]\nRUN ["id', id="the end of the list"),
    ],
)
def test_a_setup_command_cannot_become_syntax_of_the_dockerfile(command: str) -> None:
    line = next(
        line
        for line in run_lines(plan(setup=[SetupStep(command)]))
        if "--network=none [" in line and "install -d" not in line
    )
    assert json.loads(line.removeprefix("RUN --network=none ")) == ["/bin/sh", "-c", command]
    assert not re.search(r"[<$`'\\](?!u[0-9a-f]{4})", line)
    assert line.isascii()


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "debian:trixie-slim\nRUN id"},
        {"base": "--platform=x debian"},
        {"base": "debian AS x"},
        {"packages": ["jq; id"]},
        {"packages": ["-o=APT::x"]},
        {"setup": [SetupStep("--mount=type=bind,source=/,target=/x id")]},
        {"setup": [SetupStep(" ")]},
        {"uid": 0},
        {"gid": 0},
        {"uid": 64101, "gid": 64101},
        {"gid": 64105},
    ],
)
def test_what_cannot_be_built_from_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        plan(**changes)


def test_the_sidecars_image_is_its_directory_and_its_base() -> None:
    files = {"Dockerfile": b"ARG BASE\nFROM ${BASE}\n", "agent_egress/x.py": b"1"}
    image = plan_sidecar_image(sidecar_files=files)
    assert image.dockerfile == "ARG BASE\nFROM ${BASE}\n"
    assert dict(image.files) == {"agent_egress/x.py": b"1"}
    assert image.build_args == (("BASE", "debian:trixie-slim"),)
    assert re.fullmatch(r"agent-container/egress:[0-9a-f]{16}", image.tag)
    assert image.tag != plan_sidecar_image(sidecar_files={**files, "agent_egress/x.py": b"2"}).tag
    assert image.tag != plan_sidecar_image(sidecar_files=files, base="debian:trixie").tag


@pytest.mark.parametrize(
    ("passwd", "subuid", "owner", "uid"),
    [
        pytest.param("", "", None, 1001, id="a free host"),
        pytest.param("root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh", "", None, 1001, id="one user"),
        pytest.param(
            "ann:x:1001:1001::/:/bin/sh\nbob:x:1002:1002::/:/bin/sh", "", None, 1003, id="1001 and 1002 taken"
        ),
        pytest.param("", "ann:1000:1000", None, 2000, id="1001 in a subuid range"),
        pytest.param("", "ann:100000:65536\n# note\n\nbroken", None, 1001, id="the usual subuid range"),
        pytest.param("broken\nann:x:1001:1001::/:/bin/sh", "ann:1002:1", None, 1003, id="both"),
        pytest.param("ann:x:1001:1001::/:/bin/sh", "", 1001, 1001, id="a bind workspace decides"),
        pytest.param("", "", 501, 501, id="a bind workspace of a small uid"),
    ],
)
def test_the_agents_uid(passwd: str, subuid: str, owner: int | None, uid: int) -> None:
    assert choose_uid(passwd=passwd, subuid=subuid, owner=owner) == uid


@pytest.mark.parametrize("owner", [0, 64101, 64105])
def test_a_workspace_of_root_or_of_the_sidecar_is_refused(owner: int) -> None:
    with pytest.raises(SpecError) as refused:
        choose_uid(passwd="", subuid="", owner=owner)
    assert "--clone" in (refused.value.hint or "")


def test_a_host_without_a_free_uid_is_told_so() -> None:
    with pytest.raises(SpecError, match="no uid"):
        choose_uid(passwd="", subuid="ann:1000:100000", owner=None)
