"""Rules exchanged under a running sidecar: what a mutant takes out is put in force in a second, not in the ten that
another sidecar takes. The kernel's rules are watched by the supervisor, which is held still meanwhile; squid and
unbound are started again by it, with the file that then lies there."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent_egress import identity
from agent_egress.policy import Policy
from agent_egress.ruleset import policy_statements
from tests.support.net import PYTHON, Sidecar, docker, sidecar_image

PATIENCE_S = 60
RESTARTED = {"squid.conf": ("squid", identity.SQUID), "unbound.conf": ("unbound", identity.UNBOUND)}
_KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if os.stat("/proc/" + pid).st_uid == {uid}:
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""
_LOAD = """
import subprocess
for text in {texts!r}:
    subprocess.run(["/usr/sbin/nft", "-f", "-"], input=text, text=True, check=True)
"""


@dataclass
class Surgery:
    """One open sidecar, its rendered files as they were, and the policy that it was opened with."""

    sidecar: Sidecar
    policy: Policy
    original: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Remembers every rendered file."""
        self.original = {path.name: path.read_text() for path in self.sidecar.files.iterdir()}

    @contextlib.contextmanager
    def changed(self, files: Mapping[str, str], *, cut: bool = False) -> Iterator[None]:
        """These files in force instead of their originals; `cut` also turns the kernel's switch off. Where rules of the
        kernel are among them, only while the supervisor is `held`."""
        try:
            self._put(files, cut=cut)
            yield
        finally:
            self._put({name: self.original[name] for name in files})

    def _put(self, files: Mapping[str, str], *, cut: bool = False) -> None:
        for name, text in files.items():
            if name == "nftables.nft":
                self.load(text, cut=cut)
            else:
                (self.sidecar.files / name).write_text(text)
                self.restart(*RESTARTED[name])

    def load(self, text: str, *, cut: bool = False) -> None:
        """The kernel's rules, and in them what the supervisor would fill in."""
        switch = "" if cut else "flush set inet egress cut\n"
        # Two transactions, as the supervisor makes them: nft dies of sets that are filled where they are declared.
        self.sidecar.execute(_LOAD.format(texts=[text, policy_statements(self.policy) + switch]))

    def end(self, uid: int) -> None:
        """Ends all processes of a daemon; its successor is the supervisor's affair."""
        self.sidecar.execute(_KILL.format(uid=uid))

    def restart(self, daemon: str, uid: int) -> None:
        """Ends a daemon and waits until its successor answers."""
        if daemon == "squid":  # ended on purpose it is there again at once, and after a crash only in a while
            for op in ("cut", "restore"):
                answer = self.sidecar.control(op)
                assert answer["ok"], (answer, self.sidecar.logs()[-3000:])
            return
        before = self._restarts(daemon)
        self.end(uid)
        until = time.monotonic() + PATIENCE_S
        while self._restarts(daemon) <= before or not self._answers(daemon):
            assert time.monotonic() < until, self.sidecar.logs()[-3000:]
            time.sleep(0.05)

    def _restarts(self, daemon: str) -> int:
        return int(self.sidecar.control("status")["restarts"][daemon])

    def _answers(self, daemon: str) -> bool:
        port = {"squid": identity.PROXY_PORT, "unbound": identity.UNBOUND_PORT}[daemon]
        code = (
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 2); print('y')\nexcept OSError: pass"
        )
        return self.sidecar.execute(code).strip() == "y"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The supervisor sees and does nothing: PID 1 can be stopped from outside its namespace alone."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        pid = docker("inspect", "-f", "{{.State.Pid}}", self.sidecar.name).strip()
        docker(
            "run", "--rm", "--pid", "host", "--network", "none", "--cap-add", "KILL", "--user", "0:0",
            "--entrypoint", PYTHON, sidecar_image(), "-c", f"import os; os.kill({pid}, {int(number)})",
        )  # fmt: skip
