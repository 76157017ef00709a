"""The chain and its verification: what was written verifies, and each way to change it is seen and named."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_egress import receipts
from agent_egress.collapse import MAX_DISTINCT, RESERVED, Collapser
from agent_egress.identity import MAX_RECEIPT_BYTES
from agent_egress.policy import Policy, decide_name
from agent_egress.receipts import (
    ZERO_MAC,
    ChainFull,
    ChainSealed,
    Checkpoint,
    Fields,
    ReceiptRefused,
    Writer,
    cut_text,
    key_commitment,
    open_receipt,
    parse_receipt,
    seal_receipt,
    verify_chain,
)
from agent_egress.replay import reconcile, replay

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
POLICY = Policy.parse(
    b'{"version":1,"rules":[{"action":"allow","pattern":"ok.test"},{"action":"deny","pattern":"ads.test"}]}'
)


def decision(host: str = "ok.test", action: str = "allow", rule: str = "allow ok.test", **more: object) -> Fields:
    row = {"kind": "decision", "action": action, "host": host, "port": 443, "rule": rule, "policy": POLICY.short_digest}
    return {**row, **more}


def chain(count: int = 8, *, key: bytes = KEY, sealed: bool = True, body: Sequence[Fields] = ()) -> list[bytes]:
    """An `open`, decisions, and a seal."""
    writer = Writer(key=key)
    lines = writer.append([open_receipt(session="s", policy_digest=POLICY.digest, key=key)], t_ms=1)
    lines += writer.append(body or [decision(client=str(number)) for number in range(count)], t_ms=2)
    if sealed:
        lines += writer.append([seal_receipt(writer, outcome="succeeded")], t_ms=3)
    return lines.splitlines(keepends=True)


def head(lines: Sequence[bytes]) -> str:
    return str(json.loads(lines[-1])["mac"])


def flip(line: bytes, at: int) -> bytes:
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


def insert(lines: list[bytes], at: int, line: bytes) -> list[bytes]:
    return [*lines[:at], line, *lines[at:]]


def swap(lines: list[bytes], one: int, other: int) -> list[bytes]:
    changed = list(lines)
    changed[one], changed[other] = changed[other], changed[one]
    return changed


def relinked(lines: list[bytes], at: int) -> list[bytes]:
    """One receipt changed and the rest linked again by somebody without the key."""
    writer = Writer(key=OTHER_KEY)
    for _ in range(at):
        writer.append([decision()], t_ms=2)
    forged = writer.append([decision("evil.test")] * (len(lines) - at), t_ms=2)
    return [*lines[:at], *forged.splitlines(keepends=True)]


def test_a_chain_verifies_and_the_report_says_what_is_in_it() -> None:
    body = [
        decision(),
        decision("no.test", "deny", "", count=7),
        {"kind": "policy", "policy": "sha256:b"},
        {"kind": "cut"},
    ]
    lines = chain(body=body)
    report = verify_chain(lines, key=KEY)
    assert (report.status, report.length, report.head, report.sealed) == ("verified", 6, head(lines), True)
    assert report.faults == () and report.digests == (POLICY.digest, "sha256:b")
    assert (report.counts["decision"], report.counts["decision.allow"], report.counts["decision.deny"]) == (2, 1, 7)
    assert verify_chain(lines, key=KEY, checkpoint=report.checkpoint) == report
    assert verify_chain([line.rstrip(b"\n") for line in lines], key=KEY) == report, "with or without newlines"
    earlier = verify_chain(lines[:3], key=KEY)
    assert verify_chain(lines, key=KEY, checkpoint=earlier.checkpoint).status == "verified"


# Sentence, what was done to eleven lines (open, nine decisions, seal), status, kinds of fault, receipts vouched for.
TAMPERING: list[tuple[str, Callable[[list[bytes]], list[bytes]], str, set[str], int]] = [
    (
        "a changed field",
        lambda c: [*c[:3], c[3].replace(b"ok.test", b"no.test", 1), *c[4:]],
        "tampered",
        {"bad-mac"},
        3,
    ),
    (
        "a changed MAC",
        lambda c: [*c[:3], c[3].replace(head(c[:4]).encode(), b"0" * 64), *c[4:]],
        "tampered",
        {"bad-mac"},
        3,
    ),
    ("a changed time", lambda c: [*c[:3], c[3].replace(b'"t":2', b'"t":3'), *c[4:]], "tampered", {"bad-mac"}, 3),
    ("a field more", lambda c: [*c[:3], c[3].replace(b'"t":2', b'"t":2,"x":1'), *c[4:]], "tampered", {"bad-mac"}, 3),
    ("a space more", lambda c: [*c[:3], c[3].replace(b'"t":2', b'"t": 2'), *c[4:]], "tampered", {"bad-mac"}, 3),
    ("the first receipt changed", lambda c: [c[0].replace(b'"s"', b'"x"'), *c[1:]], "tampered", {"bad-mac"}, 0),
    ("the seal changed", lambda c: [*c[:-1], c[-1].replace(b"succeeded", b"sukzeeded")], "tampered", {"bad-mac"}, 10),
    ("a dropped receipt", lambda c: [*c[:4], *c[5:]], "tampered", {"gap"}, 4),
    ("three dropped receipts", lambda c: [*c[:4], *c[7:]], "tampered", {"gap"}, 4),
    ("the beginning dropped", lambda c: c[5:], "tampered", {"gap"}, 0),
    ("the first dropped", lambda c: c[1:], "tampered", {"gap"}, 0),
    ("a doubled receipt", lambda c: insert(c, 5, c[4]), "tampered", {"duplicate"}, 5),
    ("an old receipt again at the end", lambda c: [*c[:-1], c[2], c[-1]], "tampered", {"duplicate"}, 10),
    ("two receipts swapped", lambda c: swap(c, 4, 5), "tampered", {"gap", "reorder"}, 4),
    ("the last two swapped", lambda c: swap(c, 9, 10), "tampered", {"gap", "reorder", "after-seal"}, 9),
    ("a receipt of another chain", lambda c: [*c[:4], chain(9, key=OTHER_KEY)[4], *c[5:]], "tampered", {"bad-mac"}, 4),
    ("relinked without the key", lambda c: relinked(c, 4), "tampered", {"bad-mac", "missing-seal"}, 4),
    ("garbage in the middle", lambda c: insert(c, 5, b"garbage\n"), "tampered", {"not-json"}, 5),
    ("a receipt turned into garbage", lambda c: [*c[:5], b"\xff\xfe\n", *c[6:]], "tampered", {"not-json", "gap"}, 5),
    ("half a line in the middle", lambda c: [*c[:5], c[5][:40] + b"\n", *c[6:]], "tampered", {"not-json", "gap"}, 5),
    ("a line of 100 KB", lambda c: insert(c, 5, b"x" * 100_000), "tampered", {"not-json"}, 5),
    ("deep JSON", lambda c: insert(c, 5, b"[" * 900), "tampered", {"not-json"}, 5),
    ("something after the seal", lambda c: [*c, b"{}\n"], "tampered", {"not-json"}, 11),
    ("a second seal", lambda c: [*c, c[-1]], "tampered", {"after-seal", "duplicate"}, 11),
    ("the seal cut off", lambda c: c[:-1], "unverifiable", {"missing-seal"}, 10),
    ("the tail cut off", lambda c: c[:6], "unverifiable", {"missing-seal"}, 6),
    ("half a line at the end", lambda c: [*c[:6], c[6][:50]], "unverifiable", {"not-json", "missing-seal"}, 6),
    ("nothing at all", lambda c: [], "unverifiable", {"missing-seal"}, 0),
    ("empty lines alone", lambda c: [b"\n", b"  \n"], "unverifiable", {"missing-seal"}, 0),
    ("all lines malformed", lambda c: [b"x\n"] * 5, "tampered", {"not-json", "missing-seal"}, 0),
    ("another chain in its place", lambda c: chain(9, key=OTHER_KEY), "unverifiable", {"wrong-key"}, 0),
]


@pytest.mark.parametrize(
    ("tamper", "status", "kinds", "length"), [pytest.param(*row[1:], id=row[0]) for row in TAMPERING]
)
def test_tampering(tamper: Callable[[list[bytes]], list[bytes]], status: str, kinds: set[str], length: int) -> None:
    lines = chain(9)
    report = verify_chain(tamper(list(lines)), key=KEY)
    assert (report.status, report.length) == (status, length)
    assert {fault.kind for fault in report.faults} == kinds
    assert report.head == (head(lines[:length]) if length else ZERO_MAC)
    # With the head that the host knows, nothing that was changed or cut passes for merely unfinished.
    known = Checkpoint(length=11, head=head(lines))
    assert verify_chain(tamper(list(lines)), key=KEY, checkpoint=known).status == "tampered"


def test_a_cut_tail_is_counted_by_what_the_host_knew() -> None:
    lines = chain(9, sealed=False)
    (fault, unsealed) = verify_chain(lines[:-3], key=KEY, checkpoint=Checkpoint(10, head(lines))).faults
    assert (fault.kind, fault.detail) == ("cut-tail", "3 missing at the end")
    assert (unsealed.kind, unsealed.detail) == ("missing-seal", "nothing past receipt 7 is vouched for")


def test_a_chain_that_went_another_way_than_the_one_verified_before() -> None:
    one, other = chain(9), chain(body=[decision("elsewhere.test")] * 9)
    report = verify_chain(other, key=KEY, checkpoint=Checkpoint(5, head(one[:5])))
    assert report.status == "tampered" and [fault.kind for fault in report.faults] == ["behind-checkpoint"]


def test_a_chain_that_grows_while_it_is_read_is_never_tampered() -> None:
    data = b"".join(chain(5))
    for end in range(len(data)):
        lines = data[:end].splitlines(keepends=True)
        report = verify_chain(lines, key=KEY)
        assert report.status == "unverifiable" or end == len(data) - 1, end


def test_every_flipped_byte_is_seen() -> None:
    lines = chain(3)
    for number, line in enumerate(lines):
        for at in range(len(line) - 1):
            changed = [*lines[:number], flip(line, at), *lines[number + 1 :]]
            assert verify_chain(changed, key=KEY).status != "verified", (number, at)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(0, 7))
def test_no_bytes_raise_and_none_beside_the_chain_verify(noise: list[bytes], at: int) -> None:
    lines = chain(5)
    mixed = [*lines[:at], *noise, *lines[at:]]
    report = verify_chain(mixed, key=KEY)
    assert report.status == ("verified" if not any(line.strip() for line in noise) else "tampered")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(range(7)), max_size=9))
def test_only_the_whole_chain_in_its_order_verifies(picked: list[int]) -> None:
    lines = chain(5)
    report = verify_chain([lines[number] for number in picked], key=KEY)
    assert (report.status == "verified") == (picked == list(range(7)))


def test_totals_that_are_not_the_chains_are_seen() -> None:
    writer = Writer(key=KEY)
    data = writer.append([open_receipt(session="s", policy_digest="sha256:x", key=KEY), decision()], t_ms=1)
    data += writer.append([{"kind": "seal", "outcome": "x", "length": 2, "totals": {"open": 1}}], t_ms=1)
    report = verify_chain(data.splitlines(), key=KEY)
    assert [fault.kind for fault in report.faults] == ["bad-totals"]


def test_a_writer_links_seals_and_caps() -> None:
    writer = Writer(key=KEY, max_receipts=3)
    writer.append([open_receipt(session="s", policy_digest="d", key=KEY), decision(), decision()], t_ms=1)
    with pytest.raises(ChainFull):
        writer.append([decision()], t_ms=1)
    assert writer.length == 3
    writer.append([{"kind": "cut"}, seal_receipt(writer, outcome="budget")], t_ms=1)
    assert writer.sealed
    with pytest.raises(ChainSealed):
        writer.append([decision()], t_ms=1)
    assert (
        Writer(key=KEY)
        .append([open_receipt(session="s", policy_digest="d", key=KEY)], t_ms=1)
        .count(key_commitment(KEY).encode())
    )
    with pytest.raises(ReceiptRefused):
        Writer(key=b"short")


def test_a_batch_is_written_whole_or_not_and_can_be_undone() -> None:
    writer = Writer(key=KEY)
    first = writer.append([open_receipt(session="s", policy_digest="d", key=KEY)], t_ms=1)
    writer.commit()
    with pytest.raises(ReceiptRefused):
        writer.append([decision(), {"kind": "nonsense"}], t_ms=1)
    assert writer.length == 1
    lost = writer.append([decision(client="lost")], t_ms=1)
    writer.rollback()
    again = writer.append([decision(client="kept")], t_ms=1)
    assert json.loads(again)["seq"] == json.loads(lost)["seq"] == 2
    seal = writer.append([seal_receipt(writer, outcome="x")], t_ms=1)
    assert verify_chain([first, again, seal], key=KEY).status == "verified"


def test_a_chain_is_continued_from_its_lines_and_only_a_whole_one() -> None:
    lines = chain(4, sealed=False)
    writer = Writer(key=KEY)
    writer.resume(lines)
    more = writer.append([decision()], t_ms=9)
    more += writer.append([seal_receipt(writer, outcome="x")], t_ms=9)
    assert writer.length == 7
    assert verify_chain([*lines, *more.splitlines(keepends=True)], key=KEY).length == 7
    for broken in ([], lines[1:], [*lines[:-1], lines[-1][:30]], chain(4), chain(4, key=OTHER_KEY, sealed=False)):
        with pytest.raises(ReceiptRefused):
            Writer(key=KEY).resume(broken)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "nonsense"},
        {},
        {"kind": "decision", "seq": 9},
        {"kind": "decision", "mac": "x"},
        {"kind": "decision", "t": 1},
        {"kind": "decision", "x": object()},
        {"kind": "decision", "x": float("nan")},
        {"kind": "decision", "x": list(range(1000))},
        {"kind": "decision", **{f"k{number}": "x" * 100 for number in range(30)}},
    ],
)
def test_receipts_that_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ReceiptRefused):
        Writer(key=KEY).append([fields], t_ms=1)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=5000), st.text(max_size=5000), st.text(max_size=5000))
def test_a_receipt_is_one_short_line_of_ascii_whatever_it_holds(host: str, path: str, reason: str) -> None:
    line = Writer(key=KEY).append([decision(host, path=path, reason=reason)], t_ms=1)
    assert len(line) <= MAX_RECEIPT_BYTES + 1 and line.isascii() and line.count(b"\n") == 1
    assert not any(byte < 0x20 for byte in line[:-1])
    fields = parse_receipt(line)
    assert fields is not None and fields["action"] == "allow"


@given(st.binary(min_size=32, max_size=32), st.text("0123456789abcdef", min_size=64, max_size=64), st.binary())
@settings(max_examples=30)
def test_the_mac_is_the_hmac_of_the_standard_library(key: bytes, previous: str, body: bytes) -> None:
    assert receipts._mac(key, previous, body) == hmac.digest(key, previous.encode() + body, "sha256").hex()


def test_a_cut_text_keeps_its_beginning_and_a_hash_of_all() -> None:
    assert cut_text("short") == "short"
    one, other = cut_text("a" * 300), cut_text("a" * 301)
    assert len(one) <= 256 and one.startswith("aaa") and one != other


def test_repeats_within_a_second_are_held_back_counted_and_given_back() -> None:
    collapser = Collapser()
    refusal = decision("no.test", "deny", "")
    assert collapser.sift([refusal, refusal, decision()], now_s=10.0) == [refusal, decision()]
    assert collapser.sift([refusal, {**refusal, "client": "other"}], now_s=10.5) == [], "a client's port changes"
    assert not collapser.over(10.9) and collapser.over(11.0) and collapser.pending
    assert collapser.flush() == [{**refusal, "count": 3}]
    assert collapser.sift([refusal], now_s=11.2) == [refusal]
    assert collapser.flush() == []


def test_a_batch_that_did_not_reach_the_disk_counts_for_nothing() -> None:
    collapser = Collapser()
    refusal = decision("no.test", "deny", "")
    assert collapser.sift([refusal], now_s=1.0) == [refusal]
    collapser.undo()
    assert collapser.sift([refusal], now_s=1.1) == [refusal], "written out again"
    collapser.sift([decision()], now_s=1.2)
    collapser.undo()
    assert collapser.sift([refusal], now_s=1.3) == [], "an undone allow changes nothing"


def test_tripwires_and_allows_are_never_held_back() -> None:
    collapser = Collapser()
    both = [decision(), {"kind": "tripwire", "credential": "demo"}] * 3
    assert collapser.sift(both, now_s=1.0) == both


def test_many_different_refusals_are_counted_by_kind_past_a_bound() -> None:
    collapser = Collapser()
    refusals = [decision(f"n{number}.test", "deny", "") for number in range(MAX_DISTINCT + 50)]
    assert len(collapser.sift(refusals, now_s=1.0)) == MAX_DISTINCT
    assert collapser.flush() == [{"kind": "decision", "action": "deny", "collapsed": True, "count": 50}]


def test_noise_hides_no_refusal_that_the_agent_cannot_invent() -> None:
    collapser = Collapser()
    noise = [decision(f"n{number}.test", "deny", "") for number in range(MAX_DISTINCT + 50)]
    named = [decision(f"ads{number}.test", "deny", "deny *.ads.test") for number in range(RESERVED + 2)]
    spent = [{**decision("model.test", "deny", ""), "why": "budget", "path": f"/{n}"} for n in range(RESERVED + 2)]
    lookups = [{"kind": "lookup", "action": "deny", "name": f"n{n}.test", "rule": ""} for n in range(RESERVED + 2)]
    collapser.sift(noise, now_s=1.0)
    found = collapser.sift([*named, *spent, *lookups], now_s=1.1)
    assert found == [*named[:RESERVED], *spent[:RESERVED], *lookups[:RESERVED]]
    collapser.flush()
    assert collapser.sift(spent, now_s=2.2) == spent, "the next second begins anew"


# What the receipts say.


@pytest.mark.parametrize(
    ("receipt", "agrees"),
    [
        (decision(), True),
        (decision("OK.test."), True),
        (decision("no.test", "deny", ""), True),
        (decision("ads.test", "deny", "deny ads.test"), True),
        (decision("no.test"), False),
        (decision("no.test", rule=""), False),
        (decision(rule="allow other.test"), False),
        (decision(port=22), False),
        (decision(action="deny"), False),
        (decision(action="deny", why="sni"), True),
        (decision("no.test", why="sni"), False),
        (decision(policy="0" * 16), False),
        (decision("no.test", "deny", "", policy=""), False),
        (
            {
                "kind": "lookup",
                "action": "allow",
                "name": "ok.test",
                "rule": "allow ok.test",
                "policy": POLICY.short_digest,
            },
            True,
        ),
        ({"kind": "lookup", "action": "allow", "name": "no.test", "rule": "", "policy": POLICY.short_digest}, False),
        ({"kind": "lookup", "action": "deny", "name": "no.test", "rule": "", "policy": POLICY.short_digest}, True),
        ({"kind": "decision", "action": "deny", "collapsed": True, "count": 9}, True),
        ({"kind": "decision", "action": "allow", "collapsed": True}, False),
        ({"kind": "tripwire"}, True),
    ],
)
def test_replay_decides_again_under_the_policy_that_the_receipt_names(receipt: Fields, agrees: bool) -> None:
    faults = replay([{"seq": 5, **receipt}], policies={POLICY.digest: POLICY})
    assert [(fault.line, fault.kind) for fault in faults] == ([] if agrees else [(5, "replay-mismatch")])


LONG = ".".join(["a" * 61] * 3 + ["b" * 60, "test"])


@pytest.mark.parametrize("path", ["/x", "/" + "\udc80" * 160, '/"\\' * 60], ids=["plain", "bytes", "quotes"])
@pytest.mark.parametrize("pattern", [LONG, "*." + "b" * 60 + ".test"], ids=["exact", "wildcard"])
def test_no_name_or_path_is_so_long_that_a_true_receipt_reads_as_a_lie(pattern: str, path: str) -> None:
    policy = Policy.parse(json.dumps({"version": 1, "rules": [{"action": "allow", "pattern": pattern}]}).encode())
    rule = decide_name(policy, LONG, 443).rule
    row = decision(LONG, rule=rule, policy=policy.short_digest, path=cut_text(path, 160), path_hash="0" * 16)
    line = Writer(key=KEY).append([{**row, "credential": "c" * 40, "via": "intercepted"}], t_ms=1796000000000)
    written = parse_receipt(line.rstrip())
    assert len(line) <= MAX_RECEIPT_BYTES
    assert written is not None
    assert not replay([written], policies={policy.digest: policy})


def test_every_dialled_address_is_explained_by_an_answer_and_a_decision() -> None:
    answer = {"kind": "answer", "name": "ok.test", "addresses": ["203.0.113.7", "2001:db8::7"]}
    literal = decision("198.51.100.9")

    def dialled(address: str, port: int = 443) -> Fields:
        return {"seq": 9, "kind": "connection", "address": address, "port": port, "packets": 3}

    def unexplained(*receipts: Fields) -> list[str]:
        return [fault.kind for fault in reconcile(receipts)]

    wrong = ["unexplained-connection"]
    assert unexplained(answer, decision(), dialled("203.0.113.7"), dialled("2001:db8::7")) == []
    assert unexplained(dialled("203.0.113.7"), decision(), answer) == [], "in any order: the set is polled"
    assert unexplained(literal, dialled("198.51.100.9")) == []
    assert unexplained(dialled("127.0.0.1", 3131)) == [], "the canary"
    assert unexplained(answer, decision(), dialled("203.0.113.8")) == wrong
    assert unexplained(answer, decision(), dialled("203.0.113.7", 22)) == wrong
    assert unexplained(answer, decision(action="deny"), dialled("203.0.113.7")) == wrong
    assert unexplained(answer, dialled("203.0.113.7")) == wrong
    assert unexplained(decision(), dialled("203.0.113.7")) == wrong
    assert unexplained({**answer, "addresses": "203.0.113.7"}, decision(), dialled("203.0.113.7")) == wrong
