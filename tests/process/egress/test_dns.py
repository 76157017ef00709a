"""The DNS filter as it runs, in front of an upstream of the test's own that remembers every byte it was sent."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

import pytest

from agent_egress import dnswire, identity, wire
from agent_egress.replay import replay
from tests.process.egress.harness import POLICY, Sidecar, end, free_ports, make, until

A, NS, CNAME, PTR, TXT, AAAA, SRV, HTTPS, ANY, AXFR = 1, 2, 5, 12, 16, 28, 33, 65, 255, 252
OPT = b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0)


def wire_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label) + b"\0"


def query(
    name: str | bytes = "ok.test",
    kind: int = A,
    *,
    id_: int = 0x1234,
    flags: int = 0x0100,
    cls: int = 1,
    edns: bool = True,
) -> bytes:
    labels = name if isinstance(name, bytes) else wire_name(name)
    header = struct.pack("!6H", id_, flags, 1, 0, 0, 1 if edns else 0)
    return header + labels + struct.pack("!2H", kind, cls) + (OPT if edns else b"")


@dataclass
class Answer:
    id: int
    flags: int
    question: bytes
    answers: list[tuple[int, int, str]]
    soa: bool
    ede: tuple[int, str] | None

    @property
    def rcode(self) -> int:
        return self.flags & 15

    @property
    def addresses(self) -> list[str]:
        return [text for _, _, text in self.answers]

    @property
    def truncated(self) -> bool:
        return bool(self.flags & 0x0200)


def parse(data: bytes) -> Answer:
    id_, flags, questions, answers, authorities, additionals = struct.unpack_from("!6H", data)
    assert flags & 0x8000
    at = 12
    if questions:
        while data[at]:
            at += 1 + data[at]
        at += 5
    question = data[12:at]
    found, soa, ede = [], False, None
    for section in range(answers + authorities + additionals):
        at += 2 if data[at] >= 0xC0 else 1
        kind, _cls, ttl, length = struct.unpack_from("!HHIH", data, at)
        at += 10
        rdata = data[at : at + length]
        at += length
        if section < answers:
            found.append((kind, ttl, str(ip_address(rdata))))
        elif kind == 6:
            soa = ttl == 5
        elif kind == 41 and rdata:
            option, _size, code = struct.unpack_from("!3H", rdata)
            assert option == 15
            ede = (code, rdata[6:].decode())
    assert at == len(data)
    return Answer(id_, flags, question, found, soa, ede)


@dataclass
class FakeUpstream:
    """UDP and TCP on one port; answers from a table, by default one address for every name."""

    port: int
    queries: list[bytes] = field(default_factory=list)
    records: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    mode: str = ""

    def start(self) -> None:
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.port))
        self.tcp = socket.create_server(("127.0.0.1", self.port))
        for serve in (self._serve_udp, self._serve_tcp):
            threading.Thread(target=serve, daemon=True).start()

    def stop(self) -> None:
        self.udp.close()
        self.tcp.close()

    def _serve_udp(self) -> None:
        try:
            while True:
                data, peer = self.udp.recvfrom(4096)
                for answer in self.answers(data, over_tcp=False):
                    self.udp.sendto(answer, peer)
        except OSError:
            return

    def _serve_tcp(self) -> None:
        try:
            while True:
                peer, _ = self.tcp.accept()
                with peer, peer.makefile("rb") as stream:
                    (length,) = struct.unpack("!H", stream.read(2))
                    for answer in self.answers(stream.read(length), over_tcp=True):
                        peer.sendall(struct.pack("!H", len(answer)) + answer)
        except OSError:
            return

    def answers(self, data: bytes, *, over_tcp: bool) -> list[bytes]:
        self.queries.append(data)
        end_ = data.index(b"\0", 12) + 5
        question, id_ = data[12:end_], data[:2]
        (kind,) = struct.unpack_from("!H", question, len(question) - 4)
        name = dnswire.parse_query(data).name
        if self.mode == "silent":
            return []
        if self.mode == "nxdomain":
            return [id_ + struct.pack("!5H", 0x8183, 1, 0, 0, 0) + question]
        if self.mode == "servfail":
            return [id_ + struct.pack("!5H", 0x8182, 1, 0, 0, 0) + question]
        if self.mode == "truncated" and not over_tcp:
            return [id_ + struct.pack("!5H", 0x8380, 1, 0, 0, 0) + question]
        default = [(A, "203.0.113.10")] if kind == A else [(AAAA, "2001:db8::10")]
        records = b""
        found = [row for row in self.records.get(name, default) if row[0] in {kind, CNAME}]
        owner = b"\xc0\x0c"
        for type_, text in found:
            rdata = wire_name(text) if type_ == CNAME else ip_address(text).packed
            records += owner + struct.pack("!HHIH", type_, 1, 60, len(rdata)) + rdata
            owner = rdata if type_ == CNAME else owner
        good = id_ + struct.pack("!5H", 0x8180, 1, len(found), 0, 0) + question + records
        if self.mode == "forged":
            other = bytes([id_[0] ^ 1]) + good[1:]
            elsewhere = good.replace(wire_name("ok.test"), wire_name("no.test"))
            half = good[:-2]
            return [other, elsewhere, half, b"", b"\0" * 12, good]
        return [good]


@dataclass
class Running:
    sidecar: Sidecar
    upstream: FakeUpstream
    port: int

    def ask(self, data: bytes, *, host: str = "127.0.0.1") -> Answer:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(20)
            sock.connect((host, self.port))
            sock.send(data)
            return parse(sock.recv(65535))

    def ask_tcp(self, *queries: bytes) -> list[Answer]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as sock, sock.makefile("rb") as stream:
            sock.sendall(b"".join(struct.pack("!H", len(data)) + data for data in queries))
            return [parse(stream.read(struct.unpack("!H", stream.read(2))[0])) for _ in queries]

    def is_silent_on(self, data: bytes) -> bool:
        """Whether bytes get no answer: a question sent after them is answered first."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(20)
            sock.connect(("127.0.0.1", self.port))
            sock.send(data)
            sock.send(query("no.test", id_=0x7777))
            return parse(sock.recv(65535)).id == 0x7777


