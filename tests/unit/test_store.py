from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_container.errors import Locked, NotRunning, StoreError, Tampered, Unverifiable, UsageError
from agent_container.session import Phase, SessionState
from agent_container.store import Store, VerifiedHead, default_roots
from agent_container.store.writer import Writer

RUN = "20261129-153359-7f3a2c"
OTHER = "20261129-153400-000001"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", tmp_path / "state").prepare()


def session(run: str = RUN, **changes: object) -> SessionState:
    base = SessionState(
        id=run, project_id="abc123", project_root="/srv/x", kind="run", created=datetime.now(UTC), owner_pid=os.getpid()
    )
    return base.updated(**changes)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_every_directory_is_0700_and_every_file_0600_under_any_umask(umask: int, tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "data", tmp_path / "deep" / "state").prepare()
    store.sessions.save(session())
    store.sessions.save_chain_key(RUN, b"k" * 32)
    store.credentials.save("demo", b"secret")
    store.policies.save(b"{}")
    store.host_key.sign(b"x")
    with store.project_lock("abc123"), store.sessions.lock(RUN):
        pass
    place = store.runs.place("abc123", RUN)
    with store.runs.staging(place) as staged:
        store.writer.write(staged / "record.json", b"{}")
        store.runs.publish(staged, place)
    for path in (tmp_path / "deep").rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_rendered_files_are_readable_through_a_mount_but_lie_in_a_private_place(umask: int, store: Store) -> None:
    directory = store.sessions.save_rendered(RUN, {"squid.conf": "x\n", "policy.json": "{}"})
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {
        "squid.conf": 0o644,
        "policy.json": 0o644,
    }
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755  # the sidecar's own uids enter it through the mount
    for above in (directory.parent, directory.parent.parent, store.state):
        assert stat.S_IMODE(above.stat().st_mode) == 0o700


def test_a_store_that_stood_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    Store(tmp_path / "data", tmp_path / "state").prepare()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    data, owner = tmp_path / "data", 12345
    if os.geteuid() == 0:
        data.mkdir()
        os.chown(data, owner, owner)
    else:
        data, owner = Path("/usr"), 0  # nobody else can make another user's directory; this one is root's
    with pytest.raises(StoreError, match=f"belongs to uid {owner}"):
        Store(data, tmp_path / "state").prepare()


@pytest.mark.parametrize(
    ("code", "words"),
    [("ENOSPC", "the disk is full"), ("EROFS", "read-only"), ("EDQUOT", "quota"), ("EACCES", "permission denied")],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_a_disk_that_refuses_is_named_and_leaves_the_old_file(
    call: str, code: str, words: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    path = store.data / "x.json"
    store.writer.write(path, b"old")
    real = getattr(os, call)

    def refuse(*args: object, **kwargs: object) -> object:
        if call == "open" and ".tmp-" not in str(args[0]):
            return real(*args, **kwargs)
        number = getattr(errno, code)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StoreError, match=words) as caught:
        store.writer.write(path, b"new" * 1000)
    monkeypatch.undo()
    assert str(path) in caught.value.message
    assert path.read_bytes() == b"old"
    assert sorted(entry.name for entry in store.data.iterdir()) == ["x.json"]


def test_a_full_file_system_is_told_and_nothing_half_written_is_seen(store: Store) -> None:
    # RLIMIT_FSIZE is the one limit that a test may set on itself: writes fail as on a full disk, with EFBIG.
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from agent_container.errors import StoreError; from agent_container.store.writer import Writer\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: Writer().write(Path(sys.argv[1]), b'n' * 100_000)\n"
        "except StoreError as e: print(e.message); sys.exit(9)\n"
    )
    path = store.data / "x.json"
    store.writer.write(path, b"old")
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    assert "too large" in done.stdout
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in store.data.iterdir()] == ["x.json"]


