"""The kernel's half of the boundary: loads the rendered nftables rules, reads them back, keeps their digest, fills the
sets that follow from the policy, and polls what was tried and dialled. It trusts only what the kernel lists, never
an exit status, and decides nothing that a policy decides."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_egress.floors import (
    FLOOR4,
    FLOOR6,
    METADATA4,
    METADATA6,
    NEVER4,
    NEVER6,
    Network,
    in_any,
    nat64_network,
    subnet,
)
from agent_egress.policy import Policy

TABLE = "inet egress"
NFT = "/usr/sbin/nft"
TIMEOUT_S = 10
HOOKS = {
    "pre": ("nat", "output", "accept"),
    "output": ("filter", "output", "drop"),
    "input": ("filter", "input", "drop"),
    "forward": ("filter", "forward", "drop"),
}
# Sets whose content is fixed for the session, as against those that follow the policy, the switch, or the traffic.
FIXED_SETS = frozenset({"floor4", "floor6", "never4", "never6", "resolvers4", "resolvers6"})
POLICY_SETS = frozenset(f"{name}{version}" for name in ("hosts", "except", "block", "metadata") for version in (4, 6))
SEEN = ("seen4", "seen6")
DIALLED = ("dialled4", "dialled6")
_CHAIN = re.compile(r"^\s*chain (\w+) \{$")


class RulesetError(Exception):
    """The rules are not in force as rendered; `output` holds nft's words."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


PROTOCOLS = {"6": "tcp", "17": "udp", "33": "dccp", "132": "sctp", "136": "udplite"}
"""nft names a protocol where the system has a list of them, which the sidecar's image has not."""


@dataclass(frozen=True)
class Flow:
    """Packets counted for one destination since the table was loaded."""

    address: str
    protocol: str
    port: int
    packets: int


@dataclass(frozen=True)
class Live:
    """The table as the kernel lists it."""

    chains: Mapping[str, Mapping[str, object]]
    rules: Mapping[str, tuple[str, ...]]
    """Chain to the canonical JSON of its rules, handles and counts removed."""
    sets: Mapping[str, tuple[object, ...]]
    counters: Mapping[str, int]
    families: frozenset[str]

    @property
    def digest(self) -> str:
        """Over hooks, policies, rules, and the sets whose content never changes."""
        return _digest([self.chains, self.rules, self._content(FIXED_SETS), sorted(self.sets)])

    @property
    def policy_digest(self) -> str:
        """Over the sets that follow from the policy."""
        return _digest(self._content(POLICY_SETS))

    def _content(self, names: frozenset[str]) -> dict[str, list[str]]:
        return {name: sorted(map(_canonical, self.sets.get(name, ()))) for name in sorted(names)}

    @property
    def is_cut(self) -> bool:
        """Whether the switch is off for both families."""
        return {"ipv4", "ipv6"} <= {str(element) for element in self.sets.get("cut", ())}

    def seen(self) -> list[Flow]:
        """What the agent tried and was refused."""
        return [flow for name in SEEN for flow in _flows(self.sets.get(name, ()))]

    def dialled(self) -> list[Flow]:
        """Every destination that squid opened a connection to."""
        return [flow for name in DIALLED for flow in _flows(self.sets.get(name, ()))]


def load(path: Path) -> None:
    """Puts the rendered rules in force, all of them or none.

    Raises:
        RulesetError: when nft refuses, which a kernel without nf_tables does too.
    """
    _nft("-f", str(path))


def read_back() -> Live:
    """The table as it is in force.

    Raises:
        RulesetError: when there is no such table.
    """
    document: object = json.loads(_nft("-j", "list", "table", "inet", "egress"))
    objects = document.get("nftables") if isinstance(document, dict) else None
    if not isinstance(objects, list):
        raise RulesetError("nft listed no table")
    return _parse(objects)


def problems(live: Live, source: str) -> list[str]:
    """How the table in force differs from the rendered text `source` and from the floors; empty when it does not."""
    found = []
    for name, (kind, hook, policy) in HOOKS.items():
        chain = live.chains.get(name, {})
        actual = (chain.get("type"), chain.get("hook"), chain.get("policy"))
        if actual != (kind, hook, policy):
            found.append(f"chain {name}: found {actual}, expected {(kind, hook, policy)}")
    if live.families != {"inet"}:
        found.append(f"table family: found {sorted(live.families)}, expected inet (both IPv4 and IPv6)")
    for name, count in rule_counts(source).items():
        if len(live.rules.get(name, ())) != count:
            found.append(f"chain {name}: {len(live.rules.get(name, ()))} rules in force, {count} rendered")
    floors: dict[str, tuple[Network, ...]] = {"floor4": FLOOR4, "floor6": FLOOR6, "never4": NEVER4, "never6": NEVER6}
    for name, expected in floors.items():
        if networks(live.sets.get(name, ())) != list(_collapse(expected)):
            found.append(f"set {name}: not the floor of this version")
    return found


def rule_counts(source: str) -> dict[str, int]:
    """Rules per chain in rendered text (one statement a line)."""
    counts: dict[str, int] = {}
    chain = None
    for raw in source.splitlines():
        line = raw.strip()
        opened = _CHAIN.match(raw)
        if opened:
            chain = opened.group(1)
            counts[chain] = 0
        elif line == "}":
            chain = None
        elif chain and line and not line.startswith(("#", "type ")):
            counts[chain] += 1
    return counts


