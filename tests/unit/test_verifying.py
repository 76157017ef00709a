"""Records verified anywhere by public keys alone, all of a store at once, and the key that signs them, rotated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_container.cli import main
from agent_container.cli_call import CALL
from agent_container.commands.context import Context
from agent_container.commands.host_key import export_host_keys, list_host_keys, rotate_host_key
from agent_container.commands.run_removal import remove_runs
from agent_container.commands.runs import show_run, verify_record
from agent_container.commands.verify_egress import verify_egress
from agent_container.commands.verifying import AllVerified, verify_all, verify_named
from agent_container.drain import RAW, RECEIPTS
from agent_container.errors import UsageError
from agent_container.manifest import MANIFEST
from agent_container.project import find_project
from agent_container.session import Phase, SessionState
from agent_container.verify import VerifyResult
from tests.support import records
from tests.support.records import RUN, chain_of, publish_run

SECOND, THIRD = "20261130-080000-aaaaaa", "20261130-090000-bbbbbb"
NOW = datetime(2026, 12, 1, tzinfo=UTC)


def made(top: Path) -> Context:
    (top / "project").mkdir(parents=True)
    environ = {"XDG_DATA_HOME": str(top / "d"), "XDG_STATE_HOME": str(top / "s")}
    return Context(directory=top / "project", environ=environ, now=lambda: NOW)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    context = made(tmp_path)
    monkeypatch.setattr(records, "PROJECT", find_project(context.directory).id)
    return context


@pytest.fixture
def elsewhere(context: Context, tmp_path: Path) -> Iterator[tuple[Context, Path, Path]]:
    """Another machine, a record that was carried there, and the keys of the host that it is from."""
    path = publish_run(context.store).place.path
    there = made(tmp_path / "there")
    shutil.copytree(path, there.directory / "a record")
    (there.directory / "host.pub").write_text(export_host_keys(context).pem)
    yield there, Path("./a record"), Path("host.pub")
    assert not (tmp_path / "there" / "d").exists(), "the other machine's store was touched"
    assert not (tmp_path / "there" / "s").exists()


class TestElsewhere:
    def test_the_public_key_alone_is_enough(self, elsewhere: tuple[Context, Path, Path]) -> None:
        there, record, key = elsewhere
        result = verify_named(there, str(record), key=key)
        assert (result.exit_code, result.run, result.counts.receipts) == (0, RUN, 9)
        assert verify_egress(there, str(record), key=key).exit_code == 0
        (there.directory / record / RAW).write_bytes(b"changed")
        assert verify_egress(there, str(record), key=key).exit_code == 0
        assert verify_named(there, str(record), key=key).exit_code == 5
        lines = (there.directory / record / RECEIPTS).read_bytes().splitlines(keepends=True)
        (there.directory / record / RECEIPTS).write_bytes(b"".join(lines[:-1]))
        assert verify_egress(there, str(record), key=key).exit_code == 5

    def test_another_hosts_key_is_not(self, elsewhere: tuple[Context, Path, Path], tmp_path: Path) -> None:
        there, record, _ = elsewhere
        pem = export_host_keys(made(tmp_path / "third")).pem
        (there.directory / "other.pub").write_text(pem)
        result = verify_named(there, str(record), key=Path("other.pub"))
        assert (result.exit_code, [row.kind for row in result.findings]) == (6, ["other-host"])
        # Beside it the right one, with words between: any of a file's keys vouches.
        both = f"host A\n{pem}\nhost B\n{(there.directory / 'host.pub').read_text()}"
        (there.directory / "both.pub").write_text(both)
        assert verify_named(there, str(record), key=Path("both.pub")).exit_code == 0

    def test_the_directory_that_an_export_was_unpacked_in_will_do(self, elsewhere: tuple[Context, Path, Path]) -> None:
        there, record, key = elsewhere
        (there.directory / "out").mkdir()
        (there.directory / record).rename(there.directory / "out" / RUN)
        assert verify_named(there, "out", key=key).exit_code == 0
        (there.directory / "out" / "beside").touch()
        assert verify_named(there, "out", key=key).exit_code == 6

    @pytest.mark.parametrize(
        ("run", "key", "words"),
        [
            ("nowhere", "host.pub", "is not a directory"),
            ("a record", "nosuch.pub", "there is no"),
            ("a record", "a record/record.json", "is not a public key"),
            (None, "host.pub", "which record is it"),
        ],
    )
    def test_what_does_not_fit_is_said(
        self, run: str | None, key: str, words: str, elsewhere: tuple[Context, Path, Path]
    ) -> None:
        with pytest.raises(UsageError, match=words):
            verify_named(elsewhere[0], run, key=Path(key))


def test_a_path_without_a_key_is_checked_by_this_hosts_own(context: Context, tmp_path: Path) -> None:
    shutil.copytree(publish_run(context.store).place.path, tmp_path / "copy")
    assert verify_named(context, str(tmp_path / "copy"), key=None).exit_code == 0
    stranger = made(tmp_path / "there")
    result = verify_named(stranger, str(tmp_path / "copy"), key=None)
    assert (result.exit_code, [row.kind for row in result.findings]) == (6, ["host-key-missing"])


class TestRotation:
    def test_records_of_every_key_verify_here_and_elsewhere(self, context: Context, tmp_path: Path) -> None:
        first = publish_run(context.store).place.path
        rotated = rotate_host_key(context)
        second = publish_run(context.store, run=SECOND, lines=chain_of(session=SECOND)).place.path
        assert verify_record(context, RUN).signer == rotated.former
        assert verify_record(context, SECOND).signer == rotated.current
        assert (verify_record(context, RUN).exit_code, verify_record(context, SECOND).exit_code) == (0, 0)
        assert show_run(context, RUN).files.state == "as-recorded"
        (tmp_path / "host.pub").write_text(export_host_keys(context).pem)
        for path in (first, second):
            assert verify_named(context, str(path), key=tmp_path / "host.pub").exit_code == 0

    def test_the_rows_are_the_current_one_and_those_before_newest_first(self, context: Context) -> None:
        assert list_host_keys(context) == ()
        assert rotate_host_key(context).former is None  # there was none to replace
        fingerprints = [rotate_host_key(context).former, *(rotate_host_key(context) for _ in range(2))]
        rows = list_host_keys(context)
        assert [row.state for row in rows] == ["current", "former", "former", "former"]
        assert rows[-1].fingerprint == fingerprints[0]
        assert len({row.fingerprint for row in rows}) == 4

    def test_a_private_half_that_is_lost_takes_no_public_half_along(self, context: Context) -> None:
        old = context.store.host_key.public()
        (context.store.data / "keys" / "host.key").unlink()
        assert context.store.host_key.public() != old
        assert old in context.store.host_key.all_public()

    def test_the_old_private_half_is_nowhere(self, context: Context) -> None:
        context.store.host_key.public()
        sealed = (context.store.data / "keys" / "host.key").read_bytes()
        rotate_host_key(context)
        files = [path for path in (*context.store.data.rglob("*"), *context.store.state.rglob("*")) if path.is_file()]
        assert all(sealed not in path.read_bytes() for path in files)


def look(context: Context) -> tuple[AllVerified, dict[str, str]]:
    bad: list[VerifyResult] = []
    total = verify_all(context, on_bad=bad.append)
    return total, {row.run: row.findings[0].kind for row in bad}


class TestAll:
    def test_each_is_looked_at_and_the_worst_decides(self, context: Context) -> None:
        assert look(context)[0].exit_code == 6  # nothing was checked
        publish_run(context.store)
        publish_run(context.store, run=SECOND, lines=chain_of(session=SECOND))
        total, bad = look(context)
        assert (total, bad) == (AllVerified(records=2, verified=2, receipts=18), {})
        assert total.exit_code == 0
        place = publish_run(context.store, run=THIRD, lines=chain_of(session=THIRD, seal=False)).place
        total, bad = look(context)
        assert (total.exit_code, total.unverifiable, bad) == (6, 1, {THIRD: "key-missing"})
        (place.path / MANIFEST).write_bytes(b"{}")
        (context.store.runs.place(records.PROJECT, SECOND).path / RAW).write_bytes(b"x")
        total, bad = look(context)
        assert (total.exit_code, total.verified, total.tampered) == (5, 1, 2)
        assert bad == {SECOND: "digest", THIRD: "manifest"}

    def test_one_that_cannot_even_be_looked_at_holds_up_no_other(self, context: Context) -> None:
        publish_run(context.store)
        publish_run(context.store, run=SECOND, lines=chain_of(session=SECOND))
        look(context)
        (context.store.state / "checkpoints" / f"{SECOND}.json").write_bytes(b"no checkpoint")
        total, bad = look(context)
        assert (total.records, total.verified, bad) == (2, 1, {SECOND: "unreadable"})

    def test_a_record_that_vanished_is_missed_and_one_that_was_removed_is_not(self, context: Context) -> None:
        for run in (RUN, SECOND):
            publish_run(context.store, run=run, lines=chain_of(session=run))
            context.store.sessions.save(
                SessionState(
                    id=run, project_id=records.PROJECT, project_root="/srv/x", kind="run", created=NOW, owner_pid=1,
                    phase=Phase.CLOSED, recorded=True,
                )
            )  # fmt: skip
        remove_runs(context, (SECOND,))
        assert look(context)[0].exit_code == 0
        shutil.rmtree(context.store.runs.place(records.PROJECT, RUN).path)
        total, bad = look(context)
        assert (total.exit_code, bad) == (5, {RUN: "record-gone"})


def told(context: Context, *words: str) -> int:
    """The tool's exit status for these words."""
    for name in ("_ui", "_context"):
        vars(CALL).pop(name, None)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        for name, value in context.environ.items():
            patch.setenv(name, value)
        patch.chdir(context.directory)
        patch.setattr("sys.argv", ["agent-container", *words])
        main()
    return int(left.value.code or 0)