def start_dns(sidecar: Sidecar, upstream_port: int) -> tuple[subprocess.Popen[bytes], int]:
    (port,) = free_ports()
    process = sidecar.start(
        "dns",
        *("--port", str(port), "--upstream-port", str(upstream_port), "--audit", sidecar.path("audit.sock")),
        *(
            "--policy-file",
            sidecar.path("policy.json"),
            "--policy",
            sidecar.path("policy.sock"),
            "--deadline-s",
            "0.5",
            "--upstream-timeout-s",
            "0.7",
        ),
    )

    def up() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port)):
                return True
        except OSError:
            return False

    sidecar.wait(process, up)
    return process, port


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    sidecar = make(tmp_path_factory.mktemp("dns"))
    upstream = FakeUpstream(free_ports()[0])
    upstream.start()
    sidecar.start_audit()
    _, port = start_dns(sidecar, upstream.port)
    running = Running(sidecar, upstream, port)
    until(lambda: running.ask(query("warm.test")).rcode == 3)
    yield running
    end(sidecar)
    upstream.stop()


@pytest.fixture
def dns(module: Running) -> Running:
    module.upstream.queries.clear()
    module.upstream.records.clear()
    module.upstream.mode = ""
    module.sidecar.put_policy(POLICY)
    return module


@pytest.mark.parametrize(
    ("name", "kind", "address"),
    [
        ("ok.test", A, "203.0.113.10"),
        ("ok.test", AAAA, "2001:db8::10"),
        ("OK.Test", A, "203.0.113.10"),
        ("a.wild.test", A, "203.0.113.10"),
        ("a.b.c.wild.test", AAAA, "2001:db8::10"),
        ("git.test", A, "203.0.113.10"),
    ],
)
def test_allowed_names_are_answered_with_the_clients_own_question(
    dns: Running, name: str, kind: int, address: str
) -> None:
    asked = query(name, kind)
    answer = dns.ask(asked)
    assert (answer.rcode, answer.id, answer.addresses, answer.truncated) == (0, 0x1234, [address], False)
    assert answer.question == wire_name(name) + struct.pack("!2H", kind, 1), "letter case included"
    lookup = dns.sidecar.receipts("lookup")[-1]
    assert (lookup["action"], lookup["name"], lookup["type"]) == ("allow", name.lower(), "A" if kind == A else "AAAA")


