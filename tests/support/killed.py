"""Runs the real command line in processes that SIGKILL themselves at one chosen call of engine or store.

`python -m tests.support.killed` reads one JSON request a line and answers each with one line. It forks for every
request, so that nothing is imported twice; the child wraps every method of the engine and of the store's writer that
has effects, writes the label of each call to a trace as it begins and as it ends, and kills itself at the point asked
for. Nothing in the program knows of it. The second half of the file is the client.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.home import HANG_S, ROOT, Home

CONTAINER_CALLS = ("start", "stop", "remove_container")
WITHOUT_EFFECT = ("channel.hello", "store.remove touched")
"""Where nothing is there to be removed, or only asked: not worth a row."""
OTHER_CALLS = ("remove_network", "remove_volume")
IDS = (
    (re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}"), "RUN"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{64}"), "DIGEST"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])"), "PROJECT"),
)


@dataclass(frozen=True)
class Point:
    """Where a process is killed: before or after the n-th call of a label, or within it once something was made."""

    label: str
    when: str
    """`before`, `after`; for compose also `network`, `volume`, `container`: as soon as one of these exists."""

    def __str__(self) -> str:
        return f"{self.when} {self.label}"


class _Calls:
    """The calls of one process, in order, and the one at which it dies."""

    def __init__(self, trace: Path | None, kill: Point | None) -> None:
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if trace else None
        self._kill = kill
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def wrap(self, owner: Any, method: str, label: Callable[..., str | None]) -> None:
        """Replaces `owner.method` by one that counts, where `label` has a name for the call."""
        real = getattr(owner, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            name = label(*args, **kwargs)
            if name is None:
                return real(*args, **kwargs)
            with self._lock:
                self._seen[name] += 1
                name = f"{name}#{self._seen[name]}"
            self.reach(name, "before")
            try:
                return real(*args, **kwargs)
            finally:
                self.reach(name, "after")

        setattr(owner, method, call)

    def reach(self, name: str, when: str) -> None:
        """Notes a point, and dies when it is the one."""
        if self._trace is not None:
            os.write(self._trace, f"{when}\t{name}\n".encode())
        if self._kill == Point(name, when):
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def within(self) -> str | None:
        """What must exist for the process to die in the middle of a call."""
        return self._kill.when if self._kill and self._kill.when in ("network", "volume", "container") else None


def _arm(calls: _Calls, stores: Sequence[str]) -> None:
    import docker

    from agent_container.engine.docker import DockerEngine
    from agent_container.engine.frames import SocketChannel
    from agent_container.store.writer import Writer

    for name in CONTAINER_CALLS:
        calls.wrap(docker.APIClient, name, lambda api, id_, _name=name, **_k: f"docker.{_name} {_role(api, id_)}")
    for name in OTHER_CALLS:
        calls.wrap(docker.APIClient, name, lambda *_a, _name=name, **_k: f"docker.{_name}")
    calls.wrap(docker.APIClient, "create_container_from_config", lambda _api, row: f"docker.create {row['Cmd'][1]}")
    calls.wrap(DockerEngine, "create", lambda *_a, **_k: "engine.create")
    calls.wrap(DockerEngine, "exec", _exec_label)
    calls.wrap(SocketChannel, "send", lambda _self, line: f"channel.{json.loads(line)['op']}")
    for name in ("write", "create", "remove", "remove_tree", "publish_dir"):
        calls.wrap(Writer, name, lambda _self, *paths, _name=name, **_k: _store_label(_name, paths, stores))
    if calls.within is not None:
        _die_within(DockerEngine, calls.within)


def _role(api: Any, container: str) -> str:
    """What a container is for: two threads start some at once, and an order would name another one each time."""
    with contextlib.suppress(Exception):
        config = api.inspect_container(container)["Config"]
        role = str(config["Labels"]["agent-container.role"])
        return str(config["Cmd"][1]) if role == "throwaway" else role
    return "that is gone"


def _exec_label(_engine: Any, _container: str, argv: Sequence[str], *, stdin: bytes = b"", **_k: Any) -> str:
    if argv[-1] == "--core":
        return "exec.core"
    try:
        return f"exec.{json.loads(stdin.splitlines()[0])['op']}"  # of several requests in one exec the first
    except (ValueError, IndexError):
        return f"exec.{argv[0]}"


def _store_label(method: str, paths: Sequence[Any], stores: Sequence[str]) -> str | None:
    path = str(paths[1] if method == "publish_dir" else paths[0])
    if "/etc/" in path and not path.endswith("/etc/policy.json"):
        return None  # one of the rendered files stands for all
    for top in stores:
        path = path.removeprefix(top)
    for pattern, word in IDS:
        path = pattern.sub(word, path)
    body = paths[1] if len(paths) > 1 and isinstance(paths[1], bytes) else b""
    if "/checkpoints/" in path and b'"sealed": false' in body:
        return None  # where a live chain stands is noted every few seconds: how often in a run is the machine's choice
    phase = re.search(rb'"phase":"(\w+)"', body)
    return f"store.{method} {path.strip('/')}" + (f" {phase.group(1).decode()}" if phase else "")


def _die_within(engine: Any, what: str) -> None:
    real = engine.create

    def create(self: Any, stack: Any, **kwargs: Any) -> Any:
        label = {"label": [f"agent-container.session={stack.session}"]}
        api = self._api

        def watch() -> None:
            while True:
                found: Any = {
                    "network": lambda: api.networks(filters=label),
                    "volume": lambda: api.volumes(filters=label)["Volumes"],
                    "container": lambda: api.containers(all=True, filters=label),
                }[what]()
                if found:
                    os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()
        return real(self, stack, **kwargs)

    engine.create = create


def _child(request: Mapping[str, Any]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environ"])
    out = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    # What typer and rich keep of the streams was made for the parent's.
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: PTH123, SIM115
    kill = request["kill"]
    trace = request["trace"]
    calls = _Calls(Path(trace) if trace else None, Point(*kill) if kill else None)
    _arm(calls, request["stores"])

    from agent_container.cli import main

    main(request["argv"])


def serve() -> None:
    """Answers requests until stdin ends."""
    import cryptography.hazmat.primitives.asymmetric.ed25519
    import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    import docker  # noqa: F401
    import platformdirs  # noqa: F401

    import agent_container.cli  # noqa: F401 - imported here so that no child has to
    import agent_container.commands.down
    import agent_container.commands.run
    import agent_container.commands.runs
    import agent_container.commands.status
    import agent_container.commands.up
    import agent_container.ui.views  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 71
            try:
                _child(request)
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        print(json.dumps({"status": _wait(child)}), flush=True)


def _wait(child: int) -> int:
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -int(signal.SIGALRM)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit status, or minus the signal; and all that it printed."""

    status: int
    output: str
    trace: tuple[tuple[str, str], ...] = ()


