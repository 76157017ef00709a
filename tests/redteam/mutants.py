"""The boundary with one rule taken away, as a table: what each mutant changes, and which attempts must then get through
(or, for a control, no longer work). An attempt that stays refused without its rule proves nothing about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent_container.stack import Container
from agent_egress import identity


@dataclass(frozen=True)
class Mutant:
    """One thing taken away."""

    name: str
    red: tuple[str, ...]
    """Attempts, or kinds of what the world sees (`outside_...`), of which each must go red."""
    file: str = ""
    """A rendered file, in which `old` becomes `new` (every occurrence)."""
    old: str = ""
    new: str = ""
    more: tuple[tuple[str, str, str], ...] = ()
    """Further (file, old, new): where two layers hold the same, both have to go."""
    agent: Callable[[Container], Container] | None = None
    """A change of the agent's container."""
    sidecar: Callable[[Container], Container] | None = None
    without: tuple[str, ...] = ()
    """Options of the agent's container that are left out: see tests.support.net.run_arguments."""
    cut: bool = False
    """Whether the kernel's switch is off; then whatever still gets through is red, a control too."""
    via: tuple[str, ...] = ()
    """Attempts to run besides those of `red`, to provoke what the world sees."""
    still: tuple[str, ...] = ()
    """Attempts that another layer still refuses."""
    closed: str = ""
    """The part that the sidecar names when it finds out by itself and does not open at all."""

    @property
    def attempts(self) -> tuple[str, ...]:
        """What has to be run."""
        return tuple(name for name in (*self.red, *self.via, *self.still) if not name.startswith("outside_"))

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """Every (file, old, new)."""
        return (*(((self.file, self.old, self.new),) if self.file else ()), *self.more)


def _nft(name: str, old: str, new: str, *red: str, via: tuple[str, ...] = (), still: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, red, file="nftables.nft", old=old, new=new, via=via, still=still)


def _squid(name: str, old: str, new: str, *red: str, via: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, red, file="squid.conf", old=old, new=new, via=via)


def _as(uid: int, *caps: str) -> Callable[[Container], Container]:
    return lambda container: replace(container, user=f"{uid}:{uid}", cap_add=caps)


def _without_sysctl(name: str) -> Callable[[Container], Container]:
    return lambda container: replace(container, sysctls=tuple(pair for pair in container.sysctls if pair[0] != name))


_OUTPUT = "    type filter hook output priority 0; policy drop;\n"
_REFUSED = "  chain refused {\n"
_PRIVATE = "th dport { 3129, 3130, 3131, 3132, 3133, 3054 } goto refused"
_DOCKER_CAPS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "NET_RAW", "SETGID", "SETPCAP", "SETUID")

