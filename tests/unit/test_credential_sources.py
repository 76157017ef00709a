"""Where a secret comes from: each place gives it or says in words why not, and never shows what it held."""

from __future__ import annotations

import os
import shlex
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_container.commands import credential_rotate, credential_sources, starting
from agent_container.commands.context import Context
from agent_container.commands.credential import (
    BindingRequest,
    list_credentials,
    remove_credential,
    set_credential,
    show_credential,
)
from agent_container.commands.credential_rotate import rotate_credential
from agent_container.commands.credential_sources import fetch, secret_of
from agent_container.credential_reference import Reference, parse_reference, read_reference
from agent_container.credentials import parse_credential
from agent_container.errors import AgentContainerError, NotRunning, StoreError, UsageError
from agent_container.sandbox.control import SealedCredential
from agent_container.session import SessionState
from agent_container.store import Store
from agent_egress.swap import SecretRefused, rotated
from tests.support.keyring import MemoryKeyring

SECRET = b"sk-test-SECRET"
BINDING = BindingRequest(kind=None, hosts=("api.test",), paths=("/x",))
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    made = Context(directory=tmp_path, environ={"PATH": os.environ["PATH"], "TOKEN": SECRET.decode()}, now=lambda: NOW)
    keyring = MemoryKeyring()
    keyring.entries["mail/app", "me"] = SECRET.decode()
    made.store = Store(tmp_path / "data", tmp_path / "state", keyring=keyring).prepare()
    return made


def place(source: str, text: str, tmp_path: Path) -> Reference:
    return parse_reference(source, text, directory=tmp_path)  # type: ignore[arg-type]


def shell(script: str) -> str:
    return shlex.join(["sh", "-c", script])


GIVEN = {
    "a variable": ("env", "TOKEN"),
    "a file": ("file", "secret"),
    "the keyring": ("keyring", "mail/app/me"),
    "a program": ("command", "printf '%s' sk-test-SECRET"),
    "a program with a shell of its user's own": ("command", shell("echo sk-test-SECRET; echo noise >&2")),
    "a program that leaves another one behind": ("command", shell("echo sk-test-SECRET; sleep 60 >/dev/null &")),
}


@pytest.mark.parametrize(("source", "text"), GIVEN.values(), ids=GIVEN)
def test_each_place_gives_it_and_again_through_a_reference(
    source: str, text: str, ctx: Context, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "secret").chmod(0o600)
    reference = place(source, text, tmp_path)
    assert fetch(ctx, reference).strip() == SECRET
    set_credential(ctx, "demo", BINDING, secret=reference)
    body = ctx.store.credentials.load("demo")
    assert body is not None
    held = parse_credential(body, name="demo")
    assert held.secret is None and held.reference == reference
    assert secret_of(ctx, held).reveal() == SECRET
    assert (SECRET in body) == ("SECRET" in text), "only what its user wrote into the command is kept"
    assert list_credentials(ctx)[0].reference == reference.shown


REFUSED = {
    "a variable that is not set": ("env", "NONE", "is not set"),
    "no file": ("file", "nothing", "No such file"),
    "a directory": ("file", ".", "Is a directory"),
    "no entry": ("keyring", "mail/app/you", "the keyring has no entry mail/app/you"),
    "no program": ("command", "no-such-program-here x", "cannot be started"),
    "a program that fails": ("command", shell("echo SECRET; echo SECRET >&2; exit 3"), "ended with status 3"),
    "a program that is killed": ("command", shell("echo SECRET; kill -9 $$"), "ended with status -9"),
    "a program that prints without end": ("command", "yes SECRET", "more than a secret may have"),
    "a program that prints nothing": ("command", "true", "the secret is empty"),
    "a program that prints two lines": ("command", r"printf 'SECRET\nSECRET\n'", "line end inside"),
    "a program that needs a shell and has none": ("command", "echo SECRET | cat", "is no printable ASCII"),
}


@pytest.mark.parametrize(("source", "text", "words"), REFUSED.values(), ids=REFUSED)
def test_a_place_that_gives_none_is_refused_when_it_is_set(
    source: str, text: str, words: str, ctx: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AgentContainerError, match=words) as caught:
        set_credential(ctx, "demo", BINDING, secret=place(source, text, tmp_path))
    shown = "".join(traceback.format_exception_only(caught.value)) + "".join(caught.value.details)
    assert "SECRET" not in shown
    assert capfd.readouterr() == ("", "")
    assert ctx.store.credentials.names() == ()


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 300 & echo $! > {pid}; echo SECRET; wait"
    began = time.monotonic()
    with pytest.raises(AgentContainerError, match="printed no secret in time"):
        credential_sources.run_command(("sh", "-c", script), dict(os.environ), limit_s=0.2)
    assert time.monotonic() - began < 10
    deadline = time.monotonic() + 10
    stat = Path(f"/proc/{pid.read_text().strip()}/stat")
    while stat.exists() and " Z " not in stat.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert credential_sources.COMMAND_LIMIT_S == 30


