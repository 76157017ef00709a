"""What the store is locked with: each lock opens what it locked, and says in words when it cannot."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_container.errors import AgentContainerError, StoreError, Unverifiable, UsageError
from agent_container.store import LOCKS, LockKind, Passphrases, Store, Writer, passphrase, sealing
from agent_container.store.keydoc import PROTECTS, key_id
from tests.support.keyring import MemoryKeyring

RUN = "20261129-153359-7f3a2c"
WORDS = b"five random words"


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passphrase, "LEAST_COST", 2**4)
    monkeypatch.setattr(passphrase, "new_stretching", lambda: passphrase.Stretching(os.urandom(16), 2**4))
    monkeypatch.setattr("agent_container.store.relock.new_stretching", passphrase.new_stretching)


class Place:
    """One store and all that opens it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.keyring = MemoryKeyring()
        self.words = WORDS

    def store(self) -> Store:
        """As another process would open it."""
        ask = Passphrases({}, ask=lambda question: self.words.decode())
        return Store(self.top / "data", self.top / "state", keyring=self.keyring, passphrases=ask).prepare()

    @property
    def document(self) -> Path:
        return self.top / "data" / "keys" / "lock.json"

    def sealed(self, name: str = "demo") -> Path:
        return self.top / "data" / "credentials" / f"{name}.sealed"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def filled(place: Place) -> Store:
    store = place.store()
    store.credentials.save("demo", b"secret")
    store.sessions.save_chain_key(RUN, b"k" * 32)
    store.host_key.sign(b"x")
    return store


def opens(place: Place) -> None:
    store = place.store()
    assert store.credentials.load("demo") == b"secret"
    assert store.sessions.load_chain_key(RUN) == b"k" * 32
    store.host_key.sign(b"x")


@pytest.mark.parametrize("second", LOCKS)
@pytest.mark.parametrize("first", [None, *LOCKS])
def test_every_lock_opens_what_the_one_before_had_sealed(
    first: LockKind | None, second: LockKind, place: Place
) -> None:
    public = filled(place).host_key.public()
    old = place.sealed().read_bytes()
    if first is not None:
        place.store().relock(first)
    done = place.store().relock(second)
    assert (done.lock, done.resealed, done.left) == (second, 3, ())
    opens(place)
    assert place.store().host_key.public() == public
    # Not only the lock is new: who holds the former key opens nothing that is there now.
    assert json.loads(place.sealed().read_bytes())["key"] == done.key != json.loads(old)["key"]
    files = sorted(path.name for path in place.document.parent.iterdir())
    key_files = [name for name in files if name.startswith("kek")]
    assert len(key_files) == (second == "file"), files
    assert len([name for _, name in place.keyring.entries if not name.endswith("-seen")]) == (second == "keyring")
    for path in place.top.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_store_may_be_locked_before_anything_is_sealed(place: Place) -> None:
    place.store().relock("keyring")
    filled(place)
    opens(place)
    assert not (place.document.parent / "kek").exists()


def _no_entry(place: Place) -> None:
    place.keyring.entries.clear()


def _other_entry(place: Place) -> None:
    for entry in [entry for entry in place.keyring.entries if not entry[1].endswith("-seen")]:
        place.keyring.entries[entry] = "QUFB" * 10


def _locked(place: Place) -> None:
    place.keyring.trouble = "the keyring is locked"


def _other_words(place: Place) -> None:
    place.words = b"quite other words"


def _no_file(place: Place) -> None:
    next(place.document.parent.glob("kek-*")).unlink()


def _short_file(place: Place) -> None:
    next(place.document.parent.glob("kek-*")).write_bytes(b"short")


def _open_file(place: Place) -> None:
    next(place.document.parent.glob("kek-*")).chmod(0o644)


def _edit(**changes: object) -> Callable[[Place], None]:
    def edit(place: Place) -> None:
        row = {**json.loads(place.document.read_bytes()), **changes}
        place.document.write_bytes(json.dumps(row, sort_keys=True).encode() + b"\n")

    return edit


def _weak(place: Place) -> None:
    row = json.loads(place.document.read_bytes())
    row["kdf"]["n"] = 8
    place.document.write_bytes(json.dumps(row, sort_keys=True).encode() + b"\n")


def _cheaper(place: Place) -> None:
    row = json.loads(place.document.read_bytes())
    row["kdf"]["n"] = 32
    place.document.write_bytes(json.dumps(row, sort_keys=True).encode() + b"\n")