def test_what_goes_upstream_is_built_from_the_name_alone(dns: Running) -> None:
    noisy = query("Ok.TEST", flags=0x0130, edns=False)[:10] + b"\0\1" + query("Ok.TEST", edns=False)[12:]
    option = struct.pack("!HH", 65001, 12) + b"c2VjcmV0czEy"
    noisy += b"\0" + struct.pack("!HHIH", 41, 4096, 0x8000, len(option)) + option + b"trailing secrets"
    assert dns.ask(noisy).rcode == 0
    (sent,) = dns.upstream.queries
    assert sent[2:] == struct.pack("!5H", 0x0100, 1, 0, 0, 1) + wire_name("ok.test") + struct.pack("!2H", A, 1) + OPT


@pytest.mark.parametrize(
    "name",
    [
        "evil.test",
        "c2VjcmV0.evil.test",
        "sub.ok.test",
        "wild.test",
        "ads.wild.test",
        "x.ads.wild.test.evil.test",
        "test",
        "9.113.0.203.in-addr.arpa",
        "localhost",
        "",
        "a b.wild.test",
        "é.wild.test",
        "-x.wild.test",
        "203.0.113.9",
        "0x7f.1",
    ],
)
def test_other_names_are_nxdomain_with_a_reason_and_nothing_goes_upstream(dns: Running, name: str) -> None:
    for kind in (A, TXT, PTR):
        answer = dns.ask(query(name, kind))
        assert (answer.rcode, answer.addresses, answer.soa) == (3, [], True)
        assert answer.ede is not None and answer.ede[0] == 15 and "blocked by policy" in answer.ede[1]
    assert dns.upstream.queries == []
    assert dns.sidecar.receipts("lookup")[-1]["action"] == "deny"


def test_a_client_without_edns_gets_no_edns(dns: Running) -> None:
    answer = dns.ask(query("evil.test", edns=False))
    assert (answer.rcode, answer.ede) == (3, None)


@pytest.mark.parametrize("kind", [NS, CNAME, 6, PTR, 15, TXT, SRV, 64, HTTPS, ANY, AXFR, 251, 10, 65280])
def test_other_types_of_an_allowed_name_are_empty_at_once(dns: Running, kind: int) -> None:
    answer = dns.ask(query("ok.test", kind))
    assert (answer.rcode, answer.addresses, answer.soa) == (0, [], True)
    assert dns.upstream.queries == []


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("two questions", struct.pack("!6H", 0x1234, 0x0100, 2, 0, 0, 0) + query(edns=False)[12:] * 2),
        ("no question", struct.pack("!6H", 0x1234, 0x0100, 0, 0, 0, 0)),
        ("a compressed name", query(b"\1a\xc0\x0c", edns=False)),
        ("a pointer to itself", query(b"\xc0\x0c", edns=False)),
        ("an extended label", query(b"\x41a\0", edns=False)),
        ("another opcode", query(flags=0x2900)),
        ("an update", query(flags=0x2800)),
        ("records of an answer", struct.pack("!6H", 0x1234, 0x0100, 1, 1, 0, 0) + query(edns=False)[12:]),
        ("a name without an end", struct.pack("!6H", 0x1234, 0x0100, 1, 0, 0, 0) + b"\2ok"),
        ("no type", struct.pack("!6H", 0x1234, 0x0100, 1, 0, 0, 0) + b"\2ok\4test\0\0"),
        ("a name of more than 255 bytes", query(b"\x3f" + b"a" * 63 + (b"\x3f" + b"b" * 63) * 4 + b"\0", edns=False)),
        ("EDNS twice", query()[:11] + b"\2" + query()[12:] + OPT),
        ("EDNS cut short", query()[:-3]),
    ],
)
def test_malformed_queries_are_formerr_and_go_nowhere(dns: Running, what: str, data: bytes) -> None:
    answer = dns.ask(data)
    assert (answer.rcode, answer.id, answer.question) == (1, 0x1234, b""), what
    assert dns.upstream.queries == []


