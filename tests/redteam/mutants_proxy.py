"""squid's and unbound's rules, each taken out: what then passes, or no longer works. Read with templates/squid.conf.j2
and templates/unbound.conf.j2 beside it."""

from __future__ import annotations

from tests.redteam.attempts.cases import every
from tests.redteam.mutants import Mutant

_TO_UNBOUND = '    oifname "lo" ip daddr 127.0.0.1 meta l4proto { tcp, udp } th dport 3054 accept\n'
SQUID, UNBOUND, NFT = "squid.conf", "unbound.conf", "nftables.nft"
HEADERS = ("Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Private-Token")
OVERRIDES = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL")


def _gone(name: str, line: str, *red: str, more: tuple[tuple[str, str, str], ...] = ()) -> Mutant:
    return Mutant(name, red, file=SQUID, old=f"{line}\n", new="", more=more)


def _stripped(headers: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    return tuple((SQUID, f"request_header_access {header} deny bound\n", "") for header in headers)


_FLOORS = (
    # squid asks unbound itself, and not the filter
    (NFT, "th dport 53 redirect to :3053\n  }", "th dport 53 redirect to :3054\n  }"),
    (NFT, '    oifname "lo" ip daddr 127.0.0.1 meta l4proto { tcp, udp } th dport 3053 accept\n', _TO_UNBOUND),
    (UNBOUND, "  private-address:", "  # private-address:"),
    (SQUID, "http_access deny floor !floor_exc\n", ""),
    (SQUID, "deny_info 403:ERR_EGRESS_FLOOR floor\n", ""),
    (SQUID, "acl floor dst ", "# acl floor dst "),
    (NFT, " goto floor\n", " continue\n"),
)

PROXY: tuple[Mutant, ...] = (
    # --- who may pass ---
    Mutant(
        "nothing is allowed", ("control_explicit_http",), SQUID, "http_access allow all\n", "http_access deny all\n"
    ),
    Mutant(
        "what is refused may be dialled, and a CONNECT inside TLS is closed and not refused",
        ("nested_connect.api_public", "nested_connect.seen_ssh_of_allowed"),
        SQUID,
        "never_direct allow act_term\n",
        "",
        ((SQUID, "acl act_term note action_ term\n", "acl act_term note action_ term deny\n"),),
    ),
    Mutant(
        "a CONNECT inside TLS is closed and not refused",
        (),
        SQUID,
        "acl act_term note action_ term\n",
        "acl act_term note action_ term deny\n",
        still=("nested_connect.api_public", "nested_connect.seen_ssh_of_allowed"),
    ),
    # --- tunnels ---
    _gone("bumped at once no more", "ssl_bump bump step1 act_bump", "control_injection"),
    _gone("nothing is looked into", "ssl_bump peek step1", "control_explicit_https"),
    _gone("nothing is spliced", "ssl_bump splice step2 act_splice", "control_explicit_https"),
    _gone("intercepted TLS is not opened", "ssl_bump bump step2 act_bump", "control_transparent_injection"),
    # --- the ways in ---
    _gone("plain IPv4 is not intercepted", "http_port 127.0.0.1:3129 intercept", "control_transparent_http"),
    Mutant("TLS is not intercepted", ("control_transparent_https",), SQUID, "https_port 127.0.0.1:3130", "#"),
    _gone("plain IPv6 is not intercepted", "http_port [::1]:3129 intercept", "control_transparent_http6"),
    # --- headers ---
    Mutant("foreign keys in any header", every("token_foreign_twice"), *_stripped(HEADERS)[0], _stripped(HEADERS)[1:]),
    Mutant(
        "another method or path by any header",
        every("token_override", "token_override_path"),
        *_stripped(OVERRIDES)[0],
        _stripped(OVERRIDES)[1:],
    ),
    _gone("an answer may be asked for in parts", "request_header_access Range deny scan", "token_in_parts"),
    Mutant(
        "nothing is injected into any header",
        ("control_injection", "control_transparent_injection"),
        SQUID,
        "request_header_add",
        "# ",
    ),
    # --- resolver ---
    Mutant("no range may be answered", ("control_private_range",), UNBOUND, "  include:", "  # include:"),
    Mutant(
        "there is nobody to ask",
        ("control_lookup",),
        UNBOUND,
        "  forward-addr: 198.51.100.53",
        "  forward-addr: 198.51.100.54",
    ),
    Mutant(
        "names below test. are unbound's own", ("control_lookup",), UNBOUND, '  local-zone: "test." transparent\n', ""
    ),
    # --- the floor, held four times: by the filter, by unbound, by squid and by the kernel ---
    Mutant(
        "no floor is left but the kernel's", (), *_FLOORS[0], _FLOORS[1:-1], still=("proxy_to_private.private_name",)
    ),
    Mutant("no floor is left", ("proxy_to_private.private_name",), *_FLOORS[0], _FLOORS[1:]),
)