def _half(place: Place) -> None:
    place.document.write_bytes(place.document.read_bytes()[:100])


SHUT: dict[str, tuple[LockKind, Callable[[Place], None], str]] = {
    "the keyring has no such key": ("keyring", _no_entry, "the keyring has no key"),
    "the keyring has another key": ("keyring", _other_entry, "the keyring holds key"),
    "the keyring is locked": ("keyring", _locked, "the keyring is locked"),
    "another passphrase": ("passphrase", _other_words, "the passphrase does not open"),
    "a passphrase made cheap to guess": ("passphrase", _weak, "cheap to guess"),
    "other parameters than it was made with": ("passphrase", _cheaper, "the passphrase does not open"),
    "no key file": ("file", _no_file, "is missing: there is no"),
    "half a key file": ("file", _short_file, "holds 5 bytes, expected 32"),
    "a key file that others read": ("file", _open_file, "has mode 0644"),
    "a document for another store": ("file", _edit(store="ffff"), "was changed: its key"),
    "a document that names another lock": ("file", _edit(lock="keyring"), "the keyring has no key"),
    "a document without keys": ("file", _edit(keys=[]), "is damaged"),
    "a document of a version to come": ("file", _edit(version=2), "is damaged"),
    "half a document": ("keyring", _half, "is damaged"),
}


@pytest.mark.parametrize(("lock", "spoil", "words"), SHUT.values(), ids=SHUT)
def test_a_store_that_does_not_open_says_why_and_makes_no_new_key(
    lock: LockKind, spoil: Callable[[Place], None], words: str, place: Place
) -> None:
    filled(place)
    place.store().relock(lock)
    spoil(place)
    before = {path: path.read_bytes() for path in place.top.rglob("*") if path.is_file() and path.suffix != ".lock"}
    for action in (
        lambda store: store.credentials.load("demo"),
        lambda store: store.credentials.save("demo", b"x"),
        lambda store: store.sessions.load_chain_key(RUN),
        lambda store: store.relock("file"),
    ):
        with pytest.raises((Unverifiable, StoreError)) as caught:
            action(place.store())
        assert words in caught.value.message
        assert caught.value.hint or words == "the keyring is locked"
        assert b"secret" not in str(caught.value).encode()
    after = {path: path.read_bytes() for path in place.top.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert after == before


def test_a_lost_key_is_given_up_only_when_asked_to(place: Place) -> None:
    filled(place)
    place.store().relock("keyring")
    place.keyring.entries.clear()
    done = place.store().relock("file", abandon=True)
    assert set(done.left) == {"credentials/demo.sealed", f"sessions/{RUN}/chain.key"}
    with pytest.raises(Unverifiable, match="is sealed under key"):
        place.store().credentials.load("demo")
    place.store().credentials.save("demo", b"new")
    assert place.store().credentials.load("demo") == b"new"
    place.store().host_key.sign(b"x")
    assert (place.document.parent / "abandoned-lock.json").exists()


def _abandoned(place: Place) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.document.parent.glob("abandoned-*")}


def test_what_is_given_up_twice_is_put_aside_twice(place: Place) -> None:
    filled(place)
    place.store().relock("keyring")
    lost, host = place.document.read_bytes(), (place.document.parent / "host.key").read_bytes()
    for turn in (1, 2):
        place.keyring.entries.clear()
        place.store().relock("keyring", abandon=True)
        place.store().credentials.save(f"later{turn}", b"new")
        place.store().host_key.sign(b"x")
    kept = _abandoned(place)
    assert sorted(kept) == [
        "abandoned-2-host.key",
        "abandoned-2-lock.json",
        "abandoned-host.key",
        "abandoned-lock.json",
    ]
    assert (kept["abandoned-lock.json"], kept["abandoned-host.key"]) == (lost, host)
    assert len(set(kept.values())) == 4
    # Given up once more before anything was signed: there is no host's key, and none of another time beside its lock.
    (place.document.parent / "host.key").unlink()
    place.store().relock("keyring", abandon=True)
    assert sorted(set(_abandoned(place)) - set(kept)) == ["abandoned-3-lock.json"]
    assert kept.items() <= _abandoned(place).items()