@pytest.mark.parametrize("data", [b"", b"\x12\x34", b"\0" * 11, query(flags=0x8180)])
def test_what_is_no_query_gets_no_answer(dns: Running, data: bytes) -> None:
    assert dns.is_silent_on(data)


def test_a_dot_inside_a_label_does_not_make_an_allowed_name(dns: Running) -> None:
    for labels in (b"\x07ok.test\0", b"\2ok\5test.\0", b"\x06x.wild\4test\0"):
        assert dns.ask(query(labels)).rcode == 3
    assert dns.upstream.queries == []


def test_another_class_is_refused(dns: Running) -> None:
    assert dns.ask(query("version.bind", TXT, cls=3)).rcode == 5
    assert dns.upstream.queries == []


def test_aliases_are_followed_upstream_and_refused_when_asked_directly(dns: Running) -> None:
    dns.upstream.records["ok.test"] = [(CNAME, "edge.cdn.test"), (A, "203.0.113.77")]
    answer = dns.ask(query("ok.test"))
    assert answer.answers == [(A, 60, "203.0.113.77")]
    assert dns.ask(query("edge.cdn.test")).rcode == 3
    assert dns.sidecar.receipts("answer")[-1]["addresses"] == ["203.0.113.77"]


def test_a_private_address_is_taken_out_and_the_audit_says_so(dns: Running) -> None:
    dns.upstream.records["ok.test"] = [(A, "10.0.0.5"), (A, "203.0.113.5"), (A, "169.254.169.254"), (A, "127.0.0.1")]
    assert dns.ask(query("ok.test")).addresses == ["203.0.113.5"]
    dns.upstream.records["ok.test"] = [(A, "10.0.0.5")]
    answer = dns.ask(query("ok.test"))
    assert (answer.rcode, answer.addresses) == (0, [])
    assert answer.ede is not None and "private address" in answer.ede[1]
    refused = [receipt for receipt in dns.sidecar.receipts("lookup") if receipt.get("why") == "address"]
    assert {receipt["action"] for receipt in refused} == {"deny"}
    assert any("10.0.0.5: a private address" in str(receipt["reason"]) for receipt in refused)


def test_a_rule_with_addresses_lifts_the_floor_for_its_own_name_alone(dns: Running) -> None:
    for name in ("lan.test", "ok.test"):
        dns.upstream.records[name] = [(A, "10.20.0.5")]
    assert dns.ask(query("lan.test")).addresses == ["10.20.0.5"]
    assert dns.ask(query("ok.test")).addresses == []
    dns.upstream.records["lan.test"] = [(A, "10.21.0.5"), (A, "192.168.0.1")]
    assert dns.ask(query("lan.test")).addresses == []


def test_two_names_at_one_address_and_addresses_that_rotate(dns: Running) -> None:
    for last in range(1, 6):
        for name in ("ok.test", "a.wild.test"):
            dns.upstream.records[name] = [(A, f"203.0.113.{last}")]
            assert dns.ask(query(name)).addresses == [f"203.0.113.{last}"]


def test_an_answer_receipt_is_written_when_the_addresses_change_not_each_time(dns: Running) -> None:
    dns.upstream.records["git.test"] = [(A, "203.0.113.20"), (A, "203.0.113.21")]
    dns.ask(query("git.test"))
    before = len(dns.sidecar.receipts("answer"))
    dns.upstream.records["git.test"].reverse()
    dns.ask(query("git.test"))
    assert len(dns.sidecar.receipts("answer")) == before
    dns.upstream.records["git.test"] = [(A, "203.0.113.22")]
    dns.ask(query("git.test"))
    assert len(dns.sidecar.receipts("answer")) == before + 1