def test_create_is_exclusive_and_keeps_the_first(store: Store) -> None:
    path = store.data / "once"
    assert store.writer.create(path, b"first")
    assert not store.writer.create(path, b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in store.data.iterdir()] == ["once"]


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (store.data / "x").symlink_to(tmp_path / "precious")
    store.writer.write(store.data / "x", b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert not (store.data / "x").is_symlink()


def test_sweep_takes_old_leftovers_and_leaves_those_of_living_writers(store: Store) -> None:
    old, young = store.data / ".tmp-x-1", store.data / ".tmp-x-2"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert Writer().sweep(store.data) == 1
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", ".x", "x\n", "x\0", "x" * 200, "é", " "])
def test_hostile_names_never_become_paths(name: str, store: Store) -> None:
    for use in (store.sessions.load, store.credentials.load, store.approvals.load, store.checkpoints.load):
        with pytest.raises(StoreError, match="cannot be the name"):
            use(name)
    with pytest.raises(StoreError):
        store.runs.place("abc", name)


class TestRoots:
    def test_xdg_variables_decide(self, tmp_path: Path) -> None:
        roots = default_roots({"XDG_DATA_HOME": str(tmp_path / "d"), "XDG_STATE_HOME": str(tmp_path / "s")})
        assert roots.data == tmp_path / "d" / "agent-container"
        assert roots.state == tmp_path / "s" / "agent-container"

    def test_a_relative_variable_is_refused(self) -> None:
        with pytest.raises(StoreError, match="XDG_DATA_HOME is 'x'; it must be an absolute path"):
            default_roots({"XDG_DATA_HOME": "x"})


class TestLocks:
    def test_the_second_is_refused_naming_the_first(self, store: Store) -> None:
        with (
            store.project_lock("abc", doing="up"),
            pytest.raises(Locked, match=rf"in use by process {os.getpid()} since 20.* \(up\)") as caught,
            store.project_lock("abc"),
        ):
            pass
        assert caught.value.pid == os.getpid()

    def test_it_is_free_again_afterwards_also_after_an_exception(self, store: Store) -> None:
        with pytest.raises(ZeroDivisionError), store.project_lock("abc"):
            raise ZeroDivisionError
        with store.project_lock("abc"):
            pass

    def test_projects_do_not_block_each_other(self, store: Store) -> None:
        with store.project_lock("abc"), store.project_lock("def"), store.sessions.lock(RUN):
            pass

    def test_a_holder_that_was_killed_frees_it_and_its_session_is_an_orphan(self, store: Store) -> None:
        store.sessions.save(session())
        script = (
            "import sys, time; from pathlib import Path; from agent_container.store import Store\n"
            "s = Store(Path(sys.argv[1]), Path(sys.argv[2]))\n"
            f"with s.sessions.lock('{RUN}', doing='run'), s.project_lock('abc123'):\n"
            "    print('held', flush=True); time.sleep(600)\n"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", script, str(store.data), str(store.state)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            owner = store.sessions.owner(RUN)
            assert owner is not None
            assert (owner.pid, owner.doing) == (holder.pid, "run")
            assert list(store.sessions.orphans()) == []
            with pytest.raises(Locked, match=f"process {holder.pid}"), store.sessions.lock(RUN, wait_s=0):
                pass
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            if holder.stdout:
                holder.stdout.close()
        assert store.sessions.owner(RUN) is None
        assert [state.id for state in store.sessions.orphans("abc123")] == [RUN]
        with store.sessions.lock(RUN), store.project_lock("abc123"):
            assert list(store.sessions.orphans()) == []

    def test_asking_for_the_owner_does_not_disturb(self, store: Store) -> None:
        for _ in range(20):
            assert store.sessions.owner(RUN) is None
            with store.sessions.lock(RUN):
                assert store.sessions.owner(RUN) is not None

    def test_a_program_started_by_the_holder_does_not_inherit_it(self, store: Store) -> None:
        with store.project_lock("abc"):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
        try:
            with store.project_lock("abc"):
                pass
        finally:
            child.kill()
            child.wait()


class TestSessions:
    def test_what_is_saved_is_loaded(self, store: Store) -> None:
        state = session(containers=(("agent", "c1"),), volumes=("v1",), decoys=(("demo", "d"),), phase=Phase.OPENED)
        store.sessions.save(state)
        assert store.sessions.load(RUN) == state
        assert state.container("agent") == "c1"
        assert state.container("egress") is None

    def test_a_phase_never_moves_back(self) -> None:
        with pytest.raises(ValueError, match="cannot go back from draining to running"):
            session(phase=Phase.DRAINING).updated(phase=Phase.RUNNING)

    def test_closed_ones_are_listed_only_when_asked_for(self, store: Store) -> None:
        store.sessions.save(session())
        store.sessions.save(session(OTHER, project_id="other"))
        store.sessions.close(RUN, outcome="succeeded")
        assert [state.id for state in store.sessions.list()] == [OTHER]
        assert [state.id for state in store.sessions.list(closed=True)] == [RUN, OTHER]
        assert [state.id for state in store.sessions.list("abc123", closed=True)] == [RUN]

    def test_an_unknown_one_is_not_running(self, store: Store) -> None:
        with pytest.raises(NotRunning):
            store.sessions.load(RUN)

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"version": 9}'])
    def test_a_damaged_one_is_told_not_passed_over(self, body: bytes, store: Store) -> None:
        store.sessions.save(session())
        (store.state / "sessions" / RUN / "session.json").write_bytes(body)
        with pytest.raises(StoreError, match=r"session\.json is not a session"):
            store.sessions.list()

    def test_removal_keeps_the_chain_key(self, store: Store) -> None:
        store.sessions.save(session())
        store.sessions.save_chain_key(RUN, b"k" * 32)
        store.sessions.remove(RUN)
        assert store.sessions.list(closed=True) == ()
        assert store.sessions.load_chain_key(RUN) == b"k" * 32


class TestSealing:
    def test_no_secret_is_on_disk_in_clear(self, store: Store) -> None:
        secret = b"a-secret-that-must-not-be-found"
        store.credentials.save("demo", secret)
        store.sessions.save_chain_key(RUN, secret[:32].ljust(32, b"x"))
        for path in store.data.rglob("*"):
            assert path.is_dir() or b"must-not-be-found" not in path.read_bytes(), path
        assert store.credentials.load("demo") == secret

    def test_a_session_has_one_chain_key(self, store: Store) -> None:
        store.sessions.save_chain_key(RUN, b"k" * 32)
        store.sessions.save_chain_key(RUN, b"k" * 32)
        with pytest.raises(StoreError, match="has a chain key already"):
            store.sessions.save_chain_key(RUN, b"x" * 32)
        assert store.sessions.load_chain_key(RUN) == b"k" * 32

    def test_sealed_files_cannot_be_exchanged(self, store: Store) -> None:
        store.credentials.save("one", b"1")
        store.credentials.save("two", b"2")
        one, two = (store.data / "credentials" / f"{name}.sealed" for name in ("one", "two"))
        two.write_bytes(one.read_bytes())
        with pytest.raises(StoreError, match="damaged, or belongs elsewhere"):
            store.credentials.load("two")

    def test_a_missing_key_is_cannot_and_never_tampered(self, store: Store) -> None:
        store.sessions.save_chain_key(RUN, b"k" * 32)
        (store.data / "keys" / "kek").unlink()
        with pytest.raises(Unverifiable, match=r"key [0-9a-f]{16} is missing"):
            store.sessions.load_chain_key(RUN)
        with pytest.raises(Unverifiable, match="is missing"):
            store.credentials.save("demo", b"x")  # no new key in silence: what is sealed would be lost to it
        assert not (store.data / "keys" / "kek").exists()
        store.relock("file", abandon=True)
        store.credentials.save("demo", b"x")
        with pytest.raises(Unverifiable, match=r"is sealed under key [0-9a-f]{16}, but"):
            store.sessions.load_chain_key(RUN)

    @pytest.mark.parametrize("flip", [0, 20, 60, -10])
    def test_a_changed_file_does_not_open(self, flip: int, store: Store) -> None:
        store.credentials.save("demo", b"secret")
        path = store.data / "credentials" / "demo.sealed"
        body = bytearray(path.read_bytes())
        body[flip] ^= 1
        path.write_bytes(body)
        with pytest.raises((StoreError, Unverifiable)):
            store.credentials.load("demo")

    def test_a_key_file_that_others_can_read_is_refused(self, store: Store) -> None:
        store.credentials.save("demo", b"secret")
        (store.data / "keys" / "kek").chmod(0o640)
        with pytest.raises(StoreError, match="has mode 0640: others can read the key"):
            store.credentials.load("demo")

    def test_names_and_removal(self, store: Store) -> None:
        store.credentials.save("b", b"1")
        store.credentials.save("a", b"1")
        assert store.credentials.names() == ("a", "b")
        assert store.credentials.remove("a")
        assert not store.credentials.remove("a")
        assert store.credentials.load("a") is None

    def test_the_host_signs_with_one_key_whose_public_half_is_made_again(self, store: Store) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        public = store.host_key.public()
        Ed25519PublicKey.from_public_bytes(public).verify(store.host_key.sign(b"body"), b"body")
        (store.data / "keys" / "host.pub").unlink()
        assert store.host_key.published() is None
        assert store.host_key.public() == public


class TestCheckpoints:
    def test_it_moves_forward(self, store: Store) -> None:
        assert store.checkpoints.load(RUN) is None
        for head in (VerifiedHead(RUN, 1, "aa"), VerifiedHead(RUN, 5, "bb"), VerifiedHead(RUN, 5, "bb", sealed=True)):
            assert store.checkpoints.advance(head) == head
            assert store.checkpoints.load(RUN) == head

    @pytest.mark.parametrize(
        ("new", "words"),
        [
            (VerifiedHead(RUN, 4, "aa"), "1 receipts are missing at the end"),
            (VerifiedHead(RUN, 5, "cc"), "is not the one that was verified before"),
            (VerifiedHead(RUN, 6, "dd"), "was sealed at 5 receipts, now there are 6"),
            (VerifiedHead(RUN, 5, "bb"), "is not the one that was verified before"),
        ],
        ids=["behind", "beside", "past the seal", "unsealed again"],
    )
    def test_it_never_moves_back(self, new: VerifiedHead, words: str, store: Store) -> None:
        store.checkpoints.advance(VerifiedHead(RUN, 5, "bb", sealed=True))
        with pytest.raises(Tampered) as caught:
            store.checkpoints.advance(new)
        assert words in " ".join([caught.value.message, *caught.value.details])
        assert store.checkpoints.load(RUN) == VerifiedHead(RUN, 5, "bb", sealed=True)


class TestPolicies:
    def test_by_digest_and_never_changed_in_silence(self, store: Store) -> None:
        digest = store.policies.save(b'{"version":1}')
        assert store.policies.save(b'{"version":1}') == digest
        assert store.policies.load(digest) == b'{"version":1}'
        (store.data / "policies" / digest.removeprefix("sha256:")).write_bytes(b"{}")
        with pytest.raises(Tampered):
            store.policies.load(digest)
        store.policies.save(b'{"version":1}')
        assert store.policies.load(digest) == b'{"version":1}'


class TestRuns:
    def publish(self, store: Store, run: str, body: bytes = b"{}", project: str = "abc") -> None:
        place = store.runs.place(project, run)
        with store.runs.staging(place) as staged:
            (staged / "record.json").write_bytes(body)
            store.runs.publish(staged, place)

    def test_staging_is_invisible_and_gone_when_not_published(self, store: Store) -> None:
        place = store.runs.place("abc", RUN)
        with pytest.raises(ZeroDivisionError), store.runs.staging(place) as staged:
            (staged / "record.json").write_bytes(b"{}")
            assert store.runs.list() == ()
            raise ZeroDivisionError
        assert list(place.path.parent.iterdir()) == []

    def test_newest_first_and_resolved_by_prefix(self, store: Store) -> None:
        self.publish(store, RUN)
        self.publish(store, OTHER)
        self.publish(store, "20251231-000000-abcdef", project="def")
        assert [place.run_id for place in store.runs.list("abc")] == [OTHER, RUN]
        assert store.runs.resolve(None, project_id="abc").run_id == OTHER
        assert store.runs.resolve("20261129-153359").run_id == RUN
        assert store.runs.resolve("2025").project_id == "def"
        with pytest.raises(UsageError, match="is the beginning of 2 runs"):
            store.runs.resolve("2026")
        for unknown in ("nosuch", "", "../abc"):
            with pytest.raises(UsageError, match="no run is called"):
                store.runs.resolve(unknown)

    def test_there_is_nothing_to_resolve_in_an_empty_store(self, store: Store) -> None:
        with pytest.raises(UsageError, match="there are no runs yet"):
            store.runs.resolve(None)

    def test_a_second_publication_replaces_the_first(self, store: Store) -> None:
        self.publish(store, RUN, b"1")
        self.publish(store, RUN, b"2")
        place = store.runs.place("abc", RUN)
        assert (place.path / "record.json").read_bytes() == b"2"
        assert [entry.name for entry in place.path.parent.iterdir()] == [RUN]

    def test_removal(self, store: Store) -> None:
        self.publish(store, RUN)
        store.runs.remove(store.runs.place("abc", RUN))
        assert store.runs.list() == ()
        with pytest.raises(StoreError):
            store.runs.remove(store.runs.place("abc", RUN))
