"""The git gateway's decisions as tables: requests, repositories, refs, what of a push is read before it goes out."""

from __future__ import annotations

import json

import pytest

from agent_egress import identity
from agent_egress.enforcement import narrower
from agent_egress.gateway_policy import (
    Request,
    RequestRefused,
    decide_git_host,
    decide_push,
    decide_repository,
    parse_request,
    refusal_words,
    server_command,
)
from agent_egress.pktline import Command, PushHead, PushRefused
from agent_egress.policy import Policy, PolicyError, Rule, decide_lookup, decide_name
from agent_egress.replay import replay
from agent_egress.repositories import Repository
from agent_egress.resolved import Resolved
from agent_egress.squidline import parse_question
from agent_egress.swap import Vault
from agent_egress.tunnel import GATEWAY_LOOPBACK4, PROXY_PORT
from agent_egress.verdicts import judge

API = Repository("git.test", 22, "git", "acme/api.git", origin="spec git[0]")
READ = Repository("git.test", 2222, "git", "/srv/read", push=(), origin="spec git[1]")
POLICY = Policy(git=(API, READ))
OLD, NEW, NONE = "1" * 40, "2" * 40, "0" * 40


def request(**changes: object) -> object:
    fields = {"v": 1, "destination": "git@git.test", "port": None, "protocol": ""}
    return {**fields, "command": "git-upload-pack 'acme/api.git'", **changes}


READABLE = {
    "a fetch": (request(), Request("git.test", 22, "git", "fetch", "acme/api.git", "")),
    "a push": (
        request(command="git-receive-pack 'acme/api.git'"),
        Request("git.test", 22, "git", "push", "acme/api.git", ""),
    ),
    "another port, without an account": (
        request(destination="GIT.test.", port=2222, protocol="version=2"),
        Request("git.test", 2222, "git", "fetch", "acme/api.git", "version=2"),
    ),
}


@pytest.mark.parametrize("case", READABLE)
def test_what_git_asks_for(case: str) -> None:
    assert parse_request(READABLE[case][0]) == READABLE[case][1]


