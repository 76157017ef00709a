"""The Stack as a Compose project. Compose is data here: plain values dumped to YAML, never a template.

Every string that came from a user has Compose's `$` doubled, so that nothing is interpolated. Hardening is written
for every service alike and does not depend on the Stack: the renderer cannot emit an agent without the sidecar,
nor a container with capabilities, a writable root or new privileges.
"""

from __future__ import annotations

import yaml

from agent_container.stack import LABEL, Container, Mount, Probe, Stack, Tmpfs

Value = str | int | float | bool | list["Value"] | dict[str, "Value"]

FILES_TARGET = "/etc/agent-egress"
LOG_OPTIONS: dict[str, Value] = {"max-size": "5m", "max-file": "2"}


def render_compose(stack: Stack, *, files_dir: str) -> str:
    """Compose YAML of `stack`; `files_dir` is the host directory that holds its rendered sidecar files."""
    model: dict[str, Value] = {
        "name": stack.compose_project,
        "services": {
            "egress": _egress(stack, files_dir=files_dir),
            "agent": _agent(stack),
        },
        "networks": _networks(stack),
        "volumes": {
            volume.key: {"name": volume.name, "labels": labels(stack, role=f"volume-{volume.key}")}
            for volume in stack.volumes
        },
    }
    header = "# Written by agent-container; changes here are overwritten. `agent-container render` prints it.\n"
    return header + yaml.safe_dump(model, sort_keys=False, width=120, allow_unicode=True)


def escape(text: str) -> str:
    """Doubles `$` so that Compose takes the text literally (https://docs.docker.com/reference/compose-file/interpolation/)."""
    return text.replace("$", "$$")


def labels(stack: Stack, *, role: str) -> dict[str, Value]:
    """The labels by which leftovers are found. They are candidates only: an image can forge them."""
    return {
        f"{LABEL}.session": stack.session,
        f"{LABEL}.project": stack.project,
        f"{LABEL}.name": escape(stack.display_name),
        f"{LABEL}.role": role,
    }


def _networks(stack: Stack) -> dict[str, Value]:
    own: dict[str, Value] = {"internal": stack.network.internal, "labels": labels(stack, role="network")}
    subnets: list[Value] = [{"subnet": s} for s in (stack.network.subnet4, stack.network.subnet6) if s]
    if subnets:
        own["ipam"] = {"config": subnets}
    if stack.network.subnet6:
        own["enable_ipv6"] = True
    joined: dict[str, Value] = {
        f"join{i}": {"name": escape(name), "external": True} for i, name in enumerate(stack.network.join)
    }
    return {"out": own, **joined}


def _egress(stack: Stack, *, files_dir: str) -> Value:
    service = _service(stack, stack.egress)
    volumes = service["volumes"]
    assert isinstance(volumes, list)  # noqa: S101 - narrows the type for mypy; _service always makes a list
    volumes.append(_mount(Mount(kind="bind", source=files_dir, target=FILES_TARGET, read_only=True)))
    service["networks"] = ["out", *(f"join{i}" for i in range(len(stack.network.join)))]
    return service


def _agent(stack: Stack) -> Value:
    service = _service(stack, stack.agent)
    # The one way out: the agent has no network of its own and starts only behind a healthy sidecar.
    service["network_mode"] = "service:egress"
    service["depends_on"] = {"egress": {"condition": "service_healthy"}}
    return service


def _service(stack: Stack, container: Container) -> dict[str, Value]:
    service: dict[str, Value] = {
        "image": container.image,
        "pull_policy": "never",  # a tag of ours that a registry happens to hold must never replace what was built
        "user": container.user,
        "working_dir": escape(container.working_dir),
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": list(container.cap_add),
        "security_opt": ["no-new-privileges:true"],
        "ipc": "private",
        "init": False,  # PID 1 is the runner or the supervisor, each of which reaps
        "restart": "no",  # a restarted container would join or own a namespace that nobody has checked
        "stop_grace_period": f"{container.stop_grace_s}s",
        "environment": {key: escape(value) for key, value in container.environment},
        "volumes": [_mount(mount) for mount in container.mounts],
        "tmpfs": [_tmpfs(tmpfs) for tmpfs in container.tmpfs],
        "sysctls": dict(container.sysctls),
        "ulimits": {"core": 0},
        "pids_limit": container.limits.pids,
        # The daemon's default log driver may be unbounded, or send what the agent prints off the machine.
        "logging": {"driver": "local", "options": dict(LOG_OPTIONS)},
        "labels": labels(stack, role=container.service),
    }
    if container.command:
        service["command"] = [escape(word) for word in container.command]
    if container.limits.memory_bytes is not None:
        service["mem_limit"] = container.limits.memory_bytes
        if not container.limits.swap:
            service["memswap_limit"] = container.limits.memory_bytes
    if container.limits.cpus is not None:
        service["cpus"] = container.limits.cpus
    if container.probe is not None:
        service["healthcheck"] = _healthcheck(container.probe)
    return service


def _healthcheck(probe: Probe) -> Value:
    return {
        "test": ["CMD", *probe.argv],
        "interval": f"{probe.interval_s:g}s",
        "start_interval": f"{probe.start_interval_s:g}s",
        "start_period": f"{probe.start_period_s:g}s",
        "timeout": f"{probe.timeout_s:g}s",
        "retries": probe.retries,
    }


def _mount(mount: Mount) -> Value:
    entry: dict[str, Value] = {
        "type": mount.kind,
        "source": escape(mount.source),
        "target": escape(mount.target),
        "read_only": mount.read_only,
    }
    if mount.kind == "bind":
        # A missing source is an error, never a directory that root makes. Composes before 2.27 ignore `recursive`:
        # engine/posture.py refuses a source with mounts below it where the engine did not take it.
        entry["bind"] = {"create_host_path": False, "propagation": "rprivate", "recursive": "disabled"}
    return entry


def _tmpfs(tmpfs: Tmpfs) -> str:
    execute = "exec" if tmpfs.executable else "noexec"
    owner = f"uid={tmpfs.uid},gid={tmpfs.uid},mode={tmpfs.mode:04o}"
    return f"{tmpfs.target}:{owner},size={tmpfs.size_bytes},{execute},nosuid,nodev"
