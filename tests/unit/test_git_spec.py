"""`git` and `ssh_key` of a spec: the repositories that follow, what a user is asked for, what the containers get."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_container.git_remote import parse_remote
from agent_container.spec import ProjectSpec, load_spec
from agent_container.stack import Limits
from agent_container.stack_agent import agent_container
from agent_container.stack_policy import contradictions, effective_policy, repositories
from agent_container.stack_sidecar import sidecar_container
from agent_container.trust import diff, grants_of
from agent_egress.repositories import Repository

OWN = parse_remote("git@git.test:acme/own.git")
AGENT = ("refs/heads/agent/*",)


def spec(text: str) -> ProjectSpec:
    return load_spec(f"version: 1\nagent: demo\n{text}".encode(), path=Path("agent-container.yaml"), default_name="x")


MEANINGS = {
    "nothing without a key": ("", ()),
    "the project's own remote": (
        "ssh_key: true",
        (Repository("git.test", 22, "git", "acme/own.git", AGENT, (), "the project's own remote"),),
    ),
    "none at all": ("ssh_key: true\ngit: []", ()),
    "one by its name": (
        "ssh_key: true\ngit:\n  - git@git.test:a/b.git",
        (Repository("git.test", 22, "git", "a/b.git", AGENT, (), "spec git[0] line 5"),),
    ),
    "refs": (
        'ssh_key: true\ngit: [{repo: "ssh://me@git.test:2222/a", push: [refs/heads/main], delete: ["refs/heads/x/*"]}]',
        (Repository("git.test", 2222, "me", "/a", ("refs/heads/main",), ("refs/heads/x/*",), "spec git[0] line 4"),),
    ),
    "only fetched": (
        "ssh_key: true\ngit: [{repo: git@git.test:a, push: []}]",
        (Repository("git.test", 22, "git", "a", (), (), "spec git[0] line 4"),),
    ),
}


@pytest.mark.parametrize("case", MEANINGS)
def test_what_a_spec_means(case: str) -> None:
    text, expected = MEANINGS[case]
    assert repositories(spec(text), OWN) == expected
    assert effective_policy(spec(text), own_remote=OWN).git == expected


def test_a_remote_that_is_not_over_ssh_is_nobody_s_repository() -> None:
    assert repositories(spec("ssh_key: true"), None) == ()


def changes(before: str, after: str) -> dict[str, tuple[bool, bool]]:
    found = diff(grants_of(spec(before)), grants_of(spec(after)))
    return {f"{change.sign} {change.text.removeprefix('!! ')}": (change.widens, change.red) for change in found}


def test_each_repository_and_ref_is_asked_for_and_what_is_not_the_agents_own_in_red() -> None:
    before = "ssh_key: true\ngit: []"
    refs = "push: [refs/heads/agent/*, refs/heads/main], delete: [refs/tags/x]"
    after = f"ssh_key: true\ngit: [{{repo: git@git.test:a, {refs}}}]"
    assert changes(before, after) == {
        "+ git fetch git@git.test:a": (True, False),
        "+ git push git@git.test:a refs/heads/agent/*": (True, False),
        "+ git push git@git.test:a refs/heads/main": (True, True),
        "+ git delete git@git.test:a refs/tags/x": (True, True),
    }
    assert not any(widens for widens, _ in changes(after, before).values())
    assert any(text.startswith("+ ssh_key") for text in changes("", "ssh_key: true"))


def test_a_host_that_another_rule_closes_is_said_before_a_run_fails_by_it() -> None:
    policy = effective_policy(spec("ssh_key: true\negress: {deny: [git.test]}"), own_remote=OWN)
    assert [line for line in contradictions(policy) if "git.test" in line and "denied" in line]


def test_without_a_key_neither_container_has_anything_of_it() -> None:
    def agent(*, git: bool) -> object:
        return agent_container(
            image="x", user="1001:1001", environment=(("GIT_SSH_COMMAND", "ssh -i mine"),), workspace=(), mounts=(),
            memory_volume=False, limits=Limits(pids=9), git=git,
        )  # fmt: skip

    without, having = agent(git=False), agent(git=True)
    assert dict(without.environment)["GIT_SSH_COMMAND"] == "ssh -i mine"  # type: ignore[attr-defined]
    assert dict(having.environment)["GIT_SSH_COMMAND"] == "/opt/agent-container/git-ssh"  # type: ignore[attr-defined]
    assert "git" not in str(without.mounts)  # type: ignore[attr-defined]
    assert [mount.read_only for mount in having.mounts if mount.source == "git"] == [True]  # type: ignore[attr-defined]
    assert "git" not in str((sidecar_container(image="x").mounts, sidecar_container(image="x").tmpfs))
