"""The agent's image and its runner on the real engine: what is in the image, a turn's life in a hardened container."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import select
import shlex
import struct
import subprocess
import termios
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_container.agent_install import AgentInstall
from agent_container.engine.build import image_id
from agent_container.engine.connection import Connection, connect
from agent_container.errors import EngineError
from agent_container.image_plan import DEFAULT_BASE, ImagePlan, SetupStep, plan_agent_image
from agent_container.images import ensure_base, ensure_image, find_private_ca, read_image_files

RUNNER = ("/usr/bin/python3", "-I", "/opt/agent-container/runner")
MARKER = b"bWFya2VyLW9mLXRoZS1ob3N0cy1wcml2YXRlLWF1dGhvcml0eQ"
ODD = (
    "printf '%s' \"$((1 + 1)) `echo tick` <<EOF \\\\ 'q' \U0001f600\" >/home/agent/odd\n"
    "cat >/home/agent/here <<EOF\nUSER root\nEOF\n"
)
PRIVILEGED = """
import os
names = (os.path.join(directory, name) for directory, _, files in os.walk("/usr") for name in files)
print([name for name in names if "security.capability" in os.listxattr(name, follow_symlinks=False)])
"""
CAPABILITY = "0100000200040000000000000000000000000000"


def docker(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, **options)
    assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    return connect(os.environ, state_dir=tmp_path_factory.mktemp("state"))


def plan(connection: Connection, base: str = DEFAULT_BASE, **changes: Any) -> ImagePlan:
    arguments: dict[str, Any] = {
        "base": base,
        "base_id": ensure_base(base, connection=connection, report=print),
        "packages": (),
        "setup": (),
        "install": AgentInstall(),
        "uid": 1001,
        "gid": 1001,
        "image_files": read_image_files(),
        "ca": find_private_ca(os.environ),
    }
    return plan_agent_image(**{**arguments, **changes})


@pytest.fixture(scope="module")
def image(connection: Connection) -> str:
    """The default image, the one that the tool itself uses: kept."""
    wanted = plan(connection)
    ensure_image(wanted, connection=connection, report=print)
    return wanted.tag


@pytest.fixture(scope="module")
def odd_image(connection: Connection, image: str) -> Iterator[str]:
    """On a base where the uid is taken and setuid files lie about, with setup steps of every kind."""
    base = f"aci-taken:{uuid.uuid4().hex[:8]}"
    dockerfile = f"""FROM {image}