UNREADABLE = {
    "nothing": None,
    "a list": [],
    "a key too many": {**dict(request()), "env": {}},  # type: ignore[call-overload]
    "a key too few": {"v": 1},
    "a null for a text": request(command=None),
    "a number for a text": request(destination=7),
    "true for a port": request(port=True),
    "a port too high": request(port=65536),
    "a version of its own": request(protocol="version=2:x"),
    "an option for a host": request(destination="-oProxyCommand=id"),
    "an option for an account": request(destination="-l@git.test"),
    "an address": request(destination="git@203.0.113.9"),
    "a shell": request(command="sh"),
    "an archive": request(command="git-upload-archive 'acme/api.git'"),
    "a token": request(command="git-lfs-authenticate 'acme/api.git' download"),
    "a second command": request(command="git-upload-pack 'a'; id"),
    "a quote": request(command="git-upload-pack 'a'\\''b'"),
    "no quotes": request(command="git-upload-pack a"),
    "an option": request(command="git-upload-pack --timeout=9 'a'"),
    "an option for a path": request(command="git-upload-pack '--exec=id'"),
    "a way up": request(command="git-upload-pack 'acme/../api.git'"),
    "a dot": request(command="git-upload-pack './api.git'"),
    "two slashes": request(command="git-upload-pack '//api.git'"),
    "a line end": request(command="git-upload-pack 'a\n'"),
    "a blank": request(command="git-upload-pack 'a b'"),
    "an empty path": request(command="git-upload-pack ''"),
    "a command too long": request(command="git-upload-pack '" + "a" * 2000 + "'"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_is_no_request(case: str) -> None:
    with pytest.raises(RequestRefused):
        parse_request(UNREADABLE[case])


DECISIONS = {
    "as declared": (("git.test", 22, "git", "fetch", "acme/api.git"), True),
    "as a forge spells it too": (("git.test", 22, "git", "push", "/acme/api"), True),
    "read, where it is only that": (("git.test", 2222, "git", "fetch", "srv/read.git"), True),
    "written, where it is only read": (("git.test", 2222, "git", "push", "/srv/read"), False),
    "another path": (("git.test", 22, "git", "fetch", "acme/api2.git"), False),
    "another case": (("git.test", 22, "git", "fetch", "Acme/api.git"), False),
    "another account": (("git.test", 22, "root", "fetch", "acme/api.git"), False),
    "another repository's port": (("git.test", 2222, "git", "fetch", "acme/api.git"), False),
    "another host": (("git2.test", 22, "git", "fetch", "acme/api.git"), False),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_repositories(case: str) -> None:
    (host, port, user, service, path), allowed = DECISIONS[case]
    assert decide_repository(POLICY, Request(host, port, user, service, path, "")).allowed is allowed


def test_a_deny_beats_a_repository() -> None:
    policy = Policy(git=(API,), rules=(Rule("deny", "*.test", origin="spec egress.deny[0]"),))
    decision = decide_repository(policy, Request("git.test", 22, "git", "fetch", "acme/api.git", ""))
    assert not decision.allowed
    assert "deny *.test" in decision.reason


def test_the_server_is_asked_for_the_path_as_declared() -> None:
    assert server_command(API, "push") == "git-receive-pack 'acme/api.git'"


WRITER = Repository("git.test", 22, "git", "a", push=("refs/heads/agent/*", "refs/heads/main"), delete=("refs/tags/*",))
REFS = {
    "a branch of its own": (Command(NONE, NEW, "refs/heads/agent/x"), ""),
    "deeper": (Command(OLD, NEW, "refs/heads/agent/x/y"), ""),
    "an exact one": (Command(OLD, NEW, "refs/heads/main"), ""),
    "a deletion that is named": (Command(OLD, NONE, "refs/tags/v1"), ""),
    "a branch beside": (Command(NONE, NEW, "refs/heads/agentx"), "may not be pushed"),
    "the prefix itself": (Command(NONE, NEW, "refs/heads/agent"), "may not be pushed"),
    "longer than an exact one": (Command(NONE, NEW, "refs/heads/main2"), "may not be pushed"),
    "a tag made where it may be deleted": (Command(NONE, NEW, "refs/tags/v1"), "may not be pushed"),
    "a deletion": (Command(OLD, NONE, "refs/heads/agent/x"), "may not be deleted"),
    "a way up": (Command(NONE, NEW, "refs/heads/agent/../main"), "not a full ref"),
    "no full ref": (Command(NONE, NEW, "main"), "not a full ref"),
    "HEAD": (Command(NONE, NEW, "HEAD"), "not a full ref"),
    "a pattern for a ref": (Command(NONE, NEW, "refs/heads/agent/*"), "not a full ref"),
    "longer than a receipt can say": (Command(NONE, NEW, "refs/heads/agent/" + "\U0001f600" * 20), "not a full ref"),
    "a lock": (Command(NONE, NEW, "refs/heads/agent/x.lock"), "not a full ref"),
    "an empty part": (Command(NONE, NEW, "refs/heads/agent//x"), "not a full ref"),
}


@pytest.mark.parametrize("case", REFS)
def test_refs(case: str) -> None:
    command, words = REFS[case]
    reason = decide_push(WRITER, command)
    assert words in reason
    assert bool(words) is bool(reason)


def pkt(*lines: bytes, end: bytes = b"0000") -> bytes:
    return b"".join(b"%04x%s" % (len(line) + 4, line) for line in lines) + end


FIRST = f"{NONE} {NEW} refs/heads/agent/x".encode()
CAPABILITIES = b"\0 report-status-v2 side-band-64k object-format=sha1 agent=git/2.47"


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_a_push_is_read_in_whatever_pieces_it_comes(size: int) -> None:
    shallow = b"shallow " + OLD.encode()
    second = f"{OLD} {NONE} refs/heads/y\n".encode()
    data = pkt(shallow, FIRST + CAPABILITIES, second) + b"PACK\x00\x00"
    head = PushHead()
    for at in range(0, len(data), size):
        if head.feed(data[at : at + size]):
            break
    assert head.complete
    assert head.commands == [Command(NONE, NEW, "refs/heads/agent/x"), Command(OLD, NONE, "refs/heads/y")]
    assert [command.deletes for command in head.commands] == [False, True]
    assert data.startswith(bytes(head.raw))


NO_PUSH = {
    "a push option": pkt(FIRST + b"\0 report-status push-options"),
    "a push option as git reads it too": pkt(FIRST + b"\0 report-status push-options=1"),
    "a capability that nobody judged": pkt(FIRST + b"\0 report-status x-merge"),
    "a signed push": pkt(b"push-cert\0 push-options", FIRST),
    "a signed push without capabilities": pkt(b"push-cert\n", FIRST),
    "capabilities twice": pkt(FIRST + CAPABILITIES, FIRST + b"\0push-options"),
    "shallow behind a command": pkt(FIRST + CAPABILITIES, b"shallow " + OLD.encode()),
    "no length": b"GET / HTTP/1.1\r\n",
    "a length with a sign": b"+010" + FIRST,
    "an empty line": b"0004",
    "a delimiter": pkt(FIRST + CAPABILITIES, end=b"0001"),
    "a short object": pkt(b"1234 5678 refs/heads/agent/x"),
    "an object in capitals": pkt(f"{'A' * 40} {NEW} refs/heads/agent/x".encode()),
    "too many refs": pkt(*[FIRST] * 501),
}


@pytest.mark.parametrize("case", NO_PUSH)
def test_what_is_no_push(case: str) -> None:
    with pytest.raises(PushRefused):
        PushHead().feed(NO_PUSH[case])


def test_what_comes_without_end_is_refused() -> None:
    head = PushHead()
    line = pkt(b"shallow " + OLD.encode(), end=b"") * 1000
    with pytest.raises(PushRefused, match="too many"):
        for _ in range(100):
            head.feed(line)
    assert len(head.raw) < 2 * 1024 * 1024


# --- in the policy ---


def test_a_policy_with_repositories_keeps_its_digest_through_its_own_form() -> None:
    again = Policy.parse(POLICY.encode())
    assert again.digest == POLICY.digest
    assert set(again.git) == {API, READ}
    assert Policy(git=(READ, API)).digest == POLICY.digest
    assert b"git" not in Policy(rules=()).encode()


BAD_ROWS = {
    "a host in capitals": {"host": "Git.test", "path": "a"},
    "an address": {"host": "203.0.113.9", "path": "a"},
    "a wildcard": {"host": "*.test", "path": "a"},
    "no path": {"host": "git.test", "path": ""},
    "a quote in a path": {"host": "git.test", "path": "a'b"},
    "a ref without its beginning": {"host": "git.test", "path": "a", "push": ["main"]},
    "a star in the middle": {"host": "git.test", "path": "a", "push": ["refs/*/main"]},
    "a key of its own": {"host": "git.test", "path": "a", "force": True},
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_row_that_cannot_be_used(case: str) -> None:
    body = json.dumps({"version": 1, "rules": [], "git": [BAD_ROWS[case]]}).encode()
    with pytest.raises(PolicyError):
        Policy.parse(body)


def test_a_repository_opens_its_host_to_the_gateway_alone() -> None:
    assert decide_git_host(POLICY, "git.test", 22).allowed
    assert not decide_git_host(POLICY, "git.test", 443).allowed
    assert not decide_name(POLICY, "git.test", 22).allowed
    assert decide_lookup(POLICY, "git.test").allowed
    assert not decide_lookup(POLICY, "other.test").allowed
    assert not decide_lookup(POLICY, "git.test", "10.0.0.1").allowed


def verdict(local: str, *, method: str = "CONNECT", host: str = "git.test", policy: Policy = POLICY) -> object:
    fields = ["7", "1", method, host, "22", "-", "-", local, "-", "-", "40000", "-", "-"]
    _, question = parse_question(" ".join(fields).encode(), headers=("Upgrade", "Cookie"))
    return judge(policy, question, vault=Vault(), resolved=Resolved())


def test_squid_is_told_who_asks_by_the_address_that_was_asked() -> None:
    allowed = verdict(identity.GATEWAY_LOOPBACK4)
    assert allowed.allowed  # type: ignore[attr-defined]
    assert dict(allowed.notes)["action_"] == "raw"  # type: ignore[attr-defined]
    assert allowed.receipts[0]["via"] == "git"  # type: ignore[attr-defined]
    refused = verdict(identity.LOOPBACK4)
    assert not refused.allowed  # type: ignore[attr-defined]


@pytest.mark.parametrize(("method", "host"), [("CONNECT", "other.test"), ("GET", "git.test")])
def test_the_gateway_s_own_way_leads_nowhere_else(method: str, host: str) -> None:
    found = verdict(identity.GATEWAY_LOOPBACK4, method=method, host=host)
    assert not found.allowed  # type: ignore[attr-defined]
    assert dict(found.notes)["action_"] == "deny"  # type: ignore[attr-defined]


def test_replay_repeats_what_the_gateway_was_let_out_for() -> None:
    receipt = {"seq": 3, **verdict(identity.GATEWAY_LOOPBACK4).receipts[0]}  # type: ignore[attr-defined]
    policies = {POLICY.digest: POLICY}
    assert replay([receipt], policies=policies) == ()
    agent = {**receipt, "via": "connect"}
    other = {**receipt, "host": "other.test"}
    assert [fault.kind for fault in replay([agent, other], policies=policies)] == ["replay-mismatch"] * 2


GIT = {
    "seq": 9, "kind": "git", "action": "allow", "host": "git.test", "port": 22, "repo": "/acme/api", "user": "git",
    "service": "push", "rule": API.text, "policy": POLICY.short_digest,
}  # fmt: skip
ALLOWED = {
    "a repository": ({}, True),
    "a ref": ({"ref": "refs/heads/agent/x", "old": "0" * 16, "new": "2" * 16}, True),
    "a refusal, which may be stricter": ({"action": "deny", "repo": "acme/other"}, True),
    "an end": ({"action": "exit", "repo": "acme/other"}, True),
    "another repository": ({"repo": "acme/other"}, False),
    "another account": ({"user": "root"}, False),
    "another rule": ({"rule": READ.text}, False),
    "another ref": ({"ref": "refs/heads/main", "new": "2" * 16}, False),
    "a deletion": ({"ref": "refs/heads/agent/x", "new": "0" * 16}, False),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_replay_repeats_what_the_gateway_allowed(case: str) -> None:
    changes, right = ALLOWED[case]
    faults = replay([{**GIT, **changes}], policies={POLICY.digest: POLICY})
    assert [fault.kind for fault in faults] == ([] if right else ["replay-mismatch"])


def test_a_policy_without_a_repository_is_narrower() -> None:
    assert narrower(POLICY, Policy(git=(API,)))
    assert not narrower(Policy(git=(API,)), POLICY)


def test_words_for_the_agent_are_one_printable_line() -> None:
    words = refusal_words("\x1b[31mno\n", what="fetch of git.test:\xe4")
    assert words.isprintable()
    assert words.isascii()


def test_the_tunnel_program_knows_the_same_address() -> None:
    assert (GATEWAY_LOOPBACK4, PROXY_PORT) == (identity.GATEWAY_LOOPBACK4, identity.PROXY_PORT)
