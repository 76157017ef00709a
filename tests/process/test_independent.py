"""Records checked twice: by the tool, and by a program in another language that knows the documented format alone.

Each row is a record that the real writers made, as it was or tampered with. Both must say the same.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent_container.drain import EVENTS, RAW, RECEIPTS, RECORD
from agent_container.manifest import MANIFEST, Chain, Manifest, digest_of, parse_manifest, sign_manifest
from agent_container.store import Store
from agent_container.verify import verify_run
from agent_egress.policy import Policy
from agent_egress.receipts import Fields, Writer, open_receipt, seal_receipt
from tests.support.records import KEY, POLICY, RECEIPT_ROWS, RUN, chain_of, checkpoint_of, decision, publish_run, tar_of
from tests.support.records import source as source_of

PROGRAM = Path(__file__).parents[1] / "independent" / "verify-record.pl"
CLOSED = Policy.parse(b'{"version":1,"rules":[]}')
FORGER = Ed25519PrivateKey.from_private_bytes(b"f" * 32)
OWN_KEY = b"o" * 32


@dataclass
class Case:
    """One record on its way to being tampered with."""

    top: Path
    store: Store

    @property
    def dir(self) -> Path:
        return self.top / RUN

    def write(self, lines: list[bytes] | None = None, **options: object) -> None:
        place = publish_run(self.store, lines=lines, **options).place  # type: ignore[arg-type]
        place.path.rename(self.dir)

    def edit(self, name: str, change: Callable[[bytes], bytes]) -> None:
        path = self.dir / name
        path.write_bytes(change(path.read_bytes()))

    def lines(self, change: Callable[[list[bytes]], list[bytes]]) -> None:
        self.edit(RECEIPTS, lambda body: b"".join(change(body.splitlines(keepends=True))))

    def manifest(self, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
        """As the tool spells it, so that the change itself is what must be found."""
        row = json.loads((self.dir / MANIFEST).read_bytes())
        change(row)
        (self.dir / MANIFEST).write_text(json.dumps(row, indent=2, sort_keys=True) + "\n")

    def resign(self, sign: Callable[[bytes], bytes], **changes: object) -> None:
        """A manifest that fits whatever lies there now."""
        manifest = parse_manifest((self.dir / MANIFEST).read_bytes())
        paths = [path for path in self.dir.rglob("*") if path.is_file() and path.name != MANIFEST]
        files = {path.relative_to(self.dir).as_posix(): digest_of(path.read_bytes()) for path in paths}
        changed = Manifest.model_validate({**manifest.model_dump(), "files": files, **changes})
        (self.dir / MANIFEST).write_bytes(sign_manifest(changed, sign).encode())

    def forge(self, **changes: object) -> None:
        """Signed by somebody else, who says so."""
        key = base64.b64encode(FORGER.public_key().public_bytes_raw()).decode()
        self.resign(FORGER.sign, host_key=key, **changes)


def sound(lines: list[bytes] | None = None, **options: object) -> Callable[[Case], None]:
    return lambda case: case.write(lines, **options)


def after(change: Callable[[Case], object]) -> Callable[[Case], None]:
    def apply(case: Case) -> None:
        case.write()
        change(case)

    return apply


def busy_chain() -> list[bytes]:
    """Counted refusals, a second policy, texts that JSON escapes, and a seal with totals of its own."""
    writer = Writer(key=KEY)
    rows: list[Fields] = [
        open_receipt(session=RUN, policy_digest=POLICY.digest, key=KEY),
        *RECEIPT_ROWS,
        decision("evil.test", allow=False, count=4711),
        {"kind": "decision", "action": "deny", "collapsed": True, "count": 12},
        decision("api.test", allow=False, why="path", path='/a"\u00e9\u2028\U0001f600\x7f\x1b\n'),
        {"kind": "policy", "policy": CLOSED.digest},
        {"kind": "connection", "address": "127.0.0.1", "port": 3131, "packets": 1},
        *(decision(f"n{number}.test", allow=False, policy=CLOSED) for number in range(300)),
    ]
    lines = [writer.append([row], t_ms=1796000000000 + number) for number, row in enumerate(rows)]
    seal = {**seal_receipt(writer, outcome="succeeded"), "more": {"agent_drop": 3}}
    return b"".join([*lines, writer.append([seal], t_ms=1796000009000)]).splitlines(keepends=True)


def odd_files() -> tuple[object, ...]:
    names = ("home/.hidden", "home/a b/\u00e9\u20ac\U0001f600.txt", "home/quote\"'", "home/empty")
    rows = [(name, b"" if name.endswith("empty") else b"x\n", tarfile.REGTYPE) for name in names]
    return (source_of("home", tar_of(*rows), tree=True),)


def former_key(case: Case) -> None:
    case.write()
    case.store.host_key.rotate()


def linked_away(case: Case) -> None:
    (case.dir / RECEIPTS).rename(case.top / "moved")
    (case.dir / RECEIPTS).symlink_to(case.top / "moved")


def as_fifo(case: Case) -> None:
    (case.dir / RECEIPTS).unlink()
    os.mkfifo(case.dir / RECEIPTS)


def own_chain(case: Case) -> Chain:
    """The forger's: what he likes, sealed, with a key of his own."""
    lines = chain_of([decision("api.test", allow=True, rule="allow api.test")], key=OWN_KEY)
    (case.dir / RECEIPTS).write_bytes(b"".join(lines))
    writer = Writer(key=OWN_KEY)
    writer.resume(lines[:-1])
    return Chain(session=RUN, head=json.loads(lines[-1])["mac"], length=len(lines), sealed=True, key=OWN_KEY.hex())


