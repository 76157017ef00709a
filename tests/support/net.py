"""A test network with the rest of the internet behind its gateway, a real sidecar in it, and an agent's twin in the
sidecar's namespace: what the boundary's tests run on.

The network is not `internal`, since the engine's bridge filter then drops every frame that is not for the subnet
itself, and a leak would pass unseen. Its default gateway is the `World` container instead, and nothing on it is
translated, so a broken rule leaks into the world and nowhere else. Objects carry the label by which leftovers of a
killed run are found.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from agent_container.engine.connection import connect
from agent_container.image_plan import DEFAULT_BASE, plan_sidecar_image
from agent_container.images import ensure_base, ensure_image, find_private_ca, read_sidecar_files
from agent_container.render.sidecar_files import SidecarConfig, render_sidecar_files
from agent_container.stack import Container, Limits, Tmpfs
from agent_container.stack_sidecar import sidecar_container
from agent_egress.policy import Policy

WORLD = Path(__file__).resolve().parents[1] / "doubles" / "world.py"
LABEL = f"agent-container.test={os.getpid()}"
PYTHON = "/usr/bin/python3"
RESOLVER = "198.51.100.53"
RESOLVER6 = "2001:db8:5::53"
AGENT_UID = 1001
SESSION = "20261129-153359-7f3a2c"
KEY = bytes(range(32))
CA_TARGET = "/etc/agent-container/ca"
Answer = dict[str, Any]


def docker(*arguments: str, stdin: str | None = None, check: bool = True, timeout_s: float = 120) -> str:
    """The output of one docker command."""
    done = subprocess.run(
        ["docker", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if check and done.returncode != 0:
        raise AssertionError(f"docker {' '.join(arguments[:12])}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@functools.cache
def sidecar_image() -> str:
    """The sidecar's image as the product builds it, made when it is missing and kept."""
    with tempfile.TemporaryDirectory(prefix="acs-") as state:
        connection = connect(os.environ, state_dir=Path(state))
        base_id = ensure_base(DEFAULT_BASE, connection=connection, report=print)
        plan = plan_sidecar_image(sidecar_files=read_sidecar_files(), base_id=base_id, ca=find_private_ca(os.environ))
        ensure_image(plan, connection=connection, report=print)
    return plan.tag


HARDENING = {
    "read-only": ("--read-only",),
    "cap-drop": ("--cap-drop", "ALL"),
    "core": ("--ulimit", "core=0"),
    "ipc": ("--ipc", "private"),
    "no-new-privileges": ("--security-opt", "no-new-privileges:true"),
}
"""What every container gets, as the Compose renderer writes it; `pids` and `noexec` can be left out by name as well,
and without `seccomp` the engine's own filter of system calls."""


def run_arguments(container: Container, *, volumes: Mapping[str, str], without: Collection[str] = ()) -> list[str]:
    """`docker run` options of a Container, hardened as the Compose renderer hardens every service, or nearly so."""
    found = ["--user", container.user, "--workdir", container.working_dir]
    for name, words in HARDENING.items():
        found += () if name in without else words
    if "core" in without:
        found += ["--ulimit", "core=-1"]
    if "seccomp" in without:
        found += ["--security-opt", "seccomp=unconfined"]
    if "pids" not in without:
        found += ["--pids-limit", str(container.limits.pids)]
    if container.limits.memory_bytes is not None:
        found += ["--memory", str(container.limits.memory_bytes), "--memory-swap", str(container.limits.memory_bytes)]
    for capability in container.cap_add:
        found += ["--cap-add", capability]
    for key, value in container.sysctls:
        found += ["--sysctl", f"{key}={value}"]
    flags = "exec,nosuid,nodev" if "noexec" in without else "noexec,nosuid,nodev"
    for tmpfs in container.tmpfs:
        options = f"uid={tmpfs.uid},gid={tmpfs.uid},mode={tmpfs.mode:04o},size={tmpfs.size_bytes},{flags}"
        found += ["--tmpfs", f"{tmpfs.target}:{options}"]
    for mount in container.mounts:
        source = volumes.get(mount.source, mount.source)
        found += ["--volume", f"{source}:{mount.target}{':ro' if mount.read_only else ''}"]
    for key, value in container.environment:
        found += ["--env", f"{key}={value}"]
    return found