def test_the_words_of_the_commands(context: Context, capsys: pytest.CaptureFixture[str]) -> None:
    place = publish_run(context.store).place
    assert told(context, "-q", "host-key", "export") == 0
    pem = capsys.readouterr().out
    (context.directory / "host.pub").write_text(pem)
    assert pem == export_host_keys(context).pem
    assert told(context, "runs", "verify", str(place.path), "--key", "host.pub") == 0
    assert capsys.readouterr().out.startswith(f"{RUN}  verified")
    (place.path / RAW).write_bytes(b"x")
    assert told(context, "runs", "verify", "--all") == 5
    assert capsys.readouterr().out.splitlines() == [
        f"{RUN}  tampered: raw.jsonl: digest: 1 bytes with another digest, expected {len(records.SPOOL)} bytes",
        "1 records: 0 verified, 1 tampered, 0 cannot be verified; 9 receipts",
    ]
    assert told(context, "--json", "runs", "verify", "--all") == 5
    event, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (event["event"]["run"], last["result"]["tampered"]) == (RUN, 1)
    assert told(context, "runs", "verify", "--all", RUN) == 2
    assert told(context, "--no-input", "host-key", "rotate") == 2
    capsys.readouterr()
    assert told(context, "host-key", "rotate", "--yes") == 0
    assert "its private half is gone" in capsys.readouterr().out
