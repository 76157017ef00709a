"""Tampering as a table: each way to change a record, and what verification says of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_container.drain import EVENTS, RAW, RECEIPTS, RECORD
from agent_container.manifest import MANIFEST, Chain, Manifest, digest_of, parse_manifest, sign_manifest
from agent_container.store import Store, VerifiedHead
from agent_container.verify import VerifyResult, verify_run
from agent_egress.policy import Policy
from agent_egress.receipts import Fields
from tests.support.records import KEY, POLICY, RECEIPT_ROWS, RUN, chain_of, checkpoint_of, decision, publish_run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", tmp_path / "state").prepare()


@pytest.fixture
def run_dir(store: Store) -> Path:
    return publish_run(store).place.path


def verify(store: Store, run_dir: Path, **options: object) -> VerifyResult:
    options = {"chain_key": KEY, "host_key": store.host_key.published(), **options}
    return verify_run(run_dir, **options)  # type: ignore[arg-type]


def kinds(result: VerifyResult) -> set[str]:
    return {finding.kind for finding in result.findings}


def head(lines: list[bytes], *, sealed: bool = True) -> VerifiedHead:
    checkpoint = checkpoint_of(lines)
    return VerifiedHead(RUN, checkpoint.length, checkpoint.head, sealed)


def resign(store: Store, run_dir: Path, **changes: object) -> None:
    """What only the holder of the host's key can do: a manifest that fits whatever lies there now."""
    manifest = parse_manifest((run_dir / MANIFEST).read_bytes())
    files = {
        path.relative_to(run_dir).as_posix(): digest_of(path.read_bytes())
        for path in run_dir.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    changed = Manifest.model_validate({**manifest.model_dump(), "files": files, **changes})
    (run_dir / MANIFEST).write_bytes(sign_manifest(changed, store.host_key.sign).encode())


def test_a_record_that_nobody_touched_is_verified_with_counts(store: Store, run_dir: Path) -> None:
    result = verify(store, run_dir)
    assert (result.exit_code, result.verdict, result.findings) == (0, "verified", ())
    counts = result.counts
    assert (counts.files, counts.receipts, counts.replayed, counts.policies) == (5, 9, 3, 1)
    assert result.head == head(chain_of())


def test_anybody_can_check_a_sealed_record_with_the_key_in_it(store: Store, run_dir: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / RUN
    shutil.copytree(run_dir, moved)
    assert verify(store, moved, chain_key=None).exit_code == 0
    stranger = verify(store, moved, chain_key=None, host_key=None)
    assert (stranger.exit_code, kinds(stranger)) == (6, {"host-key-missing"})
    other = verify(store, moved, host_key=b"x" * 32)
    assert (other.exit_code, kinds(other)) == (6, {"other-host"})


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda run_dir: (run_dir / name).write_bytes(change((run_dir / name).read_bytes())) and None


def edit_json(name: str, change: Callable[[dict[str, dict[str, object]]], object]) -> Callable[[Path], None]:
    def apply(body: bytes) -> bytes:
        row = json.loads(body)
        change(row)
        return json.dumps(row).encode()

    return edit(name, apply)


def receipts(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    return edit(RECEIPTS, lambda body: b"".join(change(body.splitlines(keepends=True))))


def swapped(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


def forged(lines: list[bytes]) -> list[bytes]:
    return [line.replace(b"evil.test", b"good.test") for line in lines]


TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    "the record's outcome": (edit_json(RECORD, lambda row: row["host"].update(reason="nothing happened")), "digest"),
    "a byte of the raw stream": (edit(RAW, lambda body: body[:-2] + b"x\n"), "digest"),
    "an event less": (edit(EVENTS, lambda body: b"".join(body.splitlines(keepends=True)[1:])), "digest"),
    "a file more": (lambda d: (d / "extra").write_bytes(b"x") and None, "extra-file"),
    "a file less": (lambda d: (d / EVENTS).unlink(), "missing-file"),
    "a link more": (lambda d: (d / "link").symlink_to("/etc/hostname"), "special-file"),
    "a linked directory": (lambda d: (d / "link").symlink_to("/etc"), "special-file"),
    "a link in a file's place": (lambda d: (d / RAW).unlink() or (d / RAW).symlink_to("/etc/hostname"), "special-file"),
    "a FIFO": (lambda d: os.mkfifo(d / "fifo"), "special-file"),
    "the receipts linked away": (
        lambda d: (d / RECEIPTS).rename(d.parent / "r") and (d / RECEIPTS).symlink_to(d.parent / "r"),
        "special-file",
    ),
    "the manifest's head": (edit_json(MANIFEST, lambda row: row["chain"].update(length=3)), "signature"),
    "the manifest's digests": (edit_json(MANIFEST, lambda row: row["files"].pop(RAW)), "signature"),
    "no signature": (edit_json(MANIFEST, lambda row: row.update(signature="")), "signature"),  # type: ignore[arg-type]
    "a host key that is none": (edit_json(MANIFEST, lambda row: row.update(host_key="x")), "signature"),  # type: ignore[arg-type]
    "a manifest that is no JSON": (edit(MANIFEST, lambda body: body[:-9]), "manifest"),
    "a key in the manifest that is no key": (edit_json(MANIFEST, lambda row: row["chain"].update(key="xyz")), "key"),
    "another chain key in the manifest": (edit_json(MANIFEST, lambda row: row["chain"].update(key="00" * 32)), "key"),
    "a changed receipt": (receipts(forged), "bad-mac"),
    "the first receipts gone": (receipts(lambda rows: rows[3:]), "gap"),
    "one receipt gone": (receipts(lambda rows: rows[:4] + rows[5:]), "gap"),
    "the last receipts gone": (receipts(lambda rows: rows[:-3]), "head"),
    "two receipts swapped": (receipts(swapped), "reorder"),
    "an old receipt at the end": (receipts(lambda rows: [*rows, rows[2]]), "after-seal"),
    "a receipt twice": (receipts(lambda rows: [*rows[:4], rows[3], *rows[4:]]), "duplicate"),
    "no receipts left": (edit(RECEIPTS, lambda body: b""), "head"),
    "the receipts' file gone": (lambda d: (d / RECEIPTS).unlink(), "cut-tail"),
    "a policy's body": (
        edit(f"policies/{POLICY.digest[7:]}.json", lambda body: body.replace(b"api", b"spi")),
        "policy",
    ),
}


@pytest.mark.parametrize(("change", "kind"), TAMPERED.values(), ids=TAMPERED.keys())
def test_what_was_changed_is_found(change: Callable[[Path], None], kind: str, store: Store, run_dir: Path) -> None:
    change(run_dir)
    result = verify(store, run_dir)
    assert kind in kinds(result), result.findings
    assert result.exit_code == 5
    assert result.head is None


def test_a_record_in_another_runs_place_is_found(store: Store, run_dir: Path) -> None:
    other = run_dir.with_name("20261129-153359-ffffff")
    run_dir.rename(other)
    assert "wrong-place" in kinds(verify(store, other))


CANNOT: dict[str, tuple[Callable[[Path], None], dict[str, object], str]] = {
    "nothing there": (shutil.rmtree, {}, "nothing-there"),
    "an empty directory": (lambda d: [p.unlink() for p in d.iterdir() if p.is_file()] and None, {}, "no-manifest"),
    "no manifest": (lambda d: (d / MANIFEST).unlink(), {}, "no-manifest"),
}


@pytest.mark.parametrize(("change", "options", "kind"), CANNOT.values(), ids=CANNOT.keys())
def test_what_cannot_be_verified_is_neither_tampered_nor_fine(
    change: Callable[[Path], None], options: dict[str, object], kind: str, store: Store, run_dir: Path
) -> None:
    change(run_dir)
    result = verify(store, run_dir, **options)
    assert (result.exit_code, kinds(result)) == (6, {kind})


def test_an_unsealed_chain_cannot_be_verified(store: Store) -> None:
    run_dir = publish_run(store, lines=chain_of(seal=False)).place.path
    result = verify(store, run_dir)
    assert (result.exit_code, kinds(result)) == (6, {"missing-seal"})
    without = verify(store, run_dir, chain_key=None)
    assert (without.exit_code, kinds(without)) == (6, {"key-missing"})


def test_half_a_receipt_at_the_end_of_an_unsealed_chain_is_a_crash_not_tampering(store: Store) -> None:
    lines = chain_of(seal=False)
    run_dir = publish_run(store, lines=[*lines[:-1], lines[-1][:30]]).place.path
    assert verify(store, run_dir).exit_code == 6


def test_a_run_without_receipts_is_never_verified(store: Store) -> None:
    result = verify(store, publish_run(store, lines=[]).place.path)
    assert result.exit_code == 6
    assert result.counts.receipts == 0


def test_a_policy_that_is_not_stored_is_cannot(store: Store) -> None:
    run_dir = publish_run(store, policies={}).place.path
    result = verify(store, run_dir)
    assert (result.exit_code, kinds(result)) == (6, {"policy-missing"})
    assert verify(store, run_dir, policies={POLICY.digest: POLICY.encode()}).exit_code == 0


class TestWithTheHostsOwnKey:
    """An attacker who can sign still has the chain key, the checkpoint and the policies against him."""

    def test_a_cut_tail_is_behind_the_checkpoint(self, store: Store, run_dir: Path) -> None:
        before = head(chain_of())
        receipts(lambda rows: rows[:-3])(run_dir)
        chain = checkpoint_of(chain_of()[:-3])
        resign(
            store, run_dir, chain=Chain(session=RUN, head=chain.head, length=chain.length, sealed=False).model_dump()
        )
        result = verify(store, run_dir, checkpoint=before)
        assert result.exit_code == 5
        assert "cut-tail" in kinds(result)
        assert any("3 missing at the end" in finding.detail for finding in result.findings)

    def test_another_chain_under_another_key_is_not_the_sessions(self, store: Store, run_dir: Path) -> None:
        other = b"o" * 32
        lines = chain_of([decision("api.test", allow=True, rule="allow api.test")], key=other)
        (run_dir / RECEIPTS).write_bytes(b"".join(lines))
        resign(store, run_dir)
        assert verify(store, run_dir, checkpoint=head(chain_of())).exit_code == 5

    def test_the_chain_of_another_session_is_found(self, store: Store, run_dir: Path) -> None:
        lines = chain_of(session="20261129-000000-000000")
        (run_dir / RECEIPTS).write_bytes(b"".join(lines))
        chain = checkpoint_of(lines)
        resign(store, run_dir, chain=Chain(session=RUN, head=chain.head, length=chain.length, sealed=True).model_dump())
        assert "wrong-session" in kinds(verify(store, run_dir))


LIES: dict[str, tuple[Fields, str]] = {
    "allowed what its policy denies": (decision("evil.test", allow=True, rule="allow evil.test"), "replay-mismatch"),
    "denied by name what its policy allows": (decision("api.test", allow=False), "replay-mismatch"),
    "named another rule": (decision("api.test", allow=True, rule="allow *.test"), "replay-mismatch"),
    "named a policy that never was in force": (
        {**decision("api.test", allow=True, rule="allow api.test"), "policy": "0" * 16},
        "replay-mismatch",
    ),
    "answered a lookup that its policy refuses": (
        {
            "kind": "lookup",
            "name": "evil.test",
            "type": "A",
            "action": "allow",
            "rule": "",
            "policy": POLICY.short_digest,
        },
        "replay-mismatch",
    ),
    "dialled an address that nothing explains": (
        {"kind": "connection", "address": "203.0.113.99", "port": 443, "packets": 1},
        "unexplained-connection",
    ),
}


@pytest.mark.parametrize(("row", "kind"), LIES.values(), ids=LIES.keys())
def test_a_sidecar_that_lied_is_found_by_replay(row: Fields, kind: str, store: Store) -> None:
    run_dir = publish_run(store, lines=chain_of([*RECEIPT_ROWS, row])).place.path
    result = verify(store, run_dir)
    assert (result.exit_code, kinds(result)) == (5, {kind})


@pytest.mark.parametrize("questions", [10, 10_001])
def test_a_lie_is_found_however_many_questions_came_before_it(questions: int, store: Store) -> None:
    rows = [decision(f"n{number}.test", allow=False) for number in range(questions)]
    lie = decision("evil.test", allow=True, rule="allow evil.test")
    result = verify(store, publish_run(store, lines=chain_of([*rows, lie])).place.path)
    assert (result.exit_code, kinds(result)) == (5, {"replay-mismatch"})
    assert result.counts.replayed == questions + 1


ELSE = Policy.parse(b'{"version":1,"rules":[{"action":"allow","pattern":"else.test"}]}')


@pytest.mark.parametrize("when", ["never", "later", "before"])
def test_a_decision_rests_on_a_policy_that_was_in_force_when_it_was_made(when: str, store: Store) -> None:
    """That its body lies in the record, which the sidecar does not decide, is not enough."""
    row = decision("else.test", allow=True, rule="allow else.test", policy=ELSE)
    named: Fields = {"kind": "policy", "policy": ELSE.digest}
    rows = {"never": [row], "later": [row, named], "before": [named, row]}[when]
    bodies = {policy.digest: policy.encode() for policy in (POLICY, ELSE)}
    result = verify(store, publish_run(store, lines=chain_of(rows), policies=bodies).place.path)
    assert (result.exit_code, kinds(result)) == ((0, set()) if when == "before" else (5, {"replay-mismatch"}))


def test_a_refusal_for_another_reason_names_a_policy_that_was_in_force_too(store: Store) -> None:
    row = decision("api.test", allow=False, why="path", policy=ELSE)
    assert kinds(verify(store, publish_run(store, lines=chain_of([row])).place.path)) == {"replay-mismatch"}


def test_what_was_decided_under_a_policy_that_is_not_stored_is_not_counted_as_replayed(store: Store) -> None:
    lines = chain_of([*RECEIPT_ROWS, {"kind": "policy", "policy": ELSE.digest}, decision("x", allow=True, policy=ELSE)])
    result = verify(store, publish_run(store, lines=lines).place.path)
    assert (result.exit_code, kinds(result), result.counts.replayed) == (6, {"policy-missing"}, 3)


def test_the_egress_half_alone_looks_at_receipts_and_policies(store: Store, run_dir: Path) -> None:
    (run_dir / EVENTS).write_bytes(b"changed\n")
    assert verify(store, run_dir, egress_only=True).exit_code == 0
    assert verify(store, run_dir).exit_code == 5
    receipts(forged)(run_dir)
    assert verify(store, run_dir, egress_only=True).exit_code == 5
