"""Which engine is spoken to and with what configuration: a unix socket of root or of the user, a cleaned environment.

The user's own Docker configuration is read for registry logins and plugins and nothing else: its `proxies` section
would put the user's proxy password into every container, and a `.env` file could rename the project.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import EngineError

DEFAULT_SOCKET = "/var/run/docker.sock"
KEPT_KEYS = ("auths", "credsStore", "credHelpers")
KEPT_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TERM",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
)


@dataclass(frozen=True)
class Connection:
    """A checked engine address and the directory that stands in for the user's Docker configuration."""

    socket: Path
    config_dir: Path
    environment: tuple[tuple[str, str], ...]

    @property
    def url(self) -> str:
        """The address in Docker's own form."""
        return f"unix://{self.socket}"

    def cli_environment(self) -> dict[str, str]:
        """The whole environment of a docker command: nothing of the caller's that Compose could interpolate."""
        return {**dict(self.environment), "DOCKER_HOST": self.url, "DOCKER_CONFIG": str(self.config_dir)}


def connect(environ: Mapping[str, str], *, state_dir: Path) -> Connection:
    """Finds the engine as the docker command would and refuses one that others could stand in for.

    Raises:
        EngineError: no socket there, not a unix socket, or one that neither root nor the user owns.
    """
    user_config = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or "/") / ".docker")
    host = environ.get("DOCKER_HOST") or _context_host(user_config, environ) or f"unix://{DEFAULT_SOCKET}"
    if not host.startswith("unix://"):
        raise EngineError(
            f"the engine's address is {host}; only a unix socket on this machine is accepted",
            hint="unset DOCKER_HOST, or point it at unix:///var/run/docker.sock",
        )
    socket = Path(host.removeprefix("unix://"))
    try:
        info = socket.stat()
    except OSError as error:
        raise EngineError(
            f"no Docker engine answers at {socket}: {error.strerror}",
            hint="start Docker (`systemctl start docker`, or `bin/quickstart` installs one), then try again",
        ) from None
    if not stat.S_ISSOCK(info.st_mode):
        raise EngineError(f"{socket} is not a socket", hint="unset DOCKER_HOST")
    if info.st_uid not in (0, os.getuid()):
        raise EngineError(
            f"the engine's socket {socket} belongs to uid {info.st_uid}, neither root nor you: it could be anyone's",
            hint="unset DOCKER_HOST, or use a socket of root or of your own",
        )
    kept = tuple((key, environ[key]) for key in KEPT_ENVIRONMENT if key in environ)
    return Connection(socket=socket, config_dir=_own_config(user_config, state_dir), environment=kept)


def _context_host(user_config: Path, environ: Mapping[str, str]) -> str | None:
    """The socket of Docker's current context (rootless and desktop engines set one)."""
    name = environ.get("DOCKER_CONTEXT") or _read_json(user_config / "config.json").get("currentContext")
    if not isinstance(name, str) or name in ("", "default"):
        return None
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = _read_json(user_config / "contexts" / "meta" / digest / "meta.json")
    endpoints = meta.get("Endpoints")
    docker = endpoints.get("docker") if isinstance(endpoints, dict) else None
    host = docker.get("Host") if isinstance(docker, dict) else None
    return host if isinstance(host, str) else None


def _own_config(user_config: Path, state_dir: Path) -> Path:
    """A DOCKER_CONFIG that holds registry logins and plugins only; rewritten when the user's has changed."""
    own = state_dir / "docker"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {key: value for key, value in _read_json(user_config / "config.json").items() if key in KEPT_KEYS}
    body = json.dumps(kept, indent=1, sort_keys=True)
    target = own / "config.json"
    if not target.exists() or target.read_text() != body:
        scratch = own / f".config.{os.getpid()}"
        scratch.write_text(body)
        scratch.chmod(0o600)
        scratch.replace(target)
    plugins = user_config / "cli-plugins"
    link = own / "cli-plugins"
    if plugins.is_dir() and not link.is_symlink():
        with contextlib.suppress(FileExistsError):  # another process was first
            link.symlink_to(plugins)
    return own


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
