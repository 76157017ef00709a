"""SIGKILL at every step of every durable write: before it, after it, and in the middle of a write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_container.errors import Unverifiable
from agent_container.session import Phase, SessionState
from agent_container.store import LockKind, Passphrases, Store, VerifiedHead, passphrase
from agent_container.store.runs import REPLACED, STAGING
from tests.support.keyring import FileKeyring

RUN = "20261129-153359-7f3a2c"
STEPS = ("open", "write", "fsync", "fchmod", "rename", "replace", "link", "unlink", "mkdir", "chmod", "rmdir", "close")
MOST_STEPS = 400
OLD, NEW = b"old" * 1000, b"new" * 2000


def killed_at(step: int, half: bool, action: Callable[[], object]) -> bool:
    """Runs `action` in a child that is killed at its n-th call of the system; False when it got to its end before."""
    child = os.fork()
    if child == 0:
        try:
            _arm(step, half)
            action()
        except BaseException:  # noqa: BLE001
            os._exit(7)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the action failed in the child"
    return False


def _arm(step: int, half: bool) -> None:
    calls = 0

    def wrapped(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                if half and name == "write":
                    real(args[0], bytes(args[1])[: len(bytes(args[1])) // 2])  # type: ignore[call-overload]
                elif half:
                    real(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in STEPS:
        setattr(os, name, wrapped(name, getattr(os, name)))


def every_crash(tmp_path: Path, prepare: Callable[[Store], None], action: Callable[[Store], object]) -> list[Store]:
    """The store as it stands after each possible crash of `action`, and last after its success."""
    found: list[Store] = []
    with pytest.MonkeyPatch.context() as patch:
        # The process dies, not the machine: what it wrote is there for the next one, on the disk or on its way. The
        # call stays a step to be killed at.
        patch.setattr(os, "fsync", lambda fd: None)
        for half in (False, True):
            for step in range(1, MOST_STEPS):
                top = tmp_path / f"{step}-{half}"
                store = Store(top / "data", top / "state").prepare()
                prepare(store)
                killed = killed_at(step, half, lambda store=store: action(store))  # type: ignore[misc]
                found.append(store)
                if not killed:
                    break
            else:
                pytest.fail(f"not finished after {MOST_STEPS} steps")
    assert len(found) > 6, "the faults hit nothing"
    return found


def visible(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))


def state(phase: Phase = Phase.CREATED) -> SessionState:
    return SessionState(
        id=RUN, project_id="abc", project_root="/srv/x", kind="run", created=datetime.now(UTC), owner_pid=1, phase=phase
    )


def test_a_file_that_is_replaced_is_old_or_new_and_whole(tmp_path: Path) -> None:
    def prepare(store: Store) -> None:
        store.writer.write(store.data / "x", OLD)

    seen = set()
    for store in every_crash(tmp_path, prepare, lambda store: store.writer.write(store.data / "x", NEW)):
        body = (store.data / "x").read_bytes()
        assert body in (OLD, NEW)
        seen.add(body)
        assert visible(store.data) == ["x"]
        store.writer.write(store.data / "x", NEW)  # the same command repairs it
        store.writer.sweep(store.data, older_than_s=0)
        assert [entry.name for entry in store.data.iterdir()] == ["x"]
    assert seen == {OLD, NEW}


def test_a_file_that_is_created_is_absent_or_whole(tmp_path: Path) -> None:
    for store in every_crash(
        tmp_path, lambda store: None, lambda store: store.writer.create(store.data / "deep/x", NEW)
    ):
        path = store.data / "deep" / "x"
        assert not path.exists() or path.read_bytes() == NEW
        store.writer.create(path, NEW)
        assert path.read_bytes() == NEW


def test_a_session_is_never_half_written(tmp_path: Path) -> None:
    for store in every_crash(
        tmp_path,
        lambda store: store.sessions.save(state()) and None,
        lambda store: store.sessions.save(state(Phase.DRAINING)),
    ):
        assert [session.phase for session in store.sessions.list()] in ([Phase.CREATED], [Phase.DRAINING])
        assert store.sessions.load(RUN).id == RUN


def test_a_first_session_is_absent_or_whole(tmp_path: Path) -> None:
    for store in every_crash(tmp_path, lambda store: None, lambda store: store.sessions.save(state())):
        assert len(store.sessions.list()) <= 1
        store.sessions.save(state())
        assert len(store.sessions.list()) == 1


def test_a_chain_key_is_absent_or_opens(tmp_path: Path) -> None:
    for store in every_crash(tmp_path, lambda store: None, lambda store: store.sessions.save_chain_key(RUN, b"k" * 32)):
        store.sessions.save_chain_key(RUN, b"k" * 32)
        assert store.sessions.load_chain_key(RUN) == b"k" * 32


def test_the_hosts_key_pair_always_fits(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for store in every_crash(tmp_path, lambda store: None, lambda store: store.host_key.public()):
        public, signature = store.host_key.public(), store.host_key.sign(b"body")
        Ed25519PublicKey.from_public_bytes(public).verify(signature, b"body")


def test_a_rotation_of_the_hosts_key_is_done_or_not_and_no_public_half_is_lost(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    before: dict[Path, tuple[bytes, bytes]] = {}

    def prepare(store: Store) -> None:
        signer = store.host_key.signer()
        before[store.data] = (signer.public, signer.sign(b"record"))

    rotated = set()
    for store in every_crash(tmp_path, prepare, lambda store: store.host_key.rotate()):
        old, signature = before[store.data]
        assert old in store.host_key.all_public()  # at every moment, also before anything repairs
        Ed25519PublicKey.from_public_bytes(old).verify(signature, b"record")
        announced = store.host_key.published()
        signer = store.host_key.signer()
        Ed25519PublicKey.from_public_bytes(signer.public).verify(signer.sign(b"body"), b"body")
        assert store.host_key.all_public() == tuple(dict.fromkeys((signer.public, old)))
        rotated.add((signer.public != old, announced != old))
        # Asked again, it makes one key more at most, and never one that nobody was told of.
        again = store.host_key.rotate()
        assert again.former == signer.public
        assert set(store.host_key.all_public()) == {again.current, signer.public, old}
    assert rotated == {(False, False), (True, False), (True, True)}, (
        "a moment of the rotation was not among the crashes"
    )


def test_a_rotation_that_was_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    finished = 0
    for store in every_crash(tmp_path, lambda store: store.host_key.public() and None, lambda s: s.host_key.rotate()):
        old = store.host_key.published()
        cut_short = store.host_key.former() == () and len(list((store.data / "keys" / "former").glob("[0-9]*"))) == 1
        again = store.host_key.rotate()
        assert store.host_key.published() == again.current
        if cut_short:
            assert again.former == old
            finished += len(store.host_key.all_public()) == 2
    assert finished


def test_a_checkpoint_never_goes_back(tmp_path: Path) -> None:
    old, new = VerifiedHead(RUN, 5, "aa"), VerifiedHead(RUN, 9, "bb")
    for store in every_crash(
        tmp_path, lambda store: store.checkpoints.advance(old) and None, lambda store: store.checkpoints.advance(new)
    ):
        assert store.checkpoints.load(RUN) in (old, new)
        assert store.checkpoints.advance(new) == new


def publish(store: Store, body: bytes) -> None:
    place = store.runs.place("abc", RUN)
    with store.runs.staging(place) as staged:
        for name in ("a", "b", "sub/c"):
            store.writer.write(staged / name, body)
        store.runs.publish(staged, place)


def record(store: Store) -> set[bytes] | None:
    path = store.runs.place("abc", RUN).path
    return {(path / name).read_bytes() for name in ("a", "b", "sub/c")} if path.exists() else None


def test_a_record_is_absent_or_complete(tmp_path: Path) -> None:
    for store in every_crash(tmp_path, lambda store: None, lambda store: publish(store, NEW)):
        assert record(store) in (None, {NEW})
        publish(store, NEW)
        assert record(store) == {NEW}
        assert visible(store.data / "runs" / "abc") == [RUN]


def test_a_record_that_is_replaced_is_never_mixed_and_never_lost(tmp_path: Path) -> None:
    aside = 0
    for store in every_crash(tmp_path, lambda store: publish(store, OLD), lambda store: publish(store, NEW)):
        found = record(store)
        aside += found is None
        (shown,) = store.runs.list("abc")  # it is never out of sight either
        assert (shown.path / "a").read_bytes() in (OLD, NEW)
        store.runs.recover(store.runs.place("abc", RUN))  # what any next drain of this run begins with
        assert record(store) in ({OLD}, {NEW})
        assert found is None or found == record(store)
        leftovers = [entry.name for entry in (store.data / "runs").rglob("*")]
        assert not any(name.startswith((STAGING, REPLACED)) for name in leftovers)
        publish(store, NEW)
        assert record(store) == {NEW}
    assert aside, "the moment between the two renames was not among the crashes"


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passphrase, "LEAST_COST", 16)
    monkeypatch.setattr(
        "agent_container.store.relock.new_stretching", lambda: passphrase.Stretching(os.urandom(16), cost=16)
    )


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    ("first", "second"),
    [("file", "keyring"), ("keyring", "passphrase"), ("passphrase", "file"), ("keyring", "keyring")],
)
def test_a_store_whose_lock_is_changed_always_opens(first: LockKind, second: LockKind, tmp_path: Path) -> None:
    """With one of the two, and the same command again brings it to its end."""

    def at(store: Store, words: str) -> Store:
        keyring = FileKeyring(store.data.parent / "keyring")
        return Store(
            store.data, store.state, keyring=keyring, passphrases=Passphrases({}, ask=lambda question: words)
        ).prepare()

    def prepare(store: Store) -> None:
        here = at(store, "the first passphrase")
        here.credentials.save("one", b"1")
        here.sessions.save_chain_key(RUN, b"k" * 32)
        here.relock(first)

    def opened(store: Store) -> str | None:
        for words in ("the first passphrase", "the second passphrase"):
            here = at(store, words)
            try:
                assert here.credentials.load("one") == b"1"
                assert here.sessions.load_chain_key(RUN) == b"k" * 32
            except Unverifiable:
                continue
            return words
        return None

    locks = set()
    for store in every_crash(tmp_path, prepare, lambda store: Change(at(store, "the first passphrase")).relock(second)):
        words = opened(store)
        assert words is not None, "neither the one nor the other opens it"
        document = store.keys.document()
        assert document is not None
        locks.add(document.lock)
        Change(at(store, words)).relock(second)
        document = store.keys.document()
        assert document is not None
        assert (document.lock, len(document.keys)) == (second, 1)
        assert opened(store) is not None
        keys = [path for path in (store.data / "keys").iterdir() if path.name.startswith("kek")]
        assert len(keys) == (second == "file")
    assert locks == {first, second}


class Change:
    """A change of the lock in which the new passphrase is the second one, whatever opens the store now."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.passphrases.new = lambda: b"the second passphrase"  # type: ignore[method-assign]

    def relock(self, lock: LockKind) -> object:
        return self._store.relock(lock)


def test_a_credential_that_is_set_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    def at(store: Store) -> Store:
        return Store(store.data, store.state, keyring=FileKeyring(store.data.parent / "keyring")).prepare()

    def prepare(store: Store) -> None:
        at(store).relock("keyring")
        at(store).credentials.save("one", OLD)

    for store in every_crash(tmp_path, prepare, lambda store: at(store).credentials.save("one", NEW)):
        assert at(store).credentials.load("one") in (OLD, NEW)
        at(store).credentials.save("one", NEW)
        assert at(store).credentials.load("one") == NEW