USER 0:0
RUN useradd -u 1002 -m ubuntu && cp /bin/true /usr/local/bin/root-me && chmod 6755 /usr/local/bin/root-me
RUN mkdir /srv/shared && chmod 2775 /srv/shared
RUN python3 -c 'import os; os.setxattr("/usr/local/bin/root-me", "security.capability", bytes.fromhex("{CAPABILITY}"))'
"""
    docker("build", "-q", "-t", base, "-", input=dockerfile)
    steps = [
        SetupStep(ODD),
        SetupStep("id -u >/home/agent/uid; cp /bin/true /home/agent/mine; chmod 4755 /home/agent/mine"),
        SetupStep("cat /proc/net/dev >/home/agent/net"),
        SetupStep("id -u >/root-step; cat /proc/net/dev >/root-net", root=True),
        SetupStep(
            'cat /proc/net/dev >/home/agent/net-on; echo "$SSL_CERT_FILE" >/home/agent/ca; test -s "$SSL_CERT_FILE"',
            network=True,
        ),
    ]
    authority = b"-----BEGIN CERTIFICATE-----\n" + MARKER + b"\n-----END CERTIFICATE-----\n"
    wanted = plan(connection, base, uid=1002, gid=1002, setup=steps, ca=authority)
    try:
        ensure_image(wanted, connection=connection, report=print)
        yield wanted.tag
    finally:
        docker("image", "rm", "-f", wanted.tag, base, check=False)


def look(image: str, script: str, user: str = "0:0") -> str:
    """What a shell sees in the image."""
    once = ("run", "--rm", "--network", "none", "--name", f"aci-look-{uuid.uuid4().hex[:8]}")
    return docker(*once, "--user", user, "--entrypoint", "/bin/sh", image, "-c", script).stdout


def test_an_image_that_is_there_is_not_built_again(connection: Connection, image: str) -> None:
    said: list[str] = []
    assert ensure_image(plan(connection), connection=connection, report=said.append) == image_id(
        image, connection=connection
    )
    assert said == []


@pytest.mark.parametrize("which", ["image", "odd_image"])
def test_nothing_in_the_image_raises_whoever_starts_it(which: str, request: pytest.FixtureRequest) -> None:
    name = request.getfixturevalue(which)
    assert look(name, "find / -xdev -perm /6000") == ""
    assert look(name, f"python3 -c '{PRIVILEGED}'") == "[]\n"


@pytest.mark.parametrize(("which", "uid"), [("image", 1001), ("odd_image", 1002)])
def test_the_agent_is_who_it_should_be_and_owns_its_directories(
    which: str, uid: int, request: pytest.FixtureRequest
) -> None:
    name = request.getfixturevalue(which)
    config = json.loads(docker("image", "inspect", name).stdout)[0]["Config"]
    assert config["User"] == f"{uid}:{uid}"
    assert look(name, "id -un; id -u; echo ~; pwd", user=f"{uid}:{uid}").split() == [
        "agent",
        str(uid),
        "/home/agent",
        "/workspace",
    ]
    owned = look(name, "stat -c '%u:%g' /workspace /home/agent /memory /var/lib/agent-container/run").split()
    assert owned == [f"{uid}:{uid}"] * 4
    assert look(name, f"find /home/agent ! -user {uid}") == ""
    assert look(name, "readlink /etc/ssl/certs/ca-certificates.crt") == "/etc/agent-container/ca/bundle.pem\n"


def test_the_tools_are_there(image: str) -> None:
    assert look(image, "git --version && curl --version && rg --version && ssh -V && ps --version && python3 --version")


def test_setup_steps_run_as_asked(odd_image: str) -> None:
    assert look(odd_image, "cat /home/agent/odd") == "2 tick <<EOF \\ 'q' \U0001f600"
    assert look(odd_image, "cat /home/agent/here") == "USER root\n"
    assert look(odd_image, "cat /home/agent/uid /root-step").split() == ["64110", "0"]
    assert "eth0" not in look(odd_image, "cat /home/agent/net /root-net")
    assert "eth0" in look(odd_image, "cat /home/agent/net-on")
    assert look(odd_image, "cat /home/agent/ca") == "/run/secrets/ca.pem\n"


def test_the_hosts_authority_is_in_no_layer(odd_image: str, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    docker("save", "-o", str(archive), odd_image)
    assert MARKER not in archive.read_bytes()
    assert look(odd_image, "ls -d /run/secrets /agent-build /run/build 2>/dev/null || true") == ""


def test_a_failed_build_shows_the_step_its_output_and_a_line_that_can_be_pasted(connection: Connection) -> None:
    wanted = plan(connection, setup=[SetupStep("echo this went wrong; exit 3")])
    with pytest.raises(EngineError) as failed:
        ensure_image(wanted, connection=connection, report=print)
    assert "setup" in failed.value.message
    assert "this went wrong" in failed.value.details[1:]
    line = failed.value.details[0]
    assert line.startswith("DOCKER_BUILDKIT=1 docker build")
    words = shlex.split(line)
    assert Path(words[words.index("--file") + 1]).is_file()
    assert Path(words[-1], "steps", "net", "apt").is_file()


def test_a_base_that_cannot_be_had_says_what_to_type(connection: Connection) -> None:
    with pytest.raises(EngineError) as failed:
        ensure_base("registry.invalid/no/such:1", connection=connection, report=print)
    assert "docker load" in (failed.value.hint or "")


class Sandbox:
    """The agent's container as the tool makes it, without a network."""

    def __init__(self, image: str, *options: str) -> None:
        self.name = f"aci-{uuid.uuid4().hex[:8]}"
        hardened = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")
        tmpfs = ("--tmpfs", "/run:uid=1001,gid=1001,mode=0755", "--tmpfs", "/tmp:uid=1001,mode=1777,exec")
        volumes = ("-v", f"{self.name}-run:/var/lib/agent-container/run", "-v", f"{self.name}-work:/workspace")
        where = () if any("agent-container/run" in option for option in options) else volumes
        docker("run", "-d", "--name", self.name, *hardened, *tmpfs, *where, *options, image)
        self.turn = 0

    def requests(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """One conversation through the engine's exec channel."""
        lines = "".join(json.dumps({"v": 1, **request}) + "\n" for request in requests)
        done = docker("exec", "-i", self.name, *RUNNER, "connect", input=lines, timeout=300)
        return [json.loads(line) for line in done.stdout.split("\n") if line]

    def run(self, *argv: str, **fields: Any) -> list[dict[str, Any]]:
        """A turn's frames."""
        self.turn += 1
        name = f"t{self.turn}"
        answers = self.requests(
            {"op": "turn.start", "turn": name, "argv": argv, "grace_s": 1, **fields},
            {"op": "turn.stream", "turn": name},
        )
        assert answers[0]["ok"], answers[0]
        return answers[1:]

    def processes(self) -> list[str]:
        rows = docker("top", self.name, "-o", "pid,args").stdout.splitlines()[1:]
        return sorted(row.split(maxsplit=1)[1] for row in rows)

    def remove(self) -> None:
        docker("rm", "-f", self.name, check=False)
        docker("volume", "rm", "-f", f"{self.name}-run", f"{self.name}-work", check=False)


def text(frames: list[dict[str, Any]], channel: str = "stdout") -> str:
    pieces = [frame for frame in frames if frame["ch"] == channel]
    data = b"".join(piece["text"].encode() if "text" in piece else base64.b64decode(piece["b64"]) for piece in pieces)
    return data.decode("utf-8", "replace")


@pytest.fixture
def sandbox(image: str) -> Iterator[Sandbox]:
    made = Sandbox(image, "--memory", "256m", "--memory-swap", "256m", "--pids-limit", "200")
    yield made
    made.remove()


def test_a_turn_end_to_end_through_the_exec_channel(sandbox: Sandbox) -> None:
    frames = sandbox.run("/bin/sh", "-c", "id -u; pwd; touch x; echo err >&2; exit 4")
    assert text(frames) == "1001\n/workspace\n"
    assert text(frames, "stderr") == "err\n"
    assert (frames[-1]["code"], frames[-1]["reason"]) == (4, "exit")
    hello = sandbox.requests({"op": "hello"})[0]
    assert (hello["pid"], hello["uid"], hello["volume_writable"]) == (1, 1001, True)


def test_the_runner_is_out_of_the_agents_reach(sandbox: Sandbox) -> None:
    script = "for f in environ mem maps fd/0; do head -c1 /proc/1/$f 2>&1; done; kill -KILL 1; kill -STOP 1; echo on"
    said = text(sandbox.run("/bin/sh", "-c", script))
    assert said.count("ermission denied") == 4
    assert "on\n" in said
    assert sandbox.requests({"op": "hello"})[0]["ok"]


@pytest.mark.parametrize("task", ["stubborn child", "fork storm"])
def test_no_process_outlives_its_turn(sandbox: Sandbox, task: str) -> None:
    frames = sandbox.run("/usr/bin/python3", "/opt/agent-container/demo", "--", task)
    assert frames[-1]["reason"] == "exit"
    assert frames[-1]["left_killed"] >= 1
    assert sandbox.processes() == [" ".join((*RUNNER, "serve"))]


def test_the_hosts_own_exec_is_not_the_turns_to_kill(sandbox: Sandbox) -> None:
    docker("exec", "-d", sandbox.name, "/bin/sleep", "1234")
    sandbox.run("/bin/sh", "-c", "setsid sleep 4321 & sleep 0.2")
    assert sandbox.processes() == ["/bin/sleep 1234", " ".join((*RUNNER, "serve"))]


def test_memory_that_runs_out_takes_the_agent_and_not_the_runner(sandbox: Sandbox) -> None:
    frames = sandbox.run("/usr/bin/python3", "-c", "x = []\nwhile True: x.append(bytearray(8 << 20))")
    assert frames[-1]["signal"] == "SIGKILL"
    assert text(sandbox.run("/bin/echo", "still here")) == "still here\n"


def test_a_run_volume_that_fills_ends_the_turn_with_a_word_and_the_next_is_refused(image: str) -> None:
    full = Sandbox(image, "--tmpfs", "/var/lib/agent-container/run:size=2m,uid=1001,gid=1001,mode=0700")
    try:
        frames = full.run("/bin/sh", "-c", "yes | head -c 20000000; sleep 600", cwd="/tmp")
        assert frames[-1]["reason"] == "volume"
        assert "No space left on device" in frames[-1]["detail"]
        assert "unspooled" not in frames[-1]
        assert any(frame["ch"] == "truncated" for frame in frames)
        docker("exec", full.name, "/bin/sh", "-c", "cat /dev/zero >/var/lib/agent-container/run/junk", check=False)
        refused = full.requests({"op": "turn.start", "turn": "next", "argv": ["/bin/true"], "cwd": "/tmp"})[0]
        assert refused["error"]["code"] == "volume"
        assert "/var/lib/agent-container/run" in refused["error"]["message"]
    finally:
        full.remove()


def test_the_engines_stop_leaves_an_exit_frame_and_a_kill_leaves_a_lost_turn(sandbox: Sandbox) -> None:
    stubborn = ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 600; done"]
    sandbox.requests({"op": "turn.start", "turn": "a", "argv": stubborn})
    docker("stop", "-t", "10", sandbox.name)
    assert json.loads(docker("inspect", "-f", "{{json .State}}", sandbox.name).stdout)["ExitCode"] == 0
    docker("start", sandbox.name)
    assert sandbox.requests({"op": "turn.stream", "turn": "a"})[-1]["reason"] == "stopped"
    sandbox.requests({"op": "turn.start", "turn": "b", "argv": stubborn})
    docker("kill", sandbox.name)
    docker("start", sandbox.name)
    frames = sandbox.requests({"op": "turn.stream", "turn": "b"})
    assert frames[-1]["reason"] == "lost"
    assert text(sandbox.run("/bin/echo", "next")) == "next\n"


def test_a_killed_client_leaves_the_turn_alone(sandbox: Sandbox) -> None:
    client = subprocess.Popen(
        ["docker", "exec", "-i", sandbox.name, *RUNNER, "connect"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdin is not None
    assert client.stdout is not None
    start = {
        "op": "turn.start",
        "turn": "a",
        "argv": ["/bin/sh", "-c", "for i in 1 2 3 4; do echo $i; sleep 0.5; done"],
    }
    client.stdin.write(json.dumps(start).encode() + b"\n" + b'{"op":"turn.stream","turn":"a"}\n')
    client.stdin.flush()
    assert json.loads(client.stdout.readline())["ok"]
    assert json.loads(client.stdout.readline())["text"] == "1\n"
    client.kill()
    client.wait()
    frames = sandbox.requests({"op": "turn.stream", "turn": "a", "from": 2})
    assert text(frames) == "2\n3\n4\n"


def test_a_terminal_is_kept_joined_left_and_rejoined(sandbox: Sandbox) -> None:
    shell = ["/bin/sh", "-c", "echo up; while read line; do echo got:$line; done"]
    assert sandbox.requests({"op": "pty.start", "name": "agent", "argv": shell})[0]["ok"]
    for keys, seen in ((b"one\r", b"got:one"), (b"two\r", b"got:one")):
        master, slave = pty.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        # The docker command has detach keys of its own, the same as ours by default.
        command = ["docker", "exec", "-it", "--detach-keys", "ctrl-@", sandbox.name, *RUNNER, "attach", "agent"]
        client = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        before = read_until(master, b"up")
        os.write(master, keys)
        if seen not in before:
            read_until(master, seen)
        os.write(master, b"\x10\x11")
        read_until(master, b"detached")
        assert client.wait(timeout=60) == 0
        os.close(master)
        os.close(slave)
    assert sandbox.requests({"op": "pty.list"})[0]["terminals"][0]["live"]


def read_until(master: int, wanted: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + 60
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([master], [], [], 1)[0]:
            seen += os.read(master, 65536)
    return seen


def test_the_demo_agent_works_and_finds_neither_a_way_out_nor_a_secret(sandbox: Sandbox) -> None:
    example = Path(__file__).parents[2] / "examples" / "demo"
    for name in ("slugs.py", "test_slugs.py"):
        copy = ("exec", "-i", sandbox.name, "/bin/sh", "-c", f"cat >/workspace/{name}")
        docker(*copy, input=(example / name).read_text())
    docker("exec", sandbox.name, "git", "-C", "/workspace", "init", "-q")
    frames = sandbox.run("/usr/bin/python3", "/opt/agent-container/demo", "--", "make the tests pass")
    events = [json.loads(line) for line in text(frames).splitlines()]
    assert events[-1]["type"] == "result"
    assert events[-1]["ok"] is True, events
    results = {event["name"]: event for event in events if event["type"] == "tool_result"}
    assert results["fetch"]["ok"] is False
    assert results["connect"]["ok"] is False
    assert results["search"]["output"] == "nothing"
    assert docker("exec", sandbox.name, "git", "-C", "/workspace", "log", "--oneline").stdout.count("\n") == 1
