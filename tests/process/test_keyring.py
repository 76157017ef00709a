"""The credential store locked with a real keyring: GNOME's, on a D-Bus of its own, used through the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

WAIT_S = 30
SECRET = b"sk-real-of-the-keyring-test"


@dataclass
class Desktop:
    """A login with a keyring that is open, and nothing else of a desktop."""

    top: Path
    environ: dict[str, str]
    daemon: subprocess.Popen[bytes] | None = None

    def agc(
        self, *argv: str, code: int = 0, stdin: bytes = b"", **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        words = [sys.executable, "-P", "-m", "agent_container.cli", "--no-input", *argv]
        done = subprocess.run(
            words, env={**self.environ, **variables}, input=stdin, capture_output=True, check=False, timeout=WAIT_S
        )
        assert done.returncode == code, done
        assert b"Traceback" not in done.stderr
        return done

    def start_keyring(self) -> None:
        self.daemon = subprocess.Popen(
            ["gnome-keyring-daemon", "--foreground", "--unlock", "--components=secrets"],
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert self.daemon.stdin is not None
        self.daemon.stdin.write(b"login")
        self.daemon.stdin.close()
        deadline = time.monotonic() + WAIT_S
        while self.speak("import secretstorage as s; s.get_default_collection(s.dbus_init())") != 0:
            assert time.monotonic() < deadline, "the keyring did not come up"
            time.sleep(0.05)

    def stop_keyring(self) -> None:
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(WAIT_S)
            self.daemon = None

    def speak(self, program: str) -> int:
        """Runs a program against the bus."""
        words = [sys.executable, "-c", program]
        return subprocess.run(words, env=self.environ, capture_output=True, check=False, timeout=WAIT_S).returncode


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    assert shutil.which("gnome-keyring-daemon"), "bin/test installs gnome-keyring for this"
    top = tmp_path_factory.mktemp("bus")
    runtime = top / "run"
    runtime.mkdir(mode=0o700)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(top / "home"),
        "XDG_RUNTIME_DIR": str(runtime),
    }
    Path(environ["HOME"]).mkdir()
    daemon = subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", "--print-address"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert daemon.stdout is not None
    environ["DBUS_SESSION_BUS_ADDRESS"] = daemon.stdout.readline().decode().strip()
    yield environ
    daemon.terminate()
    daemon.wait(WAIT_S)


@pytest.fixture
def desktop(bus: dict[str, str], tmp_path: Path) -> Iterator[Desktop]:
    # The keyring's own files are found below XDG_DATA_HOME, so each test has a keyring of its own.
    environ = {**bus, "XDG_DATA_HOME": str(tmp_path / "data"), "XDG_STATE_HOME": str(tmp_path / "state")}
    made = Desktop(tmp_path, environ)
    made.start_keyring()
    yield made
    made.stop_keyring()


def test_a_store_locked_with_the_keyring_opens_in_the_login_and_nowhere_else(desktop: Desktop) -> None:
    desktop.agc("credential", "set", "demo", "--host", "api.test", "--path", "/x", stdin=SECRET)
    assert b"file (nobody chose)" in desktop.agc("credential", "lock").stdout
    desktop.agc("credential", "lock", "keyring")
    assert b"keyring" in desktop.agc("credential", "lock").stdout
    assert b"demo" in desktop.agc("credential", "ls").stdout
    sealed = desktop.top / "data" / "agent-container" / "credentials" / "demo.sealed"
    keys = desktop.top / "data" / "agent-container" / "keys"
    assert [path.name for path in keys.iterdir()] == ["lock.json"]

    def shut(words: bytes, **variables: str) -> None:
        before = {path: path.read_bytes() for path in (sealed, keys / "lock.json")}
        for argv in (("credential", "ls"), ("credential", "set", "new", "--host", "a.test", "--path", "/x")):
            done = desktop.agc(*argv, code=6, stdin=b"sk-new", **variables)
            assert words in done.stderr and b"hint: " in done.stderr
        assert {path: path.read_bytes() for path in before} == before
        assert [path.name for path in keys.iterdir()] == ["lock.json"]

    # The session's keyring is locked, and there is no desktop that could ask to open it.
    lock = "import secretstorage as s; s.get_default_collection(s.dbus_init()).lock()"
    assert desktop.speak(lock) == 0
    shut(b"the keyring is locked")
    desktop.stop_keyring()
    shut(b"no keyring answers", DBUS_SESSION_BUS_ADDRESS="unix:path=/nowhere")
    desktop.start_keyring()
    assert b"demo" in desktop.agc("credential", "ls").stdout
    clear = "import secretstorage as s; [i.delete() for i in s.get_default_collection(s.dbus_init()).get_all_items()]"
    assert desktop.speak(clear) == 0
    shut(b"the keyring has no key")


def test_an_old_file_that_was_put_back_is_told(desktop: Desktop) -> None:
    binding = ("--host", "api.test", "--path", "/x")
    desktop.agc("credential", "lock", "keyring")
    desktop.agc("credential", "set", "demo", *binding, stdin=b"sk-withdrawn")
    sealed = desktop.top / "data" / "agent-container" / "credentials" / "demo.sealed"
    old = sealed.read_bytes()
    desktop.agc("credential", "set", "demo", *binding, stdin=SECRET)
    sealed.write_bytes(old)
    done = desktop.agc("credential", "ls", code=1)
    assert b"is not the newest credential:demo" in done.stderr
    desktop.agc("credential", "set", "demo", *binding, stdin=SECRET)
    desktop.agc("credential", "ls")
