"""The agent's container as a value: what it sees of the machine, and the variables by which tools find the way out.

What it may reach is not decided here: it has no network but the sidecar's.
"""

from __future__ import annotations

from agent_container.stack import Container, Limits, Mount, Tmpfs

WORKSPACE = "/workspace"
HOME = "/home/agent"
RUN_VOLUME = "/var/lib/agent-container/run"
CA_DIR = "/etc/agent-container/ca"
MEMORY = "/memory"
GIT_DIR = "/etc/agent-container/git"
"""Where the socket of the git gateway is; image/git-ssh knows it too."""
GIT_SSH = "/opt/agent-container/git-ssh"
BUNDLE = f"{CA_DIR}/bundle.pem"
SESSION_CA = f"{CA_DIR}/ca.pem"
PROXY = "http://127.0.0.1:3128"

DEFAULT_PIDS = 2048
TMP_BYTES = 1024**3
RUN_BYTES = 16 * 1024**2

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
NO_PROXY_VARIABLES = ("NO_PROXY", "no_proxy")
BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
)


def base_environment() -> tuple[tuple[str, str], ...]:
    """Variables that every agent gets: proxy, certificates, home. A spec cannot set them."""
    return (
        ("HOME", HOME),
        ("LANG", "C.UTF-8"),
        *((name, PROXY) for name in PROXY_VARIABLES),
        # The agent's own servers on localhost are its own business and stay direct.
        *((name, "localhost,127.0.0.1,::1") for name in NO_PROXY_VARIABLES),
        *((name, BUNDLE) for name in BUNDLE_VARIABLES),
        # Node adds this file to its built-in roots instead of replacing them.
        ("NODE_EXTRA_CA_CERTS", SESSION_CA),
    )


def git_environment() -> tuple[tuple[str, str], ...]:
    """By which git finds the gateway. Without the second git would try options on it that only ssh has."""
    return (("GIT_SSH_COMMAND", GIT_SSH), ("GIT_SSH_VARIANT", "ssh"))


def agent_container(
    *,
    image: str,
    user: str,
    environment: tuple[tuple[str, str], ...],
    workspace: tuple[Mount, ...],
    mounts: tuple[Mount, ...],
    memory_volume: bool,
    limits: Limits,
    git: bool = False,
    hidden: tuple[str, ...] = (),
) -> Container:
    """The agent's container; `environment` is the spec's, after the variables that it cannot set. The runner does not
    serve where one of the `hidden` paths is no mount point, and ends the container when it is none any more."""
    base = base_environment() + (git_environment() if git else ())
    volumes = (
        Mount(kind="volume", source="home", target=HOME),
        Mount(kind="volume", source="run", target=RUN_VOLUME),
        Mount(kind="volume", source="ca", target=CA_DIR, read_only=True),
    )
    gateway = (Mount(kind="volume", source="git", target=GIT_DIR, read_only=True),) if git else ()
    memory = (Mount(kind="volume", source="memory", target=MEMORY),) if memory_volume else ()
    uid = int(user.split(":", 1)[0])
    taken = {name for name, _ in base}
    return Container(
        service="agent",
        image=image,
        user=user,
        environment=base + tuple((name, value) for name, value in environment if name not in taken),
        working_dir=WORKSPACE,
        mounts=(*volumes, *gateway, *memory, *workspace, *mounts),
        tmpfs=(
            Tmpfs(target="/tmp", uid=uid, mode=0o1777, size_bytes=TMP_BYTES, executable=True),  # noqa: S108
            Tmpfs(target="/run", uid=uid, mode=0o755, size_bytes=RUN_BYTES),
        ),
        command=("serve", *(word for path in hidden for word in ("--hidden", path))) if hidden else (),
        limits=limits,
        stop_grace_s=10,
    )
