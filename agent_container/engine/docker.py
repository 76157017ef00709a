"""The Docker form of `protocol.Engine`: Compose makes things from rendered files, the API starts, reads, removes.

Nothing else in the program imports `docker` or knows that Compose exists.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agent_container.engine.connection import Connection
from agent_container.engine.frames import STDOUT, HijackRefused, SocketChannel, hijack, read_frames
from agent_container.engine.image_list import list_images, remove_image, used_images
from agent_container.engine.labelled import die_with_parent, find_labelled, removal_steps
from agent_container.engine.protocol import ContainerState, Created, ExecResult, Labelled, Once
from agent_container.engine.twin import differences, twin_config
from agent_container.errors import EngineError
from agent_container.image_prune import LocalImage
from agent_container.stack import LABEL, Mount, Stack

if TYPE_CHECKING:
    from docker import APIClient

COMPOSE_FILE = "compose.yaml"
API_VERSION = "1.43"  # Docker 24, the oldest that takes non-recursive binds
CREATE_TIMEOUT_S = 180
API_TIMEOUT_S = 60
MAX_CAPTURE_BYTES = 16 * 1024 * 1024
REMOVERS = 4


class DockerEngine:
    """Effects on the Docker engine behind one checked socket."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @cached_property
    def _api(self) -> APIClient:
        import docker

        with _engine_errors("connect to the engine"):
            return docker.APIClient(base_url=self.connection.url, timeout=API_TIMEOUT_S, version=API_VERSION)

    @property
    def _call(self) -> Any:
        """The same client, for the calls that its type stubs leave out."""
        return self._api

    def ping(self) -> str:
        """The engine's version."""
        with _engine_errors("ask the engine for its version"):
            return str(self._api.version()["Version"])

    def image_id(self, tag: str) -> str | None:
        """The id behind a local tag."""
        import docker.errors

        try:
            with _engine_errors(f"inspect image {tag}"):
                return str(self._call.inspect_image(tag)["Id"])
        except docker.errors.NotFound:
            return None

    def images_of(self, repository: str) -> list[LocalImage]:
        """Every tag of a repository."""
        with _engine_errors(f"list images of {repository}"):
            return list_images(self._api, repository)

    def images_in_use(self) -> set[str]:
        """Ids of images that containers were made from, running or not."""
        with _engine_errors("list containers"):
            return used_images(self._api)

    def remove_image(self, tag: str) -> bool:
        """Takes a tag away, and the image with its last one. False where something uses it after all."""
        with _engine_errors(f"remove image {tag}"):
            return remove_image(self._api, tag)

    def create(self, stack: Stack, *, directory: Path) -> Created:
        """`docker compose create` on the rendered files: explicit file, project and directory, no `.env`."""
        argv = self.compose_argv(stack.compose_project, directory=directory)
        self._cli([*argv, "create", "--no-build", "--pull", "never", "--force-recreate"], timeout_s=CREATE_TIMEOUT_S)
        found = {
            dict(state.labels).get(f"{LABEL}.role"): state
            for state in self.find({f"{LABEL}.session": stack.session})
            if dict(state.labels).get("com.docker.compose.project") == stack.compose_project
        }
        missing = [service for service in ("egress", "agent") if service not in found]
        if missing:
            raise EngineError(f"compose made no container for {', '.join(missing)}", details=[shlex.join(argv)])
        return Created(egress=found["egress"].id, agent=found["agent"].id)

    def compose_argv(self, project: str, *, directory: Path) -> list[str]:
        """The compose command up to its verb; `render` shows it so that a user can paste it."""
        return [
            *("docker", "compose", "--env-file", "/dev/null", "--progress", "quiet"),
            *("--project-directory", str(directory), "-p", project, "-f", str(directory / COMPOSE_FILE)),
        ]

    def start(self, container: str) -> None:
        """Starts one container that was created."""
        with _engine_errors(f"start container {container[:12]}"):
            self._api.start(container)

    def inspect(self, container: str) -> ContainerState | None:
        """The container's state; None when it does not exist."""
        import docker.errors

        try:
            with _engine_errors(f"inspect container {container[:12]}"):
                return _state(self._api.inspect_container(container))
        except docker.errors.NotFound:
            return None

    def find(self, labels: Mapping[str, str]) -> list[ContainerState]:
        """Containers that carry all these labels, running or not."""
        wanted = [f"{key}={value}" if value else key for key, value in labels.items()]
        with _engine_errors("list containers"):
            rows = self._api.containers(all=True, filters={"label": wanted})
        states = (self.inspect(str(row["Id"])) for row in rows)
        return [state for state in states if state is not None]

    def exec(
        self, container: str, argv: Sequence[str], *, stdin: bytes = b"", user: str = "", timeout_s: float = 60
    ) -> ExecResult:
        """Runs one program in a running container; secrets travel on stdin, never in argv."""
        with _engine_errors(f"run {argv[0]} in container {container[:12]}"):
            exec_id, sock, start = self._exec_socket(container, argv, user=user)
            stdout, stderr = bytearray(), bytearray()
            try:
                sock.settimeout(timeout_s)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sock.sendall(stdin)
                    sock.shutdown(socket.SHUT_WR)
                for stream, data in read_frames(sock, deadline=time.monotonic() + timeout_s, start=start):
                    target = stdout if stream == STDOUT else stderr
                    if len(target) < MAX_CAPTURE_BYTES:
                        target += data
            except TimeoutError:
                raise EngineError(f"{argv[0]} in {container[:12]} gave no answer in {timeout_s:g} s") from None
            finally:
                sock.close()
            code = self._api.exec_inspect(exec_id)["ExitCode"]
        return ExecResult(exit_code=-1 if code is None else int(code), stdout=bytes(stdout), stderr=bytes(stderr))

    def open_channel(self, container: str, argv: Sequence[str], *, user: str = "") -> SocketChannel:
        """Runs one program in a running container and keeps its stdin and stdout open."""
        with _engine_errors(f"run {argv[0]} in container {container[:12]}"):
            _, sock, start = self._exec_socket(container, argv, user=user)
            return SocketChannel(sock, start=start)

    def _exec_socket(self, container: str, argv: Sequence[str], *, user: str) -> tuple[str, socket.socket, bytes]:
        made = self._api.exec_create(container, list(argv), stdin=True, stdout=True, stderr=True, user=user)
        sock, start = self._hijack(f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})
        return str(made["Id"]), sock, start

    def _hijack(self, target: str, body: dict[str, object]) -> tuple[socket.socket, bytes]:
        return hijack(self.connection.socket, f"/v{API_VERSION}{target}", body, timeout_s=API_TIMEOUT_S)

    def read_archive(self, container: str, path: str) -> Iterator[bytes]:
        """The engine reads volumes of stopped containers too, and packs links as links, devices as devices."""
        import docker.errors

        try:
            with _engine_errors(f"read {path} of container {container[:12]}"):
                stream, _ = self._api.get_archive(container, path, chunk_size=256 * 1024)
                yield from stream
        except docker.errors.NotFound:
            return

    def run_once(self, job: Once) -> ExecResult:
        """Runs a throw-away container to its end and removes it, whatever happens."""
        with _engine_errors(f"run {job.argv[0]} in a throw-away container"):
            container = str(self._call.create_container_from_config(_once_config(job))["Id"])
            try:
                return self._attach_and_wait(container, job)
            finally:
                with contextlib.suppress(EngineError):
                    self._remove(container)

    def run_twin(self, of: str, job: Once) -> ExecResult:
        """Runs `job`'s program in a twin of a container, and removes it; the job's user and mounts do not count."""
        with _engine_errors(f"run {job.argv[0]} in a twin of container {of[:12]}"):
            raw: Any = self._api.inspect_container(of)
            config = twin_config(raw, image=job.image, argv=job.argv, labels=job.labels)
            container = str(self._call.create_container_from_config(config)["Id"])
            try:
                found = differences(raw, cast("Any", self._api.inspect_container(container)))
                if found:
                    raise EngineError("the engine made no twin of the agent's container", details=found)
                return self._attach_and_wait(container, job)
            finally:
                with contextlib.suppress(EngineError):
                    self._remove(container)

    def joined(self, container: str) -> list[str]:
        """Names of the containers, running or not, that live in this one's network namespace."""
        with _engine_errors("list containers"):
            rows: Any = self._api.containers(all=True)
        mode = f"container:{container}"
        return sorted(
            str((row.get("Names") or [row["Id"]])[0]).lstrip("/")
            for row in rows
            if (row.get("HostConfig") or {}).get("NetworkMode") == mode
        )

    def _attach_and_wait(self, container: str, job: Once) -> ExecResult:
        sock, start = self._hijack(f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1", {})
        stdout, stderr = bytearray(), bytearray()
        written = 0
        deadline = time.monotonic() + job.timeout_s
        with contextlib.ExitStack() as stack:
            stack.callback(sock.close)
            sink = stack.enter_context(job.stdout_path.open("wb")) if job.stdout_path else None
            self._api.start(container)
            sock.settimeout(job.timeout_s)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(job.stdin)
                sock.shutdown(socket.SHUT_WR)
            try:
                for channel, data in read_frames(sock, deadline=deadline, start=start):
                    if channel != STDOUT:
                        stderr = (stderr + data)[-65536:]
                        continue
                    written += len(data)
                    if written > job.max_stdout_bytes:
                        raise EngineError(f"{job.argv[0]} printed more than {job.max_stdout_bytes} bytes")
                    if sink is not None:
                        sink.write(data)
                    else:
                        stdout += data
            except TimeoutError:
                raise EngineError(f"{job.argv[0]} did not end in {job.timeout_s:g} s") from None
        code = int(self._api.wait(container, timeout=API_TIMEOUT_S)["StatusCode"])
        return ExecResult(exit_code=code, stdout=bytes(stdout), stderr=bytes(stderr))

    def stop(self, container: str, *, grace_s: int) -> None:
        """Stops a container; harmless when it is gone or stopped."""
        import docker.errors

        with contextlib.suppress(docker.errors.NotFound), _engine_errors(f"stop container {container[:12]}"):
            self._api.stop(container, timeout=grace_s)

    def remove_session(self, session: str, *, volumes: Sequence[str]) -> None:
        """As `remove_labelled`; of the volumes those that are named, beside the networks."""
        found = self.labelled(session)
        self.remove_labelled([row for row in found if row.kind == "container"])
        with ThreadPoolExecutor(max_workers=1) as pool:
            emptied = pool.submit(self.remove_volumes, volumes)
            self.remove_labelled([row for row in found if row.kind == "network"])
            emptied.result()

    def labelled(self, session: str | None = None) -> list[Labelled]:
        """Everything that carries a session's label, or that of one session."""
        with _engine_errors("list what carries our labels"):
            return find_labelled(self._api, session)

    def remove_labelled(self, objects: Sequence[Labelled]) -> None:
        """In an order that works; what does not depend on each other at once: most of it is waiting for the kernel."""
        with ThreadPoolExecutor(max_workers=REMOVERS) as pool:
            for step in removal_steps(objects):
                list(pool.map(self._remove_object, step))  # the list is what raises

    def _remove_object(self, found: Labelled) -> None:
        import docker.errors

        with contextlib.suppress(docker.errors.NotFound), _engine_errors(f"remove {found}"):
            if found.kind == "container":
                self._remove(found.id)
            elif found.kind == "network":
                self._api.remove_network(found.id)
            else:
                self._api.remove_volume(found.id)

    def volume_names(self, part: str) -> list[str]:
        """Names of volumes that contain `part`."""
        with _engine_errors("list volumes"):
            answer = self._api.volumes(filters={"name": part})
        return sorted(str(volume["Name"]) for volume in answer["Volumes"] or [])

    def volume_sessions(self, names: Sequence[str]) -> dict[str, str]:
        """Those of the names that are volumes, each with the session that made it."""
        import docker.errors

        found = {}
        for name in names:
            with contextlib.suppress(docker.errors.NotFound), _engine_errors(f"inspect volume {name}"):
                labels = self._api.inspect_volume(name).get("Labels") or {}
                found[name] = str(labels.get(f"{LABEL}.session", ""))
        return found

    def remove_volumes(self, names: Sequence[str]) -> list[str]:
        """Removes volumes; the names of those that were there."""
        import docker.errors

        removed = []
        for name in names:
            with contextlib.suppress(docker.errors.NotFound), _engine_errors(f"remove volume {name}"):
                self._api.remove_volume(name)
                removed.append(name)
        return removed

    def subnets(self) -> list[str]:
        """The subnets of every network that the engine has."""
        with _engine_errors("list networks"):
            networks = self._api.networks()
        rows = [row for network in networks for row in (network.get("IPAM") or {}).get("Config") or []]
        return [str(row["Subnet"]) for row in rows if row.get("Subnet")]

    def tail(self, container: str, *, lines: int) -> list[str]:
        """The last lines that a container printed; for error messages."""
        import docker.errors

        with contextlib.suppress(docker.errors.NotFound), _engine_errors(f"read the log of {container[:12]}"):
            text = self._api.logs(container, tail=lines).decode(errors="replace")
            return [line for line in text.splitlines() if line.strip()]
        return []

    def session_volumes(self, session: str) -> dict[str, str]:
        """Volumes that carry the session's label: role to name."""
        with _engine_errors("list volumes"):
            answer = self._api.volumes(filters={"label": [f"{LABEL}.session={session}"]})
        return {str((v.get("Labels") or {}).get(f"{LABEL}.role", "")): str(v["Name"]) for v in answer["Volumes"] or []}

    def interactive(self, container: str, argv: Sequence[str], *, tty: bool, user: str = "") -> int:
        """Hands the caller's own terminal to a program in the container through the docker command."""
        # The client's own detach keys are ctrl-p ctrl-q, which are the runner's: ours must get them.
        flags = ["-it", "--detach-keys", "ctrl-@"] if tty else ["-i"]
        if user:
            flags += ["-u", user]
        command = ["docker", "exec", *flags, container, *argv]
        return subprocess.call(command, env=self.connection.cli_environment())

    def _remove(self, container: str) -> None:
        import docker.errors

        with contextlib.suppress(docker.errors.NotFound):
            try:
                self._api.remove_container(container, force=True, v=False)
            except docker.errors.APIError as error:
                if error.status_code != 409:  # its removal is under way already
                    raise

    def _cli(self, argv: Sequence[str], *, timeout_s: float) -> bytes:
        try:
            done = subprocess.run(
                argv,
                env=self.connection.cli_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                preexec_fn=die_with_parent(),
            )
        except FileNotFoundError:
            raise EngineError("the `docker` command is not installed", hint="install Docker's command line") from None
        except subprocess.TimeoutExpired:
            raise EngineError(f"docker gave no answer in {timeout_s:g} s", details=[shlex.join(argv)]) from None
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip().splitlines()
            raise EngineError("docker refused", details=[f"$ {shlex.join(argv)}", *words[-12:]])
        return done.stdout


@contextlib.contextmanager
def _engine_errors(doing: str) -> Iterator[None]:
    """Turns what docker-py raises into one error; NotFound passes, callers know what it means."""
    import docker.errors
    import requests.exceptions

    try:
        yield
    except docker.errors.NotFound:
        raise
    except HijackRefused as error:
        raise EngineError(f"the engine could not {doing}", details=[error.words]) from None
    except (docker.errors.APIError, docker.errors.DockerException, requests.exceptions.RequestException) as error:
        words = getattr(error, "explanation", None) or str(error)
        raise EngineError(f"the engine could not {doing}", details=[str(words)]) from None


def _once_config(job: Once) -> dict[str, Any]:
    return {
        "Image": job.image,
        "Entrypoint": [],
        "Cmd": list(job.argv),
        "User": job.user,
        "Env": [f"{key}={value}" for key, value in job.environment],
        "Labels": dict(job.labels),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "IpcMode": "private",
            "PidsLimit": 512,
            "Memory": job.memory_bytes or 0,
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "LogConfig": {"Type": "none", "Config": {}},
            "Tmpfs": {"/tmp": "mode=1777,size=4g,exec,nosuid,nodev"},  # noqa: S108 - inside the container
            "Mounts": [_api_mount(mount) for mount in job.mounts],
        },
    }


def _api_mount(mount: Mount) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "Type": mount.kind,
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
    }
    if mount.kind == "bind":
        entry["BindOptions"] = {"Propagation": "rprivate", "NonRecursive": True, "CreateMountpoint": False}
    return entry


def _state(raw: Mapping[str, Any]) -> ContainerState:
    state = raw["State"]
    health = (state.get("Health") or {}).get("Status", "none")
    return ContainerState(
        id=raw["Id"],
        name=str(raw["Name"]).lstrip("/"),
        image_id=raw["Image"],
        status=state["Status"],
        exit_code=state["ExitCode"],
        health=health,
        health_words=_health_words(state),
        started_at=state["StartedAt"],
        pid=state["Pid"],
        labels=tuple(sorted((raw["Config"].get("Labels") or {}).items())),
        oom_killed=bool(state.get("OOMKilled")),
        raw=raw,
    )


def _health_words(state: Mapping[str, Any]) -> str:
    log = (state.get("Health") or {}).get("Log") or []
    return str(log[-1].get("Output", "")).strip() if log else ""