MUTANTS: tuple[Mutant, ...] = (
    # --- who the agent is ---
    Mutant(
        "the agent has squid's uid",
        ("raw_tcp4", "raw_tcp6"),
        agent=_as(identity.SQUID),
        still=("raw_udp4", "raw_udp6", "private_direct.private", "private_direct.metadata"),
    ),
    Mutant(
        "the agent has unbound's uid",
        ("lookup_refused_names.upstream_udp",),
        agent=_as(identity.UNBOUND),
        still=("raw_tcp4",),
    ),
    Mutant("the agent may use raw sockets", ("raw_sockets.inet", "raw_sockets.packet"), agent=_as(0, "NET_RAW")),
    Mutant(
        "the agent is root with the engine's capabilities",
        ("capabilities.effective", "become.root"),
        agent=_as(0, *_DOCKER_CAPS),
    ),
    Mutant("the agent may gain privileges", ("new_privileges",), without=("no-new-privileges",)),
    Mutant(
        "the agent may administer the network",
        ("change_the_rules.flush", "socket_options.mark"),
        agent=_as(0, "NET_ADMIN"),
    ),
    Mutant(
        "the agent's root is not read-only", ("write_to.root", "write_to.program"), agent=_as(0), without=("read-only",)
    ),
    Mutant("the agent's root is read-only for root too", (), agent=_as(0), still=("write_to.root", "write_to.program")),
    Mutant("the agent keeps its capabilities", ("capabilities.bounding",), without=("cap-drop",)),
    Mutant("the agent writes core files", ("core_files",), without=("core",)),
    Mutant("the agent has any number of processes", ("unlimited_processes",), without=("pids",)),
    Mutant("the agent runs programs from its temporary files", ("run_a_program_of_ones_own",), without=("noexec",)),
    Mutant("the agent's system calls are not filtered", ("unfiltered_system_calls",), without=("seccomp",)),
    Mutant("the agent sees the daemons' processes", ("processes_of_others",), without=("pid",)),
    # --- the kernel's rules ---
    _nft("everything may leave", _OUTPUT, _OUTPUT + "    accept\n", "raw_tcp4", "raw_tcp6", "raw_udp4", "raw_tcp_ssh"),
    _nft("IPv6 may leave", _REFUSED, _REFUSED + "    meta nfproto ipv6 accept\n", "raw_tcp6", "raw_udp6"),
    _nft("IPv4 may leave", _REFUSED, _REFUSED + "    meta nfproto ipv4 accept\n", "raw_tcp4", "private_direct.private"),
    _nft("UDP may leave", _REFUSED, _REFUSED + "    meta l4proto udp accept\n", "raw_udp4", "raw_udp6", "quic.v4"),
    _nft("ssh may leave", _REFUSED, _REFUSED + "    tcp dport 22 accept\n", "raw_tcp_ssh", still=("raw_tcp4",)),
    _nft(
        "the agent's port 53 is not redirected",
        ", 0 } meta l4proto { tcp, udp } th dport 53",
        ", 0 } meta l4proto { tcp, udp } th dport 5354",
        "control_lookup",
    ),
    Mutant(
        "squid's port 53 is not redirected",
        (),
        "nftables.nft",
        "th dport 53 redirect",
        "th dport 5354 redirect",
        closed="squid",
    ),
    _nft("port 80 is not redirected", "tcp dport 80 redirect", "tcp dport 81 redirect", "control_transparent_http"),
    _nft(
        "port 443 is not redirected",
        "tcp dport 443 redirect",
        "tcp dport 444 redirect",
        "control_transparent_https",
        "control_transparent_https6",
    ),
    _nft(
        "unbound's port is open",
        _PRIVATE,
        _PRIVATE.replace(", 3054", ""),
        "lookup_past_the_filter.udp",
        "outside_query",
    ),
    _nft(
        "squid's intercept ports are open",
        _PRIVATE,
        _PRIVATE.replace("3129, 3130, ", ""),
        "daemon_port.http_v4",
        "daemon_port.tls_v4",
    ),
    _nft("the canary's far end is open", _PRIVATE, _PRIVATE.replace(", 3131", ""), "daemon_port.canary_v4"),
    _nft("the access log takes anybody's word", _PRIVATE, _PRIVATE.replace(", 3132", ""), "forge_transfers"),
    Mutant(
        "the kernel has no floor, and squid is taken over",
        ("private_direct.private", "private_direct.metadata"),
        file="nftables.nft",
        old=" goto floor\n",
        new=" continue\n",
        agent=_as(identity.SQUID),
    ),
    Mutant(
        "squid may send UDP, and is taken over",
        ("raw_udp4",),
        file="nftables.nft",
        old="    meta l4proto tcp goto dial\n",
        new="    meta l4proto tcp goto dial\n    meta l4proto udp accept\n",
        agent=_as(identity.SQUID),
    ),
    Mutant(
        "ping sockets are there and ICMP may leave",
        ("ping.v4_unprivileged",),
        file="nftables.nft",
        old=_REFUSED,
        new=_REFUSED + "    meta l4proto { icmp, icmpv6 } accept\n",
        sidecar=_without_sysctl("net.ipv4.ping_group_range"),
    ),
    _nft(
        "ICMP may leave",
        _REFUSED,
        _REFUSED + "    meta l4proto { icmp, icmpv6 } accept\n",
        still=("ping.v4_unprivileged",),
    ),
    Mutant(
        "low ports are free for all",
        ("impersonate.low_53_v4", "impersonate.low_443_any"),
        sidecar=_without_sysctl("net.ipv4.ip_unprivileged_port_start"),
    ),
    # --- the model's budget ---
    Mutant("requests are not limited", ("spend_requests",), "session.json", '"requests": 3', '"requests": 0'),
    Mutant("bytes are not limited", ("spend_bytes",), "session.json", '"bytes": 4194304', '"bytes": 0'),
    Mutant("the key of the budget is another", ("spend_requests",), "session.json", '"metered"', '"other"'),
    _squid("nobody is told what was moved", "access_log tcp", "access_log none\n# ", "spend_bytes"),
    # --- rules ---
    Mutant(
        "an inspected host is only allowed",
        ("inspected_unopened", "control_inspected"),
        "policy.json",
        '"action":"inspect"',
        '"action":"allow"',
    ),
    Mutant(
        "a killed host is only denied",
        ("tunnel_outlives_a_kill",),
        "policy.json",
        '"action":"kill"',
        '"action":"deny"',
    ),
    # --- squid ---
    Mutant(
        "the policy process is not asked", (), "squid.conf", "http_access deny !pol !act_term\n", "", closed="squid"
    ),
    Mutant(
        "what the policy process refuses passes",
        ("proxy_refused_host.name", "proxy_pipelined.get"),
        file="squid.conf",
        old="http_access deny !pol !act_term\n",
        new="http_access allow !pol\n",
        closed="squid",
    ),
    Mutant(
        "neither the manager nor the policy is refused",
        ("cache_manager.info",),
        file="squid.conf",
        old="http_access deny manager\n",
        new="http_access allow manager\n",
    ),
    _squid(
        "the decoy is not stripped",
        "request_header_access Authorization deny bound\n",
        "",
        "outside_decoy",
        "token_foreign_twice.empty",
        via=("control_injection",),
    ),
    Mutant(
        "userinfo in a URL",
        ("token_foreign_userinfo",),
        file="squid.conf",
        old="http_access deny userinfo\n",
        more=(("squid.conf", "request_header_access Authorization deny bound\n", ""),),
    ),
    _squid(
        "another method by a header",
        "X-HTTP-Method-Override deny bound",
        "X-HTTP-Method-Override allow bound",
        "token_override.x-http-method-override",
    ),
    _squid("nothing is injected", "request_header_add Authorization", "# ", "control_injection"),
    _squid(
        "upstreams are not verified", "min-version=1.2", "min-version=1.2 flags=DONT_VERIFY_PEER", "bad_certificate"
    ),
    _squid("upgrades are not forwarded", "http_upgrade_request_protocols websocket allow all", "", "control_websocket"),
    _squid("IPv6 is not intercepted", "https_port [::1]:3130", "#", "control_transparent_https6"),
    _squid("the tunnel is not remembered", "%note{clt_conn_tag}", "%note{nothing_}", "control_injection"),
    # --- the body scanner: telemetry, but what it says it does it must do ---
    _squid(
        "requests are not scanned",
        "adaptation_access scan_request allow scan",
        "# ",
        "body_with_a_key",
        "body_with_the_placeholder",
    ),
    _squid("answers are not scanned", "adaptation_access scan_answer allow scan\n", "", "answer_with_the_secret"),
    _nft(
        "the scanner talks to anybody",
        _PRIVATE,
        _PRIVATE.replace(", 3133", ""),
        "talk_to_the_scanner",
        "private_ports",
    ),
    Mutant(
        "scanning only notes keys",
        ("body_with_a_key",),
        file="session.json",
        old='"enforce"',
        new='"log"',
        still=("body_with_the_placeholder", "answer_with_the_secret"),
    ),
)
