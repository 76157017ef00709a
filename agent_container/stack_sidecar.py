"""The egress sidecar's container as a value: the few capabilities it keeps and why, its tmpfs directories, its probe.

What runs in it is told by the rendered files; what may leave it is decided inside.
"""

from __future__ import annotations

from agent_container.stack import Container, Limits, Mount, Probe, Tmpfs
from agent_egress import identity

CAPABILITIES = (
    "NET_ADMIN",  # nftables; the supervisor alone keeps it
    "SETUID",  # each daemon is started as its own uid,
    "SETGID",  # and gid,
    "SETPCAP",  # with an empty bounding set
    "KILL",  # ends a daemon that hangs: they run as other uids than the supervisor
)
MEMORY_BYTES = 1024**3
PIDS = 256
PROBE_S, STANDING_PROBE_S = 5.0, 30.0
"""Each probe is a process that the engine starts, some 100 ms of a core: those of forty standing sandboxes would keep
one busy. Nobody waits for them there: `status` asks over the control socket."""
# Idle 150 MB; busy with hundreds of bumped connections still below a third of the limit.


def sidecar_container(
    *, image: str, memory_bytes: int = MEMORY_BYTES, probe_s: float = PROBE_S, git: bool = False
) -> Container:
    """The sidecar's container. Root inside, but with no capability to read other uids' files or to give files away."""
    return Container(
        service="egress",
        image=image,
        user="0:0",
        mounts=(
            Mount(kind="volume", source="receipts", target=identity.RECEIPTS_DIR),
            Mount(kind="volume", source="ca", target=identity.CA_DIR),
            *((Mount(kind="volume", source="git", target=identity.GIT_DIR),) if git else ()),
        ),
        tmpfs=(
            Tmpfs(target=identity.RUN_DIR, uid=0, mode=0o755),
            Tmpfs(target=identity.AUDIT_DIR, uid=identity.AUDIT, mode=0o755),
            Tmpfs(target=identity.POLICY_DIR, uid=identity.POLICY, mode=0o755),
            Tmpfs(target=identity.SCAN_DIR, uid=identity.SCAN, mode=0o755),
            *((Tmpfs(target=identity.GATEWAY_DIR, uid=identity.GATEWAY, mode=0o755),) if git else ()),
            Tmpfs(target=identity.SQUID_DIR, uid=identity.SQUID, mode=0o700),
            Tmpfs(target=identity.UNBOUND_DIR, uid=identity.UNBOUND, mode=0o700),
            Tmpfs(target=identity.CA_KEY_DIR, uid=identity.SQUID, mode=0o700),
        ),
        cap_add=CAPABILITIES,
        sysctls=(
            ("net.ipv4.ip_unprivileged_port_start", "1024"),  # the engine's default of 0 would give :53 to the agent
            ("net.ipv4.ping_group_range", "1 0"),  # nobody: an echo request carries data out
        ),
        limits=Limits(pids=PIDS, memory_bytes=memory_bytes, swap=False),
        probe=Probe(argv=("/usr/bin/cat", identity.HEALTHY_FILE), interval_s=probe_s, start_interval_s=0.5, retries=3),
        stop_grace_s=3,
    )
