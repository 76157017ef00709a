"""The egress policy as a value: rules, credential bindings, their JSON and its digest. `parse` accepts what is
canonical and refuses all else, with every error at once; what the rules mean for one request is decided in
`policy`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv6Network, ip_address
from types import MappingProxyType

from agent_egress.floors import METADATA, NEVER, Address, Network, behind_nat64, nat64, parse_network, subnet
from agent_egress.identity import OWN_DOMAIN
from agent_egress.names import NameRefused, canonical_header, canonical_name, canonical_pattern
from agent_egress.paths import template_is_valid
from agent_egress.repositories import Repository, parse_repository
from agent_egress.rows import Row

DEFAULT_PORTS = (443, 80)
SSH_PORT = 22
ALLOWING = ("allow", "inspect")
REFUSING = ("kill", "deny")
"""The stronger first: a name that both match ends the session."""
TLS = ("splice", "inspect")
MAX_POLICY_BYTES = 4 * 1024 * 1024
MAX_ERRORS = 50
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_METHOD = re.compile(r"[A-Z]{1,20}", re.ASCII)
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_FORMAT = re.compile(r"(?:[\x21-\x7a|~][\x20-\x7a|~]{0,99})?\{\}", re.ASCII)
_BASIC_FORMAT = re.compile(r"Basic b64\((\*|[A-Za-z0-9._@+-]{1,64}):\{\}\)", re.ASCII)
_NO_METHODS = frozenset({"TRACE", "TRACK", "CONNECT"})
_NO_HEADERS_TEXT = """
    connection content-length expect host keep-alive proxy-authorization te trailer transfer-encoding upgrade
"""
_NO_HEADERS = frozenset(_NO_HEADERS_TEXT.split())
_TOP_KEYS = "version rules allow_metadata host_addresses credentials tls tripwire git"


class PolicyError(ValueError):
    """A policy that cannot be used; `problems` names each entry at fault."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True)
class Rule:
    """One line of policy."""

    action: str
    """`allow`; `inspect`: allowed, and TLS is opened; `deny`; `kill`: denied, and contact ends the session. The last
    two hold for every port, whatever their ports say."""
    pattern: str
    """A host, `*.` and a domain (its subdomains, not itself), an address, or a CIDR; canonical."""
    ports: tuple[int, ...] = DEFAULT_PORTS
    addresses: tuple[str, ...] = ()
    """Ranges in which the floor is lifted for what this pattern's names resolve to."""
    origin: str = ""
    tls: str = ""
    """Of an allow: `inspect` is the same as that action, `splice` leaves TLS unopened where the policy opens it; empty:
    as the policy says."""

    @property
    def allows(self) -> bool:
        """Whether it opens something."""
        return self.action in ALLOWING

    @property
    def refuses(self) -> bool:
        """Whether it closes something."""
        return self.action in REFUSING

    @property
    def inspects(self) -> bool:
        """Whether it says by itself that TLS is opened."""
        return self.action == "inspect" or self.tls == "inspect"

    @cached_property
    def network(self) -> Network | None:
        """The range, when the pattern is an address or a CIDR."""
        try:
            return parse_network(self.pattern)
        except ValueError:
            return None

    @cached_property
    def lifted(self) -> tuple[Network, ...]:
        """The ranges in which this rule lifts the floor."""
        own = () if self.network is None else (self.network,)
        return own + tuple(parse_network(text) for text in self.addresses)

    @property
    def text(self) -> str:
        """What receipts and refusals call this rule."""
        return f"{self.action} {self.pattern}"


@dataclass(frozen=True)
class Binding:
    """Where one credential may be used: exactly this host, port, header and format, these methods and path
    templates."""

    name: str
    host: str
    port: int
    methods: tuple[str, ...]
    paths: tuple[str, ...]
    header: str
    format: str
    """`{}` stands for the secret: `Bearer {}`. `Basic b64(USER:{})` is RFC 7617's encoding, `*` for any user."""

    @cached_property
    def basic_user(self) -> str | None:
        """The user of a Basic format (`*` for any); None for a verbatim format."""
        match = _BASIC_FORMAT.fullmatch(self.format)
        return match.group(1) if match else None


