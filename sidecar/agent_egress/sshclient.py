"""The gateway's own ssh: its command line, the key and pins that it finds in the gateway's memory, and what of its
words the agent gets to read. What it may be started for, `gateway_policy` says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_egress.repositories import Repository

SSH = "/usr/bin/ssh"
TUNNEL = "/usr/lib/python3/dist-packages/agent_egress/tunnel.py"
CONNECT_S = 30
MAX_WORDS = 16 * 1024
"""Of ssh's stderr, that the agent gets."""
MAX_KEYS = 4
_ID = re.compile(r"[0-9a-f]{8,64}")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_NOISE = re.compile(r"^(debug\d: |Warning: Permanently added|\*\* )|/run/git|/var/lib/egress|authenticity of host|\x07")
_HOST_KEY = re.compile(r"host key verification failed|host identification has changed|host key is known for", re.I)
_DENIED = re.compile(r"permission denied \(", re.I)


class KeysRefused(ValueError):
    """Keys or pins that cannot be used; never with a key in the message."""


@dataclass(frozen=True)
class Keys:
    """Which keys lie in the directory, and which of them is used."""

    directory: Path
    current: str = ""
    known: frozenset[str] = frozenset()

    def path(self, key: str) -> Path:
        """Where a key lies."""
        return self.directory / f"key-{key}"

    @property
    def pins(self) -> Path:
        """The hosts' own keys, as known_hosts(5)."""
        return self.directory / "known_hosts"


def store_keys(directory: Path, message: Mapping[str, object]) -> Keys:
    """Puts the keys of a message (`keys`: id to OpenSSH text, `current`, `known_hosts`) into the gateway's memory; what
    was there and is not named goes. Raises: KeysRefused."""
    keys, current, pins = (message.get(name) for name in ("keys", "current", "known_hosts"))
    if not isinstance(keys, dict) or not isinstance(current, str) or not isinstance(pins, str):
        raise KeysRefused("expected keys, current and known_hosts")
    if len(keys) > MAX_KEYS or current not in keys or len(pins) > 256 * 1024:
        raise KeysRefused("too many keys or pins, or the current key is not among them")
    if not all(_ID.fullmatch(str(key)) and isinstance(text, str) for key, text in keys.items()):
        raise KeysRefused("a key has no id, or is no text")
    found = Keys(directory, current, frozenset(keys))
    for key, text in keys.items():
        _write(found.path(key), text)
    _write(found.pins, pins)
    for path in directory.glob("key-*"):
        if path.name.removeprefix("key-") not in keys:
            path.unlink()
    return found


def _write(path: Path, text: str) -> None:
    """Whole or not at all: an ssh may be reading it."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)
    fresh.rename(path)


def ssh_argv(repository: Repository, command: str, keys: Keys, *, key: str = "", protocol: str = "") -> Sequence[str]:
    """No file of configuration, no agent, no forwarding, no terminal, one key, and only hosts that are pinned."""
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(keys.pins),
        "GlobalKnownHostsFile": "none",
        "UpdateHostKeys": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "EscapeChar": "none",
        "PreferredAuthentications": "publickey",
        "LogLevel": "ERROR",
        "ConnectTimeout": str(CONNECT_S),
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
        "ProxyCommand": "tunnel %h %p",
        "ProxyUseFdpass": "yes",
        **({"SendEnv": "GIT_PROTOCOL"} if protocol else {}),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    place = ["-p", str(repository.port), "-l", repository.user, "--", repository.host, command]
    return [SSH, "-F", "none", "-T", "-a", "-x", "-i", str(keys.path(key or keys.current)), *words, *place]


def ssh_environment(protocol: str = "") -> dict[str, str]:
    """All that ssh is given: as its shell the program that gets it a connection."""
    return {"PATH": "/usr/bin", "LANG": "C.UTF-8", "SHELL": TUNNEL, **({"GIT_PROTOCOL": protocol} if protocol else {})}


class Words:
    """ssh's stderr on its way to the agent: printable lines, without what is of this container alone."""

    def __init__(self, repository: Repository) -> None:
        self._host = repository.host if repository.port == 22 else f"{repository.host}:{repository.port}"
        self._rest = b""
        self._left = MAX_WORDS

    def feed(self, data: bytes) -> bytes:
        """The lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-4096:]
        return b"".join(self._line(line) for line in lines)

    def end(self) -> bytes:
        """What was left without a line end."""
        rest, self._rest = self._rest, b""
        return self._line(rest) if rest else b""

    def nothing(self) -> bytes:
        """For a connection of which ssh says nothing."""
        return f"agent-container: {self._host} closed the connection before it answered\n".encode("ascii")

    def _line(self, line: bytes) -> bytes:
        text = _UNPRINTABLE.sub("", line.decode("utf-8", "replace").replace("\r", ""))
        if _HOST_KEY.search(text):
            text = (
                f"agent-container: {self._host} showed a host key that is not pinned, so nothing was sent. "
                f"Its user can look with: agent-container ssh-key pin {self._host}"
            )
        elif _DENIED.search(text):
            text = (
                f"agent-container: {self._host} does not take this project's ssh key. "
                "Its user adds it there; it is shown by: agent-container ssh-key show"
            )
        elif not text or _NOISE.search(text) or text.startswith("@"):
            return b""
        out = text[:1000].encode("ascii") + b"\n"
        if len(out) > self._left:
            return b""
        self._left -= len(out)
        return out