def test_a_key_file_stays_while_something_is_sealed_under_it(place: Place) -> None:
    filled(place)
    place.store().relock("file")
    former = next(place.document.parent.glob("kek-*"))
    key, document = former.read_bytes(), place.document.read_bytes()
    former.unlink()
    place.store().relock("file", abandon=True)
    former.write_bytes(key)
    former.chmod(0o600)
    done = place.store().relock("keyring")
    assert "credentials/demo.sealed" in done.left
    assert former.read_bytes() == key
    # With the document that was put aside it opens what it opened.
    place.document.write_bytes(document)
    assert place.store().credentials.load("demo") == b"secret"
    place.document.unlink()
    place.keyring.entries.clear()
    place.store().relock("keyring", abandon=True)
    for path in (place.sealed(), *place.top.glob("data/sessions/*/chain.key")):
        path.unlink()
    done = place.store().relock("passphrase")
    assert done.left == ()
    assert former.exists(), "the host's key that was put aside is sealed under it"
    for path in place.document.parent.glob("abandoned-*"):
        path.unlink()
    place.store().relock("keyring")
    assert list(place.document.parent.glob("kek*")) == []


def test_a_first_key_that_was_found_again_stays_while_something_is_sealed_under_it(place: Place) -> None:
    filled(place)
    first = place.document.parent / "kek"
    hidden = first.rename(place.top / "elsewhere")
    place.store().relock("file", abandon=True)
    hidden.rename(first)
    assert "credentials/demo.sealed" in place.store().relock("keyring").left
    assert first.exists()
    for path in (place.sealed(), *place.top.glob("data/sessions/*/chain.key")):
        path.unlink()
    assert place.store().relock("keyring").left == ()
    assert list(place.document.parent.glob("kek*")) == []


def test_an_older_file_that_was_put_back_is_told_where_the_keyring_remembers(place: Place) -> None:
    store = place.store()
    store.relock("keyring")
    store.credentials.save("demo", b"one")
    old = place.sealed().read_bytes()
    place.store().credentials.save("demo", b"two")
    newest = place.sealed().read_bytes()
    place.sealed().write_bytes(old)
    with pytest.raises(StoreError, match="is not the newest credential:demo: it is number 1, the keyring has seen 2"):
        place.store().credentials.load("demo")
    place.sealed().write_bytes(newest)
    assert place.store().credentials.load("demo") == b"two"
    assert place.store().credentials.remove("demo")
    place.sealed().write_bytes(newest)
    with pytest.raises(StoreError, match="it is number 2, the keyring has seen 3"):
        place.store().credentials.load("demo")
    place.store().credentials.save("demo", b"three")  # its user's own word is newer than anything
    assert place.store().credentials.load("demo") == b"three"


def test_a_file_sealed_before_the_keyring_took_over_is_remembered_too(place: Place) -> None:
    filled(place)
    old = place.sealed().read_bytes()
    place.store().credentials.save("demo", b"two")
    place.store().relock("keyring")
    row, now = json.loads(old), json.loads(place.sealed().read_bytes())
    assert (row["number"], now["number"]) == (1, 2)
    seen = [text for (_, name), text in place.keyring.entries.items() if name.endswith("-seen")]
    assert [json.loads(text) for text in seen] == [{"credential:demo": 2}]


def test_the_number_of_a_sealed_file_cannot_be_raised(place: Place) -> None:
    filled(place)
    row = json.loads(place.sealed().read_bytes())
    place.sealed().write_bytes(json.dumps({**row, "number": 9}, sort_keys=True).encode() + b"\n")
    with pytest.raises(StoreError, match=r"does not open with its key: it was changed \(.*demo\.sealed\)"):
        place.store().credentials.load("demo")


