"""Who and where inside the sidecar: the daemons' uids, their ports and the fixed paths. Every other part imports these
(the rendered nftables rules and squid.conf included), so that a number stands in one place. It decides nothing."""

from __future__ import annotations

# Unusual numbers on purpose: `meta skuid` is what lets a packet out, so no distribution account, no plausible host uid
# and no uid of an agent image may equal one of them. The gid of each is the same number.
SQUID = 64101
DNS = 64102
UNBOUND = 64103
POLICY = 64104
AUDIT = 64105
SCAN = 64106
GATEWAY = 64107
DAEMON_UIDS = frozenset({SQUID, DNS, UNBOUND, POLICY, AUDIT, SCAN, GATEWAY})
UID_NAMES = {
    SQUID: "egress-squid",
    DNS: "egress-dns",
    UNBOUND: "egress-unbound",
    POLICY: "egress-policy",
    AUDIT: "egress-audit",
    SCAN: "egress-scan",
    GATEWAY: "egress-git",
}

# No daemon binds a privileged port; nft redirects :53 to DNS_PORT for the agent and for squid.
PROXY_PORT = 3128
INTERCEPT_HTTP_PORT = 3129
INTERCEPT_TLS_PORT = 3130
CANARY_PORT = 3131
ACCESS_PORT = 3132
"""squid tells the policy process how much every transaction moved."""
SCAN_PORT = 3133
"""squid hands bodies to the scanner (ICAP)."""
DNS_PORT = 3053
UNBOUND_PORT = 3054
LOOPBACK4 = "127.0.0.1"
LOOPBACK6 = "::1"
GATEWAY_LOOPBACK4 = "127.0.0.2"
"""Where squid takes requests of the git gateway, on PROXY_PORT; the agent reaches only 127.0.0.1 of loopback."""

OWN_DOMAIN = "agent-container.invalid"
"""Names that we ask for ourselves, to see them refused: no rule is over one of them."""

CANARY_HOST = "canary.agent-container.invalid"
"""Answered by the filter itself with 127.0.0.1; `.invalid` (RFC 6761) never exists elsewhere."""

HEALTH_HOST = "health.agent-container.invalid"
"""squid refuses it and unbound knows it without asking anyone: the watchdog tells hung daemons by it."""

# Rendered on the host, mounted read-only.
CONFIG_DIR = "/etc/agent-egress"
SESSION_FILE = "/etc/agent-egress/session.json"
BOOT_POLICY_FILE = "/etc/agent-egress/policy.json"
SQUID_CONF = "/etc/agent-egress/squid.conf"
UNBOUND_CONF = "/etc/agent-egress/unbound.conf"
NFTABLES_CONF = "/etc/agent-egress/nftables.nft"
UPSTREAM_CA_FILE = "/etc/agent-egress/upstream-ca.pem"

# tmpfs; only path sockets: abstract ones are shared across the namespace and no rule sees them.
RUN_DIR = "/run/egress"
CONTROL_SOCKET = "/run/egress/control.sock"
POLICY_FILE = "/run/egress/policy.json"
HEALTHY_FILE = "/run/egress/healthy"
UPSTREAM_ROOTS_FILE = "/run/egress/upstream-roots.pem"
PRIVATE_DOMAINS_FILE = "/run/egress/unbound-private.conf"
AUDIT_DIR = "/run/audit"
AUDIT_SOCKET = "/run/audit/audit.sock"
POLICY_DIR = "/run/policy"
POLICY_SOCKET = "/run/policy/policy.sock"
SCAN_DIR = "/run/scan"
SCAN_SOCKET = "/run/scan/scan.sock"
GATEWAY_DIR = "/run/git"
"""The gateway's alone: the project's ssh key lies here, in memory."""
GATEWAY_CONTROL_SOCKET = "/run/git/control.sock"
SQUID_DIR = "/run/squid"
UNBOUND_DIR = "/run/unbound"
CA_KEY_DIR = "/run/ca"
CA_KEY_FILE = "/run/ca/session.key"
PUBLIC_ROOTS_FILE = "/etc/ssl/certs/ca-certificates.crt"

# volumes
RECEIPTS_DIR = "/var/lib/egress"
RECEIPTS_FILE = "/var/lib/egress/receipts.jsonl"
GIT_DIR = "/var/lib/egress-git"
"""Holds nothing but the socket by which the agent's git asks the gateway."""
GIT_SOCKET = "/var/lib/egress-git/gateway.sock"
CA_DIR = "/var/lib/egress-ca"
CA_FILE = "/var/lib/egress-ca/ca.pem"
CA_BUNDLE_FILE = "/var/lib/egress-ca/bundle.pem"

CHAIN_KEY_FD = 3
"""Where the audit writer finds the 32 bytes of the chain key; read once, closed, never on disk."""

MAX_RECEIPT_BYTES = 1024
ANSWER_DEADLINE_S = 2.0
