"""The body scanner as it runs, spoken to as squid does: what passes, what is refused, and the receipt of it."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_egress import wire
from agent_egress.fingerprints import fingerprint, new_key
from tests.process.egress.harness import DECOY, POLICY, SECRET, Sidecar, answers, end, free_ports, make, rows, until
from tests.process.egress.icap_client import Answered, Icap

AWS = b"AKIAIOSFODNN7EXAMPLE"
STORED = b"stored-secret-of-jira-0123456789"
BOUND, OTHER = "api.test", "ok.test"


def start_scanner(sidecar: Sidecar, *, mode: str = "enforce") -> subprocess.Popen[bytes]:
    (port,) = free_ports()
    (sidecar.root / "scan-port").write_text(str(port))
    sidecar.put_session(dlp=mode)
    process = sidecar.start(
        "scanner",
        *("--socket", sidecar.path("scan.sock"), "--audit", sidecar.path("audit.sock"), "--port", str(port)),
        *("--policy-file", sidecar.path("policy.json"), "--session-file", sidecar.path("session.json")),
        *("--peer", f"{os.getuid()}=root"),
    )
    sidecar.wait(process, lambda: answers(sidecar.path("scan.sock")))
    return process


def arm(sidecar: Sidecar) -> dict[str, object]:
    key = new_key()
    made = [
        fingerprint(SECRET.encode(), name="demo", role="own", key=key),
        fingerprint(DECOY.encode(), name="demo", role="decoy", key=key, hosts=(BOUND,)),
        fingerprint(STORED, name="jira", role="stored", key=key),
    ]
    message = {"op": "arm", "fingerprints": [row.row() for row in made if row is not None]}
    return wire.call(sidecar.path("scan.sock"), message, timeout_s=60)


@pytest.fixture(scope="module", params=["enforce", "log", "off"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sidecar, str]]:
    sidecar = make(tmp_path_factory.mktemp("scan"))
    sidecar.start_audit(roles="root,scan")
    start_scanner(sidecar, mode=request.param)
    assert arm(sidecar)["ok"] is True
    yield sidecar, request.param
    end(sidecar)


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    sidecar = make(tmp_path_factory.mktemp("scan"))
    sidecar.start_audit(roles="root,scan")
    start_scanner(sidecar)
    assert arm(sidecar)["ok"] is True
    yield sidecar
    end(sidecar)


def connect(sidecar: Sidecar) -> Icap:
    return Icap(int((sidecar.root / "scan-port").read_text()))


def upload(sidecar: Sidecar, host: str, *parts: bytes, headers: bytes = b"") -> Answered:
    icap = connect(sidecar)
    try:
        icap.request(host, headers=headers)
        if not _answered(icap):
            icap.go_on()
            icap.chunks(*parts)
        return icap.read()
    finally:
        icap.close()


def _answered(icap: Icap) -> bool:
    """Whether the first word is the answer already, and no `100`."""
    while len(peek := icap.sock.recv(13, 2)) < 13:  # MSG_PEEK
        pass
    return peek[9:12] != b"100"


def download(sidecar: Sidecar, host: str, *parts: bytes, headers: bytes = b"") -> Answered:
    icap = connect(sidecar)
    try:
        icap.answer(host, headers=headers)
        if not _answered(icap):
            icap.go_on()
            icap.chunks(*parts)
        return icap.read()
    finally:
        icap.close()


def last(sidecar: Sidecar, kind: str = "dlp") -> dict[str, object]:
    found = sidecar.receipts(kind)[-1]
    return {key: value for key, value in found.items() if key not in ("seq", "t", "mac", "kind")}


def blocked(answer: Answered) -> bool:
    return answer.header.startswith(b"HTTP/1.1 403 ")


REQUESTS = rows(
    # what, host, body, headers, blocked in (enforce, log, off), receipt in (enforce, log, off)
    ("nothing to find", OTHER, b'{"a":1}', b"", "", ""),
    ("a key at a host without a credential", OTHER, AWS, b"", "enforce", "enforce log"),
    ("a key at the credential's host", BOUND, AWS, b"", "", "enforce log"),
    ("a key in base64", OTHER, base64.b64encode(b"key=" + AWS + b";"), b"", "enforce", "enforce log"),
    ("a key in gzip", OTHER, gzip.compress(AWS), b"Content-Encoding: gzip\r\n", "enforce", "enforce log"),
    ("a key in deflate", OTHER, zlib.compress(AWS), b"Content-Encoding: deflate\r\n", "enforce", "enforce log"),
    ("another secret of the store", OTHER, b"x=" + STORED, b"", "enforce", "enforce log"),
    ("the session's secret", OTHER, SECRET.encode(), b"", "enforce log off", "enforce log off"),
    ("the session's secret at its host", BOUND, SECRET.encode(), b"", "enforce log off", "enforce log off"),
    ("the placeholder at its host", BOUND, DECOY.encode(), b"", "", ""),
    ("an unknown coding", OTHER, b"abc", b"Content-Encoding: br\r\n", "enforce", "enforce log"),
    ("an unknown coding at the credential's host", BOUND, b"abc", b"Content-Encoding: zstd\r\n", "", "enforce log"),
    ("what is no gzip", OTHER, b"abcdefghij", b"Content-Encoding: gzip\r\n", "enforce", "enforce log"),
)


@pytest.mark.parametrize(("host", "body", "headers", "blocks", "tells"), REQUESTS)
def test_a_request_s_body(
    running: tuple[Sidecar, str], host: str, body: bytes, headers: bytes, blocks: str, tells: str
) -> None:
    sidecar, mode = running
    before = len(sidecar.receipts("dlp"))
    answer = upload(sidecar, host, body, headers=headers)
    assert answer.status == 200
    assert blocked(answer) == (mode in blocks.split()), answer
    if not blocked(answer):
        assert (answer.body, answer.whole) == (body, True)
        assert answer.header.startswith(b"POST https://" + host.encode())
    found = sidecar.receipts("dlp")[before:]
    assert len(found) == (mode in tells.split()), found
    for receipt in found:
        expected = "block" if mode in blocks.split() else "log"
        assert (receipt["action"], receipt["direction"], receipt["host"]) == (expected, "request", host)


def test_the_placeholder_elsewhere_is_a_tripwire_in_every_mode(running: tuple[Sidecar, str]) -> None:
    sidecar, _ = running
    answer = upload(sidecar, OTHER, b'{"k":"' + base64.b64encode(b"a " + DECOY.encode() + b" z") + b'"}')
    assert blocked(answer)
    found = last(sidecar, "tripwire")
    assert found == {"credential": "demo", "where": "the body", "host": OTHER, "port": 443}


def test_the_placeholder_elsewhere_ends_the_session_where_the_policy_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sidecar = make(tmp_path_factory.mktemp("scan"))
    try:
        sidecar.put_policy({**POLICY, "tripwire": "kill"})
        sidecar.start_audit(roles="root,scan")
        start_scanner(sidecar, mode="off")
        assert arm(sidecar)["ok"] is True
        assert blocked(upload(sidecar, OTHER, DECOY.encode()))
        assert last(sidecar, "kill")["credential"] == "demo"
    finally:
        end(sidecar)


def test_a_refusal_says_what_was_found_and_in_which_mode(enforcing: Sidecar) -> None:
    answer = upload(enforcing, OTHER, b"x" * 1000, AWS[:7], AWS[7:], b" y")
    assert answer.body == (
        b"agent-container: blocked by body scanning: a request to ok.test:443: the body holds aws-access-key "
        b"(egress.dlp: enforce)\n"
    )
    assert last(enforcing) == {
        "action": "block", "direction": "request", "host": OTHER, "port": 443, "what": "aws-access-key", "count": 1,
    }  # fmt: skip
    assert AWS not in (enforcing.root / "receipts.jsonl").read_bytes()


def test_past_the_hold_an_upload_is_broken_off_before_the_key(enforcing: Sidecar) -> None:
    before = b"a line\n" * 300_000
    answer = upload(enforcing, OTHER, before, b"k=" + AWS[:9], AWS[9:] + b" more")
    assert answer.header.startswith(b"POST ")
    assert not answer.whole
    assert b"AKIA" not in answer.body
    assert last(enforcing)["action"] == "block"


def test_an_answer_with_the_real_secret_is_cut_before_its_first_byte(running: tuple[Sidecar, str]) -> None:
    sidecar, _ = running
    secret = SECRET.encode()
    icap = connect(sidecar)
    icap.answer(BOUND)
    icap.go_on()
    icap.read_head()
    for sent, passed in ((b"data: hello\n\n", b"data: hello\n\n"), (b"data: " + secret[:5], b"data: ")):
        icap.chunks(sent, end=False)
        assert icap.chunk() == passed
    icap.chunks(secret[5:] + b"\n\n")
    assert icap.ended()
    icap.close()
    assert last(sidecar) == {
        "action": "block", "direction": "response", "host": BOUND, "port": 443, "what": "credential demo", "count": 1,
    }  # fmt: skip
    short = download(sidecar, BOUND, b'{"you sent": "' + secret + b'"}', headers=b"Content-Length: 37\r\n")
    assert blocked(short)
    assert b"credential demo" in short.body
    assert secret not in short.body
    header = download(sidecar, OTHER, b"x", headers=b"X-Echo: Bearer " + secret + b"\r\n")
    assert blocked(header)


def test_an_answer_that_cannot_be_decoded_does_not_pass_where_a_secret_was_sent(running: tuple[Sidecar, str]) -> None:
    sidecar, mode = running
    assert blocked(download(sidecar, BOUND, b"abc", headers=b"Content-Encoding: br\r\n"))
    elsewhere = download(sidecar, OTHER, b"abc", headers=b"Content-Encoding: br\r\n")
    assert blocked(elsewhere) == (mode == "enforce")


def test_a_compressed_answer_is_scanned_and_passes_as_it_is(enforcing: Sidecar) -> None:
    body = gzip.compress(b'{"text": "hello"}\n' * 5000)
    headers = b"Content-Encoding: gzip\r\n"
    answer = download(enforcing, BOUND, body[:50], body[50:], headers=headers)
    assert (answer.body, answer.whole) == (body, True)
    bad = gzip.compress(b"x " * 9000 + SECRET.encode())
    assert not download(enforcing, BOUND, bad, headers=headers).whole


def test_a_body_that_decodes_into_far_more_is_not_scanned_to_its_end(enforcing: Sidecar) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    bomb = b"".join(packer.compress(block) for _ in range(200)) + packer.flush()
    answer = upload(enforcing, OTHER, bomb, headers=b"Content-Encoding: gzip\r\n")
    assert blocked(answer)
    assert b"decodes into far more" in answer.body


def test_events_pass_as_they_come(enforcing: Sidecar) -> None:
    icap = connect(enforcing)
    icap.answer(BOUND, headers=b"Content-Type: text/event-stream\r\n")
    icap.go_on()
    status, header, _, _ = icap.read_head()  # before the first event
    assert (status, header.split(b"\r\n")[0]) == (200, b"HTTP/1.1 200 OK")
    for number in range(50):
        event = b'data: {"delta": "word%d"}\n\n' % number
        icap.chunks(event, end=False)
        assert icap.chunk() == event
    icap.chunks()
    assert icap.chunk() == b""
    icap.close()


def test_one_connection_serves_one_request_after_the_other_also_sent_ahead(enforcing: Sidecar) -> None:
    icap = connect(enforcing)
    icap.request(OTHER, body=False)
    icap.answer(BOUND, body=False)
    icap.request(OTHER)
    assert icap.read().status == 204
    assert icap.read().status == 204
    icap.go_on()
    icap.chunks(b"one")
    icap.request(OTHER)
    assert icap.read().body == b"one"
    icap.go_on()
    icap.chunks(AWS)
    answer = icap.read()
    assert blocked(answer)
    assert not answer.closes  # all of it was read
    icap.request(OTHER, body=False)
    assert icap.read().status == 204
    icap.close()


def test_a_preview_that_is_the_whole_body(enforcing: Sidecar) -> None:
    icap = connect(enforcing)
    icap.head("REQMOD", [("req-hdr", b"POST https://ok.test/ HTTP/1.1\r\n\r\n")], body="req-body", preview=False)
    icap.chunks(b"abc")
    assert icap.read().body == b"abc"
    icap.send(
        b"REQMOD icap://x/request ICAP/1.0\r\nPreview: 4\r\nEncapsulated: req-hdr=0, req-body=34\r\n\r\n"
        b"POST https://ok.test/ HTTP/1.1\r\n\r\n4\r\nabcd\r\n0; ieof\r\n\r\n"
    )
    assert icap.read().body == b"abcd"
    icap.close()


def test_the_services_are_told(enforcing: Sidecar) -> None:
    icap = connect(enforcing)
    for service, method in (("request", b"REQMOD"), ("answer", b"RESPMOD")):
        icap.send(f"OPTIONS icap://127.0.0.1/{service} ICAP/1.0\r\nHost: x\r\n\r\n".encode())
        head = icap._until(b"\r\n\r\n")
        assert head.startswith(b"ICAP/1.0 200 ")
        assert b"Methods: " + method + b"\r\n" in head
        assert b"Preview: 0\r\n" in head
        assert b"Allow: 204\r\n" in head
    icap.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"REQMOD icap://x/request ICAP/1.0\r\n\r\n",
        b"REQMOD icap://x/request ICAP/1.0\r\nEncapsulated: req-body=5, req-hdr=0\r\n\r\n",
        b"REQMOD icap://x/request ICAP/1.0\r\nEncapsulated: req-hdr=0, req-body=4\r\n\r\nGET zz\r\n",
        b"OPTIONS icap://x/other ICAP/1.0\r\n\r\n",
        b"x" * 200_000,
    ],
)
def test_what_is_no_icap_ends_its_connection_and_nothing_else(enforcing: Sidecar, sent: bytes) -> None:
    icap = connect(enforcing)
    icap.send(sent)
    with contextlib.suppress(ConnectionError):
        assert icap._until(b"\r\n\r\n").startswith(b"ICAP/1.0 400 ")
    assert icap.ended()
    icap.close()
    assert upload(enforcing, OTHER, b"fine").body == b"fine"


def test_without_fingerprints_nobody_is_served(tmp_path_factory: pytest.TempPathFactory) -> None:
    sidecar = make(tmp_path_factory.mktemp("scan"))
    try:
        sidecar.start_audit(roles="root,scan")
        start_scanner(sidecar)
        with pytest.raises(ConnectionRefusedError):
            connect(sidecar)
        bad = wire.call(sidecar.path("scan.sock"), {"op": "arm", "fingerprints": [{"name": "x"}]}, timeout_s=60)
        assert bad["ok"] is False
        with pytest.raises(ConnectionRefusedError):
            connect(sidecar)
        assert arm(sidecar)["ok"] is True
        assert upload(sidecar, OTHER, b"fine").body == b"fine"
    finally:
        end(sidecar)


def test_without_its_receipt_nothing_that_was_found_becomes_whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    sidecar = make(tmp_path_factory.mktemp("scan"))
    try:
        sidecar.start_audit(roles="root,scan")
        start_scanner(sidecar, mode="log")
        assert arm(sidecar)["ok"] is True
        sidecar.stop("audit")
        icap = connect(sidecar)
        icap.request(OTHER)
        icap.go_on()
        icap.chunks(AWS)
        assert icap.ended()
        icap.close()
        assert upload(sidecar, OTHER, b"fine").body == b"fine"
    finally:
        end(sidecar)


def test_a_client_that_leaves_in_the_middle_leaves_a_receipt_of_what_it_sent(enforcing: Sidecar) -> None:
    before = len(enforcing.receipts("dlp"))
    icap = connect(enforcing)
    icap.request(BOUND)
    icap.go_on()
    icap.chunks(AWS + b" ", end=False)
    icap.close()
    until(lambda: len(enforcing.receipts("dlp")) > before)
    assert last(enforcing)["action"] == "log"


def peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_memory_stays_flat_whatever_passes(enforcing: Sidecar) -> None:
    """300 MB up and down; only the high-water mark tells."""
    pid = enforcing.processes["scanner"].pid
    upload(enforcing, OTHER, b"warm " * 300_000)
    before = peak_kb(pid)
    block = os.urandom(1 << 20)
    for method in ("request", "answer"):
        icap = connect(enforcing)
        getattr(icap, method)(BOUND)
        icap.go_on()
        sender = threading.Thread(target=lambda: icap.chunks(*[block] * 300))  # noqa: B023 - joined below
        sender.start()
        icap.read_head()
        moved = 0
        while data := icap.chunk():
            moved += len(data)
        sender.join()
        assert moved == 300 << 20
        icap.close()
    assert peak_kb(pid) - before < 8 * 1024
