"""Claude Code and Codex as their user meets them: straight to the prompt, through a lost terminal, and back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.screen import at_screen
from tests.support.world import World, words


@dataclass(frozen=True)
class Interface:
    """One agent's own interface."""

    agent: str
    kind: str
    ready: str
    """Shown once it takes a prompt."""
    settings: str
    """A directory in HOME in which it must find some."""


INTERFACES = {
    "claude": Interface("claude", "anthropic", "bypass permissions on", ".claude"),
    "codex": Interface("codex", "openai", "OpenAI Codex", ".codex"),
}
QUESTIONS = ("trust", "log in", "Log in", "Sign in", "API key", "theme", "Update available", "Bypass Permissions")


@pytest.fixture(scope="module", params=INTERFACES.values(), ids=INTERFACES)
def interface(request: pytest.FixtureRequest) -> Interface:
    found = request.param
    assert isinstance(found, Interface)
    return found


@pytest.fixture(scope="module")
def project(world: World, interface: Interface) -> Iterator[Path]:
    key = f"sk-real-{secrets.token_urlsafe(32)}"
    world.agc("credential", "set", interface.kind, cwd=world.path / "home", stdin=key.encode() + b"\n")
    spec = f"version: 1\nagent: {interface.agent}\nworkspace: {{mode: clone}}\n"
    made = world.project(f"by-hand-{interface.agent}", spec)
    yield made
    world.agc("down", "--force", "-v", cwd=made)


def test_prompt_tool_call_lost_terminal_rejoin_quit(world: World, project: Path, interface: Interface) -> None:
    with at_screen(world, "attach", cwd=project) as screen:
        screen.until(interface.ready)
        screen.quiet()
        asked = [question for question in QUESTIONS if question in screen.text]
        assert not asked, screen.text
        screen.paste("RUN: touch by-hand && echo made-$((40+2))\nSAY: Hello from the double.")
        screen.quiet()
        screen.type("\r")
        screen.until("made-42")  # the tool's own output: the prompt holds all other words already
        screen.quiet(3)
        screen.resize(24, 80)
        screen.until("Hello from the double.")
        screen.hang_up()
    with at_screen(world, "attach", cwd=project) as screen:
        screen.until("Hello from the double.")
        screen.type("\x10\x11")  # ctrl-p ctrl-q
        assert screen.ended() == 0
    done = world.agc("exec", "ls", "by-hand", cwd=project)
    assert done.out == b"by-hand\n"
    session = world.sessions()[-1]
    assert len(words("ps", "-q", "--filter", f"label=agent-container.session={session}")) == 2
    with at_screen(world, "attach", cwd=project) as screen:
        screen.until("Hello from the double.")
        screen.quiet()
        screen.type("/exit" if interface.agent == "claude" else "/quit")
        screen.quiet()
        screen.type("\r")
        assert screen.ended() == 0


def test_a_home_that_an_agent_spoilt_is_put_in_order_and_said(
    world: World, project: Path, interface: Interface
) -> None:
    spoil = f"rm -rf ~/{interface.settings} && ln -s /workspace ~/{interface.settings}"  # written through otherwise
    world.agc("up", cwd=project)
    world.agc("exec", "/bin/sh", "-c", spoil, cwd=project)
    said = world.agc("redeploy", cwd=project).text
    top = interface.settings
    assert f"what stood at {top} (link) was in the way and is now {top}.set-aside-" in said
    file = {"claude": "settings.json", "codex": "config.toml"}[interface.agent]
    world.agc("exec", "/usr/bin/test", "-f", f"/home/agent/{top}/{file}", cwd=project)
    world.agc("exec", "/usr/bin/test", "-e", f"/workspace/{file}", cwd=project, code=1)
    with at_screen(world, "attach", cwd=project) as screen:
        screen.until(interface.ready)
        assert not [question for question in QUESTIONS if question in screen.text], screen.text
        screen.hang_up()
