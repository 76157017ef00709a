"""The egress sidecar's files from its configuration: what is bound read-only at /etc/agent-egress. Pure, and no secret.

Floors, uids and ports come from `agent_egress`, so that nftables, squid and unbound hold the same ones as the policy
process. What a request may do is not decided here: squid asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from agent_container.errors import AgentContainerError
from agent_container.render.templates import Value, render_template
from agent_egress import floors, identity
from agent_egress.budget import ModelLimits
from agent_egress.fingerprints import MODES
from agent_egress.policy import Policy
from agent_egress.squidline import line_format

DEFAULT_CREDENTIAL_HEADERS = ("Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Private-Token")
OVERRIDE_HEADERS = (
    "X-HTTP-Method-Override",
    "X-HTTP-Method",
    "X-Method-Override",
    "X-Original-URL",
    "X-Rewrite-URL",
)
DEFAULT_MAX_RECEIPTS = 2_000_000
NO_LIMITS = ModelLimits()

_BUMP = (
    f"ssl-bump tls-cert={identity.CA_FILE} tls-key={identity.CA_KEY_FILE}"
    " generate-host-certificates=on dynamic_cert_mem_cache_size=8MB"
)
_SESSION = re.compile(r"[0-9a-f][0-9a-f-]{0,63}", re.ASCII)
_PROJECT = re.compile(r"[0-9a-f]{4,64}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}", re.ASCII)
_PEM = re.compile(
    r"(?:-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n?|#[^\n-]*\n|\n)+", re.ASCII
)


class SidecarConfigError(AgentContainerError):
    """The sidecar cannot be configured as asked; `details` holds one line for each value at fault."""


@dataclass(frozen=True)
class SidecarConfig:
    """What one session's sidecar is told when it is made. The policy can be replaced later, the rest not."""

    session: str
    """Session id (`ids.new_id`)."""
    project: str
    """Project id, hex."""
    agent_uid: int
    policy: Policy
    resolvers: tuple[str, ...]
    """The host's real resolvers, addresses without ports: unbound may ask these on port 53 and nothing else."""
    deadline_s: int = 7200
    """Seconds from `session.open` after which the sidecar cuts egress by itself."""
    credential_headers: tuple[str, ...] = DEFAULT_CREDENTIAL_HEADERS
    """Headers that a credential may use; squid's names are static, so later ones need a new sidecar."""
    ipv6: bool = True
    """Whether the namespace has IPv6 (squid then also intercepts on ::1). The rules cover both families either way."""
    upstream_ca: str = "public"
    """`public`: the public roots alone verify upstreams; or PEM text of more roots (a company's own CA)."""
    model: ModelLimits = NO_LIMITS
    """What of the agent's model service may be used."""
    dlp: str = "enforce"
    """What follows when a body that is scanned holds a key: `enforce`, `log` or `off`."""
    git: bool = False
    """Whether there is a git gateway."""
    max_receipts: int = DEFAULT_MAX_RECEIPTS
    """The chain's cap: at it everything is denied."""

    def __post_init__(self) -> None:
        problems = [*self._identity_problems(), *self._network_problems()]
        if problems:
            raise SidecarConfigError("the egress sidecar cannot be configured", details=problems)

    def _identity_problems(self) -> Iterable[str]:
        if not _SESSION.fullmatch(self.session):
            yield f"session: {self.session!r} is not a session id"
        if not _PROJECT.fullmatch(self.project):
            yield f"project: {self.project!r} is not a project id"
        if self.agent_uid in identity.DAEMON_UIDS or self.agent_uid <= 0:
            # `meta skuid` tells the daemons from the agent by uid alone.
            yield f"agent_uid: {self.agent_uid} is the superuser's or one of the sidecar's own"
        if self.dlp not in MODES:
            yield f"dlp: {self.dlp!r} is none of {', '.join(MODES)}"
        if self.deadline_s <= 0 or self.max_receipts <= 0:
            yield "deadline_s and max_receipts: expected positive numbers"

    def _network_problems(self) -> Iterable[str]:
        if not self.resolvers:
            yield "resolvers: none: every name would fail"
        for resolver in self.resolvers:
            try:
                address = ip_address(resolver)
            except ValueError:
                yield f"resolvers: {resolver!r} is not an address"
                continue
            if str(address) != resolver or address.is_loopback or address.is_unspecified or "%" in resolver:
                yield f"resolvers: {resolver!r} cannot be asked from inside the sidecar"
        for header in self.credential_headers:
            if not _HEADER.fullmatch(header):
                yield f"credential_headers: {header!r} is not a header name"
        if len({header.lower() for header in self.credential_headers}) != len(self.credential_headers):
            yield "credential_headers: one stands twice"
        if self.upstream_ca != "public" and not _PEM.fullmatch(self.upstream_ca):
            yield "upstream_ca: neither `public` nor PEM certificates"