def resealed(case: Case, *, signed: bool) -> None:
    case.write()
    chain = own_chain(case)
    if signed:
        record = json.loads((case.dir / RECORD).read_bytes())
        record["host"]["egress"]["chain_head"] = chain.head
        (case.dir / RECORD).write_text(json.dumps(record))
        case.forge(chain=chain.model_dump())
    else:
        case.manifest(lambda row: row.update(chain=chain.model_dump()))  # type: ignore[arg-type]


def cut_and_signed_again(case: Case) -> None:
    """With the host's own key, but the manifest still names the whole chain."""
    case.write()
    case.lines(lambda rows: rows[:-2])
    case.resign(case.store.host_key.sign)


def another_session(case: Case) -> None:
    lines = chain_of(session="20261129-000000-000000")
    case.write()
    (case.dir / RECEIPTS).write_bytes(b"".join(lines))
    chain = checkpoint_of(lines)
    record = json.loads((case.dir / RECORD).read_bytes())
    record["host"]["egress"]["chain_head"] = chain.head
    (case.dir / RECORD).write_text(json.dumps(record))
    claimed = Chain(session=RUN, head=chain.head, length=chain.length, sealed=True, key=KEY.hex())
    case.resign(case.store.host_key.sign, chain=claimed.model_dump())


def policy_replaced(case: Case) -> None:
    case.write()
    (case.dir / f"policies/{POLICY.digest[7:]}.json").write_bytes(CLOSED.encode())
    case.resign(case.store.host_key.sign)


def policy_respelled(case: Case) -> None:
    """The same rules in other bytes, signed: its name is the digest of bytes."""
    case.write()
    case.edit(f"policies/{POLICY.digest[7:]}.json", lambda body: json.dumps(json.loads(body), indent=1).encode())
    case.resign(case.store.host_key.sign)


def respelled_signature(case: Case) -> None:
    """Two letters of base64 may stand for the same bytes at the end of a text."""
    case.write()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

    def change(row: dict[str, dict[str, object]]) -> None:
        text = str(row["signature"]).removesuffix("==")
        row["signature"] = text[:-1] + letters[letters.index(text[-1]) + 1] + "=="  # type: ignore[assignment]

    case.manifest(change)


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(body: bytes) -> bytes:
        assert old in body
        return body.replace(old, new, 1)

    return change


def unexplained(address: str) -> Fields:
    return {"kind": "connection", "address": address, "port": 443, "packets": 1}