@dataclass
class World:
    """Everything outside: see tests/doubles/world.py."""

    name: str
    network: str
    subnet: IPv4Network
    prefix6: str
    ca_pem: str = ""

    @classmethod
    @contextlib.contextmanager
    def up(cls, *, zone: Mapping[str, object], names: Sequence[str]) -> Iterator[World]:
        """A network and its outside; `zone` maps names to {"A": [...], "AAAA": [...], "flip": [...]}."""
        world = cls._network()
        gateways = [str(world.subnet[2]), f"{world.prefix6}::2"]
        settings = json.dumps({"zone": zone, "names": list(names), "gateways": gateways})
        try:
            docker(
                "run", "-d", "--name", world.name, "--label", LABEL, "--network", world.network,
                "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW", "--volume", f"{WORLD}:/world.py:ro",
                "--entrypoint", PYTHON, sidecar_image(), "/world.py", "serve", settings,
            )  # fmt: skip
            world.ca_pem = str(world._first_answer())
            yield world
        finally:
            docker("rm", "-f", "-v", world.name, check=False)
            docker("network", "rm", world.network, check=False)

    @classmethod
    def _network(cls) -> World:
        """The first free /28 of half a documentation range; build machines may use the other half."""
        token = secrets.token_hex(4)
        for subnet in IPv4Network("203.0.113.128/25").subnets(new_prefix=28):
            prefix6 = f"2001:db8:{secrets.randbelow(0x8000) + 0x1000:x}"
            done = subprocess.run(
                [
                    "docker", "network", "create", "--ipv6", "--label", LABEL,
                    "--subnet", str(subnet), "--gateway", str(subnet[1]),
                    "--aux-address", f"DefaultGatewayIPv4={subnet[2]}",
                    "--subnet", f"{prefix6}::/64", "--gateway", f"{prefix6}::1",
                    "--aux-address", f"DefaultGatewayIPv6={prefix6}::2",
                    "--opt", "com.docker.network.bridge.enable_ip_masquerade=false",
                    f"acs-net-{token}",
                ],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                return cls(f"acs-world-{token}", f"acs-net-{token}", subnet, prefix6)
        raise AssertionError(f"no free documentation range for a test network: {done.stderr}")

    def _first_answer(self) -> object:
        for _ in range(600):
            with contextlib.suppress(AssertionError):
                return self.ask({"op": "ca"})
            time.sleep(0.1)
        raise AssertionError(docker("logs", self.name, check=False))

    def ask(self, message: Mapping[str, object]) -> Any:
        """One operation of the running world."""
        return json.loads(docker("exec", self.name, PYTHON, "/world.py", "ask", json.dumps(message)))

    def log(self) -> Log:
        """What arrived since the last `clear`."""
        raw = self.ask({"op": "log"})
        return Log(raw["queries"], raw["requests"], [(p[0], p[1], p[2]) for p in raw["packets"]])

    def clear(self) -> None:
        """Forgets what arrived."""
        self.ask({"op": "clear"})


@dataclass(frozen=True)
class Log:
    """What arrived outside."""

    queries: list[Answer]
    requests: list[Answer]
    packets: list[tuple[str, str, int]]
    """Destination, protocol, port."""

    def asked(self) -> set[str]:
        """Names that were asked, as they were spelled."""
        return {query["name"] for query in self.queries}

    def having(self, text: str) -> list[Answer]:
        """Requests in which a text stands."""
        return [request for request in self.requests if text in json.dumps(request)]


@dataclass
class Sidecar:
    """A running sidecar and its namespace."""

    name: str
    volumes: dict[str, str]
    files: Path
    config: SidecarConfig
    agents: list[str] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def up(
        cls,
        world: World,
        policy: Policy,
        *,
        patch: Callable[[dict[str, str]], None] | None = None,
        change: Callable[[Container], Container] = lambda container: container,
        **settings: Any,
    ) -> Iterator[Sidecar]:
        """Created and started, not yet opened. `patch` may alter the rendered files, `change` the container."""
        config = SidecarConfig(
            session=SESSION,
            project="0123456789ab",
            agent_uid=AGENT_UID,
            policy=policy,
            resolvers=(RESOLVER,),
            upstream_ca=world.ca_pem,
        )
        config = replace(config, **settings)
        files = dict(render_sidecar_files(config))
        if patch is not None:
            patch(files)
        token = secrets.token_hex(4)
        with tempfile.TemporaryDirectory(prefix="acs-") as directory:
            for name, text in files.items():
                Path(directory, name).write_text(text)
            Path(directory).chmod(0o755)
            keys = ("receipts", "ca", *(("git",) if config.git else ()))
            sidecar = cls(f"acs-egress-{token}", {k: f"acs-{k}-{token}" for k in keys}, Path(directory), config)
            container = change(sidecar_container(image=sidecar_image(), git=config.git))
            try:
                for volume in sidecar.volumes.values():
                    docker("volume", "create", "--label", LABEL, volume)
                docker(
                    "run", "-d", "--name", sidecar.name, "--label", LABEL, "--network", world.network,
                    "--volume", f"{directory}:/etc/agent-egress:ro",
                    *run_arguments(container, volumes=sidecar.volumes), container.image,
                )  # fmt: skip
                yield sidecar
            finally:
                docker("rm", "-f", "-v", *sidecar.agents, sidecar.name, check=False)
                docker("volume", "rm", "-f", *sidecar.volumes.values(), check=False)

    def control(self, op: str, **fields: object) -> Answer:
        """One request of the control protocol, over the same way as the host's."""
        line = json.dumps({"v": 1, "op": op, **fields})
        return json.loads(docker("exec", "-i", self.name, PYTHON, "-I", "-m", "agent_egress.ctl", stdin=line + "\n"))

    def open(self, *, key: bytes = KEY, wait_s: float = 60) -> Answer:
        """session.open."""
        return self.control("session.open", session=self.config.session, chain_key=key.hex(), wait_s=wait_s)

    def must_open(self) -> Answer:
        """session.open, which has to work."""
        answer = self.open()
        assert answer["ok"], (answer, self.logs())
        return answer

    def execute(self, code: str, *, user: str = "0:0") -> str:
        """Python run inside the sidecar's container."""
        return docker("exec", "-i", "--user", user, self.name, PYTHON, "-", stdin=code)

    def logs(self) -> str:
        """What the container printed."""
        done = subprocess.run(["docker", "logs", self.name], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def healthy(self) -> bool:
        """What the engine's probe would find."""
        done = subprocess.run(
            ["docker", "exec", self.name, "/usr/bin/cat", "/run/egress/healthy"],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def receipts(self) -> list[bytes]:
        """The chain as it stands in the volume."""
        text = docker(
            "run", "--rm", "--network", "none", "--volume", f"{self.volumes['receipts']}:/r:ro",
            "--user", "64105:64105", "--entrypoint", PYTHON, sidecar_image(),
            "-c", "print(open('/r/receipts.jsonl').read(), end='')",
        )  # fmt: skip
        return [line.encode() for line in text.splitlines()]

    def agent(
        self,
        *,
        change: Callable[[Container], Container] = lambda container: container,
        without: Collection[str] = (),
    ) -> Agent:
        """A twin of the agent's container in this namespace; it has Python, openssl and nft to try things with. Without
        `pid` it shares the sidecar's process namespace too."""
        container = change(agent_twin())
        shared = ("--pid", f"container:{self.name}") if "pid" in without else ()
        name = f"acs-agent-{secrets.token_hex(4)}"
        self.agents.insert(0, name)
        docker(
            "run", "-d", "--name", name, "--label", LABEL, "--network", f"container:{self.name}",
            *shared, *run_arguments(container, volumes=self.volumes, without=without),
            "--entrypoint", PYTHON, container.image, "-c", "import time; time.sleep(100000)",
        )  # fmt: skip
        return Agent(name)


def agent_twin() -> Container:
    """The agent's container, with the sidecar's programs in place of an agent's."""
    ca = [mount for mount in sidecar_container(image="").mounts if mount.source == "ca"]
    return Container(
        service="agent",
        image=sidecar_image(),
        user=f"{AGENT_UID}:{AGENT_UID}",
        mounts=tuple(replace(mount, target=CA_TARGET, read_only=True) for mount in ca),
        tmpfs=(Tmpfs(target="/tmp", uid=AGENT_UID, mode=0o1777),),
        limits=Limits(pids=256),
    )


@dataclass(frozen=True)
class Agent:
    """A container in the sidecar's namespace."""

    name: str

    def run(self, code: str, *arguments: str) -> str:
        """Python code's output; on a failure its traceback is in the assertion."""
        return docker("exec", "-i", self.name, PYTHON, "-", *arguments, stdin=code)
