"""The policy process as it runs: squid's lines in, answers out, and for each one a receipt that came first."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from agent_egress import identity, wire
from agent_egress.decider import ROLES
from agent_egress.receipts import parse_receipt
from agent_egress.replay import replay
from agent_egress.resolved import MAX_ADDRESSES, MAX_NAMES, Resolved
from tests.process.egress.harness import DECOY, POLICY, SECRET, Sidecar, answers, end, free_ports, make, until

BEARER = f"Bearer {DECOY}"
CANARY = "0123456789abcdef0123"


def start_decider(sidecar: Sidecar, *options: str, roles: str = "squid,root,dns") -> subprocess.Popen[bytes]:
    port, access = free_ports(2)
    (sidecar.root / "canary-port").write_text(str(port))
    (sidecar.root / "access-port").write_text(str(access))
    process = sidecar.start(
        "decider",
        *("--socket", sidecar.path("policy.sock"), "--audit", sidecar.path("audit.sock")),
        *("--policy-file", sidecar.path("policy.json"), "--session-file", sidecar.path("session.json")),
        *("--canary-port", str(port), "--access-port", str(access)),
        *("--peer", f"{os.getuid()}={roles}"),
        *options,
    )
    sidecar.wait(process, lambda: answers(sidecar.path("policy.sock")))
    return process


def operate(sidecar: Sidecar, message: dict[str, object]) -> dict[str, object]:
    return wire.call(sidecar.path("policy.sock"), message, timeout_s=60)


def put_credentials(sidecar: Sidecar, decoy: str = DECOY, secret: str = SECRET) -> None:
    row = {"name": "demo", "decoy": decoy, "secret": secret}
    assert operate(sidecar, {"op": "credential.put", "credentials": [row]})["ok"] is True


def line(
    method: str = "GET",
    host: str = "api.test",
    port: int = 443,
    *,
    channel: int = 0,
    sni: str = "-",
    tag: str = "",
    local: str = "127.0.0.1",
    path: str = "/v1/messages",
    scheme: str = "https",
    client: int = 40000,
    upgrade: str = "-",
    authorization: str = "-",
    api_key: str = "-",
    cookie: str = "-",
) -> bytes:
    """One line as squid writes it; `tag` defaults to the tunnel that the request would have come through."""
    if not tag:
        tag = f"{host}/{port}/tls" if scheme == "https" and method != "CONNECT" else "-"
    if method == "CONNECT":
        path, scheme = "-", "-"
    fields = [method, host, port, sni, tag, local, path, scheme, client, upgrade, authorization, api_key, cookie]
    words = [str(word) if word == "-" else quote(str(word), safe="/:?=&*,;+!@$'()") for word in fields]
    return f"{channel} x {' '.join(words)}\n".encode()


class Answers:
    """squid's connection."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(60)
        self._sock.connect(sidecar.path("policy.sock"))
        self._stream = self._sock.makefile("rb")

    def ask(self, data: bytes) -> str:
        self._sock.sendall(data)
        return self.next()

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def next(self) -> str:
        return self._stream.readline().decode().rstrip("\n")

    def close(self) -> None:
        self._stream.close()
        self._sock.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """Audit and policy process of the whole module; the credential and the canary are put."""
    sidecar = make(tmp_path_factory.mktemp("decider"))
    sidecar.start_audit()
    start_decider(sidecar)
    put_credentials(sidecar)
    assert operate(sidecar, {"op": "canary", "token": CANARY})["ok"] is True
    told = [{"name": name, "addresses": ["198.51.100.9", "2001:db8::9"]} for name in ("ok.test", "api.test")]
    assert operate(sidecar, {"answers": told})["ok"] is True
    until(lambda: wire_is_up(sidecar))
    yield sidecar
    end(sidecar)


def wire_is_up(sidecar: Sidecar) -> bool:
    squid = Answers(sidecar)
    try:
        return "no receipt" not in squid.ask(line("CONNECT", "warm.test"))
    finally:
        squid.close()


@pytest.fixture
def squid(running: Sidecar) -> Iterator[Answers]:
    sidecar = Answers(running)
    yield sidecar
    sidecar.close()


