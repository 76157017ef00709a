"""`ssh-key` without an engine: keys and pins of a project in the store, and what a crash at any write leaves there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from agent_container.commands.context import Context
from agent_container.commands.ssh_key import (
    host_of,
    load_ring,
    read_pins,
    remove_pins,
    retire_key,
    rotate_key,
    save_pins,
    show_keys,
)
from agent_container.errors import AgentContainerError, UsageError
from agent_container.keyring import finish_rotation
from agent_container.project import find_project
from agent_container.store import Store, Writer
from tests.support.forge import make_pair


class Crash(BaseException):
    """The process is gone."""


class Crashing(Writer):
    """Dies at one of its writes: before it, or right after."""

    left = 10**9
    late = False

    def write(self, path: Path, data: bytes | Iterable[bytes], *, mode: int = 0o600) -> None:
        self.left -= 1
        if self.left == 0 and not self.late:
            raise Crash
        super().write(path, data, mode=mode)
        if self.left == 0:
            raise Crash


@pytest.fixture
def writer() -> Crashing:
    return Crashing()


@pytest.fixture
def ctx(tmp_path: Path, writer: Crashing) -> Context:
    project = tmp_path / "project"
    project.mkdir()
    (project / "agent-container.yaml").write_text("version: 1\nagent: demo\nssh_key: true\n")
    environ = {
        "HOME": str(tmp_path),
        **{f"XDG_{name}_HOME": str(tmp_path / name) for name in ("DATA", "STATE", "CONFIG")},
    }
    found = Context(directory=project, environ=environ)
    found.store = Store(tmp_path / "DATA", tmp_path / "STATE", writer=writer).prepare()
    return found


def project_of(ctx: Context) -> str:
    return find_project(ctx.directory).id


def test_the_first_look_makes_the_key_and_the_next_shows_the_same(ctx: Context) -> None:
    first, again = show_keys(ctx), show_keys(ctx)
    assert first == again
    assert [row.state for row in first.keys] == ["current"]
    assert first.keys[0].public.startswith("ssh-ed25519 ")
    assert first.keys[0].public.endswith(f" agent-container-{project_of(ctx)}")


def test_a_copy_of_the_project_has_a_key_of_its_own(ctx: Context, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "agent-container.yaml").write_text((ctx.directory / "agent-container.yaml").read_text())
    other = Context(directory=copy, environ=ctx.environ)
    other.store = ctx.store
    assert show_keys(ctx).keys[0].public != show_keys(other).keys[0].public


def test_a_project_that_asks_for_no_key_gets_none(ctx: Context) -> None:
    (ctx.directory / "agent-container.yaml").write_text("version: 1\nagent: demo\n")
    with pytest.raises(UsageError, match="does not ask for an ssh key"):
        show_keys(ctx)
    assert ctx.store.ssh_keys.names() == ()


def test_a_rotation_is_begun_without_a_sandbox_and_not_finished(ctx: Context) -> None:
    old = show_keys(ctx).keys[0]
    made = rotate_key(ctx)
    assert made.phase == "made"
    with pytest.raises(AgentContainerError, match="the old one stays in use"):
        rotate_key(ctx)
    assert [(row.state, row.public) for row in show_keys(ctx).keys] == [
        ("current", old.public),
        ("next", made.key.public),
    ]
    with pytest.raises(UsageError, match="no old key"):
        retire_key(ctx)


def test_what_was_rotated_is_retired_once(ctx: Context) -> None:
    show_keys(ctx)
    made = rotate_key(ctx)
    ctx.store.ssh_keys.save(project_of(ctx), finish_rotation(load_ring(ctx, project_of(ctx))).encode())
    assert rotate_key(ctx).phase == "switched"
    retire_key(ctx)
    assert [(row.state, row.public) for row in show_keys(ctx).keys] == [("current", made.key.public)]


@pytest.mark.parametrize("late", [False, True], ids=["before a write", "after a write"])
def test_a_crash_anywhere_leaves_a_whole_key_and_the_same_command_goes_on(
    ctx: Context, writer: Crashing, late: bool
) -> None:
    writer.late = late
    before = show_keys(ctx).keys[0].public
    writer.left = 1
    with pytest.raises(Crash):
        rotate_key(ctx)
    writer.left = 10**9
    ring = load_ring(ctx, project_of(ctx))
    assert ring.current is not None
    assert ring.current.public == before
    if load_ring(ctx, project_of(ctx)).next is None:
        assert rotate_key(ctx).phase == "made"
    ctx.store.ssh_keys.save(project_of(ctx), finish_rotation(load_ring(ctx, project_of(ctx))).encode())
    writer.left = 1
    with pytest.raises(Crash):
        retire_key(ctx)
    writer.left = 10**9
    ring = load_ring(ctx, project_of(ctx))
    assert ring.current is not None
    if ring.previous is not None:
        retire_key(ctx)
    assert [row.state for row in show_keys(ctx).keys] == ["current"]


def test_pins_are_added_and_taken_away_by_host(ctx: Context) -> None:
    one, two = make_pair().public, make_pair().public
    text = f"# a remark\ngit.test {one}\n[git.test]:2222 {two}\nother.test {two}\n@cert-authority git.test {two}\n"
    rows = save_pins(ctx, read_pins(text.encode(), host="git.test", port=22))
    assert [(row.place, row.authority) for row in rows] == [("git.test", False), ("git.test", True)]
    rows = save_pins(ctx, read_pins(text.encode(), host="git.test", port=2222))
    assert len(rows) == 3
    assert [row.place for row in remove_pins(ctx, "git.test", 22)] == ["[git.test]:2222"]
    with pytest.raises(UsageError, match="no line begins with"):
        read_pins(text.encode(), host="third.test", port=22)


@pytest.mark.parametrize("text", ["git.test:0", "git.test:x", "", "-oProxyCommand=id", "git.test:70000", "203.0.113.9"])
def test_what_is_no_host_to_pin(text: str) -> None:
    with pytest.raises(UsageError):
        host_of(text)