@dataclass(frozen=True)
class Policy:
    """All that is decided by. The empty one denies everything."""

    rules: tuple[Rule, ...] = ()
    allow_metadata: bool = False
    host_addresses: tuple[str, ...] = ()
    credentials: tuple[Binding, ...] = ()
    tls: str = "splice"
    """What happens to TLS where no rule says it: `splice` or `inspect`."""
    tripwire: str = "deny"
    """What follows when a decoy is seen where it does not belong: `deny`, or `kill`."""
    git: tuple[Repository, ...] = ()
    """Repositories that the git gateway may fetch from and push to; they open their hosts to it alone."""
    broken: str = ""
    """Not part of the encoding: why nothing could be read, in a policy that denies everything for it."""
    memo: dict[tuple[str, int], object] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What `policy` decided already, by host and port: agents ask for the same few hosts again and again."""

    @classmethod
    def parse(cls, data: bytes) -> Policy:
        """The policy in its JSON form (UTF-8). Raises: PolicyError, with all that is wrong."""
        return _parse(data)

    def encode(self) -> bytes:
        """The canonical JSON form: the same for every order of rules, credentials, ports and ranges."""
        rules = sorted(
            (
                {
                    "action": rule.action,
                    "pattern": rule.pattern,
                    "ports": sorted(set(rule.ports)),
                    "addresses": sorted(set(rule.addresses)),
                    "origin": rule.origin,
                    **({"tls": rule.tls} if rule.tls else {}),
                }
                for rule in set(self.rules)
            ),
            key=lambda row: json.dumps(row, sort_keys=True),
        )
        credentials = sorted(
            (
                {
                    "name": binding.name,
                    "host": binding.host,
                    "port": binding.port,
                    "methods": sorted(set(binding.methods)),
                    "paths": sorted(set(binding.paths)),
                    "header": binding.header,
                    "format": binding.format,
                }
                for binding in set(self.credentials)
            ),
            key=lambda row: json.dumps(row, sort_keys=True),
        )
        document = {
            "version": 1,
            "rules": rules,
            "allow_metadata": self.allow_metadata,
            "host_addresses": sorted(set(self.host_addresses)),
            "credentials": credentials,
            # Only where they say something: policies from before these keys keep their digests.
            **({"tls": self.tls} if self.tls != "splice" else {}),
            **({"tripwire": self.tripwire} if self.tripwire != "deny" else {}),
            **({"git": self._git_rows()} if self.git else {}),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")

    def _git_rows(self) -> list[dict[str, object]]:
        return sorted((row.row() for row in set(self.git)), key=lambda row: json.dumps(row, sort_keys=True))

    @cached_property
    def digest(self) -> str:
        """`sha256:` and the hex digest of the encoding."""
        return "sha256:" + hashlib.sha256(self.encode()).hexdigest()

    @cached_property
    def short_digest(self) -> str:
        """What each receipt carries: the first 16 hex digits."""
        return self.digest.removeprefix("sha256:")[:16]

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Rule, ...]]:
        """Rules over names, keyed by pattern."""
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            if rule.network is None:
                found.setdefault(rule.pattern, []).append(rule)
        return MappingProxyType({pattern: tuple(rules) for pattern, rules in found.items()})

    @cached_property
    def by_network(self) -> tuple[Rule, ...]:
        """Rules over addresses, in a fixed order."""
        return tuple(sorted((rule for rule in self.rules if rule.network is not None), key=_order))

    @cached_property
    def bindings(self) -> Mapping[str, tuple[Binding, ...]]:
        """Credential bindings, keyed by host."""
        found: dict[str, list[Binding]] = {}
        for binding in self.credentials:
            found.setdefault(binding.host, []).append(binding)
        return MappingProxyType({host: tuple(rows) for host, rows in found.items()})

    @cached_property
    def own_addresses(self) -> frozenset[Address]:
        """The host's own addresses, part of the floor, and what reaches them through NAT64."""
        own = [ip_address(text) for text in self.host_addresses]
        return frozenset((*own, *(nat64(address) for address in own if isinstance(address, IPv4Address))))

    @cached_property
    def kills(self) -> bool:
        """Whether any rule ends the session."""
        return any(rule.action == "kill" for rule in self.rules)

    def matching(self, host: str) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
        """The allowing and the refusing rules over a canonical name, most specific first, kill before deny."""
        found = list(self.by_name.get(host, ()))
        rest = host
        while "." in rest:
            rest = rest.split(".", 1)[1]
            found.extend(self.by_name.get("*." + rest, ()))
        found.sort(key=_order)
        return tuple(r for r in found if r.allows), _stronger_first(r for r in found if r.refuses)

    def over(self, address: Address) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
        """The same over an address; what closes an IPv4 address closes the way to it through NAT64 too."""
        inner = behind_nat64(address)
        found = [
            rule
            for rule in self.by_network
            if rule.network is not None
            and (address in rule.network or (inner is not None and rule.refuses and inner in rule.network))
        ]
        return tuple(r for r in found if r.allows), _stronger_first(r for r in found if r.refuses)


def _stronger_first(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: REFUSING.index(rule.action)))


def _order(rule: Rule) -> tuple[bool, int, str, str, str, tuple[int, ...], tuple[str, ...], str]:
    width = -rule.network.prefixlen if rule.network is not None else -len(rule.pattern)
    rest = (rule.origin, rule.action, rule.ports, rule.addresses, rule.tls)
    return rule.pattern.startswith("*"), width, rule.pattern, *rest


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise PolicyError(["a key stands twice in one object"])
    return found