def _program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_program_is_told_nothing_that_a_project_could_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, own = tmp_path / "project", tmp_path / "own"
    planted = _program(project / "bin" / "helper", "echo PLANTED")
    (project / "planted.py").write_text("print('PLANTED')")
    _program(own / "helper", "echo sk-test-SECRET")
    _program(own / "fetch", "helper")
    _program(own / "tell", 'printf %s "$PWD|$PATH|$OP_ACCOUNT|$PYTHONPATH$LD_LIBRARY_PATH$VAULT_CONFIG_PATH"')
    (project / "link").symlink_to(own / "tell")
    (own / "link").symlink_to(planted)
    monkeypatch.chdir(project)
    usual = os.environ["PATH"]
    environ = {
        "PATH": f"bin::{project}/bin:{own}:{usual}",
        "OP_ACCOUNT": "me",
        "PYTHONPATH": str(project),
        "LD_LIBRARY_PATH": "/x",
        "VAULT_CONFIG_PATH": str(project / "vault"),
    }
    made = Context(directory=project, environ=environ)
    assert fetch(made, Reference("command", ("fetch",))) == b"sk-test-SECRET\n"
    assert fetch(made, Reference("command", (str(own / "tell"),))).decode() == f"/|{own}:{usual}|me|"
    with pytest.raises(AgentContainerError, match="ended with status 1"):
        fetch(made, Reference("command", ("python3", "-m", "planted")))
    for inside in (planted, project / "link", own / "link", own / ".." / "project" / "bin" / "helper"):
        with pytest.raises(UsageError, match=r"lies inside .*project, where an agent may write"):
            fetch(made, Reference("command", (str(inside),)))
    for relative in ("./helper", "bin/helper", "~/helper"):
        with pytest.raises(UsageError, match="is a relative path"):
            fetch(made, Reference("command", (relative,)))


def test_a_program_is_stored_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = _program(tmp_path / "own" / "get", "echo x")
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    planted = _program(tmp_path / "project" / "get", "echo PLANTED")
    monkeypatch.setenv("PATH", f"{planted.parent}:.:{own.parent}")
    monkeypatch.chdir(planted.parent)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place("command", "get me", planted.parent / "sub").words == (str(own), "me")
    for text in ("./get me", f"{planted} me"):
        with pytest.raises(UsageError):
            place("command", text, planted.parent / "sub")
    # A home is no project, also where it is under git: what lies in it is its user's own.
    (tmp_path / ".git").mkdir()
    assert place("command", str(own), tmp_path).words == (str(own),)
    with pytest.raises(UsageError, match="lies inside"):
        place("command", str(planted), planted.parent / "sub")