# Name, line, words of the answer, words that must not be in it.
ALLOWED = {
    "a CONNECT to an allowed host is spliced and tags its connection": (
        line("CONNECT", "ok.test"),
        ["OK", "action_=splice", 'rule_="allow ok.test"', "clt_conn_tag=ok.test/443/tls"],
    ),
    "a CONNECT to a credentialed host is bumped": (
        line("CONNECT"),
        ["OK", "action_=bump", "clt_conn_tag=api.test/443/tls"],
    ),
    "a CONNECT to port 22 is raw and tags nothing": (line("CONNECT", "git.test", 22), ["OK", "action_=raw"]),
    "a host in capitals with a final dot is the same host": (
        line("CONNECT", "OK.Test."),
        ["OK", "clt_conn_tag=ok.test/443/tls"],
    ),
    "an explicit range lifts squid's floor": (line("CONNECT", "lan.test", 1234), ["OK", "floor_exc_=yes"]),
    "a literal in an allowed range": (line("CONNECT", "203.0.113.9"), ["OK", "action_=splice"]),
    "a hello that names the CONNECT's host": (
        line("CONNECT", "ok.test", sni="ok.test", tag="ok.test/443/tls"),
        ["OK", "action_=splice"],
    ),
    "plain http to a host without a credential": (line("GET", "ok.test", 80, scheme="http", path="/x?q=1"), ["OK"]),
    "the decoy in its header becomes the secret": (
        line(authorization=BEARER),
        ["OK", "action_=bump", f'auth_="Bearer {SECRET}"', "cred_=Authorization"],
    ),
    "a template's star is one segment": (
        line(authorization=BEARER, path="/v1/items/7?x=1"),
        [f'auth_="Bearer {SECRET}"'],
    ),
    "a websocket upgrade inside the tunnel is injected too": (
        line(authorization=BEARER, upgrade="websocket"),
        [f'auth_="Bearer {SECRET}"'],
    ),
    "without the decoy nothing is injected": (line(), ["OK", "action_=bump"]),
    "intercepted TLS may be peeked at": (
        line("CONNECT", "198.51.100.9", local="198.51.100.9"),
        ["OK", "action_=peek"],
    ),
    "intercepted TLS with an allowed SNI": (
        line("CONNECT", "198.51.100.9", sni="ok.test", local="198.51.100.9"),
        ["OK", "action_=splice", "clt_conn_tag=ok.test/443/tls"],
    ),
    "intercepted TLS of a credentialed host is bumped": (
        line("CONNECT", "198.51.100.9", sni="api.test", local="198.51.100.9"),
        ["OK", "action_=bump", "clt_conn_tag=api.test/443/tls"],
    ),
    "a request in intercepted and bumped TLS is injected": (
        line(local="198.51.100.9", authorization=BEARER),
        [f'auth_="Bearer {SECRET}"'],
    ),
    "intercepted TLS of a name not asked for here yet: squid compares before it splices": (
        line("CONNECT", "198.51.100.9", sni="a.wild.test", local="198.51.100.9"),
        ["OK", "action_=splice"],
    ),
    "intercepted TLS over IPv6": (
        line("CONNECT", "[2001:db8::9]", sni="ok.test", local="2001:db8::9"),
        ["OK", "action_=splice"],
    ),
    "intercepted TLS to an allowed literal without a name": (
        line("CONNECT", "203.0.113.9", local="203.0.113.9"),
        ["OK", "action_=splice"],
    ),
    "intercepted http to an allowed host": (
        line("GET", "ok.test", 80, scheme="http", local="198.51.100.9"),
        ["OK"],
    ),
    "the canary with its token": (
        line("GET", identity.CANARY_HOST, 3131, scheme="http", path=f"/{CANARY}"),
        ["OK", "floor_exc_=yes"],
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(squid: Answers, name: str) -> None:
    question, wanted = ALLOWED[name]
    answer = squid.ask(question)
    assert answer.startswith("0 OK")
    for words in wanted:
        assert words in answer
    if not any(word.startswith("auth_") for word in wanted):
        assert "auth_" not in answer and "cred_" not in answer and SECRET not in answer


TRIPWIRE = "tripwire"
REFUSED = {
    "an unlisted host": (line("CONNECT", "evil.test"), "no rule allows it", ""),
    "what the user types stands in the words": (
        line("CONNECT", "evil.test"),
        "agent-container egress allow evil.test",
        "",
    ),
    "a denied host below an allowed wildcard": (line("CONNECT", "ads.wild.test"), "deny ads.wild.test", ""),
    "the apex of a wildcard": (line("CONNECT", "wild.test"), "no rule", ""),
    "another port": (line("CONNECT", "ok.test", 8443), "not 8443", ""),
    "port 22 where no rule has it": (line("CONNECT", "ok.test", 22), "action_=term", ""),
    "port 22 from inside a tunnel that is terminated": (
        line("CONNECT", "ok.test", 22, tag="api.test/443/tls"),
        "action_=deny",
        "",
    ),
    "an address from inside one": (line("CONNECT", "198.51.100.1", 9000, tag="api.test/443/tls"), "action_=deny", ""),
    "a name that is an address in another spelling": (line("CONNECT", "0x7f.1"), "not a host", ""),
    "an unlisted literal": (line("CONNECT", "198.51.100.1"), "no rule", ""),
    "a hello that names another host than the CONNECT": (
        line("CONNECT", "ok.test", sni="evil.test", tag="ok.test/443/tls"),
        "hello names another",
        "",
    ),
    "another host inside the tunnel": (line(tag="ok.test/443/tls", authorization=BEARER), "another host", TRIPWIRE),
    "the credentialed host inside a tunnel to an unlisted one": (
        line(tag="evil.test/443/tls", authorization=BEARER),
        "another host",
        TRIPWIRE,
    ),
    "another port inside the tunnel": (line(port=80, tag="api.test/443/tls"), "another host", ""),
    "a garbled tag": (line(tag="api.test"), "another host", ""),
    "a CONNECT inside a tunnel to elsewhere": (line("CONNECT", "ok.test", tag="api.test/443/tls"), "another host", ""),
    "a CONNECT inside a tunnel to the same host": (
        line("CONNECT", "api.test", tag="api.test/443/tls"),
        "another host",
        "",
    ),
    "a CONNECT to a name inside intercepted TLS": (
        line("CONNECT", "ok.test", sni="api.test", tag="api.test/443/tls", local="198.51.100.9"),
        "inside a tunnel",
        "",
    ),
    "a CONNECT to an address inside intercepted TLS": (
        line("CONNECT", "203.0.113.7", sni="api.test", tag="api.test/443/tls", local="198.51.100.9"),
        "inside a tunnel",
        "",
    ),
    "a CONNECT to the same host inside intercepted TLS": (
        line("CONNECT", "api.test", sni="api.test", tag="api.test/443/tls", local="198.51.100.9"),
        "inside a tunnel",
        "",
    ),
    "https without a CONNECT": (line("GET", "api.test", tag="-"), "only inside a CONNECT", ""),
    "https without a CONNECT to a host without a credential": (line("GET", "ok.test", tag="-"), "only inside", ""),
    "plain http to a credentialed host": (line(port=80, scheme="http", authorization=BEARER), "only port 443", ""),
    "http to port 443 of a credentialed host": (
        line(scheme="http", authorization=BEARER),
        "holds a credential",
        TRIPWIRE,
    ),
    "a plain http URI inside the tunnel": (
        line(scheme="http", tag="api.test/443/tls", authorization=BEARER),
        "only inside",
        TRIPWIRE,
    ),
    "ftp": (line("GET", "ok.test", 80, scheme="ftp"), "https only", ""),
    "dot segments": (line(path="/v1/messages/../../who", authorization=BEARER), "dot segments", TRIPWIRE),
    "encoded dot segments": (line(path="/v1/messages/%2e%2e/who", authorization=BEARER), "dot segments", TRIPWIRE),
    "encoded slashes": (line(path="/v1%2fmessages", authorization=BEARER), "dot segments", TRIPWIRE),
    "encoded backslashes": (line(path="/v1%5Cmessages", authorization=BEARER), "dot segments", TRIPWIRE),
    "double slashes": (line(path="/v1//messages", authorization=BEARER), "dot segments", TRIPWIRE),
    "TRACE": (line("TRACE", authorization=BEARER), "TRACE", TRIPWIRE),
    "dot segments without a credential in them": (line(path="/v1/../who"), "dot segments", ""),
    "a path outside the binding": (line(path="/v1/keys", authorization=BEARER), "not bound to GET", ""),
    "a method outside the binding": (line("DELETE", authorization=BEARER), "not bound to DELETE", ""),
    "a deeper path than the template's star": (line(path="/v1/items/7/keys", authorization=BEARER), "not bound", ""),
    "another scheme word before the decoy": (line(authorization=f"bearer {DECOY}"), "one form", TRIPWIRE),
    "the decoy with something behind it": (line(authorization=f"{BEARER} x"), "one form", TRIPWIRE),
    "the header twice, joined by squid": (line(authorization=f"{BEARER}, {BEARER}"), "one form", TRIPWIRE),
    "a key that is not this session's": (line(authorization="Bearer somebody-elses-key"), "not this session's", ""),
    "the decoy in another header": (line(api_key=DECOY), "never replaced", TRIPWIRE),
    "the decoy in a cookie": (line(cookie=f"a={DECOY}"), "never replaced", TRIPWIRE),
    "the decoy in its header and in a cookie": (
        line(authorization=BEARER, cookie=f"a={DECOY}"),
        "never replaced",
        TRIPWIRE,
    ),
    "the decoy in the query": (line(path=f"/v1/messages?k={DECOY}"), "never replaced", TRIPWIRE),
    "the decoy in the query, percent-escaped": (
        line(path="/v1/messages?k=" + "".join(f"%{ord(char):02x}" for char in DECOY)),
        "never replaced",
        TRIPWIRE,
    ),
    "the decoy in Basic": (
        line("GET", "ok.test", 80, scheme="http", authorization="Basic eDpkZW1vLWRlY295LTAxMjM0NTY3ODlhYg=="),
        "never replaced",
        TRIPWIRE,
    ),
    "the decoy on its way to another host": (
        line("GET", "ok.test", 80, scheme="http", authorization=BEARER),
        "never replaced",
        TRIPWIRE,
    ),
    "the decoy in a CONNECT": (line("CONNECT", "ok.test", authorization=BEARER), "never replaced", TRIPWIRE),
    "intercepted TLS with an unlisted SNI": (
        line("CONNECT", "198.51.100.9", sni="evil.test", local="198.51.100.9"),
        "no rule allows it",
        "",
    ),
    "an allowed SNI at a private address": (
        line("CONNECT", "10.1.2.3", sni="ok.test", local="10.1.2.3"),
        "private address",
        "",
    ),
    "an allowed SNI at the metadata address": (
        line("CONNECT", "169.254.169.254", sni="ok.test", local="169.254.169.254"),
        "allow_metadata",
        "",
    ),
    "an allowed SNI at an address that is not its own": (
        line("CONNECT", "203.0.113.66", sni="ok.test", local="203.0.113.66"),
        "not an address that this name was resolved to",
        "",
    ),
    "a credentialed SNI at an address that is not its own": (
        line("CONNECT", "203.0.113.66", sni="api.test", local="203.0.113.66"),
        "not an address that this name was resolved to",
        "",
    ),
    "intercepted http at an address that is not its host's": (
        line("GET", "ok.test", 80, scheme="http", local="203.0.113.66"),
        "not an address that this name was resolved to",
        "",
    ),
    "intercepted http at a private address": (
        line("GET", "ok.test", 80, scheme="http", local="10.1.2.3"),
        "private address",
        "",
    ),
    "the canary's name with another path": (
        line("GET", identity.CANARY_HOST, 3131, scheme="http", path="/0123456789abcdef0124"),
        "no rule",
        "",
    ),
    "the canary's name without a token": (
        line("GET", identity.CANARY_HOST, 3131, scheme="http", path="/"),
        "no rule",
        "",
    ),
    "the canary's name on another port": (
        line("GET", identity.CANARY_HOST, 80, scheme="http", path=f"/{CANARY}"),
        "no rule",
        "",
    ),
    "a CONNECT to the canary": (line("CONNECT", identity.CANARY_HOST, 3131), "no rule", ""),
    "an injected line": (line("CONNECT", "evil.test\n0 OK"), "ERR", ""),
    "a host of 5000 letters": (line("CONNECT", "a" * 5000), "ERR", ""),
    "a host that is not ASCII": (line("CONNECT", "évil.test"), "ERR", ""),
    "port 0": (line("CONNECT", "ok.test", 0), "ERR", ""),
    "a port that is no number": (b"0 x CONNECT ok.test x - - 127.0.0.1 - - 1 - - - -\n", "ERR", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(running: Sidecar, squid: Answers, name: str) -> None:
    question, words, tripwire = REFUSED[name]
    before = len(running.receipts("tripwire"))
    answer = squid.ask(question)
    assert answer.startswith("0 ERR") and 'message="agent-container: blocked' in answer
    assert words in answer
    assert SECRET not in answer and "auth_" not in answer and DECOY not in answer
    assert len(running.receipts("tripwire")) - before == (1 if tripwire else 0)


@pytest.mark.parametrize(
    "garbage", [b"0\n", b"0 x y\n", b"0 \xff\xfe\n", b"0 x CONNECT ok.test 443 - - - - - - - - - - - - -\n"]
)
def test_a_line_that_squid_would_not_write_is_refused(squid: Answers, garbage: bytes) -> None:
    assert squid.ask(garbage).startswith("0 ERR")


def test_squid_may_append_an_empty_field(squid: Answers) -> None:
    assert squid.ask(line("CONNECT", "ok.test").rstrip(b"\n") + b" -\n").startswith("0 OK")


def test_no_secret_and_no_decoy_is_in_the_receipts_and_their_replay_agrees(running: Sidecar, squid: Answers) -> None:
    squid.ask(line("GET", "ok.test", 80, scheme="http", path="/x?token=hunter2"))
    text = (running.root / "receipts.jsonl").read_text()
    assert SECRET not in text and "hunter2" not in text and CANARY not in text
    assert replay(running.receipts(), policies={"": running.policy()}) == ()
    newest = running.receipts("decision")[-1]
    assert (newest["path"], newest["via"], newest["client"]) == ("/x", "http", "40000")


def test_the_receipt_is_on_disk_before_the_answer(running: Sidecar, squid: Answers) -> None:
    for number in range(20):
        squid.ask(line("CONNECT", "ok.test", client=41000 + number))
        assert running.receipts("decision")[-1]["client"] == str(41000 + number)


def test_asking_again_with_the_hello_adds_no_receipt(running: Sidecar, squid: Answers) -> None:
    squid.ask(line("CONNECT", "ok.test", client=42000))
    squid.ask(line("CONNECT", "ok.test", sni="ok.test", tag="ok.test/443/tls", client=42000))
    assert [receipt["client"] for receipt in running.receipts("decision")].count("42000") == 1


def test_asking_twice_about_an_intercepted_hello_adds_one_receipt(running: Sidecar, squid: Answers) -> None:
    hello = ("CONNECT", "198.51.100.9")
    squid.ask(line(*hello, sni="ok.test", local="198.51.100.9", client=43000))
    again = squid.ask(line(*hello, sni="ok.test", tag="ok.test/443/tls", local="198.51.100.9", client=43000))
    assert again.startswith("0 OK action_=splice")
    assert [receipt["client"] for receipt in running.receipts("decision")].count("43000") == 1


def test_a_batch_is_answered_line_by_line(running: Sidecar, squid: Answers) -> None:
    squid.send(b"".join(line("CONNECT", "ok.test" if n % 2 else "evil.test", channel=n) for n in range(300)))
    for number in range(300):
        assert squid.next().startswith(f"{number} {'OK' if number % 2 else 'ERR'} ")


def test_the_next_question_obeys_a_new_policy_and_a_broken_one_denies_everything(
    running: Sidecar, squid: Answers
) -> None:
    try:
        assert squid.ask(line("CONNECT", "new.test")).startswith("0 ERR")
        rules = [*POLICY["rules"], {"action": "allow", "pattern": "new.test"}]  # type: ignore[misc]
        running.put_policy({**POLICY, "rules": rules})
        assert squid.ask(line("CONNECT", "new.test")).startswith("0 OK")
        assert operate(running, {"op": "ping"})["digest"] == running.policy().digest
        running.put_policy(b'{"version":1,"rules":[{"action":"allow","pattern":"*"}]}')
        assert "policy is broken" in squid.ask(line("CONNECT", "new.test"))
        (running.root / "policy.json").unlink()
        assert "no policy" in squid.ask(line("CONNECT", "ok.test"))
    finally:
        running.put_policy(POLICY)
    assert squid.ask(line("CONNECT", "ok.test")).startswith("0 OK")


def test_a_rotated_credential_holds_from_the_next_request(running: Sidecar, squid: Answers) -> None:
    try:
        put_credentials(running, decoy="another-decoy-0000", secret="another-secret")
        assert 'auth_="Bearer another-secret"' in squid.ask(line(authorization="Bearer another-decoy-0000"))
        assert "not this session's" in squid.ask(line(authorization=BEARER))
    finally:
        put_credentials(running)


def test_a_secret_with_quotes_and_backslashes_is_spelled_for_squid(running: Sidecar, squid: Answers) -> None:
    try:
        put_credentials(running, secret='s"e\\c')
        assert r'auth_="Bearer s\"e\\c"' in squid.ask(line(authorization=BEARER))
    finally:
        put_credentials(running)


@pytest.mark.parametrize(
    "row",
    [
        {"name": "demo", "decoy": DECOY, "secret": "a\r\nX-Evil: 1"},
        {"name": "demo", "decoy": "short", "secret": "SECRET-WORD"},
        {"name": "demo", "decoy": DECOY, "secret": ""},
        {"name": "demo", "decoy": DECOY, "secret": f"x{DECOY}"},
        {"name": "demo", "decoy": DECOY},
        {"name": "demo", "decoy": DECOY, "secret": 7},
    ],
)
def test_a_credential_that_cannot_be_used_is_refused_and_the_old_ones_stay(
    running: Sidecar, squid: Answers, row: dict[str, object]
) -> None:
    answer = operate(running, {"op": "credential.put", "credentials": [row]})
    assert answer["ok"] is False and str(row.get("secret") or "-") not in str(answer["error"])
    assert f'auth_="Bearer {SECRET}"' in squid.ask(line(authorization=BEARER))


def test_the_canary_answers_who_knows_the_token(running: Sidecar) -> None:
    def get(path: str) -> bytes:
        with socket.create_connection(("127.0.0.1", int((running.root / "canary-port").read_text()))) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            return sock.makefile("rb").readline()

    assert get(f"/{CANARY}").startswith(b"HTTP/1.1 200 ")
    assert get("/").startswith(b"HTTP/1.1 404 ")


def test_counters_count_what_a_credential_was_used_for(running: Sidecar, squid: Answers) -> None:
    def used() -> int:
        counts = operate(running, {"op": "counters"})["counts"]
        assert isinstance(counts, dict)
        return int(counts.get("credential.demo", 0))

    before = used()
    squid.ask(line(authorization=BEARER))
    assert used() == before + 1


def test_intercepted_tls_is_terminated_for_addresses_that_the_name_was_resolved_to_alone(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    start_decider(sidecar)
    squid = Answers(sidecar)
    hello = line("CONNECT", "198.51.100.9", sni="api.test", local="198.51.100.9")
    assert "not an address that this name was resolved to" in squid.ask(hello)
    assert operate(sidecar, {"answers": [{"name": "api.test", "addresses": ["198.51.100.9"]}]})["ok"] is True
    assert squid.ask(hello).startswith("0 OK action_=bump")
    squid.close()


def test_the_filter_may_tell_addresses_and_nothing_else(sidecar: Sidecar) -> None:
    start_decider(sidecar, roles="dns")
    assert operate(sidecar, {"id": 4, "answers": [{"name": "ok.test", "addresses": ["198.51.100.9"]}]}) == {
        "id": 4,
        "ok": True,
    }
    assert operate(sidecar, {"answers": [7, {"name": 1}, {"name": "x", "addresses": [2]}]})["ok"] is True
    for op in ("credential.put", "canary", "ping", "counters"):
        assert operate(sidecar, {"op": op, "credentials": [], "token": CANARY})["ok"] is False


def test_what_was_resolved_is_remembered_within_bounds() -> None:
    resolved = Resolved()
    for number in range(MAX_ADDRESSES + 5):
        resolved.add("ok.test", [f"a{number}"])
    assert not resolved.has("ok.test", "a0") and resolved.has("ok.test", f"a{MAX_ADDRESSES + 4}")
    for number in range(MAX_NAMES):
        resolved.add(f"n{number}", ["a"])
    assert not resolved.has("ok.test", f"a{MAX_ADDRESSES + 4}") and resolved.has("n0", "a")


def test_squid_cannot_put_credentials_and_root_asks_no_questions(sidecar: Sidecar) -> None:
    start_decider(sidecar, roles="squid")
    answer = Answers(sidecar)
    refused = answer.ask(b'{"op":"credential.put","credentials":[]}\n')
    assert "ERR" in refused and "ok" not in refused
    answer.close()
    sidecar.stop("decider")
    start_decider(sidecar, roles="root")
    with pytest.raises(wire.WireError):
        wire.decode(Answers(sidecar).ask(line("CONNECT", "ok.test")).encode())


def test_the_uids_of_the_sidecar_are_the_defaults() -> None:
    wanted = {(identity.SQUID, frozenset({"squid"})), (identity.DNS, frozenset({"dns"})), (0, frozenset({"root"}))}
    assert set(ROLES.items()) == wanted


def test_without_the_audit_writer_everything_is_denied_and_its_return_is_enough(sidecar: Sidecar) -> None:
    start_decider(sidecar)
    squid = Answers(sidecar)
    assert "no receipt could be written" in squid.ask(line("CONNECT", "ok.test"))
    sidecar.start_audit()
    until(lambda: squid.ask(line("CONNECT", "ok.test")).startswith("0 OK"))
    sidecar.stop("audit")
    assert squid.ask(line("CONNECT", "ok.test")).startswith("0 ERR")
    sidecar.start_audit()
    until(lambda: squid.ask(line("CONNECT", "ok.test")).startswith("0 OK"))
    sidecar.audit({"id": 1, "op": "seal", "outcome": "succeeded"})
    assert "no receipt" in squid.ask(line("CONNECT", "ok.test")), "a sealed chain lets nothing more out"
    squid.close()


def test_a_question_waits_for_an_audit_writer_that_has_only_just_started(sidecar: Sidecar) -> None:
    # The policy process answered its probe before it had found the audit's socket: the session's own canary was
    # refused, and the session with it, once in a few hundred starts.
    start_decider(sidecar, "--deadline-s", "60")
    squid = Answers(sidecar)
    squid.send(line("CONNECT", "ok.test"))
    assert operate(sidecar, {"op": "ping"})["ok"] is True
    sidecar.start_audit()
    assert squid.next().startswith("0 OK")
    assert [receipt["host"] for receipt in sidecar.receipts("decision")] == ["ok.test"]
    squid.close()


def test_a_hung_audit_writer_is_a_denial_within_the_deadline(sidecar: Sidecar) -> None:
    with wire.listen_unix(sidecar.path("audit.sock")) as hung:
        hung.setblocking(True)
        start_decider(sidecar, "--deadline-s", "0.2")
        peer, _ = hung.accept()
        squid = Answers(sidecar)
        answer = squid.ask(line("CONNECT", "ok.test"))
        assert answer.startswith("0 ERR") and "no receipt" in answer
        asked = wire.decode(peer.makefile("rb").readline())
        assert isinstance(asked["receipts"], list) and asked["receipts"][0]["host"] == "ok.test"
        squid.close()
        peer.close()


def access_log(sidecar: Sidecar) -> socket.socket:
    """squid's connection for its log."""
    return socket.create_connection(("127.0.0.1", int((sidecar.root / "access-port").read_text())))


def test_a_line_without_an_end_is_not_squids(sidecar: Sidecar) -> None:
    start_decider(sidecar)
    with access_log(sidecar) as sock:
        sock.settimeout(60)
        with pytest.raises(OSError):
            for _ in range(1000):
                sock.sendall(b"x" * 65536)


def test_transfers_become_receipts_and_nothing_else_does(sidecar: Sidecar) -> None:
    sidecar.start_audit()
    start_decider(sidecar)
    with access_log(sidecar) as sock:
        sock.sendall(b"GET TCP_MISS api.test 443 100 2000\nPOST TCP_MISS API.test. 44")
        sock.sendall(b"3 50 1\nCONNECT TCP_TUNNEL ok.test 443 700 900\n")
        sock.sendall(b"CONNECT NONE_NONE api.test 443 9 9\n")  # its requests are counted one by one
        sock.sendall(b"GET TCP_DENIED canary.agent-container.invalid 3131 9 9\n")
        for junk in (b"\n", b"\xff" * 900 + b"\n", b"GET TCP_MISS api.test 443 -1 1\n", b"GET TCP_MISS a..b 443 1 1\n"):
            sock.sendall(junk)
    until(lambda: len(sidecar.receipts("transfer")) == 2)
    found = [(r["host"], r["port"], r["requests"], r["up"], r["down"]) for r in sidecar.receipts("transfer")]
    assert found == [("api.test", 443, 2, 150, 2001), ("ok.test", 443, 1, 700, 900)]


LIMITS = {"credentials": ["demo"], "hosts": ["api.test"], "requests": 0, "bytes": 0}
MODEL = line("POST", "api.test", scheme="https", path="/v1/messages", authorization=BEARER)


def limited(sidecar: Sidecar, **limits: int) -> Answers:
    """The daemons of a session with a budget."""
    sidecar.put_session(model={**LIMITS, **limits})
    sidecar.start_audit()
    start_decider(sidecar)
    put_credentials(sidecar)
    return Answers(sidecar)


def test_the_last_request_of_the_budget_goes_out_and_no_further_one(sidecar: Sidecar) -> None:
    squid = limited(sidecar, requests=2)
    squid.send(MODEL + MODEL + MODEL)
    first, second, third = (squid.next() for _ in range(3))
    assert first.startswith("0 OK") and second.startswith("0 OK")
    assert third.startswith("0 ERR") and "limits.model_requests: all 2 requests are used" in third
    assert SECRET not in third
    assert squid.ask(line("CONNECT", "ok.test")).startswith("0 OK"), "other hosts are not the model's"
    (refused,) = [r for r in sidecar.receipts("decision") if r["action"] == "deny"]
    assert refused["why"] == "budget"
    counters = sidecar.audit({"id": 1, "op": "counters"})
    assert counters["spent"] == {"requests": 2, "bytes": 0} and str(counters["used_up"]).startswith("limits.model_req")
    squid.close()


def test_bytes_to_and_from_the_model_are_a_budget_too(sidecar: Sidecar) -> None:
    squid = limited(sidecar, bytes=1000)
    assert squid.ask(MODEL).startswith("0 OK")
    with access_log(sidecar) as sock:
        sock.sendall(b"CONNECT TCP_TUNNEL ok.test 443 70000 90000\nGET TCP_MISS api.test 443 100 899\n")
        until(lambda: bool(sidecar.receipts("transfer")))
        assert squid.ask(MODEL).startswith("0 OK")
        sock.sendall(b"GET TCP_MISS api.test 443 1 0\n")
        until(lambda: len(sidecar.receipts("transfer")) == 3)
    assert "limits.model_bytes: all 1000 bytes are used" in squid.ask(MODEL)
    without_a_key = line("POST", "api.test", scheme="https", path="/v1/messages")
    for other in (without_a_key, line("CONNECT", "api.test")):
        assert "limits.model_bytes" in squid.ask(other), "data gets there without the key as well"
    assert squid.ask(line("CONNECT", "ok.test")).startswith("0 OK")
    squid.close()


def test_a_successor_is_told_what_was_spent(sidecar: Sidecar) -> None:
    squid = limited(sidecar, requests=3)
    assert squid.ask(MODEL).startswith("0 OK")
    squid.close()
    sidecar.stop("decider")
    start_decider(sidecar)
    put_credentials(sidecar)
    spent = sidecar.audit({"id": 1, "op": "counters"})["spent"]
    assert isinstance(spent, dict) and operate(sidecar, {"op": "spent", **spent})["ok"] is True
    squid = Answers(sidecar)
    assert [squid.ask(MODEL).split()[1] for _ in range(3)] == ["OK", "OK", "ERR"]
    for wrong in ({"requests": -1, "bytes": 0}, {"requests": True, "bytes": 0}, {}):
        assert operate(sidecar, {"op": "spent", **wrong})["ok"] is False
    squid.close()


@pytest.mark.parametrize("model", [7, {}, {**LIMITS, "requests": -1}, {**LIMITS, "bytes": "1"}, {**LIMITS, "hosts": 1}])
def test_a_budget_that_cannot_be_read_starts_nothing(sidecar: Sidecar, model: object) -> None:
    sidecar.put_session(model=model)
    with pytest.raises(AssertionError, match="ended with"):
        sidecar.start_audit()
    with pytest.raises(AssertionError, match="ended with"):
        start_decider(sidecar)


def test_relay_decider_and_audit_together(running: Sidecar) -> None:
    process = running.start("relay", "--socket", running.path("policy.sock"), pipes=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line("CONNECT", "ok.test", channel=5) + line("CONNECT", "evil.test", channel=6))
    received = b""
    while received.count(b"\n") < 2:
        received += process.stdout.read(65536)
    assert received.startswith(b"5 OK action_=splice") and b"\n6 ERR message=" in received
    running.stop("relay")


def test_receipt_lines_are_short_whatever_is_asked(running: Sidecar, squid: Answers) -> None:
    squid.ask(line("CONNECT", "\x1b]0;x\x07" + "é" * 3000))
    squid.ask(line("GET", "ok.test", 80, scheme="http", path="/" + "é%00\x1b" * 2000))
    for raw in Path(running.path("receipts.jsonl")).read_bytes().splitlines():
        assert len(raw) <= identity.MAX_RECEIPT_BYTES and raw.isascii() and b"\x1b" not in raw
        assert parse_receipt(raw) is not None
