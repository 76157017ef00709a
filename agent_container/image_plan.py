"""What an image is built from, as a value: Dockerfile text, context files, build secrets, and a tag that names all.

Pure. The Dockerfile is staged by how often its parts change: tools, the agent's program, packages, setup, and last the
uid. Reading the files and running the build is left to `images` and `engine.build`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_container.agent_install import AgentInstall
from agent_container.errors import SpecError
from agent_container.spec_types import parse_command, parse_image, parse_package
from agent_egress.identity import DAEMON_UIDS

AGENT_REPOSITORY = "agent-container/agent"
EGRESS_REPOSITORY = "agent-container/egress"
DEFAULT_BASE = "debian:trixie-slim"
TOOLS = ("ca-certificates", "curl", "git", "openssh-client", "procps", "python3", "ripgrep")
"""python3 is the runner's; the rest is what every coding agent expects to find."""
NODE = ("nodejs",)
"""Without npm, whose packages weigh more than everything else together."""

FIRST_UID = 1001
LAST_UID = 59999
SETUP_UID = 64110
"""Setup steps run with it whatever the agent's uid will be, so that another uid redoes the last layer alone."""

_CA_SECRET = "--mount=type=secret,id=ca,target=/run/secrets/ca.pem,mode=0444"  # noqa: S105 - a mount, no password
_NETWORK_FILES = "--mount=type=bind,source=steps/net,target=/agent-build"
_NPM_FILES = "--mount=type=bind,source=steps/npm,target=/agent-npm"
_LAST_FILES = "--mount=type=bind,source=steps/last,target=/agent-build"
_WITH_CA = ("/bin/sh", "/agent-build/with-ca")


@dataclass(frozen=True)
class SetupStep:
    """One command of the spec's `setup`: as the agent's user and without network unless it says otherwise."""

    run: str
    root: bool = False
    network: bool = False


@dataclass(frozen=True)
class ImagePlan:
    """Everything that one build needs. Two plans with the same tag build the same image."""

    name: str
    """For people: `agent image`."""
    tag: str
    dockerfile: str
    files: Mapping[str, bytes]
    """Build context: path to content. Modes come from the Dockerfile."""
    build_args: tuple[tuple[str, str], ...] = ()
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Build secret id to content; not part of the tag, for nothing of them stays in the image."""


def choose_uid(*, passwd: str, subuid: str, owner: int | None) -> int:
    """The agent's uid: the workspace owner's on a bind, else 1001 or the next that nobody on the host has.

    `passwd` and `subuid` are the texts of the host's /etc/passwd and /etc/subuid: a local user of the same uid, or a
    rootless container's mapped one, could read the sandbox through /proc.

    Raises:
        SpecError: the workspace belongs to root or to one of the sidecar's uids.
    """
    if owner is not None:
        _check_owner(owner)
        return owner
    taken = {int(fields[2]) for fields in _records(passwd, 4) if fields[2].isdigit()} | DAEMON_UIDS
    ranges = [
        range(int(fields[1]), int(fields[1]) + int(fields[2]))
        for fields in _records(subuid, 3)
        if fields[1].isdigit() and fields[2].isdigit()
    ]
    for uid in range(FIRST_UID, LAST_UID + 1):
        if uid not in taken and not any(uid in reserved for reserved in ranges):
            return uid
    raise SpecError(
        f"no uid between {FIRST_UID} and {LAST_UID} is free on this host",
        hint="free one in /etc/passwd or /etc/subuid, or bind a workspace that an ordinary user owns",
    )


def plan_agent_image(
    *,
    base: str,
    packages: Sequence[str],
    setup: Sequence[SetupStep],
    install: AgentInstall,
    uid: int,
    gid: int,
    image_files: Mapping[str, bytes],
    base_id: str = "",
    ca: bytes | None = None,
) -> ImagePlan:
    """The agent's image.

    `image_files` is the content of image/ (`steps/...` for the build, the rest goes to /opt/agent-container);
    `base_id` is the engine's id of a base that no digest pins; `ca` is the host's bundle when it has private CAs.

    Raises: SpecError for a base, package, command or uid that cannot be used.
    """
    if uid == 0 or gid == 0 or {uid, gid} & DAEMON_UIDS:
        raise SpecError(f"the agent cannot run as {uid}:{gid}: root and the sidecar's uids are taken")
    reference = _checked("image.base", parse_image, base)
    names = sorted({_checked("image.packages", parse_package, name) for name in packages} - set(TOOLS))
    steps = [(_checked("image.setup", parse_command, step.run), step) for step in setup]
    programs = {f"programs/{path}": data for path, data in image_files.items() if not path.startswith("steps/")}
    scripts = {path: data for path, data in image_files.items() if path.startswith("steps/")}
    dockerfile = "\n".join(
        [
            *_tools_stage(reference),
            *_install_stage(install),
            *_packages_stage([*(NODE if install.kind == "node" else ()), *names]),
            *_setup_stage(steps),
            *_final_stage(install, uid=uid, gid=gid),
        ]
    )
    return _plan(
        "agent image",
        AGENT_REPOSITORY,
        dockerfile=dockerfile + "\n",
        files={**programs, **scripts},
        build_args=(),
        base_id=base_id,
        ca=ca,
    )


def plan_sidecar_image(
    *, sidecar_files: Mapping[str, bytes], base: str = DEFAULT_BASE, base_id: str = "", ca: bytes | None = None
) -> ImagePlan:
    """The egress sidecar's image, from the content of sidecar/ alone; its Dockerfile takes ARG BASE."""
    reference = _checked("sidecar base", parse_image, base)
    files = {path: data for path, data in sidecar_files.items() if path != "Dockerfile"}
    dockerfile = sidecar_files["Dockerfile"].decode()
    return _plan(
        "egress image",
        EGRESS_REPOSITORY,
        dockerfile=dockerfile,
        files=files,
        build_args=(("BASE", reference),),
        base_id=base_id,
        ca=ca,
    )