def test_a_reference_that_leads_nowhere_any_more_names_credential_and_place(ctx: Context, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    set_credential(ctx, "demo", BINDING, secret=place("file", "secret", tmp_path))
    file.write_bytes(b"")
    held = parse_credential(ctx.store.credentials.load("demo") or b"", name="demo")
    with pytest.raises(AgentContainerError, match=r"credential demo could not be fetched from file: .*secret: .*empty"):
        secret_of(ctx, held)


@pytest.mark.parametrize(
    ("source", "text"), [("command", ""), ("command", "'"), ("keyring", "x"), ("keyring", "/x"), ("env", "A=B")]
)
def test_a_place_that_is_none_is_refused(source: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        place(source, text, tmp_path)


@pytest.mark.parametrize("row", [None, [], {"source": "web", "words": ["x"]}, {"source": "env", "words": []}])
def test_a_stored_place_of_another_form_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="not a reference"):
        read_reference(row)


def test_an_entry_holds_a_secret_or_a_place_and_never_both(ctx: Context) -> None:
    set_credential(ctx, "demo", BINDING, secret=SECRET)
    body = ctx.store.credentials.load("demo") or b""
    both = body.replace(b'"secret":', b'"reference": {"source": "env", "words": ["X"]}, "secret":')
    neither = body.replace(b'"secret":', b'"kept":')
    for changed in (both, neither):
        with pytest.raises(StoreError):
            parse_credential(changed, name="demo")


def test_what_is_shown_is_all_but_the_secret(ctx: Context) -> None:
    set_credential(ctx, "demo", BINDING, secret=SECRET)
    ctx.store.used.note("demo", at=NOW - timedelta(hours=3), session="20261130-090000-aaaaaa")
    detail = show_credential(ctx, "demo")
    words = dict(detail.fields(NOW + timedelta(days=2)))
    assert words["set"] == "2 d ago"
    assert words["last used"] == "2 d ago, session 20261130-090000-aaaaaa"
    assert words["hosts"] == "api.test:443"
    assert "SECRET" not in repr(detail) + repr(words)
    assert detail.row.cells(NOW) == ("demo", "generic", "api.test", "just now", "3 h ago")
    remove_credential(ctx, "demo")
    set_credential(ctx, "demo", BINDING, secret=SECRET)
    assert show_credential(ctx, "demo").row.used_at is None


def test_a_rotation_changes_the_secret_and_nothing_else(ctx: Context, tmp_path: Path) -> None:
    set_credential(ctx, "demo", BINDING, secret=SECRET)
    before = parse_credential(ctx.store.credentials.load("demo") or b"", name="demo")
    ctx.now = lambda: NOW + timedelta(days=1)
    assert rotate_credential(ctx, "demo", secret=b"sk-new\n").sandboxes == ()
    after = parse_credential(ctx.store.credentials.load("demo") or b"", name="demo")
    assert secret_of(ctx, after).reveal() == b"sk-new"
    assert (after.binding, after.kind) == (before.binding, before.kind)
    assert after.set_at == NOW + timedelta(days=1)
    rotate_credential(ctx, "demo", secret=place("env", "TOKEN", tmp_path))
    rotate_credential(ctx, "demo", secret=None)
    assert parse_credential(ctx.store.credentials.load("demo") or b"", name="demo").secret is None
    with pytest.raises(UsageError, match="the secret is empty"):
        rotate_credential(ctx, "demo", secret=b"")
    with pytest.raises(NotRunning, match="there is no credential other"):
        rotate_credential(ctx, "other", secret=b"x")
    assert ctx.store.credentials.names() == ("demo",)


STATE = SessionState(
    id="20261130-120000-aaaaaa", project_id="p", project_root="/p", kind="up", created=NOW, owner_pid=1
)


class Sidecars:
    """The one sidecar of a sandbox that is coming up, and when each secret reached it."""

    def __init__(self) -> None:
        self.took: list[bytes | None] = []
        self.before: Callable[[], None] = lambda: None

    def rotate(self, name: str, secret: bytes | None) -> None:
        before, self.before = self.before, lambda: None
        before()
        self.took.append(secret)


@pytest.fixture
def sidecar(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> Sidecars:
    made = Sidecars()
    ctx.__dict__["engine"] = None
    monkeypatch.setattr(starting, "SidecarControl", lambda engine, container: made)
    return made


def handed(ctx: Context) -> starting.Decoys:
    """As a start has fetched it."""
    body = ctx.store.credentials.load("demo") or b""
    secret = secret_of(ctx, parse_credential(body, name="demo")).reveal()
    return starting.Decoys((), (SealedCredential("demo", "decoy", secret),), (body,))


def test_of_two_rotations_while_a_sandbox_comes_up_the_later_one_ends_up_there(
    ctx: Context, sidecar: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = SimpleNamespace(state=STATE, control=sidecar)
    monkeypatch.setattr(credential_rotate, "_holders", lambda ctx, name: [live])
    set_credential(ctx, "demo", BINDING, secret=b"first-secret")
    decoys = handed(ctx)
    set_credential(ctx, "demo", BINDING, secret=b"second-secret")
    later = threading.Thread(target=rotate_credential, args=(ctx, "demo"), kwargs={"secret": b"third-secret"})

    def race() -> None:
        later.start()
        later.join(0.3)  # lands by then, unless it waits for us

    sidecar.before = race
    starting._catch_up(ctx, STATE, decoys)
    later.join(10)
    assert sidecar.took == [b"second-secret", b"third-secret"]


def test_a_reference_that_was_rotated_while_a_sandbox_came_up_is_followed_again(
    ctx: Context, sidecar: Sidecars, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"first-secret")
    set_credential(ctx, "demo", BINDING, secret=place("file", "secret", tmp_path))
    decoys = handed(ctx)
    file.write_bytes(b"second-secret")
    starting._catch_up(ctx, STATE, decoys)
    assert sidecar.took == [], "nobody asked for the new one: the place is not asked twice"
    ctx.now = lambda: NOW + timedelta(seconds=1)
    rotate_credential(ctx, "demo", secret=None)
    starting._catch_up(ctx, STATE, decoys)
    assert sidecar.took == [b"second-secret"]
    remove_credential(ctx, "demo")
    starting._catch_up(ctx, STATE, decoys)
    assert sidecar.took == [b"second-secret", None]


HELD = [
    {"name": "a", "decoy": "decoy-of-a-0000", "secret": "1"},
    {"name": "b", "decoy": "decoy-of-b-0000", "secret": "2"},
]


def test_a_sidecar_puts_another_secret_behind_the_same_placeholder() -> None:
    assert rotated(HELD, [{"name": "b", "secret": "3"}]) == [HELD[0], {**HELD[1], "secret": "3"}]
    assert HELD[1]["secret"] == "2"
    assert rotated(HELD, [{"name": "a", "secret": None}]) == [HELD[1]]


@pytest.mark.parametrize(
    "changes",
    [
        [{"name": "c", "secret": "SECRET"}],
        [{"name": "a", "secret": "SECRET", "decoy": "another-decoy-00"}],
        [{"name": "a", "secret": 7}],
        [{"name": "c", "secret": None}],
        [{"name": "a", "secret": "two SECRET words"}],
        [{"name": "a", "secret": "SECRET"}, {"name": "c", "secret": "SECRET"}],
        ["SECRET"],
    ],
)
def test_a_sidecar_takes_no_rotation_of_another_form(changes: list[object]) -> None:
    with pytest.raises(SecretRefused) as caught:
        rotated(HELD, changes)
    assert "SECRET" not in str(caught.value)
