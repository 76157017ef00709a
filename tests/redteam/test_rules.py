"""Every rule of the rendered files is taken out by some mutant, or stands in a short list that says why it needs none.
A rule that nobody would miss is either no rule or a test that is missing."""

from __future__ import annotations

import difflib
import re

import pytest

from agent_container.render.sidecar_files import SidecarConfig, render_sidecar_files
from tests.redteam.judge import MODEL, POLICY
from tests.redteam.test_mutants import EVERY
from tests.redteam.test_strangers import STRANGERS
from tests.support.net import AGENT_UID, RESOLVER, SESSION

RULES = {
    "nftables.nft": re.compile(r"^    (?!elements).*(accept|drop|goto|redirect|reject|counter|mark set)\b"),
    "squid.conf": re.compile(
        r"^(http_access|never_direct|ssl_bump|request_header_access|request_header_add|adaptation_access|http_port|https_port"
        r"|host_verify_strict|tls_outgoing_options|http_upgrade_request_protocols|access_log|acl floor)\b"
    ),
    "unbound.conf": re.compile(
        r"^  (interface|access-control|deny-any|hide-|do-not-query|local-|private-|include|forward-addr|control-enable)"
    ),
}
NEED_NONE = {
    # nftables
    "icmpv6 type": "IPv6 needs it; that it is gone shows only once a neighbour is forgotten",
    "ct direction reply tcp flags": "a short way: `replies` lets the same through",
    "ct mark 0x1 tcp flags": "bare acknowledgements, so that a flow that is refused ends at once",
    'meta skuid 0 oifname "lo" ip daddr 127.0.0.1': "the supervisor's probes: without it no session opens",
    "counter name agent_drop": "evidence: the sealed chain of test_sidecar must hold drops",
    "meta skuid != 0 meta l4proto": "evidence, the same",
    "counter name floor_drop": "evidence",
    'oifname "lo" meta l4proto { icmp, icmpv6 } ct state related': "errors that are told at once",
    "meta skuid 64104 tcp sport": "the canary and the access log: without it no session opens",
    "ip6 daddr . tcp dport @except6": "the twin of the IPv4 line, which is taken out",
    "ip6 daddr @resolvers6": "the twin of the IPv4 line, which is taken out",
    "ct state != new accept": "what was written down is not counted again",
    "meta l4proto tcp reject with tcp reset": "how a refusal is told, not whether",
    "reject with icmpx": "how a refusal is told, not whether",
    "type filter hook forward": "there is nothing to forward to",
    "type nat hook output": "no filter",
    # squid
    "http_port 127.0.0.1:3128": "the proxy itself",
    "http_access deny health": "the watchdog's own host, which the policy process refuses too",
    "http_access deny upgrade": "how a refusal is told: test_a_refused_upgrade_is_told_to_do_without",
    "http_access allow CONNECT act_term": "how a refusal is told: test_a_refused_tunnel_without_tls_is_closed",
    "http_access deny act_term": "nothing but a CONNECT is to be closed, and the line before has those",
    "http_access deny CONNECT !act_raw": "how a fault is told: test_a_fault_is_told_from_a_decision",
    "host_verify_strict on": "squid compares names and addresses too, after the policy process has (`resolved`)",
    "ssl_bump terminate step1 act_term": "asked again at step2, and terminated there",
    "ssl_bump splice step1 act_raw": "for ports without TLS, of which the battery's policy has none",
    "ssl_bump terminate step2 !pol": "the hello goes through http_access as well, which asks and refuses",
    "ssl_bump terminate all": "what squid does when nothing matches",
    "adaptation_access scan_request deny": "what squid does when nothing matches; a CONNECT has no body",
    "adaptation_access scan_answer deny": "what squid does when nothing matches; a CONNECT has no body",
    "request_header_access Accept-Encoding": "what comes compressed is refused unread all the same",
    # unbound
    "interface:": "who may reach that port is a rule of the kernel, which is taken out",
    "access-control:": "the same",
    "deny-any:": "the filter builds every question, of two types",
    "hide-": "the same",
    "do-not-query-localhost:": "for a resolver on the machine itself",
    'local-zone: "home.arpa."': "the twin of the line for test., which is taken out",
    'local-zone: "health': "the watchdog's own name",
    "local-data:": "the watchdog's own name",
    "control-enable:": "the default",
}


def _rendered() -> dict[str, str]:
    config = SidecarConfig(
        session=SESSION,
        project="0123456789ab",
        agent_uid=AGENT_UID,
        policy=POLICY,
        resolvers=(RESOLVER,),
        model=MODEL,
    )
    return dict(render_sidecar_files(config))


def _touched(file: str, text: str) -> set[int]:
    """Numbers of the lines that some mutant changes."""
    before = text.splitlines()
    found: set[int] = set()
    edited = [mutant.edits for mutant in EVERY]
    edited += [tuple(("nftables.nft", old, new) for old, new in stranger.edits) for stranger in STRANGERS]
    for edits in edited:
        after = text
        for name, old, new in edits:
            after = after.replace(old, new) if name == file else after
        if after != text:
            matcher = difflib.SequenceMatcher(None, before, after.splitlines(), autojunk=False)
            for tag, first, last, _, _ in matcher.get_opcodes():
                if tag in ("replace", "delete"):
                    found.update(range(first, last))
    return found


def _missed(file: str) -> list[str]:
    text = _rendered()[file]
    touched = _touched(file, text)
    lines = list(enumerate(text.splitlines()))
    return [line.strip() for number, line in lines if RULES[file].match(line) and number not in touched]


@pytest.mark.parametrize("file", RULES)
def test_every_rule_is_missed_by_somebody(file: str) -> None:
    assert [line for line in _missed(file) if not line.startswith(tuple(NEED_NONE))] == []


def test_the_list_of_rules_that_need_no_mutant_holds_nothing_else() -> None:
    missed = [line for file in RULES for line in _missed(file)]
    assert [start for start in NEED_NONE if not any(line.startswith(start) for line in missed)] == []


def test_the_rules_are_found_at_all() -> None:
    counts = {
        file: sum(bool(RULES[file].match(line)) for line in text.splitlines())
        for file, text in _rendered().items()
        if file in RULES
    }
    assert counts["nftables.nft"] > 60 and counts["squid.conf"] > 40 and counts["unbound.conf"] > 15, counts
