"""A forge: a real sshd with git-shell and bare repositories, in a container of its own. It takes whichever keys it is
told, leaves forwarding at its default, and writes down who came with which key."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_container.engine.connection import connect
from agent_container.image_plan import DEFAULT_BASE, ImagePlan, plan_sidecar_image
from agent_container.images import ensure_base, ensure_image, find_private_ca

LABEL = f"agent-container.test={os.getpid()}"
PORT = 22
DOCKERFILE = """ARG BASE=debian:trixie-slim
FROM ${BASE}
RUN --mount=type=secret,id=ca,target=/run/secrets/ca.pem \\
    if [ -s /run/secrets/ca.pem ]; then \\
      echo 'Acquire::https::CAInfo "/run/secrets/ca.pem";' > /etc/apt/apt.conf.d/99; fi \\
 && apt-get update \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openssh-server git python3 \\
 && rm -rf /etc/apt/apt.conf.d/99 /var/lib/apt/lists/* /etc/ssh/ssh_host_* \\
 && useradd --home-dir /srv/git --create-home --shell /usr/bin/git-shell git && usermod -p '*' git \\
 && mkdir -p /run/sshd && git config --system receive.advertisePushOptions true
ENTRYPOINT ["/usr/sbin/sshd", "-D", "-e", "-h", "/tmp/host_key", "-o", "StrictModes=no", "-o", "LogLevel=VERBOSE", \
"-o", "AuthorizedKeysFile=/srv/git/keys", "-o", "PerSourcePenalties=no", \
"-o", "PasswordAuthentication=no", "-o", "AcceptEnv=GIT_PROTOCOL"]
"""


def docker(*arguments: str, stdin: bytes = b"", check: bool = True) -> str:
    """The output of one docker command."""
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, check=False, timeout=120)
    assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
    return (done.stdout + (b"" if check else done.stderr)).decode()


@functools.cache
def forge_image() -> str:
    """The image, made when it is missing and kept; it has git and Python too."""
    with tempfile.TemporaryDirectory(prefix="acs-") as state:
        connection = connect(os.environ, state_dir=Path(state))
        base_id = ensure_base(DEFAULT_BASE, connection=connection, report=print)
        plan = plan_sidecar_image(
            sidecar_files={"Dockerfile": DOCKERFILE.encode()}, base_id=base_id, ca=find_private_ca(os.environ)
        )
        mine = ImagePlan(
            "forge of the tests", plan.tag.replace("/egress:", "/test-forge:"), plan.dockerfile, {}, plan.build_args,
            plan.secrets,
        )  # fmt: skip
        ensure_image(mine, connection=connection, report=print)
    return mine.tag


@dataclass(frozen=True)
class Pair:
    """An ed25519 key."""

    private: str
    """OpenSSH text."""
    public: str
    """`ssh-ed25519 AAAA...`"""


def make_pair() -> Pair:
    """A new key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Pair(private.decode(), public.decode())


@dataclass
class Forge:
    """The running server."""

    name: str
    address: str
    host_key: Pair

    @classmethod
    @contextlib.contextmanager
    def up(cls, network: str, *, repositories: tuple[str, ...]) -> Iterator[Forge]:
        """On a docker network; each repository has one commit on main."""
        pair = make_pair()
        name = f"acs-forge-{secrets.token_hex(4)}"
        docker(
            "create", "--name", name, "--label", LABEL, "--network", network,
            "--hostname", "forge", forge_image(),
        )  # fmt: skip
        try:
            _put(name, "/tmp/host_key", pair.private, mode="600")
            docker("start", name)
            address = docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name).strip()
            forge = cls(name, address, pair)
            for path in repositories:
                forge.create(path)
            yield forge
        finally:
            docker("rm", "-f", "-v", name, check=False)

    def sh(self, script: str, *, user: str = "git") -> str:
        """A script on the server."""
        return docker("exec", "-i", "--user", user, "-w", "/srv/git", self.name, "/bin/sh", "-ec", script)

    def create(self, path: str) -> None:
        """A bare repository with one commit on main."""
        self.sh(
            f"""git init -q --bare -b main {path} && git clone -q {path} /tmp/seed 2>/dev/null && cd /tmp/seed
            echo hello > README && git add README
            git -c user.name=seed -c user.email=seed@forge.test commit -qm first && git push -q origin HEAD:main
            rm -rf /tmp/seed"""
        )

    def authorize(self, *public: str) -> None:
        """Exactly these keys may come in."""
        lines = "\n".join(public)
        self.sh(f"cat > /srv/git/keys <<'END'\n{lines}\nEND\n")

    def refs(self, path: str) -> dict[str, str]:
        """Ref to object."""
        rows = (line.split() for line in self.sh(f"git -C {path} show-ref || true").splitlines())
        return {ref: name for name, ref in rows}

    def log(self) -> str:
        """What sshd wrote."""
        return docker("logs", self.name, check=False)

    def pin(self, host: str) -> str:
        """Its line in a known_hosts file."""
        return f"{host} {self.host_key.public}\n"


def _put(container: str, path: str, text: str, *, mode: str) -> None:
    """A file in a container that does not run yet."""
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(Path(path).name)
        data = text.encode()
        entry.size, entry.mode = len(data), int(mode, 8)
        archive.addfile(entry, io.BytesIO(data))
    docker("cp", "-", f"{container}:{Path(path).parent}", stdin=buffer.getvalue())


def key_id(public: str) -> str:
    """The first hex digits of a public key's digest."""
    import hashlib

    return hashlib.sha256(base64.b64decode(public.split()[1])).hexdigest()[:16]
