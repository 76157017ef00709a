"""Decisions one sentence a row, with their reasons; and what no policy or pattern may be. The decision itself as one
table is `test_policy_table`; what holds for every input, `test_policy_properties`."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

import pytest

from agent_egress import floors
from agent_egress.names import literal_address
from agent_egress.paths import template_is_valid
from agent_egress.policy import (
    NameRefused,
    Policy,
    PolicyError,
    Rule,
    bindings_for,
    canonical_pattern,
    decide_address,
    decide_lookup,
    decide_name,
    decide_request,
    deny_all,
    match_path,
    path_is_plain,
    refusal_words,
)

Json = Mapping[str, object]


def allow(pattern: str, *ports: int, addresses: Sequence[str] = (), origin: str = "") -> Json:
    row: dict[str, object] = {"action": "allow", "pattern": pattern, "origin": origin}
    return {**row, **({"ports": list(ports)} if ports else {}), **({"addresses": list(addresses)} if addresses else {})}


def deny(pattern: str) -> Json:
    return {"action": "deny", "pattern": pattern}


def binding(**changes: object) -> Json:
    row = {"name": "demo", "host": "api.test", "port": 443, "methods": ["GET", "POST"], "header": "Authorization"}
    return {**row, "paths": ["/v1/messages", "/v1/items/*"], "format": "Bearer {}", **changes}


def policy(*rules: Json, credentials: Sequence[Json] = (), own: Sequence[str] = (), metadata: bool = False) -> Policy:
    document = {
        "version": 1,
        "rules": list(rules),
        "credentials": list(credentials),
        "host_addresses": list(own),
        "allow_metadata": metadata,
    }
    return Policy.parse(json.dumps(document).encode())


EMPTY = policy()
PLAIN = policy(
    *(allow("ok.test"), allow("*.wild.test"), deny("ads.wild.test"), allow("db.test", 5432), allow("git.test", 22))
)
WIDE_DENY = policy(
    *(allow("ok.test"), allow("a.bad.test"), deny("*.bad.test"), deny("203.0.113.66"), allow("203.0.113.0/24"))
)
APEX = policy(allow("example.com"), deny("*.example.com"))
LAN = policy(allow("lan.test", 1234, addresses=["10.20.0.0/16"]), allow("ok.test"), allow("10.30.0.0/16"))
V6 = policy(allow("2001:db8::1"), allow("2001:db8:1::/48", 8443), allow("fd00:1::/32"))
HOST = policy(allow("198.51.100.0/24"), allow("198.51.100.2"), allow("ok.test"), own=["198.51.100.1", "198.51.100.2"])
METADATA = policy(allow("169.254.169.254", 80), allow("168.63.129.16", 80), allow("fd00:ec2::254", 80), metadata=True)
CREDENTIAL = policy(allow("api.test", 443, 80, 22, 8443, origin="credential demo"), credentials=[binding()])
BROKEN = deny_all("the policy is broken")

# Sentence, policy, host, port, what must be: an action, or part of the reason.
NAMES: list[tuple[str, Policy, str, int, str]] = [
    ("an empty policy denies everything", EMPTY, "ok.test", 443, "no rule allows it"),
    ("a broken policy denies everything", BROKEN, "ok.test", 443, "broken"),
    ("a broken policy denies addresses", BROKEN, "203.0.113.7", 443, "broken"),
    ("an exact host on 443 is spliced", PLAIN, "ok.test", 443, "=splice"),
    ("an exact host on 80", PLAIN, "ok.test", 80, "=raw"),
    ("the default ports are 443 and 80 alone", PLAIN, "ok.test", 8443, "ports 80, 443, not 8443"),
    ("ssh is not a default port", PLAIN, "ok.test", 22, "not 22"),
    ("a subdomain of an exact host is another host", PLAIN, "evil.ok.test", 443, "no rule"),
    ("a parent of an exact host is another host", PLAIN, "test", 443, "no rule"),
    ("a host that ends in an allowed one", PLAIN, "notok.test", 443, "no rule"),
    ("a host that begins with an allowed one", PLAIN, "ok.test.evil.example", 443, "no rule"),
    ("capitals are the same host", PLAIN, "OK.TEST", 443, "=splice"),
    ("a final dot is the same host", PLAIN, "ok.test.", 443, "=splice"),
    ("two final dots are no host", PLAIN, "ok.test..", 443, "not a host"),
    ("a wildcard covers a subdomain", PLAIN, "a.wild.test", 443, "=splice"),
    ("a wildcard covers a deep subdomain", PLAIN, "x.y.z.wild.test", 443, "=splice"),
    ("a wildcard does not cover its apex", PLAIN, "wild.test", 443, "no rule"),
    ("a wildcard does not cover a look-alike", PLAIN, "awild.test", 443, "no rule"),
    ("a wildcard has the default ports too", PLAIN, "a.wild.test", 22, "not 22"),
    ("deny beats a wildcard's allow", PLAIN, "ads.wild.test", 443, "denied by a rule"),
    ("deny holds for capitals", PLAIN, "ADS.wild.TEST", 443, "denied by a rule"),
    ("deny holds for a final dot", PLAIN, "ads.wild.test.", 443, "denied by a rule"),
    ("deny holds for every port", PLAIN, "ads.wild.test", 8080, "denied by a rule"),
    ("an exact deny does not cover its subdomains", PLAIN, "x.ads.wild.test", 443, "=splice"),
    ("a wildcard's deny beats an exact allow", WIDE_DENY, "a.bad.test", 443, "denied by a rule"),
    ("a wildcard's deny leaves its apex alone", WIDE_DENY, "bad.test", 443, "no rule"),
    ("an exact allow beside a wildcard's deny of its subdomains", APEX, "example.com", 443, "=splice"),
    ("and its subdomains stay denied", APEX, "www.example.com", 443, "denied by a rule"),
    ("ports belong to their entry", PLAIN, "db.test", 5432, "=raw"),
    ("ports replace the default ones", PLAIN, "db.test", 443, "ports 5432, not 443"),
    ("one entry's port does not open it elsewhere", PLAIN, "ok.test", 5432, "not 5432"),
    ("port 22 is raw", PLAIN, "git.test", 22, "=raw"),
    ("port 0", PLAIN, "ok.test", 0, "not 0"),
    ("a negative port", PLAIN, "ok.test", -1, "not -1"),
    ("an empty host", PLAIN, "", 443, "not a host"),
    ("a host of one dot", PLAIN, ".", 443, "not a host"),
    ("a wildcard as a host", PLAIN, "*.wild.test", 443, "not a host"),
    ("a host with a newline", PLAIN, "ok.test\n", 443, "not a host"),
    ("a host with a space", PLAIN, "ok.test ", 443, "not a host"),
    ("a host with NUL", PLAIN, "ok.test\0.evil.test", 443, "not a host"),
    ("a host with a port in it", PLAIN, "ok.test:443", 443, "not a host"),
    ("a host with a user in it", PLAIN, "x@ok.test", 443, "not a host"),
    ("a host with a slash", PLAIN, "ok.test/x", 443, "not a host"),
    ("a host with a percent sign", PLAIN, "ok%2etest", 443, "not a host"),
    ("a full-width dot does not hide a host", PLAIN, "ok\uff0etest", 443, "not a host"),
    ("an ideographic dot does not hide a host", PLAIN, "ok\u3002test", 443, "not a host"),
    ("full-width letters are their narrow ones", PLAIN, "\uff4f\uff4b.test", 443, "=splice"),
    ("a Cyrillic look-alike is another host", PLAIN, "\u043ek.test", 443, "no rule"),
    ("a zero-width joiner is no host", PLAIN, "o\u200dk.test", 443, "not a host"),
    ("a lone surrogate is no host", PLAIN, "\ud800.test", 443, "not a host"),
    ("a label of 64 letters", PLAIN, "a" * 64 + ".wild.test", 443, "not a host"),
    ("a label of 63 letters", PLAIN, "a" * 63 + ".wild.test", 443, "=splice"),
    ("a name of 254 letters", PLAIN, "a." * 122 + "wild.test.x", 443, "not a host"),
    ("a label that begins with a hyphen", PLAIN, "-a.wild.test", 443, "not a host"),
    ("a label that ends with a hyphen", PLAIN, "a-.wild.test", 443, "not a host"),
    ("an underscore is fine", PLAIN, "my_host.wild.test", 443, "=splice"),
    ("an unlisted literal", PLAIN, "203.0.113.7", 443, "no rule"),
    ("a decimal address", PLAIN, "2130706433", 443, "not a host"),
    ("a hexadecimal address", PLAIN, "0x7f000001", 443, "not a host"),
    ("a short hexadecimal address", PLAIN, "0x7f.1", 443, "not a host"),
    ("an octal address", PLAIN, "017700000001", 443, "not a host"),
    ("an address of two parts", PLAIN, "127.1", 443, "not a host"),
    ("leading zeros", PLAIN, "0177.0.0.1", 443, "not a host"),
    ("zero", PLAIN, "0", 443, "not a host"),
    ("a mapped address in brackets", PLAIN, "[::ffff:10.0.0.5]", 80, "not a host"),
    ("a scoped address", PLAIN, "[fe80::1%25eth0]", 80, "not a host"),
    ("a mapped address never matches an IPv4 range", WIDE_DENY, "::ffff:203.0.113.7", 443, "not a host"),
    ("an address with a final dot", WIDE_DENY, "203.0.113.7.", 443, "not a host"),
    ("a literal in an allowed range", WIDE_DENY, "203.0.113.7", 443, "=splice"),
    ("a literal in an allowed range on another port", WIDE_DENY, "203.0.113.7", 22, "not 22"),
    ("a denied literal in an allowed range", WIDE_DENY, "203.0.113.66", 443, "denied by a rule"),
    ("a literal just outside", WIDE_DENY, "203.0.114.0", 443, "no rule"),
    ("a private literal in its own range", LAN, "10.30.1.2", 443, "=splice"),
    ("a private literal outside of it", LAN, "10.31.1.2", 443, "no rule"),
    ("`addresses` of a name do not allow the literal", LAN, "10.20.0.5", 1234, "no rule"),
    ("an IPv6 literal", V6, "2001:db8::1", 443, "=splice"),
    ("an IPv6 literal in brackets", V6, "[2001:db8::1]", 443, "=splice"),
    ("an IPv6 literal in another spelling", V6, "2001:db8:0:0::1", 443, "not a host"),
    ("an IPv6 literal in capitals", V6, "2001:DB8::1", 443, "not a host"),
    ("an IPv6 range on its port", V6, "2001:db8:1:2::3", 8443, "=splice"),
    ("an IPv6 range on another port", V6, "2001:db8:1:2::3", 443, "not 443"),
    ("a private IPv6 range that a rule names", V6, "fd00:1::5", 443, "=splice"),
    ("another private IPv6 address", V6, "fd00:2::5", 443, "no rule"),
    ("IPv6 loopback", V6, "::1", 443, "no rule"),
    ("the host's own address inside an allowed range", HOST, "198.51.100.1", 443, "machine's own"),
    ("the host's own address that a rule names exactly", HOST, "198.51.100.2", 443, "=splice"),
    ("metadata with both words", METADATA, "169.254.169.254", 80, "=raw"),
    ("Azure's metadata with both words", METADATA, "168.63.129.16", 80, "=raw"),
    ("IPv6 metadata with both words", METADATA, "fd00:ec2::254", 80, "=raw"),
    ("metadata that no rule names", METADATA, "169.254.170.2", 80, "no rule"),
    ("a host with a credential is bumped", CREDENTIAL, "api.test", 443, "=bump"),
    ("a host with a credential in capitals is bumped", CREDENTIAL, "API.test", 443, "=bump"),
    ("plain http to a host with a credential", CREDENTIAL, "api.test", 80, "only port 443"),
    ("another TLS port of a host with a credential", CREDENTIAL, "api.test", 8443, "only port 443"),
    ("ssh to a host with a credential", CREDENTIAL, "api.test", 22, "=raw"),
    ("a binding allows nothing by itself", policy(credentials=[binding()]), "api.test", 443, "no rule"),
    (
        "deny beats a credential",
        policy(allow("api.test"), deny("api.test"), credentials=[binding()]),
        "api.test",
        443,
        "denied",
    ),
]

# Sentence, policy, host, address, port, what must be.
ADDRESSES: list[tuple[str, Policy, str, str, int, str]] = [
    ("a public address", PLAIN, "ok.test", "203.0.113.9", 443, "="),
    ("a public IPv6 address", PLAIN, "ok.test", "2001:db8::9", 443, "="),
    ("what the name is refused for comes first", PLAIN, "no.test", "203.0.113.9", 443, "no rule"),
    ("a private address", PLAIN, "ok.test", "10.0.0.1", 443, "private address"),
    ("172.16", PLAIN, "ok.test", "172.31.255.255", 443, "private address"),
    ("just above 172.31", PLAIN, "ok.test", "172.32.0.0", 443, "="),
    ("192.168", PLAIN, "ok.test", "192.168.1.1", 443, "private address"),
    ("shared address space", PLAIN, "ok.test", "100.64.0.1", 443, "private address"),
    ("benchmarking", PLAIN, "ok.test", "198.18.0.1", 443, "private address"),
    ("loopback", PLAIN, "ok.test", "127.0.0.1", 443, "never reached"),
    ("another loopback", PLAIN, "ok.test", "127.9.9.9", 443, "never reached"),
    ("this network", PLAIN, "ok.test", "0.0.0.0", 443, "never reached"),
    ("multicast", PLAIN, "ok.test", "224.0.0.1", 443, "never reached"),
    ("broadcast", PLAIN, "ok.test", "255.255.255.255", 443, "never reached"),
    ("metadata", PLAIN, "ok.test", "169.254.169.254", 80, "allow_metadata"),
    ("link-local", PLAIN, "ok.test", "169.254.1.1", 80, "allow_metadata"),
    ("Alibaba's metadata", PLAIN, "ok.test", "100.100.100.200", 80, "allow_metadata"),
    ("Azure's metadata", PLAIN, "ok.test", "168.63.129.16", 80, "allow_metadata"),
    ("Oracle's metadata", PLAIN, "ok.test", "192.0.0.192", 80, "allow_metadata"),
    ("IPv6 metadata", PLAIN, "ok.test", "fd00:ec2::254", 80, "allow_metadata"),
    ("IPv6 loopback", PLAIN, "ok.test", "::1", 443, "never reached"),
    ("IPv6 unspecified", PLAIN, "ok.test", "::", 443, "never reached"),
    ("IPv6 private", PLAIN, "ok.test", "fd12::1", 443, "private address"),
    ("IPv6 link-local", PLAIN, "ok.test", "fe80::1", 443, "allow_metadata"),
    ("IPv6 multicast", PLAIN, "ok.test", "ff02::1", 443, "never reached"),
    ("a private address behind NAT64", PLAIN, "ok.test", "64:ff9b::a00:1", 443, "private address"),
    ("loopback behind NAT64", PLAIN, "ok.test", "64:ff9b::7f00:1", 443, "never reached"),
    ("a public address behind NAT64", PLAIN, "ok.test", "64:ff9b::cb00:7109", 443, "="),
    ("6to4", PLAIN, "ok.test", "2002:a00:1::1", 443, "never reached"),
    ("Teredo", PLAIN, "ok.test", "2001:0:1::1", 443, "never reached"),
    ("a mapped address", PLAIN, "ok.test", "::ffff:203.0.113.9", 443, "usual spelling"),
    ("an IPv4-compatible address", PLAIN, "ok.test", "::a00:1", 443, "private address"),
    ("an odd spelling", PLAIN, "ok.test", "203.0.113.009", 443, "usual spelling"),
    ("no address", PLAIN, "ok.test", "evil.test", 443, "usual spelling"),
    ("an address that a rule denies", WIDE_DENY, "ok.test", "203.0.113.66", 443, "rule denies"),
    ("`addresses` lift the floor", LAN, "lan.test", "10.20.0.5", 1234, "="),
    ("`addresses` lift it for their range alone", LAN, "lan.test", "10.21.0.5", 1234, "private address"),
    ("`addresses` lift it for their name alone", LAN, "ok.test", "10.20.0.5", 443, "private address"),
    ("a CIDR rule does not lift it for names", LAN, "ok.test", "10.30.0.5", 443, "private address"),
    ("a public address for a name with `addresses`", LAN, "lan.test", "203.0.113.5", 1234, "="),
    ("the host's own address by a name", HOST, "ok.test", "198.51.100.1", 443, "machine's own"),
    ("the host's own address, named for a literal, by a name", HOST, "ok.test", "198.51.100.2", 443, "machine's own"),
    ("a literal is its own address", HOST, "198.51.100.2", "198.51.100.2", 443, "="),
]


@pytest.mark.parametrize(("policy_", "host", "port", "wanted"), [pytest.param(*row[1:], id=row[0]) for row in NAMES])
def test_names(policy_: Policy, host: str, port: int, wanted: str) -> None:
    decision = decide_name(policy_, host, port)
    if wanted.startswith("="):
        assert (decision.allowed, decision.action, decision.reason) == (True, wanted[1:], "")
        assert decision.rule
    else:
        assert (decision.allowed, decision.action, decision.floor_lifted) == (False, "deny", ())
        assert wanted in decision.reason
    assert decide_name(policy_, host, port) == decision, "asked again"


@pytest.mark.parametrize(
    ("policy_", "host", "address", "port", "wanted"), [pytest.param(*row[1:], id=row[0]) for row in ADDRESSES]
)
def test_addresses(policy_: Policy, host: str, address: str, port: int, wanted: str) -> None:
    decision = decide_address(policy_, host, address, port)
    assert decision.allowed == (wanted == "=")
    assert wanted == "=" or wanted in decision.reason
    if host in {"ok.test", "lan.test"}:
        assert decide_lookup(policy_, host, address).allowed == decision.allowed, "the filter says the same"


def test_lookups_are_for_names_on_whatever_port() -> None:
    assert decide_lookup(PLAIN, "db.test").allowed and decide_lookup(PLAIN, "A.Wild.Test.").allowed
    for name in ("wild.test", "ads.wild.test", "203.0.113.7", "no.test", ""):
        assert not decide_lookup(PLAIN, name).allowed
    assert not decide_lookup(WIDE_DENY, "203.0.113.7").allowed, "addresses are not looked up"


REQUESTS: list[tuple[str, str, int, str, str, str, bool, str]] = [
    ("a plain request in the tunnel", "api.test", 443, "GET", "/v1/messages", "https", True, "="),
    ("a path outside every binding may go, without the secret", "api.test", 443, "GET", "/other", "https", True, "="),
    ("a query may hold anything visible", "api.test", 443, "GET", "/v1/messages?u=http://x/../y", "https", True, "="),
    ("an escaped letter", "api.test", 443, "GET", "/v1/m%C3%A9", "https", True, "="),
    ("dot segments", "api.test", 443, "GET", "/v1/../who", "https", True, "dot segments"),
    ("no path", "api.test", 443, "GET", "", "https", True, "dot segments"),
    ("TRACE", "api.test", 443, "TRACE", "/", "https", True, "TRACE"),
    ("trace in small letters", "api.test", 443, "trace", "/", "https", True, "TRACE"),
    ("https without a tunnel", "api.test", 443, "GET", "/", "https", False, "only inside"),
    ("http in a tunnel", "api.test", 443, "GET", "/", "http", True, "only inside"),
    ("http to port 443", "api.test", 443, "GET", "/", "http", False, "plain http"),
    ("http to port 80", "api.test", 80, "GET", "/", "http", False, "only port 443"),
    ("another scheme", "api.test", 443, "GET", "/", "gopher", True, "only inside"),
    ("a host without a credential may have dot segments", "ok.test", 80, "GET", "/a/../b", "http", False, "="),
    ("and TRACE", "ok.test", 80, "TRACE", "/", "http", False, "="),
    ("but not https without a tunnel", "ok.test", 443, "GET", "/", "https", False, "only inside"),
    ("an unlisted host", "no.test", 80, "GET", "/", "http", False, "no rule"),
]


@pytest.mark.parametrize(
    ("host", "port", "method", "path", "scheme", "tunnelled", "wanted"),
    [pytest.param(*row[1:], id=row[0]) for row in REQUESTS],
)
def test_requests(host: str, port: int, method: str, path: str, scheme: str, tunnelled: bool, wanted: str) -> None:
    both = policy(allow("api.test"), allow("ok.test"), credentials=[binding()])
    decision = decide_request(
        both, host=host, port=port, method=method, raw_path=path, scheme=scheme, tunnelled=tunnelled
    )
    assert decision.allowed == (wanted == "=")
    assert wanted == "=" or wanted in decision.reason


@pytest.mark.parametrize(
    ("method", "path", "bound"),
    [
        ("GET", "/v1/messages", True),
        ("POST", "/v1/messages?beta=true", True),
        ("GET", "/v1/items/7", True),
        ("PUT", "/v1/messages", False),
        ("get", "/v1/messages", False),
        ("GET", "/v1/messages/", False),
        ("GET", "/v1/Messages", False),
        ("GET", "/v1/items/", False),
        ("GET", "/v1/items/7/keys", False),
        ("GET", "/v1/items/..", False),
        ("GET", "/v1/organizations/keys", False),
    ],
)
def test_bindings_cover_methods_and_templates(method: str, path: str, bound: bool) -> None:
    found = bindings_for(CREDENTIAL, host="api.test", port=443, method=method, raw_path=path)
    assert bool(found) == bound
    assert not bindings_for(CREDENTIAL, host="api.test", port=8443, method=method, raw_path=path)


PLAIN_PATHS = [
    *("/", "/a", "/a/b/", "/v1/m?x=%2e%2e/..//", "/a.b/..c/d..", "/%41", "/a:b@c", "/~x", "/v1/models/m:do", "/a?"),
]
ODD_PATHS = [
    *(
        "",
        "a",
        "*",
        "//",
        "/a//b",
        "/.",
        "/..",
        "/a/.",
        "/a/../b",
        "/a/./b",
        "/%2e%2e/b",
        "/%2E",
        "/a%2fb",
        "/a%2Fb",
        "/a%5cb",
    ),
    *(
        "/a\\b",
        "/a%00",
        "/a%0d%0a",
        "/a b",
        "/a\tb",
        "/a\x7f",
        "/é",
        "/a#b",
        "/a;b",
        "/..;/b",
        "/%252e%252e/",
        "/%25",
        "/%",
    ),
    *(
        "/%4",
        "/%zz",
        "/a%3bb",
        "/a%3fb",
        "/a%23b",
        "/%c0%ae%c0%ae/",
        "/a[b]",
        "/a|b",
        "http://x/",
        "/a?b#c",
        "/a?b c",
        "/" + "a" * 9000,
    ),
]


@pytest.mark.parametrize("path", PLAIN_PATHS)
def test_plain_paths(path: str) -> None:
    assert path_is_plain(path)


@pytest.mark.parametrize("path", ODD_PATHS)
def test_odd_paths(path: str) -> None:
    assert not path_is_plain(path)
    assert not match_path(path, path) and not match_path("/**", path)


@pytest.mark.parametrize(
    ("template", "path", "fits"),
    [
        ("/", "/", True),
        ("/", "/a", False),
        ("/a", "/a?x", True),
        ("/a", "/a/", False),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a", False),
        ("/a/*/c", "/a/b/c", True),
        ("/a/*/c", "/a/b/d", False),
        ("/a/**", "/a/b", True),
        ("/a/**", "/a/b/c/d", True),
        ("/a/**", "/a", False),
        ("/a/**", "/a/", False),
        ("/a/**", "/ab/c", False),
        ("/**", "/a/b", True),
        ("/**", "/", False),
    ],
)
def test_templates(template: str, path: str, fits: bool) -> None:
    assert template_is_valid(template) and match_path(template, path) == fits


@pytest.mark.parametrize(
    "template",
    ["", "a", "/a/**/b", "/a*", "/a/b*c", "/a//b", "/a/../b", "/a b", "/a?b", "/%2e", "/***", "/a/"],
)
def test_templates_that_are_refused(template: str) -> None:
    assert not template_is_valid(template)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ok.test", "ok.test"),
        ("API.Example.COM.", "api.example.com"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("\u0430pple.example", "xn--pple-43d.example"),
        ("my_host.example.com", "my_host.example.com"),
        ("*.Example.com", "*.example.com"),
        ("*.githubusercontent.com", "*.githubusercontent.com"),
        ("203.0.113.7", "203.0.113.7"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_patterns(text: str, canonical: str) -> None:
    assert canonical_pattern(text) == canonical


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://api.example.com/v1", "write api.example.com"),
        ("api.example.com/v1", "write api.example.com"),
        ("api.example.com:443", "ports: [443]"),
        ("192.168.50.7:1234", "ports: [1234]"),
        ("[2001:db8::1]:8443", "without brackets"),
        ("user@api.example.com", "user part"),
        (" api.example.com ", "spaces"),
        ("api.example.com,cdn.example.com", "a list"),
        ("", "empty"),
        (".", "empty"),
        ("*", "a wildcard is"),
        ("*.", "empty"),
        ("*.com", "top-level"),
        ("*.test", "top-level"),
        ("*.co.uk", "anybody"),
        ("*.com.au", "anybody"),
        ("*.github.io", "anybody"),
        ("*.*.example.com", "no part of a host name"),
        ("img-*.example.com", "a wildcard is"),
        ("**.example.com", "a wildcard is"),
        ("*.203.0.113.7", "looks like an address"),
        ("0x7f000001", "looks like an address"),
        ("127.1", "looks like an address"),
        ("017700000001", "looks like an address"),
        ("2130706433", "looks like an address"),
        ("010.0.0.1", "looks like an address"),
        ("2001:DB8:0::1", "write it as 2001:db8::1"),
        ("::ffff:203.0.113.5", "write the IPv4 address"),
        ("::ffff:0:0/96", "write the IPv4 address"),
        ("10.0.0.1/8", "host bits"),
        ("10.0.0.0/33", "usual spelling"),
        ("10.0.0.0/255.0.0.0", "has a path"),
        ("fe80::1%eth0", "usual spelling"),
        ("fa\u00df.example", "xn-- form"),
        ("ok.example\nhttp_access allow all", "no part of a host name"),
        ("a b.example", "no part of a host name"),
        ('x"; include: /etc/passwd', "has a path"),
        ("-dash.example", "no part of a host name"),
        ("a..b.example", "no part of a host name"),
        ("${HOME}.example", "no part of a host name"),
        ("a" * 64 + ".example", "no part of a host name"),
        ("a." * 130 + "example", "253"),
        ("ok.test#comment", "no part of a host name"),
    ],
)
def test_patterns_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(NameRefused, match=".") as caught:
        canonical_pattern(text)
    assert words in str(caught.value)
    with pytest.raises(PolicyError):
        policy(allow(text))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"", "not JSON"),
        (b"[]", "expected an object"),
        (b"null", "expected an object"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"version":1,"version":1}', "twice"),
        (b'{"version":2}', "version"),
        (b'{"version":true}', "version"),
        (b'{"version":1,"extra":1}', "unknown key 'extra'"),
        (b'{"version":1,"rules":{}}', "expected a list"),
        (b'{"version":1,"rules":[7]}', "rules[0]: expected an object"),
        (b'{"version":1,"rules":[{}]}', "rules[0].action"),
        (
            b'{"version":1,"rules":[{"action":"ALLOW","pattern":"ok.test"}]}',
            "one of allow, inspect, kill, deny",
        ),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","tls":"bump"}]}', "one of splice, inspect"),
        (b'{"version":1,"rules":[{"action":"inspect","pattern":"ok.test","tls":"splice"}]}', "only an allow"),
        (b'{"version":1,"rules":[{"action":"deny","pattern":"ok.test","tls":"inspect"}]}', "only an allow"),
        (b'{"version":1,"rules":[{"action":"inspect","pattern":"ok.test","ports":[443,22]}]}', "cannot be inspected"),
        (b'{"version":1,"rules":[],"tls":"bump"}', "one of splice, inspect"),
        (b'{"version":1,"rules":[],"tripwire":"ignore"}', "one of deny, kill"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","port":[1]}]}', "unknown key 'port'"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","ports":[0]}]}', "not a port"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","ports":[70000]}]}', "not a port"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","ports":["443"]}]}', "not a port"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","ports":[true]}]}', "not a port"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"localhost"}]}', "never leaves"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"canary.agent-container.invalid"}]}', "never leaves"),
        (b'{"version":1,"rules":[{"action":"kill","pattern":"prove.agent-container.invalid"}]}', "never leaves"),
        (b'{"version":1,"rules":[{"action":"kill","pattern":"*.agent-container.invalid"}]}', "never leaves"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","addresses":["0.0.0.0/0"]}]}', "too wide"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test","addresses":["x"]}]}', "usual spelling"),
        (
            b'{"version":1,"rules":[{"action":"allow","pattern":"10.0.0.0/8","addresses":["10.0.0.0/8"]}]}',
            "only for names",
        ),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"127.0.0.1"}]}', "no rule can lift"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"::1"}]}', "no rule can lift"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"169.254.169.254"}]}', "allow_metadata"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"128.0.0.0/1"}]}', "too wide"),
        (b'{"version":1,"rules":[{"action":"allow","pattern":"2000::/3"}]}', "too wide"),
        (b'{"version":1,"allow_metadata":"yes"}', "true or false"),
        (b'{"version":1,"host_addresses":["10.0.0.0/8"]}', "one address"),
        (b'{"version":1,"host_addresses":[1]}', "expected a text"),
        (b'{"version":1,"credentials":[{}]}', "credentials[0].name"),
    ],
)
def test_policies_that_are_refused(document: bytes, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.parse(document)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["127.0.0.0/8", "0.0.0.0/8", "224.0.0.0/8", "::1", "2002::/16"])
def test_no_rule_lifts_the_floor_where_nothing_may_go(text: str) -> None:
    for rule in (allow("ok.test", addresses=[text]), allow(text)):
        with pytest.raises(PolicyError, match="no rule can lift"):
            policy(rule)


@pytest.mark.parametrize(
    "change",
    [
        {"host": "*.api.test"},
        {"host": "203.0.113.7"},
        {"port": 0},
        {"methods": []},
        {"methods": ["TRACE"]},
        {"methods": ["get"]},
        {"methods": ["GET\r\n"]},
        {"paths": []},
        {"paths": ["v1"]},
        {"paths": ["/a/../b"]},
        {"header": "Host"},
        {"header": "X Y"},
        {"header": "X\r\nY"},
        {"header": ""},
        {"format": "Bearer"},
        {"format": "{} {}"},
        {"format": "{}x"},
        {"format": "Bearer \n{}"},
        {"format": "Basic b64(a b:{})"},
        {"name": ""},
        {"name": "a b"},
        {"secret": "x"},
    ],
)
def test_bindings_that_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        policy(allow("api.test"), credentials=[binding(**change)])


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(PolicyError) as caught:
        policy(allow("*"), deny("a b"), allow("ok.test", 0))
    assert len(caught.value.problems) == 3
    assert [problem.split(".")[0] for problem in caught.value.problems] == ["rules[0]", "rules[1]", "rules[2]"]


def test_the_words_of_a_refusal_name_rule_and_remedy_and_hold_nothing_unclean() -> None:
    words = refusal_words(decide_name(PLAIN, "no.test", 8443), "no.test", 8443)
    assert "blocked by policy" in words and "agent-container egress allow no.test --port 8443" in words
    words = refusal_words(decide_name(PLAIN, "ads.wild.test", 443), "ads.wild.test", 443)
    assert "deny ads.wild.test" in words
    hostile = 'x"<script>\n\x1b[2J\\'
    words = refusal_words(decide_name(PLAIN, hostile, 443), hostile, 443)
    assert words.isprintable() and words.isascii() and '"' not in words.split("policy:")[1].split(":443")[0]


def test_the_floors_hold_no_documentation_range_and_no_mapped_range() -> None:
    for text in ("203.0.113.9", "198.51.100.9", "2001:db8::9"):
        address = literal_address(text)
        assert address is not None and not floors.in_floor(address)
    assert all(not str(network).startswith("::ffff") for network in floors.FLOOR6), "squid reads it as 0.0.0.0/0"
    assert all(floors.in_floor(network.network_address) for network in (*floors.METADATA, *floors.NEVER))


def test_encoding_is_the_same_for_every_order_and_reads_back() -> None:
    rules = [allow("b.test", 443, 80), allow("a.test", 80, 443), deny("c.test"), allow("10.30.0.0/16")]
    documents = set()
    for _ in range(6):
        random.shuffle(rules)
        documents.add(policy(*rules, credentials=[binding()], own=["198.51.100.1"]).encode())
    (encoded,) = documents
    again = Policy.parse(encoded)
    assert again.encode() == encoded
    assert again.digest == policy(*rules, credentials=[binding()], own=["198.51.100.1"]).digest
    assert again.digest.startswith("sha256:") and again.short_digest in again.digest
    assert again.digest != policy(*rules, own=["198.51.100.1"]).digest


def test_a_policy_made_by_hand_with_nonsense_denies_and_does_not_raise() -> None:
    nonsense = Policy(rules=(Rule("allow", "ok.test", addresses=("nonsense",)), Rule("allow", "10.0.0.0/99")))
    assert not decide_name(nonsense, "ok.test", 443).allowed
    assert not decide_address(nonsense, "ok.test", "203.0.113.1", 443).allowed
