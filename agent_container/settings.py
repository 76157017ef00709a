"""What holds for this host rather than a project: resolvers, certificates, Docker networks; and the host's addresses.

The settings file is the user's own and wins over every spec, so it must not be writable by others. Where it lies is the
store's to say. Everything read from the system takes its path as a parameter and starts no process.
"""

from __future__ import annotations

import os
import re
import stat
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from agent_container.errors import SpecError
from agent_container.spec_load import load_model
from agent_container.spec_yaml import MAX_BYTES

RESOLV_CONF = Path("/etc/resolv.conf")
SYSTEMD_RESOLV_CONF = Path("/run/systemd/resolve/resolv.conf")
FIB_TRIE = Path("/proc/net/fib_trie")
IF_INET6 = Path("/proc/net/if_inet6")

_NETWORK_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,126}")
_LOCAL_ENTRY = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")


def _resolver(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        raise ValueError("expected an address such as 203.0.113.53") from None
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError("the sidecar cannot reach this host's loopback: name a resolver with an address of its own")
    return str(address)


def _network_name(text: str) -> str:
    if not _NETWORK_NAME.fullmatch(text):
        raise ValueError("expected the name of a Docker network")
    return text


def _pool(text: str) -> str:
    try:
        network = IPv4Network(text)
    except ValueError:
        raise ValueError("expected an IPv4 range such as 10.213.0.0/16") from None
    if not 8 <= network.prefixlen <= 28:
        raise ValueError("expected a range between /8 and /28")
    return str(network)


def _choice_or_path(*choices: str) -> AfterValidator:
    def check(text: str) -> str:
        if text in choices or (text.startswith("/") and text.isprintable()):
            return text
        raise ValueError(f"expected {', '.join(choices)} or an absolute path")

    return AfterValidator(check)


def _empty(value: object) -> object:
    return () if value is None else value


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class NetworkSettings(_Part):
    """The Docker networks that sidecars leave by."""

    internal: bool = False
    """Make networks without a way out of this host: for tests, where `join` gives the only peers."""
    join: Annotated[tuple[Annotated[str, AfterValidator(_network_name)], ...], BeforeValidator(_empty)] = ()
    """Existing Docker networks that every sidecar joins besides its own."""
    ipv6: bool = False
    """Give the networks IPv6 too."""
    pool: Annotated[str, AfterValidator(_pool)] | None = None
    """The IPv4 range that subnets are taken from; without the key, the tool's own."""


class Settings(_Part):
    """`config.yaml` in the user's configuration directory; every key may be left out."""

    resolvers: Annotated[tuple[Annotated[str, AfterValidator(_resolver)], ...], BeforeValidator(_empty)] = Field(
        default=(), max_length=8
    )
    """Resolvers that sidecars ask; without the key, this host's."""
    upstream_ca: Annotated[str, _choice_or_path("public", "system")] = "public"
    """Whom the sidecar believes: `public` roots, this host's (`system`), or the certificates in a PEM file."""
    network: Annotated[NetworkSettings, BeforeValidator(lambda v: {} if v is None else v)] = NetworkSettings()
    """The Docker networks that sidecars leave by."""
    build_ca: Annotated[str, _choice_or_path("auto", "off")] = "auto"
    """Certificates for image builds behind a proxy that opens TLS: found (`auto`), none (`off`), or a PEM file."""


def parse_settings(data: bytes, *, path: Path) -> Settings:
    """Parse the file's bytes. `path` is for messages. Raises: SpecError with every mistake and its line."""
    settings, _ = load_model(Settings, data, path=path)
    return settings


def load_settings(path: Path) -> Settings:
    """The settings in a file; the defaults without one. Raises: SpecError, also when others can write to it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(stream.fileno())
            body = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if not stat.S_ISREG(status.st_mode):
        raise SpecError(f"{path} is no plain file")
    if status.st_mode & 0o022:
        raise SpecError(f"{path} can be written by others", hint=f"chmod go-w '{path}'")
    if status.st_uid not in (0, os.getuid()):
        raise SpecError(f"{path} belongs to uid {status.st_uid}, not to you", hint=f"chown {os.getuid()} '{path}'")
    return parse_settings(body, path=path)


def host_resolvers(resolv_conf: Path = RESOLV_CONF, behind_stub: Path = SYSTEMD_RESOLV_CONF) -> tuple[str, ...]:
    """The resolvers of this host that a container can reach; behind a loopback stub, the stub's. May be empty."""
    listed = _nameservers(resolv_conf)
    usable = tuple(text for text in listed if not ip_address(text).is_loopback)
    if usable or not listed:
        return usable
    return tuple(text for text in _nameservers(behind_stub) if not ip_address(text).is_loopback)


def _nameservers(path: Path) -> tuple[str, ...]:
    """`nameserver` lines of resolv.conf(5); an address with a zone only means something on this host."""
    found: dict[str, None] = {}
    for line in _lines(path):
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver" or "%" in words[1]:
            continue
        try:
            found[str(ip_address(words[1]))] = None
        except ValueError:
            continue
    return tuple(found)


def host_addresses(fib_trie: Path = FIB_TRIE, if_inet6: Path = IF_INET6) -> tuple[str, ...]:
    """Every address of this host but loopback, sorted; empty where there is no /proc (there Docker runs in a VM)."""
    found: set[IPv4Address | IPv6Address] = set()
    found.update(IPv4Address(text) for text in _LOCAL_ENTRY.findall("\n".join(_lines(fib_trie))))
    for line in _lines(if_inet6):
        digits = line.split()[0] if line.strip() else ""
        if len(digits) == 32:
            found.add(IPv6Address(int(digits, 16)))
    outside = [address for address in found if not address.is_loopback]
    return tuple(str(a) for a in sorted(outside, key=lambda a: (a.version, int(a))))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
