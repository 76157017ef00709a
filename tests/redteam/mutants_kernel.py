"""The kernel's rules, each line taken out: most shut something that must work, the others let something through, alone
or together with the line behind them. Read with templates/nftables.j2 beside it."""

from __future__ import annotations

from dataclasses import replace

from agent_container.stack import Container
from agent_egress import identity
from tests.redteam.mutants import Mutant

NFT = "nftables.nft"
_DAEMONS = "{ 64101, 64102, 64103, 64104, 64105, 64106 }"
_ALL = "{ 64101, 64102, 64103, 64104, 64105, 64106, 0 }"
_PROXIED = ("control_explicit_http", "control_explicit_https", "control_injection")
_LAST = '    oifname "lo" ip6 daddr ::1 accept\n    goto refused\n'
_LOOSE = (
    "    type filter hook output priority 0; policy drop;\n",
    "    type filter hook output priority 0; policy accept;\n",
)


def _as(uid: int) -> object:
    def change(container: Container) -> Container:
        return replace(container, user=f"{uid}:{uid}")

    return change


def _gone(name: str, line: str, *red: str, behind: tuple[tuple[str, str], ...] = (), uid: int | None = None) -> Mutant:
    """One line taken out, and the edits that take out what holds the same."""
    more = tuple((NFT, old, new) for old, new in behind)
    found = Mutant(name, red, file=NFT, old=f"    {line}\n", new="", more=more)
    return found if uid is None else replace(found, agent=_as(uid))


_OPEN_END = ((_LAST, _LAST.replace("goto refused", "accept")),)