UNNAMED_POLICY: Fields = {**decision("api.test", allow=True, rule="allow api.test"), "policy": "0" * 16}
ROWS: dict[str, tuple[Callable[[Case], object], int]] = {
    "a sound record": (sound(), 0),
    "a sound record of a busy session": (
        sound(busy_chain(), policies={p.digest: p.encode() for p in (POLICY, CLOSED)}),
        0,
    ),
    "a sound record with odd file names": (sound(sources=odd_files()), 0),
    "a sound record with odd words in it": (sound(reason='\u00e9\u2028\U0001f600 "quoted" \x7f \x1b[2J \\ /'), 0),
    "a sound record that hardly did anything": (sound(chain_of([])), 0),
    "a record signed by a former key": (former_key, 0),
    "an empty directory more": (after(lambda case: (case.dir / "empty").mkdir()), 0),
    "a flipped bit in the raw stream": (after(lambda c: c.edit(RAW, lambda b: bytes([b[0] ^ 1]) + b[1:])), 5),
    "a flipped bit in a receipt": (after(lambda c: c.edit(RECEIPTS, replaced(b"evil.test", b"dvil.test"))), 5),
    "a flipped bit in a MAC": (after(lambda c: c.lines(lambda r: [r[0][:-4] + b'0"}\n', *r[1:]])), 5),
    "a receipt dropped": (after(lambda case: case.lines(lambda rows: rows[:4] + rows[5:])), 5),
    "the first receipt dropped": (after(lambda case: case.lines(lambda rows: rows[1:])), 5),
    "a receipt doubled": (after(lambda case: case.lines(lambda rows: [*rows[:4], rows[3], *rows[4:]])), 5),
    "two receipts exchanged": (after(lambda c: c.lines(lambda r: [*r[:2], r[3], r[2], *r[4:]])), 5),
    "an old receipt after the seal": (after(lambda case: case.lines(lambda rows: [*rows, rows[2]])), 5),
    "the tail cut": (after(lambda case: case.lines(lambda rows: rows[:-3])), 5),
    "the seal cut": (after(lambda case: case.lines(lambda rows: rows[:-1])), 5),
    "the tail cut and the manifest signed again": (cut_and_signed_again, 5),
    "half a receipt at the end": (after(lambda case: case.edit(RECEIPTS, lambda body: body[:-30])), 5),
    "a blank line among the receipts": (after(lambda c: c.lines(lambda r: [*r[:3], b"\n", *r[3:]])), 5),
    "no receipts left": (after(lambda case: case.edit(RECEIPTS, lambda body: b"")), 5),
    "the receipts' file gone": (after(lambda case: (case.dir / RECEIPTS).unlink()), 5),
    "the receipts behind a link": (after(linked_away), 5),
    "the receipts a FIFO": (after(as_fifo), 5),
    "the chain of another session, signed": (another_session, 5),
    "a chain of one's own in the record": (after(own_chain), 5),
    "a chain of one's own, and its key in the manifest": (lambda case: resealed(case, signed=False), 5),
    "a chain of one's own, signed by somebody else": (lambda case: resealed(case, signed=True), 6),
    "the whole record signed by somebody else": (after(lambda case: case.forge()), 6),
    "signed by somebody else in the host's name": (after(lambda case: case.resign(FORGER.sign)), 5),
    "a file more": (after(lambda case: (case.dir / "extra").write_bytes(b"x")), 5),
    "a hidden file more": (after(lambda case: (case.dir / ".extra").write_bytes(b"")), 5),
    "a link more": (after(lambda case: (case.dir / "link").symlink_to("/etc")), 5),
    "a file less": (after(lambda case: (case.dir / EVENTS).unlink()), 5),
    "a changed outcome": (after(lambda case: case.edit(RECORD, replaced(b"succeeded", b"timed-out"))), 5),
    "the record of another run, signed": (
        after(
            lambda c: (
                c.edit(RECORD, replaced(RUN.encode(), b"20261129-153359-ffffff")),
                c.resign(c.store.host_key.sign),
            )
        ),
        5,
    ),
    "a record cut short": (after(lambda case: case.edit(RECORD, lambda body: body[:-9])), 5),
    "no record": (after(lambda case: (case.dir / RECORD).unlink()), 5),
    "a policy exchanged": (
        after(lambda c: (c.dir / f"policies/{POLICY.digest[7:]}.json").write_bytes(CLOSED.encode())),
        5,
    ),
    "a policy exchanged, signed": (policy_replaced, 5),
    "a policy spelled in another way, signed": (policy_respelled, 5),
    "a policy that is missing": (sound(policies={}), 6),
    "an allow under a policy that was never in force": (sound(chain_of([UNNAMED_POLICY])), 5),
    "an address that nothing explains": (sound(chain_of([*RECEIPT_ROWS, unexplained("203.0.113.99")])), 5),
    "a manifest cut short": (after(lambda case: case.edit(MANIFEST, lambda body: body[:-9])), 5),
    "a manifest of another schema": (after(lambda c: c.edit(MANIFEST, replaced(b"manifest/1", b"manifest/2"))), 5),
    "a digest in the manifest": (after(lambda c: c.manifest(lambda row: row["files"].pop(RAW))), 5),
    "the chain's length in the manifest": (after(lambda c: c.manifest(lambda row: row["chain"].update(length=3))), 5),
    "no signature": (after(lambda case: case.manifest(lambda row: row.update(signature=""))), 5),  # type: ignore[arg-type]
    "a signature in another spelling": (respelled_signature, 5),
    "a manifest in another spelling": (
        after(lambda c: c.edit(MANIFEST, lambda b: json.dumps(json.loads(b)).encode())),
        5,
    ),
    "a key twice in the manifest": (
        after(lambda c: c.edit(MANIFEST, replaced(b'"run":', b'"run": "x",\n  "run":'))),
        5,
    ),
    "no manifest": (after(lambda case: (case.dir / MANIFEST).unlink()), 6),
    "an empty directory": (lambda case: case.dir.mkdir(), 6),
    "nothing at all": (lambda case: None, 6),
    "a session that was never sealed": (sound(chain_of(seal=False)), 6),
    "half a receipt where a session was never sealed": (sound([*chain_of(seal=False)[:-1], b'{"seq":9,"t":17']), 6),
    "an unsealed session, and a changed file": (
        lambda case: (case.write(chain_of(seal=False)), case.edit(RAW, lambda body: body + b"x")),
        5,
    ),
    "a session without receipts": (sound([]), 6),
}