class Driver:
    """One forking process, for one thread of the test."""

    def __init__(self) -> None:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sidecar")])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environ,
            text=True,
        )

    def call(self, home: Home, *argv: str, kill: Point | None = None) -> Outcome:
        """Runs one command to its end."""
        assert self._process.stdin and self._process.stdout
        output, trace = home.path / "output", home.path / "trace"
        trace.unlink(missing_ok=True)
        request = {
            "argv": ["--no-input", "-C", str(home.project), *argv],
            "environ": home.environ,
            "output": str(output),
            "trace": str(trace),
            "kill": [kill.label, kill.when] if kill else None,
            "stores": [str(home.data), str(home.state)],
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        lines = trace.read_text().splitlines() if trace.exists() else []
        rows = tuple((when, label) for when, label in (line.split("\t") for line in lines))
        return Outcome(answer["status"], output.read_text(errors="replace"), rows)

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(timeout=HANG_S)


def kill_points(trace: Sequence[tuple[str, str]]) -> Iterator[Point]:
    """The points of a dry run at which the world can differ.

    What lies between the end of one call and the beginning of the next has no effects, so that one of the two points
    stands for both; where calls overlap, in two threads, each has its own. Of neighbours of one label (five volumes
    removed one after the other) the first two and the last are taken.
    """
    within = 0
    overlapped: set[str] = set()
    begun: list[str] = []
    for when, label in trace:
        within += 1 if when == "before" else -1
        begun = [*begun, label] if when == "before" else [other for other in begun if other != label]
        if within > 1:
            overlapped.update(begun)
    order = [label for when, label in trace if when == "before"]
    for index, label in enumerate(order):
        if label.startswith(WITHOUT_EFFECT):
            continue
        if _kind(label) == _kind(order[index - 1] if index else "") and index + 1 < len(order):
            same_before = index >= 2 and _kind(order[index - 2]) == _kind(label)
            if same_before and _kind(order[index + 1]) == _kind(label):
                continue
        yield Point(label, "before")
        if label == "engine.create#1":
            yield from (Point(label, what) for what in ("network", "volume", "container"))
        if (label in overlapped and label.startswith(("docker.start", "exec."))) or index == len(order) - 1:
            yield Point(label, "after")


def _kind(label: str) -> str:
    return label.partition("#")[0]


if __name__ == "__main__":
    serve()