KERNEL: tuple[Mutant, ...] = (
    # --- output ---
    Mutant("nothing is refused at the end", ("raw_tcp4", "raw_udp6"), NFT, *_OPEN_END[0]),
    Mutant(
        "neither the end nor the policy refuses",
        ("raw_tcp4", "raw_udp4"),
        NFT,
        *_LOOSE,
        more=((NFT, _LAST, _LAST.replace("    goto refused\n", "")),),
    ),
    Mutant(
        "the end does not refuse, the policy does",
        (),
        NFT,
        _LAST,
        _LAST.replace("    goto refused\n", ""),
        still=("raw_tcp4", "raw_udp4"),
    ),
    Mutant(
        "the switch is on neither way",
        ("control_explicit_http", "control_spliced"),
        NFT,
        '    oifname != "lo" meta nfproto @cut goto rej\n',
        "",
        more=((NFT, "    meta nfproto @cut drop\n", ""),),
        cut=True,
    ),
    Mutant(
        "the switch is on the way in alone",
        (),
        NFT,
        '    oifname != "lo" meta nfproto @cut goto rej\n',
        "",
        cut=True,
        still=("control_explicit_http",),
    ),
    Mutant(
        "the switch is on the way out alone",
        (),
        NFT,
        "    meta nfproto @cut drop\n",
        "",
        cut=True,
        still=("control_explicit_http",),
    ),
    _gone(
        "answers are judged as questions", "ct direction reply goto replies", "control_lookup", "control_explicit_http"
    ),
    _gone("squid has no way out", f"meta skuid {identity.SQUID} goto squid_out", *_PROXIED),
    _gone("unbound has no way out", f"meta skuid {identity.UNBOUND} goto unbound_out", "control_lookup"),
    _gone(
        "the filter reaches no resolver",
        f'meta skuid {identity.DNS} oifname "lo" ip daddr 127.0.0.1 meta l4proto {{ tcp, udp }} th dport 3054 accept',
        "control_lookup",
    ),
    _gone(
        "the other daemons may go anywhere",
        f"meta skuid {_DAEMONS} goto rej",
        "raw_tcp4",
        "raw_udp4",
        behind=_OPEN_END,
        uid=identity.POLICY,
    ),
    _gone("root may go anywhere", "meta skuid 0 goto rej", "raw_tcp4", "raw_udp4", behind=_OPEN_END, uid=0),
    _gone(
        "intercepted IPv4 does not arrive",
        "ip daddr 127.0.0.1 tcp dport { 3129, 3130 } ct status dnat accept",
        "control_transparent_http",
        "control_transparent_https",
    ),
    _gone(
        "intercepted IPv6 does not arrive",
        "ip6 daddr ::1 tcp dport { 3129, 3130 } ct status dnat accept",
        "control_transparent_http6",
        "control_transparent_https6",
    ),
    _gone(
        "the filter's port is shut",
        "ip daddr 127.0.0.1 meta l4proto { tcp, udp } th dport 3053 accept",
        "control_lookup",
        behind=(('    oifname "lo" ip saddr 127.0.0.0/8 ip daddr 127.0.0.1 accept\n', ""),),
    ),
    _gone(
        "the filter's IPv6 port is shut",
        "ip6 daddr ::1 meta l4proto { tcp, udp } th dport 3053 accept",
        "control_lookup6",
        behind=(('    oifname "lo" ip6 daddr ::1 accept\n', ""),),
    ),
    _gone(
        "the agent's loopback is shut",
        'oifname "lo" ip saddr 127.0.0.0/8 ip daddr 127.0.0.1 accept',
        "control_localhost",
        "control_explicit_http",
    ),
    _gone("the agent's IPv6 loopback is shut", 'oifname "lo" ip6 daddr ::1 accept', "control_localhost"),
    # --- refused, floor, rej: what falls through meets the policy, which is taken out with them ---
    Mutant(
        "what is refused falls through",
        ("raw_tcp4", "raw_udp4"),
        NFT,
        "th dport counter }\n    goto rej\n",
        "th dport counter }\n",
        more=((NFT, *_LOOSE),),
    ),
    Mutant(
        "the floor falls through",
        ("private_direct.private",),
        NFT,
        "    counter name floor_drop\n    goto rej\n",
        "    counter name floor_drop\n",
        more=((NFT, *_LOOSE),),
        agent=_as(identity.SQUID),
    ),
    Mutant(
        "squid's other packets fall through",
        ("raw_udp4",),
        NFT,
        "    meta l4proto tcp goto dial\n    goto rej\n",
        "    meta l4proto tcp goto dial\n",
        more=((NFT, *_LOOSE),),
        agent=_as(identity.SQUID),
    ),
    Mutant(
        "what cannot be written down is dialled",
        ("raw_tcp4", "raw_tcp_ssh"),
        NFT,
        "    update @dialled6 { ip6 daddr . tcp dport counter } accept\n    goto rej\n",
        "    update @dialled6 { ip6 daddr . tcp dport counter } accept\n",
        more=((NFT, *_LOOSE), (NFT, "size 65535;", "size 1;")),
        agent=_as(identity.SQUID),
    ),
    Mutant(
        "unbound's other packets fall through",
        ("raw_tcp4", "raw_udp4"),
        NFT,
        "    ip6 daddr @resolvers6 meta l4proto { tcp, udp } th dport 53 accept\n    goto rej\n",
        "    ip6 daddr @resolvers6 meta l4proto { tcp, udp } th dport 53 accept\n",
        more=((NFT, *_LOOSE),),
        agent=_as(identity.UNBOUND),
    ),
    # --- replies ---
    _gone(
        "squid may not answer",
        f"meta skuid {identity.SQUID} tcp sport {{ 3128, 3129, 3130 }} accept",
        "control_explicit_http",
        "control_transparent_https",
    ),
    _gone(
        "the filter may not answer",
        f"meta skuid {identity.DNS} meta l4proto {{ tcp, udp }} th sport 3053 accept",
        "control_lookup",
    ),
    _gone(
        "unbound may not answer",
        f"meta skuid {identity.UNBOUND} meta l4proto {{ tcp, udp }} th sport 3054 accept",
        "control_lookup",
        behind=((f"    meta skuid {_DAEMONS} ct mark 0x1 accept\n", ""),),
    ),
    _gone(
        "the scanner may not answer",
        f"meta skuid {identity.SCAN} tcp sport 3133 accept",
        "control_body",
        behind=((f"    meta skuid {_DAEMONS} ct mark 0x1 accept\n", ""),),
    ),
    _gone("the agent's own servers may not answer", 'oifname "lo" accept', "control_localhost"),
    # --- squid_out, dial, unbound_out ---
    _gone(
        "squid asks nobody",
        'oifname "lo" ip daddr 127.0.0.1 meta l4proto { tcp, udp } th dport 3053 accept',
        "control_explicit_http",
    ),
    _gone(
        "squid reaches no scanner",
        'oifname "lo" ip daddr 127.0.0.1 tcp dport { 3131, 3132, 3133, 32768-60999 } accept',
        "control_body",
    ),
    _gone("squid dials nobody", "meta l4proto tcp goto dial", "control_explicit_http"),
    _gone("no range is lifted", "ip daddr . tcp dport @except4 goto dial", "control_private_range"),
    _gone("IPv4 is not dialled", "update @dialled4 { ip daddr . tcp dport counter } accept", "control_injection"),
    _gone(
        "IPv6 is not dialled", "update @dialled6 { ip6 daddr . tcp dport counter } accept", "control_transparent_https6"
    ),
    _gone(
        "no resolver is reached", "ip daddr @resolvers4 meta l4proto { tcp, udp } th dport 53 accept", "control_lookup"
    ),
    # --- input ---
    Mutant(
        "nothing comes in by the loopback",
        ("control_localhost", "control_explicit_http"),
        NFT,
        '    iifname "lo" accept\n',
        "",
    ),
    _gone("no answer comes in", "ct state established,related accept", "control_explicit_http"),
)