def _plan(
    name: str,
    repository: str,
    *,
    dockerfile: str,
    files: Mapping[str, bytes],
    build_args: tuple[tuple[str, str], ...],
    base_id: str,
    ca: bytes | None,
) -> ImagePlan:
    contents = sorted((path, hashlib.sha256(data).hexdigest()) for path, data in files.items())
    inputs = json.dumps([dockerfile, contents, build_args, base_id], separators=(",", ":"))
    tag = f"{repository}:{hashlib.sha256(inputs.encode()).hexdigest()[:16]}"
    secrets = {"ca": ca} if ca is not None else {}
    return ImagePlan(name, tag, dockerfile, dict(files), build_args, secrets)


def _tools_stage(base: str) -> list[str]:
    return [f"FROM {base} AS tools", "USER 0:0", _apt(TOOLS), ""]


def _install_stage(install: AgentInstall) -> list[str]:
    if install.kind == "none":
        return []
    wanted = (install.kind, install.package, install.version, install.program)
    command = _exec((*_WITH_CA, "/bin/sh", "/agent-npm/install", *wanted))
    run = f"RUN {_CA_SECRET} {_NETWORK_FILES} {_NPM_FILES} {command}"
    return ["FROM tools AS agent-program", _apt(("npm",)), run, ""]


def _packages_stage(names: Sequence[str]) -> list[str]:
    return ["FROM tools AS packages", *([_apt(names)] if names else []), ""]


def _setup_stage(steps: Sequence[tuple[str, SetupStep]]) -> list[str]:
    lines = ["FROM packages AS setup", "ENV HOME=/home/agent LANG=C.UTF-8"]
    if steps:
        make_home = f"install -d -o {SETUP_UID} -g {SETUP_UID} /home/agent /workspace"
        lines += [f"RUN --network=none {_exec(('/bin/sh', '-c', make_home))}", "WORKDIR /workspace"]
    user = "0:0"
    for command, step in steps:
        wanted = "0:0" if step.root else f"{SETUP_UID}:{SETUP_UID}"
        if wanted != user:
            lines.append(f"USER {wanted}")
            user = wanted
        if step.network:
            lines.append(f"RUN {_CA_SECRET} {_NETWORK_FILES} {_exec((*_WITH_CA, '/bin/sh', '-c', command))}")
        else:
            lines.append(f"RUN --network=none {_exec(('/bin/sh', '-c', command))}")
    return [*lines, ""]


def _final_stage(install: AgentInstall, *, uid: int, gid: int) -> list[str]:
    finish = ("/usr/bin/python3", "-I", "/agent-build/finish.py", "--uid", str(uid), "--gid", str(gid))
    copy = ["COPY --from=agent-program /out/ /usr/local/"] if install.kind != "none" else []
    return [
        "FROM setup AS agent",
        "USER 0:0",
        *copy,
        "COPY --chmod=0755 programs/ /opt/agent-container/",
        f"RUN --network=none {_LAST_FILES} {_exec(finish)}",
        f"USER {uid}:{gid}",
        "WORKDIR /workspace",
        "HEALTHCHECK NONE",
        "STOPSIGNAL SIGTERM",
        'ENTRYPOINT ["/usr/bin/python3", "-I", "/opt/agent-container/runner"]',
        'CMD ["serve"]',
    ]


def _apt(packages: Sequence[str]) -> str:
    return f"RUN {_CA_SECRET} {_NETWORK_FILES} {_exec((*_WITH_CA, '/bin/sh', '/agent-build/apt', *packages))}"


def _exec(argv: Sequence[str]) -> str:
    """Exec form. A string that begins with `--mount=` would be a flag, and BuildKit looks for `<<` and `$` even in
    here: all that a Dockerfile could read as syntax is written as JSON's own escape."""
    return "[" + ", ".join(f'"{_escaped(word)}"' for word in argv) + "]"


def _escaped(word: str) -> str:
    plain = " !#%()*+,-./:;=?@[]^_{|}~"
    units = []
    for character in word:
        if character.isascii() and (character.isalnum() or character in plain):
            units.append(character)
        else:
            encoded = character.encode("utf-16-be", "surrogatepass")
            units += [f"\\u{encoded[i]:02x}{encoded[i + 1]:02x}" for i in range(0, len(encoded), 2)]
    return "".join(units)


def _checked(where: str, parse: Callable[[str], str], text: str) -> str:
    try:
        return parse(text)
    except ValueError as error:
        raise SpecError(f"{where}: {text!r}: {error}") from None


def _check_owner(owner: int) -> None:
    if owner == 0:
        raise SpecError(
            "the workspace belongs to root, and the agent never runs as root",
            hint="give the agent a copy (`--clone`), or the directory to an ordinary user (`chown -R`)",
        )
    if owner in DAEMON_UIDS:
        raise SpecError(
            f"the workspace belongs to uid {owner}, which is one of the egress sidecar's: the agent could act as it",
            hint="give the directory to an ordinary user (`chown -R`), or give the agent a copy (`--clone`)",
        )


def _records(text: str, least: int) -> list[list[str]]:
    rows = [line.split(":") for line in text.splitlines() if line and not line.startswith("#")]
    return [row for row in rows if len(row) >= least]