def test_forged_and_broken_answers_of_the_upstream_are_ignored(dns: Running) -> None:
    dns.upstream.mode = "forged"
    assert dns.ask(query("ok.test")).addresses == ["203.0.113.10"]


@pytest.mark.parametrize(("mode", "rcode"), [("nxdomain", 3), ("servfail", 2)])
def test_the_upstreams_failures_are_passed_on(dns: Running, mode: str, rcode: int) -> None:
    dns.upstream.mode = mode
    answer = dns.ask(query("ok.test"))
    assert (answer.rcode, answer.ede) == (rcode, None)


def test_an_answer_that_was_cut_is_asked_for_again_over_tcp(dns: Running) -> None:
    dns.upstream.mode = "truncated"
    assert dns.ask(query("ok.test")).addresses == ["203.0.113.10"]
    assert len(dns.upstream.queries) == 2


def test_a_long_answer_is_cut_over_udp_and_whole_over_tcp(dns: Running) -> None:
    many = [f"203.0.113.{last}" for last in range(1, 61)]
    dns.upstream.records["ok.test"] = [(A, text) for text in many]
    assert dns.ask(query("ok.test")).addresses == many
    cut = dns.ask(query("ok.test", edns=False))
    assert cut.truncated and cut.addresses == []
    (whole,) = dns.ask_tcp(query("ok.test", edns=False))
    assert whole.addresses == many and not whole.truncated
    noted = [address for receipt in dns.sidecar.receipts("answer") for address in receipt["addresses"]]  # type: ignore[attr-defined]
    assert set(many) <= set(noted)


def test_several_questions_on_one_tcp_connection(dns: Running) -> None:
    answers = dns.ask_tcp(query("ok.test", id_=1), query("evil.test", id_=2), query("ok.test", AAAA, id_=3))
    assert {answer.id: answer.rcode for answer in answers} == {1: 0, 2: 3, 3: 0}


def test_ipv6_loopback_is_served_where_there_is_one(dns: Running) -> None:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        assert dns.ask(query("ok.test")).rcode == 0
        return
    assert dns.ask(query("ok.test"), host="::1").addresses == ["203.0.113.10"]


def test_the_canary_is_known_by_the_filter_itself_and_leaves_no_receipt(dns: Running) -> None:
    before = len(dns.sidecar.receipts())
    assert dns.ask(query(identity.CANARY_HOST)).addresses == ["127.0.0.1"]
    assert dns.ask(query(identity.CANARY_HOST, AAAA)).addresses == []
    assert dns.upstream.queries == [] and len(dns.sidecar.receipts()) == before


def test_the_next_query_obeys_a_new_policy(dns: Running) -> None:
    assert dns.ask(query("ok.test")).rcode == 0
    dns.sidecar.put_policy({"version": 1, "rules": [{"action": "allow", "pattern": "new.test"}]})
    assert dns.ask(query("ok.test")).rcode == 3
    assert dns.ask(query("new.test")).rcode == 0
    dns.sidecar.put_policy(b"{")
    answer = dns.ask(query("new.test"))
    assert answer.rcode == 3 and answer.ede is not None and "broken" in answer.ede[1]
    dns.sidecar.put_policy(POLICY)
    assert dns.ask(query("ok.test")).rcode == 0


