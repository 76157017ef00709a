"""The audit writer as a process: what is acknowledged is on disk, in one chain, and nobody says what is not theirs."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from agent_egress import identity, wire
from agent_egress.audit import KINDS_OF_ROLE, ROLES
from agent_egress.checkpoint import Stand
from agent_egress.receipts import ZERO_MAC, Checkpoint, key_commitment, verify_chain
from tests.process.egress.harness import KEY, Sidecar, answers, until

ALLOW = {"kind": "decision", "action": "allow", "host": "ok.test", "port": 443, "rule": "allow ok.test"}
DENY = {"kind": "decision", "action": "deny", "host": "no.test", "port": 443, "rule": ""}


def test_an_acknowledged_receipt_is_on_disk_and_the_sealed_chain_verifies(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    first = sidecar.receipts()[0]
    assert (first["kind"], first["session"]) == ("open", "20261129-000000-abcdef")
    assert (first["policy"], first["key"]) == (sidecar.policy().digest, key_commitment(KEY))
    answer = sidecar.audit({"id": 7, "receipts": [ALLOW, {**ALLOW, "port": 80}]})
    assert answer == {"id": 7, "ok": True, "seq": 3}
    assert [receipt["port"] for receipt in sidecar.receipts("decision")] == [443, 80]
    assert sidecar.verify().status == "unverifiable"
    counters = sidecar.audit({"id": 8, "op": "counters"})
    assert counters["length"] == 3 and counters["sealed"] is False and counters["head"] != ZERO_MAC
    sealed = sidecar.audit({"id": 9, "op": "seal", "outcome": "succeeded", "totals": {"drops": 4}})
    report = sidecar.verify()
    assert (report.status, report.length, report.head) == ("verified", 4, sealed["head"])
    assert report.counts["decision.allow"] == 2
    again = sidecar.audit({"id": 10, "op": "seal", "outcome": "other"})
    assert again["head"] == sealed["head"], "sealing again is harmless"
    refused = sidecar.audit({"id": 11, "receipts": [ALLOW]})
    assert refused["ok"] is False and "sealed" in str(refused["error"])
    assert sidecar.verify() == report


def test_a_checkpoint_is_where_the_chain_stands_on_disk(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    sidecar.audit({"id": 1, "receipts": [ALLOW, ALLOW]})
    answer = sidecar.audit({"id": 2, "op": "checkpoint"})
    last = sidecar.receipts()[-1]
    assert answer == {"id": 2, "ok": True, "length": 3, "head": last["mac"], "sealed": False}
    lines = (sidecar.root / "receipts.jsonl").read_bytes().splitlines(keepends=True)
    stand = Stand.of(answer)
    assert stand is not None
    cut = verify_chain(lines[:-1], key=KEY, checkpoint=Checkpoint(stand.length, stand.head))
    assert (cut.status, [fault.kind for fault in cut.faults]) == ("tampered", ["cut-tail", "missing-seal"])
    sidecar.audit({"id": 3, "receipts": [ALLOW]})
    grown = (sidecar.root / "receipts.jsonl").read_bytes().splitlines(keepends=True)
    whole = verify_chain(grown, key=KEY, checkpoint=Checkpoint(stand.length, stand.head))
    assert (whole.status, whole.length) == ("unverifiable", 4)


def test_only_root_asks_for_one(sidecar: Sidecar) -> None:
    sidecar.start_audit(roles="policy")
    with pytest.raises(wire.WireError):
        sidecar.audit({"id": 2, "op": "checkpoint"})
    assert sidecar.audit({"id": 3, "op": "counters"})["length"] == 1


def test_repeated_refusals_become_one_counted_receipt_and_none_is_lost(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    for number in range(5):
        assert sidecar.audit({"id": number, "receipts": [DENY] * 100})["ok"] is True
    sidecar.audit({"id": 9, "op": "seal", "outcome": "succeeded"})
    written = sidecar.receipts("decision")
    assert len(written) < 20
    assert sum(int(str(receipt.get("count", 1))) for receipt in written) == 500
    report = sidecar.verify()
    assert report.status == "verified" and report.counts["decision.deny"] == 500


def test_repeats_are_written_without_another_request(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    sidecar.audit({"id": 1, "receipts": [DENY, DENY, DENY]})
    until(lambda: any(receipt.get("count") == 2 for receipt in sidecar.receipts("decision")))


def test_many_different_refusals_are_counted_together_past_a_bound(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    sidecar.audit({"id": 1, "receipts": [{**DENY, "host": f"n{i}.test"} for i in range(1000)]})
    sidecar.audit({"id": 2, "op": "seal", "outcome": "succeeded"})
    assert len(sidecar.receipts("decision")) <= 101
    assert sidecar.verify().counts["decision.deny"] == 1000


def test_several_clients_at_once_make_one_chain(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    socks = []
    for number in range(8):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(sidecar.path("audit.sock"))
        sock.sendall(b"".join(wire.encode({"id": i, "receipts": [{**ALLOW, "port": number + 1}]}) for i in range(25)))
        socks.append(sock)
    for sock in socks:
        with sock, sock.makefile("rb") as stream:
            assert all(wire.decode(stream.readline())["ok"] is True for _ in range(25))
    sidecar.audit({"id": 1, "op": "seal", "outcome": "succeeded"})
    report = sidecar.verify()
    assert (report.status, report.counts["decision"]) == ("verified", 200)


def test_one_bad_receipt_does_not_deny_the_other_clients(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    huge = {**ALLOW, **{f"k{i}": "x" * 200 for i in range(40)}}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(sidecar.path("audit.sock"))
        sock.sendall(wire.encode({"id": 1, "receipts": [huge]}) + wire.encode({"id": 2, "receipts": [ALLOW]}))
        with sock.makefile("rb") as stream:
            answer = {message["id"]: message["ok"] for message in (wire.decode(stream.readline()) for _ in range(2))}
    assert answer == {1: False, 2: True}
    assert len(sidecar.receipts("decision")) == 1


@pytest.mark.parametrize("roles", ["policy", "dns", "root", "gateway", "nobody"])
def test_a_peer_may_write_its_own_kinds_alone(sidecar: Sidecar, roles: str) -> None:
    sidecar.start_audit(roles=roles)
    for kind in sorted({kind for kinds in KINDS_OF_ROLE.values() for kind in kinds} | {"open", "seal", "made-up"}):
        answer = sidecar.audit({"id": 1, "receipts": [{"kind": kind}]})
        assert answer["ok"] is (kind in KINDS_OF_ROLE.get(roles, frozenset())), kind
    assert sidecar.audit({"id": 2, "op": "seal", "outcome": "x"})["ok"] is (roles == "root")


def test_the_uids_of_the_sidecar_are_the_defaults() -> None:
    assert set(ROLES) == {identity.POLICY, identity.DNS, identity.SCAN, identity.GATEWAY, 0}
    assert ROLES[identity.GATEWAY] == {"gateway"}
    assert ROLES[identity.POLICY] == {"policy"} and ROLES[identity.DNS] == {"dns"} and ROLES[identity.SCAN] == {"scan"}


def test_an_unknown_uid_is_cut_off_before_it_says_anything(sidecar: Sidecar) -> None:
    process = sidecar.start("audit", *_options(sidecar), "--peer", f"{os.getuid() + 1}=root", key=KEY)
    sidecar.wait(process, lambda: answers(sidecar.path("audit.sock")))
    with pytest.raises(wire.WireError):
        sidecar.audit({"id": 1, "op": "counters"})


def _options(sidecar: Sidecar) -> tuple[str, ...]:
    paths = ("--receipts", sidecar.path("receipts.jsonl"), "--socket", sidecar.path("audit.sock"))
    return ("--session-file", sidecar.path("session.json"), "--policy-file", sidecar.path("policy.json"), *paths)


def test_garbage_ends_the_connection_and_nothing_else(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    for garbage in (b"not json\n", b"[1]\n", b'{"id":1,"receipts":7}\n', b"\xff\xfe\n", b"{" * 5000 + b"\n"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(sidecar.path("audit.sock"))
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            received = sock.recv(65536)
            assert received == b"" or wire.decode(received)["ok"] is False
    assert sidecar.audit({"id": 1, "receipts": [ALLOW]})["ok"] is True


def test_at_the_cap_everything_but_the_end_of_the_session_is_refused(sidecar: Sidecar) -> None:
    sidecar.start_audit("--max-receipts", "3")
    assert sidecar.audit({"id": 1, "receipts": [ALLOW, ALLOW]})["ok"] is True
    full = sidecar.audit({"id": 2, "receipts": [ALLOW]})
    assert full["ok"] is False and "full" in str(full["error"])
    assert sidecar.audit({"id": 3, "op": "counters"})["full"] is True
    assert sidecar.audit({"id": 4, "receipts": [{"kind": "cut", "reason": "full"}]})["ok"] is True
    assert sidecar.audit({"id": 5, "op": "seal", "outcome": "budget"})["ok"] is True
    assert sidecar.verify().status == "verified"


def test_a_full_disk_is_a_refusal_and_leaves_whole_lines(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    process = sidecar.processes["audit"]
    size = (sidecar.root / "receipts.jsonl").stat().st_size
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    refused = sidecar.audit({"id": 1, "receipts": [ALLOW] * 5})
    assert refused["ok"] is False
    assert (sidecar.root / "receipts.jsonl").stat().st_size == size
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert sidecar.audit({"id": 2, "receipts": [ALLOW]})["seq"] == 2
    sidecar.audit({"id": 3, "op": "seal", "outcome": "succeeded"})
    assert sidecar.verify().status == "verified"


def test_a_writer_that_ends_writes_what_it_held_back_and_another_goes_on(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    sidecar.audit({"id": 1, "receipts": [DENY, DENY, ALLOW]})
    assert sidecar.stop("audit") == 0
    assert sidecar.verify().counts["decision.deny"] == 2
    sidecar.start_audit()
    assert sidecar.audit({"id": 1, "receipts": [ALLOW]})["seq"] == 5
    sidecar.audit({"id": 3, "op": "seal", "outcome": "succeeded"})
    assert sidecar.verify().status == "verified"


def test_a_chain_that_is_not_whole_is_not_continued_but_kept(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    sidecar.audit({"id": 1, "receipts": [ALLOW]})
    sidecar.stop("audit")
    path = sidecar.root / "receipts.jsonl"
    evidence = path.read_bytes().replace(b"ok.test", b"no.test")
    path.write_bytes(evidence)
    process = sidecar.start("audit", *_options(sidecar), key=KEY)
    assert process.wait(timeout=60) != 0
    assert path.read_bytes() == evidence


def test_a_second_writer_on_the_same_chain_does_not_start(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    first = sidecar.processes.pop("audit")
    second = sidecar.start("audit", *_options(sidecar), key=KEY)
    assert second.wait(timeout=60) != 0
    sidecar.stop("audit")
    sidecar.processes["audit"] = first
    assert sidecar.audit({"id": 1, "receipts": [ALLOW]})["ok"] is True


def test_a_key_that_is_too_short_starts_nothing(sidecar: Sidecar) -> None:
    process = sidecar.start("audit", *_options(sidecar), key=b"short")
    assert process.wait(timeout=60) != 0
    assert not (sidecar.root / "receipts.jsonl").exists()


def test_the_key_is_nowhere_on_disk_nor_in_the_process_list(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    sidecar.audit({"id": 1, "receipts": [ALLOW]})
    for path in sidecar.root.iterdir():
        if path.is_file():
            assert KEY not in path.read_bytes() and KEY.hex().encode() not in path.read_bytes()
    pid = sidecar.processes["audit"].pid
    for name in ("cmdline", "environ"):
        assert KEY.hex().encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