def render_sidecar_files(config: SidecarConfig) -> tuple[tuple[str, str], ...]:
    """Name to text of every file, sorted by name."""
    files = {
        "session.json": _session_json(config),
        "policy.json": config.policy.encode().decode() + "\n",
        "squid.conf": _squid_conf(config),
        "unbound.conf": _unbound_conf(config),
        "nftables.nft": _nftables(config),
    }
    if config.upstream_ca != "public":
        files["upstream-ca.pem"] = config.upstream_ca
    return tuple(sorted(files.items()))


def _session_json(config: SidecarConfig) -> str:
    document = {
        "version": 1,
        "session": config.session,
        "project": config.project,
        "agent_uid": config.agent_uid,
        "resolvers": list(config.resolvers),
        "deadline_s": config.deadline_s,
        "max_receipts": config.max_receipts,
        "credential_headers": list(config.credential_headers),
        "ipv6": config.ipv6,
        "dlp": config.dlp,
        "model": {
            "credentials": sorted(config.model.credentials),
            "hosts": sorted(config.model.hosts),
            "requests": config.model.requests,
            "bytes": config.model.bytes,
        },
        **({"git": True} if config.git else {}),
    }
    return json.dumps(document, indent=1) + "\n"


def _squid_conf(config: SidecarConfig) -> str:
    values: dict[str, Value] = {
        "session": config.session,
        "squid_dir": identity.SQUID_DIR,
        "squid_user": identity.UID_NAMES[identity.SQUID],
        "git": config.git,
        "gateway_loopback": identity.GATEWAY_LOOPBACK4,
        "proxy_port": identity.PROXY_PORT,
        "http_port": identity.INTERCEPT_HTTP_PORT,
        "tls_port": identity.INTERCEPT_TLS_PORT,
        "dns_port": identity.DNS_PORT,
        "access_port": identity.ACCESS_PORT,
        "scan_port": identity.SCAN_PORT,
        "bump": _BUMP,
        "upstream_roots": identity.UPSTREAM_ROOTS_FILE,
        "ipv6": config.ipv6,
        "fields": line_format(config.credential_headers),
        "floor": _networks(floors.FLOOR4, floors.FLOOR6),
        "health_host": identity.HEALTH_HOST,
        "headers": config.credential_headers,
        "overrides": OVERRIDE_HEADERS,
    }
    return render_template("squid.conf.j2", values)


def _unbound_conf(config: SidecarConfig) -> str:
    values: dict[str, Value] = {
        "session": config.session,
        "unbound_dir": identity.UNBOUND_DIR,
        "unbound_port": identity.UNBOUND_PORT,
        "ipv6": config.ipv6,
        "health_host": identity.HEALTH_HOST,
        "floor": _networks(floors.FLOOR4, floors.FLOOR6),
        "private_domains": identity.PRIVATE_DOMAINS_FILE,
        "resolvers": config.resolvers,
    }
    return render_template("unbound.conf.j2", values)


def _nftables(config: SidecarConfig) -> str:
    values: dict[str, Value] = {
        "session": config.session,
        "squid_uid": identity.SQUID,
        "dns_uid": identity.DNS,
        "unbound_uid": identity.UNBOUND,
        "policy_uid": identity.POLICY,
        "audit_uid": identity.AUDIT,
        "scan_uid": identity.SCAN,
        "git": config.git,
        "gateway_uid": identity.GATEWAY,
        "gateway_loopback": identity.GATEWAY_LOOPBACK4,
        "daemon_uids": ", ".join(
            str(uid) for uid in sorted(identity.DAEMON_UIDS) if config.git or uid != identity.GATEWAY
        ),
        "proxy_port": identity.PROXY_PORT,
        "http_port": identity.INTERCEPT_HTTP_PORT,
        "tls_port": identity.INTERCEPT_TLS_PORT,
        "canary_port": identity.CANARY_PORT,
        "access_port": identity.ACCESS_PORT,
        "scan_port": identity.SCAN_PORT,
        "dns_port": identity.DNS_PORT,
        "unbound_port": identity.UNBOUND_PORT,
        "floor4": ", ".join(_networks(floors.FLOOR4)),
        "floor6": ", ".join(_networks(floors.FLOOR6)),
        "never4": ", ".join(_networks(floors.NEVER4)),
        "never6": ", ".join(_networks(floors.NEVER6)),
        "metadata4": ", ".join(_networks(floors.METADATA4)),
        "metadata6": ", ".join(_networks(floors.METADATA6)),
        "resolvers4": ", ".join(r for r in config.resolvers if ":" not in r),
        "resolvers6": ", ".join(r for r in config.resolvers if ":" in r),
    }
    return render_template("nftables.j2", values)


def _networks(*families: tuple[floors.Network, ...]) -> tuple[str, ...]:
    return tuple(str(network) for family in families for network in family)