def test_the_lookup_is_on_disk_before_it_goes_out_and_the_addresses_before_they_are_given(sidecar: Sidecar) -> None:
    """With a writer of the test's own, each step can be held."""
    with wire.listen_unix(sidecar.path("audit.sock")) as audit:
        audit.setblocking(True)
        upstream = FakeUpstream(free_ports()[0])
        upstream.start()
        _, port = start_dns(sidecar, upstream.port)
        peer, _ = audit.accept()
        stream = peer.makefile("rb")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(20)
            client.connect(("127.0.0.1", port))
            client.send(query("ok.test"))
            first = wire.decode(stream.readline())
            assert isinstance(first["receipts"], list) and first["receipts"][0]["kind"] == "lookup"
            assert upstream.queries == []
            peer.sendall(wire.encode({"id": first["id"], "ok": True}))
            second = wire.decode(stream.readline())
            assert isinstance(second["receipts"], list) and second["receipts"][0]["kind"] == "answer"
            client.settimeout(0)
            with pytest.raises(BlockingIOError):
                client.recv(1)
            client.settimeout(20)
            peer.sendall(wire.encode({"id": second["id"], "ok": True}))
            assert parse(client.recv(4096)).addresses == ["203.0.113.10"]
            # A receipt that cannot be written: SERVFAIL, and nothing goes out.
            upstream.queries.clear()
            for name in ("ok.test", "evil.test"):
                client.send(query(name))
                refused = wire.decode(stream.readline())
                peer.sendall(wire.encode({"id": refused["id"], "ok": False, "error": "disk full"}))
                assert parse(client.recv(4096)).rcode == 2
            # A writer that hangs, and one that is gone.
            client.send(query("ok.test"))
            assert parse(client.recv(4096)).rcode == 2
            peer.close()
            client.send(query("ok.test"))
            assert parse(client.recv(4096)).rcode == 2
            assert upstream.queries == []
        stream.close()
        upstream.stop()


def test_the_policy_process_knows_the_addresses_before_the_client_and_its_successor_all_of_them(dns: Running) -> None:
    with wire.listen_unix(dns.sidecar.path("policy.sock")) as policy, socket.socket(type=socket.SOCK_DGRAM) as client:
        policy.setblocking(True)
        for host in ("first.wild.test", "second.wild.test"):
            peer, _ = policy.accept()
            with peer, peer.makefile("rb") as stream:
                known = wire.decode(stream.readline())["answers"]
                first = {"name": "first.wild.test", "addresses": ["203.0.113.10"]}
                assert isinstance(known, list) and (host == "first.wild.test" or first in known)
                client.settimeout(20)
                client.connect(("127.0.0.1", dns.port))
                client.send(query(host))
                told = wire.decode(stream.readline())
                assert told["answers"] == [{"name": host, "addresses": ["203.0.113.10"]}]
                client.settimeout(0)
                with pytest.raises(BlockingIOError):
                    client.recv(1)
                client.settimeout(20)
                peer.sendall(wire.encode({"id": told["id"], "ok": True}))
                assert parse(client.recv(4096)).addresses == ["203.0.113.10"]
    assert dns.ask(query("third.wild.test")).rcode == 0, "explicit clients need no policy process here"


def test_an_upstream_that_is_silent_or_gone_is_servfail_for_that_name_alone(dns: Running) -> None:
    dns.upstream.mode = "silent"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.connect(("127.0.0.1", dns.port))
        sock.send(query("ok.test", id_=1))
        sock.send(query("evil.test", id_=2))
        assert (parse(sock.recv(4096)).id, parse(sock.recv(4096)).rcode) == (2, 2)


def test_ten_thousand_bytes_of_noise_do_not_end_it(dns: Running) -> None:
    good = query("ok.test")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", dns.port))
        for at in range(len(good)):
            sock.send(good[:at])
            sock.send(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
    assert dns.ask(query("ok.test")).rcode == 0
    assert dns.sidecar.processes["dns"].poll() is None


def test_all_lookups_replay_under_the_policies_they_name(dns: Running) -> None:
    policy = dns.sidecar.policy()
    own = [receipt for receipt in dns.sidecar.receipts("lookup") if receipt.get("policy") == policy.short_digest]
    assert own and replay(own, policies={policy.digest: policy}) == ()
    assert dns.sidecar.verify().status == "unverifiable", "whole, and not sealed yet"
