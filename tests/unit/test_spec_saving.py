"""What `--save` writes and approves while somebody else, an agent in a bound workspace say, changes the same file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_container.agents import profile_of
from agent_container.commands.context import Context
from agent_container.commands.resolve import asked_grants, read_project_spec
from agent_container.commands.spec_saving import Saving
from agent_container.errors import UsageError
from agent_container.live_rules import parse_entry
from agent_container.project import find_project
from agent_container.trust import Grants, parse_grants

PLAIN = "agent: demo  # ours\negress:\n  allow:\n    - one.example\n"
EVIL = PLAIN + "    - evil.example\n"
ENTRY = parse_entry("two.example")


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """A project whose spec is approved as it stands."""
    here = tmp_path / "project"
    here.mkdir()
    (here / "agent-container.yaml").write_text(PLAIN)
    made = Context(
        directory=here, environ={"XDG_DATA_HOME": str(tmp_path / "d"), "XDG_STATE_HOME": str(tmp_path / "s")}
    )
    made.store.approvals.save(find_project(here).id, asked(made).encode())
    return made


def asked(ctx: Context) -> Grants:
    """What the spec asks for as it stands now."""
    project = find_project(ctx.directory)
    spec = read_project_spec(project)
    return asked_grants(ctx, project, spec, profile_of(spec))


def approved(ctx: Context) -> Grants | None:
    body = ctx.store.approvals.load(find_project(ctx.directory).id)
    return parse_grants(body) if body is not None else None


def test_what_was_typed_is_approved_and_nothing_else(ctx: Context) -> None:
    spec = ctx.directory / "agent-container.yaml"
    assert Saving.plan(ctx, "allow", ENTRY).write(ctx) == ("saved in agent-container.yaml",)
    assert spec.read_text() == PLAIN + "    - two.example\n"
    assert approved(ctx) == asked(ctx)
    Saving.plan(ctx, "rm", ENTRY).write(ctx)
    assert spec.read_text() == PLAIN
    assert approved(ctx) == asked(ctx)


def test_a_spec_that_had_something_in_it_while_the_edit_was_made_is_not_approved(ctx: Context) -> None:
    """It is put back before it is written, so that all looks approved."""
    spec = ctx.directory / "agent-container.yaml"
    before = approved(ctx)
    spec.write_text(EVIL)
    saving = Saving.plan(ctx, "allow", ENTRY)
    spec.write_text(PLAIN)
    with pytest.raises(UsageError, match="changed by somebody else"):
        saving.write(ctx)
    assert spec.read_text() == PLAIN
    assert approved(ctx) == before


def test_what_is_put_into_the_spec_once_it_is_written_is_not_approved(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ctx.directory / "agent-container.yaml"
    saving = Saving.plan(ctx, "allow", ENTRY)
    sync = os.fsync

    def fsync_and_change(descriptor: int) -> None:
        sync(descriptor)
        if os.fstat(descriptor).st_ino == spec.stat().st_ino:
            spec.write_text(EVIL)

    monkeypatch.setattr(os, "fsync", fsync_and_change)
    saving.write(ctx)
    assert spec.read_text() == EVIL
    kept = approved(ctx)
    assert kept is not None
    assert "evil.example" not in kept.encode().decode()


def test_a_spec_that_nobody_approved_is_not_approved_by_an_edit(ctx: Context) -> None:
    (ctx.directory / "agent-container.yaml").write_text(EVIL)
    before = approved(ctx)
    words = Saving.plan(ctx, "allow", ENTRY).write(ctx)
    assert "asks for your yes" in words[0]
    assert approved(ctx) == before


def test_the_file_stays_the_same_one(ctx: Context) -> None:
    """A mount in a running container holds it: the kernel drops the mount when another file takes its name."""
    spec = ctx.directory / "agent-container.yaml"
    there = spec.stat().st_ino
    Saving.plan(ctx, "allow", ENTRY).write(ctx)
    assert spec.stat().st_ino == there
    assert [path.name for path in ctx.directory.iterdir()] == ["agent-container.yaml"]


@pytest.mark.parametrize("swapped", ["before", "between"])
def test_a_link_is_not_followed(ctx: Context, tmp_path: Path, swapped: str) -> None:
    spec, other = ctx.directory / "agent-container.yaml", tmp_path / "other.yaml"
    other.write_text(PLAIN)
    saving = Saving.plan(ctx, "allow", ENTRY) if swapped == "between" else None
    spec.unlink()
    spec.symlink_to(other)
    with pytest.raises(UsageError, match="was not changed"):
        (saving or Saving.plan(ctx, "allow", ENTRY)).write(ctx)
    assert other.read_text() == PLAIN


def test_a_fifo_in_its_place_is_not_waited_for(ctx: Context) -> None:
    spec = ctx.directory / "agent-container.yaml"
    saving = Saving.plan(ctx, "allow", ENTRY)
    spec.unlink()
    os.mkfifo(spec)
    with pytest.raises(UsageError, match="changed by somebody else"):
        saving.write(ctx)