def apply_policy(policy: Policy) -> None:
    """Fills the sets that follow from the policy, in one transaction.

    Raises:
        RulesetError: when nft refuses; the former sets are then still in force.
    """
    _nft("-f", "-", text=policy_statements(policy))


def policy_statements(policy: Policy) -> str:
    """nft statements that replace the policy's sets."""
    lifted = [(network, port) for rule in policy.rules if rule.allows for network in rule.lifted for port in rule.ports]
    exact = {network.network_address for network, _ in lifted if network.num_addresses == 1}
    own: list[Network] = [ipaddress.ip_network(a) for a in policy.own_addresses if a not in exact]
    denied = [rule.network for rule in policy.rules if rule.refuses and rule.network is not None]
    denied += [nat64_network(network) for network in denied if isinstance(network, ipaddress.IPv4Network)]
    floor: tuple[Network, ...] = FLOOR4 + FLOOR6
    # Outside the floor an exception would change nothing; a wide one that covers part of it still counts.
    needed = [
        (n, port) for n, port in lifted if any(subnet(n, f) or subnet(f, n) for f in floor) or in_any(n[0], floor)
    ]
    metadata: tuple[Network, ...] = () if policy.allow_metadata else METADATA4 + METADATA6
    lines = []
    for version in (4, 6):
        plain = {"hosts": own, "block": denied, "metadata": metadata}
        for name, found in plain.items():
            lines += _replace(f"{name}{version}", [str(n) for n in _collapse(n for n in found if n.version == version)])
        pairs = {(port, n) for n, port in needed if n.version == version}
        by_port = {port: [n for p, n in pairs if p == port] for port, _ in pairs}
        elements = [f"{n} . {port}" for port in sorted(by_port) for n in _collapse(by_port[port])]
        lines += _replace(f"except{version}", elements)
    return "".join(line + "\n" for line in lines)


def set_cut(cut: bool) -> None:
    """Turns the switch off (nothing leaves, live flows included) or on."""
    _nft("-f", "-", text="\n".join(_replace("cut", ["ipv4", "ipv6"] if cut else [])) + "\n")


def _replace(name: str, elements: list[str]) -> list[str]:
    lines = [f"flush set {TABLE} {name}"]
    if elements:
        lines.append(f"add element {TABLE} {name} {{ {', '.join(elements)} }}")
    return lines


def _collapse(found: Iterable[Network]) -> Iterator[Network]:
    by_version = {4: [], 6: []}  # type: dict[int, list[Network]]
    for network in found:
        by_version[network.version].append(network)
    for group in by_version.values():
        yield from ipaddress.collapse_addresses(group)  # type: ignore[type-var]


def networks(elements: Iterable[object]) -> list[Network]:
    """The elements of an interval set as collapsed networks; nft lists addresses, prefixes and ranges."""
    found: list[Network] = []
    for element in elements:
        if isinstance(element, str):
            found.append(ipaddress.ip_network(element))
        elif isinstance(element, dict) and "prefix" in element:
            found.append(ipaddress.ip_network(f"{element['prefix']['addr']}/{element['prefix']['len']}"))
        elif isinstance(element, dict) and "range" in element:
            first, last = (ipaddress.ip_address(text) for text in element["range"])
            found.extend(ipaddress.summarize_address_range(first, last))
    return list(_collapse(found))


def _parse(objects: list[object]) -> Live:
    chains: dict[str, dict[str, object]] = {}
    rules: dict[str, list[str]] = {}
    sets: dict[str, tuple[object, ...]] = {}
    counters: dict[str, int] = {}
    families = set()
    for wrapped in objects:
        if not isinstance(wrapped, dict):
            continue
        for kind, body in wrapped.items():
            if kind == "table":
                families.add(str(body["family"]))
            elif kind == "chain":
                chains[body["name"]] = {key: body.get(key) for key in ("type", "hook", "prio", "policy")}
                rules.setdefault(body["name"], [])
            elif kind == "rule":
                rules.setdefault(body["chain"], []).append(_canonical(body.get("expr", [])))
            elif kind == "set":
                sets[body["name"]] = tuple(body.get("elem", ()))
            elif kind == "counter":
                counters[body["name"]] = int(body["packets"])
    return Live(
        chains=chains,
        rules={name: tuple(found) for name, found in rules.items()},
        sets=sets,
        counters=counters,
        families=frozenset(families),
    )


def _flows(elements: Iterable[object]) -> Iterator[Flow]:
    for element in elements:
        body = element.get("elem") if isinstance(element, dict) else None
        if not isinstance(body, dict):
            continue
        parts = body["val"]["concat"]
        packets = int(body.get("counter", {}).get("packets", 0))
        protocol = PROTOCOLS.get(str(parts[1]), str(parts[1])) if len(parts) == 3 else "tcp"
        yield Flow(address=str(parts[0]), protocol=protocol, port=int(parts[-1]), packets=packets)


def _digest(value: object) -> str:
    return "sha256:" + hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _nft(*arguments: str, text: str | None = None) -> str:
    try:
        done = subprocess.run(
            [NFT, *arguments], input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RulesetError(f"nft could not be run: {error}") from error
    if done.returncode != 0:
        raise RulesetError(f"nft {' '.join(arguments)} ended with {done.returncode}", done.stderr.strip()[-2000:])
    return done.stdout