def _parse(data: bytes) -> Policy:
    if len(data) > MAX_POLICY_BYTES:
        raise PolicyError([f"larger than {MAX_POLICY_BYTES} bytes"])
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except PolicyError:
        raise
    except (ValueError, RecursionError) as error:
        raise PolicyError([f"not JSON: {error}"]) from error
    problems: list[str] = []
    top = Row(document, "policy", problems, _TOP_KEYS)
    version = top.value.get("version")
    if isinstance(version, bool) or version != 1:
        problems.append(f"policy.version: found {version!r}, expected 1")
    allow_metadata = top.flag("allow_metadata")
    rules = tuple(_parse_rule(row, f"rules[{i}]", problems, allow_metadata) for i, row in enumerate(top.rows("rules")))
    credentials = tuple(
        _parse_binding(row, f"credentials[{i}]", problems) for i, row in enumerate(top.rows("credentials", 500))
    )
    own = top.texts("host_addresses", _address_problem)
    tls = top.one_of("tls", TLS, "splice")
    tripwire = top.one_of("tripwire", ("deny", "kill"), "deny")
    git = tuple(parse_repository(row, f"git[{i}]", problems) for i, row in enumerate(top.rows("git", 200)))
    if problems:
        raise PolicyError(problems[:MAX_ERRORS])
    return Policy(rules, allow_metadata, own, credentials, tls, tripwire, git)


def _parse_rule(value: object, where: str, problems: list[str], allow_metadata: bool) -> Rule:
    row = Row(value, where, problems, "action pattern ports addresses origin tls")
    action, raw = row.one_of("action", (*ALLOWING, *REFUSING)), row.text("pattern")
    tls = row.one_of("tls", ("", *TLS), "")
    if tls and action != "allow":
        problems.append(f"{where}.tls: only an allow leaves it open")
    pattern = raw
    try:
        pattern = canonical_pattern(raw)
        if f".{pattern.removeprefix('*.')}".endswith((".localhost", f".{OWN_DOMAIN}")):
            problems.append(f"{where}.pattern: {raw!r}: never leaves the sandbox")
    except NameRefused as error:
        problems.append(f"{where}.pattern: {raw!r}: {error}")
    listed = row.rows("ports", 1000)
    ports = tuple(row.port(port, f"ports[{i}]") for i, port in enumerate(listed)) or DEFAULT_PORTS
    addresses = row.texts("addresses", lambda text: _range_problem(text, allow_metadata))
    rule = Rule(action, pattern, ports, addresses, row.text("origin", ""), tls)
    if rule.inspects and SSH_PORT in ports:
        problems.append(f"{where}.ports: ssh on port {SSH_PORT} cannot be inspected: allow it in a rule of its own")
    if rule.allows and rule.network is not None:
        problem = _range_problem(pattern, allow_metadata)
        if problem is not None:
            problems.append(f"{where}.pattern: {raw!r}: {problem}")
        if addresses:
            problems.append(f"{where}.addresses: only for names; the pattern is a range itself")
    return rule


def _range_problem(text: str, allow_metadata: bool) -> str | None:
    """What is wrong with a range that would lift the floor."""
    try:
        network = parse_network(text)
    except ValueError as error:
        return f"not an address or range in its usual spelling: {error}"
    if any(subnet(network, never) for never in NEVER):
        return "no rule can lift the floor here"
    if not allow_metadata and any(subnet(network, metadata) for metadata in METADATA):
        return "cloud metadata and link-local need allow_metadata: true besides"
    least = 8 if network.version == 4 or subnet(network, IPv6Network("fc00::/7")) else 16
    if network.prefixlen < least:
        return f"too wide: at least /{least}"
    return None


def _address_problem(text: str) -> str | None:
    try:
        network = parse_network(text)
    except ValueError as error:
        return str(error)
    return None if "/" not in text and network.num_addresses == 1 else "expected one address"


def _method_problem(text: str) -> str | None:
    return None if _METHOD.fullmatch(text) and text not in _NO_METHODS else "not a method that may carry a credential"


def _parse_binding(value: object, where: str, problems: list[str]) -> Binding:
    row = Row(value, where, problems, "name host port methods paths header format")
    host = row.text("host")
    try:
        host = canonical_name(host)
    except NameRefused as error:
        problems.append(f"{where}.host: {host!r}: {error}")
    methods = row.texts("methods", _method_problem)
    paths = row.texts("paths", lambda path: None if template_is_valid(path) else "not a path template")
    binding = Binding(
        name=row.text("name"),
        host=host,
        port=row.port(row.value.get("port", 443), "port"),
        methods=methods,
        paths=paths,
        header=canonical_header(row.text("header")),
        format=row.text("format"),
    )
    if not _CREDENTIAL.fullmatch(binding.name):
        problems.append(f"{where}.name: {binding.name!r} is no credential name")
    if not _TOKEN.fullmatch(binding.header) or binding.header.lower() in _NO_HEADERS:
        problems.append(f"{where}.header: {binding.header!r} cannot hold a credential")
    if not _FORMAT.fullmatch(binding.format) and not _BASIC_FORMAT.fullmatch(binding.format):
        problems.append(f"{where}.format: {binding.format!r}: expected one {{}} at the end")
    if not methods or not paths:
        problems.append(f"{where}: a binding needs methods and paths")
    return binding