class SlowWriter(Writer):
    """Stops at a sealed file, between its sealing and its writing, until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def write(self, path: Path, data: object, *, mode: int = 0o600) -> None:
        self._stop(path)
        super().write(path, data, mode=mode)  # type: ignore[arg-type]

    def create(self, path: Path, data: bytes, *, mode: int = 0o600) -> bool:
        self._stop(path)
        return super().create(path, data, mode=mode)

    def _stop(self, path: Path) -> None:
        if path.name in ("new.sealed", "chain.key"):
            self.reached.set()
            assert self.go_on.wait(10)


WRITES: dict[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    "a credential": (lambda store: store.credentials.save("new", b"x"), lambda store: store.credentials.load("new")),
    "a chain key": (
        lambda store: store.sessions.save_chain_key("new", b"x" * 32),
        lambda store: store.sessions.load_chain_key("new")[:1],
    ),
}


@pytest.mark.parametrize(("write", "read"), WRITES.values(), ids=WRITES)
def test_the_lock_is_not_changed_between_the_sealing_of_a_file_and_its_writing(
    write: Callable[[Store], object], read: Callable[[Store], object], place: Place
) -> None:
    filled(place)
    slow = SlowWriter()
    store = Store(place.top / "data", place.top / "state", writer=slow, keyring=place.keyring)
    writing = threading.Thread(target=write, args=(store,))
    changing = threading.Thread(target=place.store().relock, args=("keyring",))
    writing.start()
    assert slow.reached.wait(10)
    changing.start()
    changing.join(0.1)
    slow.go_on.set()
    writing.join()
    changing.join()
    opens(place)
    assert read(place.store()) == b"x"


def test_a_reader_whose_file_was_sealed_anew_under_it_reads_it_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(place)
    real = sealing.read_file

    def read(path: Path, **more: int) -> bytes | None:
        body = real(path, **more)
        monkeypatch.setattr(sealing, "read_file", real)
        place.store().relock("file")
        return body

    monkeypatch.setattr(sealing, "read_file", read)
    assert place.store().credentials.load("demo") == b"secret"


def test_many_writers_and_changes_of_the_lock_lose_nothing(place: Place) -> None:
    filled(place)
    failed: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for turn in range(6):
                place.store().credentials.save(name, f"{name} {turn}".encode())
                place.store().sessions.save_chain_key(f"{name}-{turn}", b"k" * 32)
        except AgentContainerError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(f"n{index}",)) for index in range(3)]
    for thread in threads:
        thread.start()
    for kind in LOCKS:
        place.store().relock(kind)
    for thread in threads:
        thread.join()
    assert failed == []
    opens(place)
    for name in [f"n{index}-{turn}" for index in range(3) for turn in range(6)]:
        assert place.store().sessions.load_chain_key(name) == b"k" * 32
    assert [place.store().credentials.load(f"n{index}") for index in range(3)] == [f"n{i} 5".encode() for i in range(3)]


def test_each_lock_says_in_one_sentence_what_it_is_good_for() -> None:
    assert set(PROTECTS) == set(LOCKS)
    assert all(20 < len(words) < 160 for words in PROTECTS.values())
    assert len(key_id(b"x")) == 16


class TestPassphrases:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "words"
        path.write_bytes(WORDS + b"\n")
        path.chmod(0o600)
        return path

    def test_they_come_from_a_file_a_descriptor_or_a_person(self, file: Path) -> None:
        assert Passphrases({}, file=file).current() == WORDS
        assert Passphrases({passphrase.FILE_VARIABLE: str(file)}).current() == WORDS
        reads, writes = os.pipe()
        os.write(writes, WORDS)
        os.close(writes)
        piped = Passphrases({}, fd=reads)
        assert piped.current() == piped.current() == WORDS
        os.close(reads)
        asked: list[str] = []
        assert Passphrases({}, ask=lambda q: asked.append(q) or "typed words").new() == b"typed words"
        assert len(asked) == 2

    def test_nobody_there_is_an_error_with_what_to_type(self) -> None:
        with pytest.raises(UsageError, match="nobody can be asked") as caught:
            Passphrases({}).current()
        assert "--passphrase-file" in str(caught.value.hint)

    @pytest.mark.parametrize("words", [b"short", b"x" * 2000, b"two lines\nof it"])
    def test_a_bad_one_is_refused_without_being_shown(self, words: bytes) -> None:
        with pytest.raises(UsageError) as caught:
            Passphrases({}, ask=lambda question: words.decode()).new()
        assert words.decode() not in str(caught.value)

    def test_two_that_differ_are_refused(self) -> None:
        answers = iter(["one of the two", "the other of them"])
        with pytest.raises(UsageError, match="not the same"):
            Passphrases({}, ask=lambda question: next(answers)).new()

    def test_a_file_that_others_read_is_refused(self, file: Path) -> None:
        file.chmod(0o640)
        with pytest.raises(UsageError, match="others can read the passphrase"):
            Passphrases({}, file=file).current()

    def test_the_real_parameters_are_at_the_recommended_floor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        assert passphrase.COST >= 2**17
        assert passphrase.LEAST_COST >= 2**16
        for change in ({"n": 2**15}, {"r": 4}, {"p": 0}, {"salt": "QUFB"}):
            row = {**passphrase.Stretching(b"s" * 16).row(), **change}
            with pytest.raises(StoreError, match="cheap to guess"):
                passphrase.read_stretching(row, where=Path("lock.json"))