def independent(record: Path, keys: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["perl", str(PROGRAM), str(record), str(keys)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    top = tmp_path_factory.mktemp("store")
    return Store(top / "data", top / "state").prepare()


@pytest.mark.parametrize(("make", "expected"), ROWS.values(), ids=ROWS.keys())
def test_both_verifiers_say_the_same(
    make: Callable[[Case], object], expected: int, store: Store, tmp_path: Path
) -> None:
    case = Case(tmp_path, store)
    store.host_key.public()
    make(case)
    keys = tmp_path / "host.pub"
    keys.write_bytes(store.host_key.export())
    current, *former = store.host_key.all_public()
    ours = verify_run(case.dir, host_key=current, former_keys=former, elsewhere=True)
    theirs = independent(case.dir, keys)
    assert ours.exit_code == expected, ours.findings
    assert theirs.returncode == expected, theirs.stdout + theirs.stderr
    assert theirs.stdout.splitlines()[-1] == ours.verdict
    assert not theirs.stderr


def test_no_byte_of_the_manifest_can_be_another(store: Store, tmp_path: Path) -> None:
    case = Case(tmp_path, store)
    case.write()
    keys = tmp_path / "host.pub"
    keys.write_bytes(store.host_key.export())
    current, *former = store.host_key.all_public()
    written = (case.dir / MANIFEST).read_bytes()
    for at in range(len(written)):
        (case.dir / MANIFEST).write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
        found = verify_run(case.dir, host_key=current, former_keys=former, elsewhere=True)
        assert found.exit_code == 5, (at, written[at : at + 20], found.findings)
        if at % 97 == 0:
            assert independent(case.dir, keys).returncode == 5, (at, written[at : at + 20])


def test_another_hosts_key_vouches_for_nothing(store: Store, tmp_path: Path) -> None:
    case = Case(tmp_path, store)
    case.write()
    other = Store(tmp_path / "data", tmp_path / "state").prepare()
    keys = tmp_path / "other.pub"
    other.host_key.public()
    keys.write_bytes(other.host_key.export())
    assert verify_run(case.dir, host_key=other.host_key.public(), elsewhere=True).exit_code == 6
    assert independent(case.dir, keys).returncode == 6
    keys.write_text("no key\n")
    assert independent(case.dir, keys).returncode == 2


def test_what_a_policy_says_is_for_the_tool_alone_to_decide_again(store: Store, tmp_path: Path) -> None:
    """The one thing that the documented format leaves to who has the rules' meaning."""
    case = Case(tmp_path, store)
    case.write(chain_of([decision("evil.test", allow=True, rule="allow evil.test")]))
    current, *former = store.host_key.all_public()
    ours = verify_run(case.dir, host_key=current, former_keys=former, elsewhere=True)
    assert (ours.exit_code, [finding.kind for finding in ours.findings]) == (5, ["replay-mismatch"])
