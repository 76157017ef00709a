"""The egress sidecar as it runs: what passes and what does not, its control protocol, and that every failure shuts it.

One world and one long-lived session serve the whole file; cases that end a sidecar bring up their own.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from agent_container.stack import Container
from agent_egress.policy import Policy, Rule
from agent_egress.receipts import parse_receipt, verify_chain
from agent_egress.replay import reconcile, replay
from tests.redteam import attempts
from tests.redteam.attempts.cases import every
from tests.redteam.judge import CREDENTIALS, MODEL, NAMES, POLICY, ZONE, run_attempts, seen_outside, with_attempts
from tests.support.net import CA_TARGET, KEY, PYTHON, Agent, Answer, Sidecar, World, docker

CONTROLS = [name for name in attempts.ATTEMPTS if name.startswith("control_")]
SOME = ("raw_tcp4", "raw_udp4", "proxy_refused_host.name", "lookup_refused_names.engine_udp", "tunnel_outlives_a_kill")
"""Attempts of each kind that leaves a receipt; all of them are the red team's."""
PATIENCE_S = 60
Report = dict[str, dict[str, object]]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.up(zone={**ZONE, "empty.test": {"TXT": ["no address"]}}, names=NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def closed(world: World) -> Iterator[tuple[Sidecar, Agent, Report]]:
    """A sidecar that nobody has given the chain key yet, and what an agent beside it got."""
    with Sidecar.up(world, POLICY, model=MODEL) as sidecar:
        assert sidecar.control("status")["state"] == "waiting"  # it answers once the rules are in force
        world.clear()
        agent = sidecar.agent()
        early = run_attempts(agent, ("control_explicit_http", "control_lookup", "raw_tcp4", "raw_udp6", "quic.v4"))
        assert not sidecar.healthy()
        assert [packet for packet in world.log().packets if packet[2]] == []
        yield sidecar, agent, early


@pytest.fixture(scope="module")
def opened(closed: tuple[Sidecar, Agent, Report]) -> tuple[Sidecar, Agent, Answer]:
    sidecar, agent, _ = closed
    answer = sidecar.must_open()
    assert sidecar.control("credential.put", credentials=CREDENTIALS)["ok"]
    return sidecar, agent, answer


@pytest.fixture(scope="module")
def results(world: World, opened: tuple[Sidecar, Agent, Answer]) -> tuple[Report, dict[str, str]]:
    """The controls and some attempts, from both sides."""
    world.clear()
    reports = run_attempts(opened[1], (*CONTROLS, *SOME))
    outside = seen_outside(world.log())
    status = opened[0].control("status")
    assert status["cut"] and "trap.test:443 was contacted (connect) (rule: kill trap.test)" in status["killed"]
    assert opened[0].control("restore")["digest"] == POLICY.digest
    assert not opened[0].control("status")["killed"]
    return reports, outside


def eventually(check: Callable[[], object], words: Callable[[], object] = str) -> None:
    """Waits for what must come; how long a busy machine takes is nobody's failure."""
    for _ in range(PATIENCE_S * 5):
        if check():
            return
        time.sleep(0.2)
    raise AssertionError(words())


def works(agent: Agent, name: str = "control_explicit_http") -> bool:
    return run_attempts(agent, [name])[name]["reached"] is True


def get(agent: Agent, url: str, headers: str = "") -> str:
    """What a client reads through the proxy."""
    code = f"from attempts.tools import proxy_get\nprint(proxy_get({url!r}, {headers!r}).decode('latin-1'))"
    return agent.run(with_attempts(code))


# --- before, and at, the opening ---


@pytest.mark.quick
def test_without_the_chain_key_nothing_passes(closed: tuple[Sidecar, Agent, Report]) -> None:
    assert [name for name, report in closed[2].items() if report["reached"]] == []


def test_the_opening_says_what_was_proven(opened: tuple[Sidecar, Agent, Answer]) -> None:
    sidecar, _, answer = opened
    assert {check["name"]: check["ok"] for check in answer["checks"]} == {
        "ruleset": True,
        "allowed request": True,
        "refused request": True,
        "refused name": True,
        "resolvers": True,
    }
    assert answer["digest"] == POLICY.digest
    assert "BEGIN CERTIFICATE" in answer["ca_pem"]
    assert "PRIVATE KEY" not in json.dumps(answer)
    assert sidecar.healthy()


def test_the_same_key_may_ask_again_and_another_may_not(opened: tuple[Sidecar, Agent, Answer]) -> None:
    sidecar, _, answer = opened
    assert sidecar.open()["head"] == answer["head"]
    refusal = sidecar.open(key=bytes(32))
    assert not refusal["ok"]
    assert refusal["error"]["part"] == "control"


DEMOTED = """
import json, os
found = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open(f"/proc/{pid}/status") if ":\\t" in line)
        command = open(f"/proc/{pid}/cmdline").read().split("\\0")
    except OSError:
        continue
    uid = int(status["Uid"].split()[0])
    if uid:
        caps = {status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
        found[uid] = [sorted(caps), status["NoNewPrivs"], status["Groups"].split()]
print(json.dumps(found))
"""


def test_every_daemon_runs_as_itself_with_nothing_to_gain(opened: tuple[Sidecar, Agent, Answer]) -> None:
    found = json.loads(opened[0].execute(DEMOTED))
    assert sorted(map(int, found)) == [64101, 64102, 64103, 64104, 64105, 64106]
    assert {json.dumps(value) for value in found.values()} == {json.dumps([["0" * 16], "1", []])}


def test_the_authority_s_key_is_squid_s_alone(opened: tuple[Sidecar, Agent, Answer]) -> None:
    code = "print(open('/run/ca/session.key').read()[:11])"
    for user in ("0:0", "64104:64104", "64105:64105"):
        with pytest.raises(AssertionError, match="PermissionError"):
            opened[0].execute(code, user=user)
    names = opened[1].run(f"import os; print(sorted(os.listdir('{CA_TARGET}')))")
    assert names.strip() == "['bundle.pem', 'ca.pem']"


# --- what passes and what does not ---


@pytest.mark.quick
def test_what_works_and_what_is_refused(results: tuple[Report, dict[str, str]]) -> None:
    assert {name for name, report in results[0].items() if report["reached"]} == set(CONTROLS)
    assert results[1] == {}


def test_a_refusal_says_who_refused_and_what_its_user_can_type(opened: tuple[Sidecar, Agent, Answer]) -> None:
    answer = get(opened[1], "http://blocked.test/x")
    assert answer.startswith("HTTP/1.1 403 ")
    assert "blocked by policy: blocked.test:80: no rule allows it" in answer
    assert "agent-container egress allow blocked.test" in answer


FAULTS = {
    "a name that does not resolve": ("http://gone.test/", " 503 ", "gone.test does not resolve: "),
    "a name without an address": ("http://empty.test/", " 503 ", "empty.test does not resolve: "),
    "a port where nobody listens": ("http://ok.test:9999/", " 503 ", "ok.test port 9999 cannot be reached: (111)"),
    "a host that hangs up": ("http://ok.test:8443/", " 50", "ok.test "),
    "a tunnel to a name that does not resolve": ("https://gone.test/", " 503 ", "gone.test does not resolve"),
    "a certificate of nobody": ("https://badcert.test/", " 503 ", "TLS with badcert.test port 443 failed: "),
}


FAULTY = Policy(
    rules=(
        *POLICY.rules,
        Rule("allow", "gone.test"),
        Rule("allow", "empty.test"),
        Rule("allow", "ok.test", ports=(8443, 9999)),
    ),
    credentials=POLICY.credentials,
)


@pytest.fixture
def faulty(opened: tuple[Sidecar, Agent, Answer]) -> Iterator[Agent]:
    """An agent that may ask for what then fails."""
    sidecar, agent, _ = opened
    assert sidecar.control("policy.put", policy=json.loads(FAULTY.encode()))["ok"]
    yield agent
    assert sidecar.control("policy.put", policy=json.loads(POLICY.encode()))["ok"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_from_a_decision_in_its_first_line(faulty: Agent, name: str) -> None:
    url, status, words = FAULTS[name]
    scheme, _, host = url.partition("://")
    if scheme == "http":
        answer = get(faulty, url)
    else:
        name, _, port = host.rstrip("/").partition(":")
        code = (
            "from attempts.tools import tunnel\n"
            f"with tunnel({name!r}, port={port or 443}) as sock:\n"
            f"    sock.sendall(b'GET / HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: close\\r\\n\\r\\n')\n"
            "    answer = b''\n"
            "    while chunk := sock.recv(4096): answer += chunk\n"
            "    print(answer.decode('latin-1'))"
        )
        answer = faulty.run(with_attempts(code))
    head, _, body = answer.replace("\r\n", "\n").partition("\n\n")
    assert status in head.splitlines()[0]
    first, *rest = body.strip().splitlines()
    assert first.startswith("agent-container: this is NOT a policy decision: ")
    assert words in first
    assert (len(rest), "<" in body) == (1, False), body


SIZES = {
    "long headers": ("/x", "X-Big: " + "a" * 60_000 + "\\r\\n", "200", ""),
    "longer ones": ("/x", "X-Big: " + "a" * 70_000 + "\\r\\n", "431", "the headers of the request"),
    "a long URL": ("/" + "b" * 7_900, "", "200", ""),
    "a longer one": ("/" + "b" * 9_000, "", "400", "or longer than the proxy takes: 8 KB"),
}


@pytest.mark.parametrize("host", ["ok.test", "api.test"])
@pytest.mark.parametrize("name", SIZES)
def test_what_is_too_long_for_the_proxy_is_told_the_limit(
    opened: tuple[Sidecar, Agent, Answer], host: str, name: str
) -> None:
    path, headers, status, words = SIZES[name]
    send = f"print(proxy_get('http://{host}{path}', '{headers}').decode('latin-1')[:1000])"
    if host == "api.test":
        send = (
            f"with tunnel('{host}') as sock: print(over(sock, request('{path}', headers='{headers}')).decode()[:1000])"
        )
    answer = opened[1].run(with_attempts(f"from attempts.tools import over, proxy_get, request, tunnel\n{send}"))
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    assert words in answer


def test_no_page_of_squids_own_is_left(opened: tuple[Sidecar, Agent, Answer]) -> None:
    code = (
        "import glob\nfor name in glob.glob('/usr/share/agent-egress/errors/ERR_*'):\n"
        "    text = open(name).read()\n"
        "    if '<' in text or len(text.splitlines()) != 2 and '%o' not in text and 'FLOOR' not in name: print(name)"
    )
    assert opened[0].execute(code) == ""


def test_a_refused_upgrade_is_told_to_do_without(opened: tuple[Sidecar, Agent, Answer]) -> None:
    answer = get(opened[1], "http://blocked.test/ws", "Connection: Upgrade\r\nUpgrade: websocket\r\n")
    assert answer.startswith("HTTP/1.1 426 ")


def test_a_refused_tunnel_without_tls_is_closed(opened: tuple[Sidecar, Agent, Answer]) -> None:
    code = """
import socket
sock = socket.create_connection(("127.0.0.1", 3128), timeout=20)
sock.sendall(b"CONNECT blocked.test:22 HTTP/1.1\\r\\nHost: blocked.test:22\\r\\n\\r\\n")
received = b""
while chunk := sock.recv(4096):
    received += chunk
print(received[:40])
"""
    assert "SSH" not in opened[1].run(code)


SECRETS_ABOUT = """
import glob, os
needles = [bytes.fromhex(text) for text in {needles!r}]
directories = ("/run/egress", "/run/audit", "/run/policy", "/etc/agent-egress", "/var/lib/egress", "/var/lib/egress-ca")
names = [name for directory in directories for name in glob.glob(directory + "/*") if os.path.isfile(name)]
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        names += [f"/proc/{{pid}}/cmdline", f"/proc/{{pid}}/environ"]
for name in names:
    try:
        content = open(name, "rb").read()
    except OSError:
        continue
    if any(needle in content for needle in needles):
        print(name)
"""


def test_no_secret_stands_in_a_file_an_argument_or_the_log(opened: tuple[Sidecar, Agent, Answer]) -> None:
    secrets = [*(secret.encode() for secret in attempts.SECRETS), KEY, KEY.hex().encode()]
    code = SECRETS_ABOUT.format(needles=[secret.hex() for secret in secrets])
    assert opened[0].execute(code) == ""
    assert not [secret for secret in secrets if secret.decode("latin-1") in opened[0].logs()]


# --- operations ---


def test_a_bad_policy_is_refused_whole(opened: tuple[Sidecar, Agent, Answer]) -> None:
    sidecar = opened[0]
    document = json.loads(POLICY.encode())
    document["rules"] += [{"action": "allow", "pattern": "evil.test"}, {"action": "allow", "pattern": "not a host"}]
    answer = sidecar.control("policy.put", policy=document)
    assert answer["error"]["part"] == "policy"
    assert "not a host" in answer["error"]["output"]
    assert sidecar.control("status")["digest"] == POLICY.digest


def test_a_credential_in_a_header_that_squid_does_not_know_is_refused(opened: tuple[Sidecar, Agent, Answer]) -> None:
    odd = replace(POLICY, credentials=(replace(POLICY.credentials[0], header="X-Odd"), *POLICY.credentials[1:]))
    answer = opened[0].control("policy.put", policy=json.loads(odd.encode()))
    assert answer["error"]["part"] == "policy"
    assert "X-Odd" in answer["error"]["message"]


def test_a_rule_holds_from_the_next_request(opened: tuple[Sidecar, Agent, Answer]) -> None:
    sidecar, agent, _ = opened
    wider = Policy(rules=(*POLICY.rules, Rule("allow", "evil.test")), credentials=POLICY.credentials)
    assert " 403 " in get(agent, "http://evil.test/now").splitlines()[0]
    assert sidecar.control("policy.put", policy=json.loads(wider.encode()))["digest"] == wider.digest
    assert " 200 " in get(agent, "http://evil.test/now").splitlines()[0]
    assert sidecar.control("policy.put", policy=json.loads(POLICY.encode()))["digest"] == POLICY.digest
    assert " 403 " in get(agent, "http://evil.test/now").splitlines()[0]


def test_a_private_range_opens_and_closes_in_every_layer(opened: tuple[Sidecar, Agent, Answer]) -> None:
    sidecar, agent, _ = opened
    lifted = tuple(
        replace(rule, addresses=("10.77.0.0/16",)) if rule.pattern == "lan.test" else rule for rule in POLICY.rules
    )
    wider = replace(POLICY, rules=lifted)
    assert sidecar.control("policy.put", policy=json.loads(wider.encode()))["ok"]
    assert " 200 " in get(agent, "http://lan.test:8080/").splitlines()[0]
    assert sidecar.control("policy.put", policy=json.loads(POLICY.encode()))["ok"]
    assert " 200 " not in get(agent, "http://lan.test:8080/").splitlines()[0]


STREAM = """
from attempts.tools import request, tunnel
with tunnel("ok.test") as wrapped:
    wrapped.settimeout(60)
    wrapped.sendall(request("/hold", "ok.test"))
    wrapped.recv(4096)
    print("started", flush=True)
    try:
        while wrapped.recv(4096):
            pass
    except OSError:
        pass
print("ended", flush=True)
"""


def stream(agent: Agent) -> subprocess.Popen[str]:
    """A download that goes on for as long as it is let."""
    process = subprocess.Popen(
        ["docker", "exec", "-i", agent.name, PYTHON, "-u", "-c", with_attempts(STREAM)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def rest_of(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=PATIENCE_S)
    return out


def test_a_cut_ends_what_is_open_and_a_restore_undoes_it(opened: tuple[Sidecar, Agent, Answer], world: World) -> None:
    sidecar, agent, _ = opened
    live = stream(agent)
    answer = sidecar.control("cut")
    assert answer["ok"]
    assert answer["digest"] != POLICY.digest
    assert rest_of(live) == "ended\n"
    world.clear()
    eventually(lambda: " 403 " in get(agent, "http://ok.test/").split("\n")[0])  # a refusal, not a dead port
    assert not works(agent, "control_transparent_https")
    assert [packet for packet in world.log().packets if packet[2]] == []
    assert sidecar.healthy()
    assert sidecar.control("restore")["digest"] == POLICY.digest
    assert works(agent)


def test_a_narrower_policy_ends_what_it_no_longer_allows(opened: tuple[Sidecar, Agent, Answer]) -> None:
    sidecar, agent, _ = opened
    live = stream(agent)
    narrower = replace(POLICY, rules=tuple(rule for rule in POLICY.rules if rule.pattern != "ok.test"))
    assert sidecar.control("policy.put", policy=json.loads(narrower.encode()))["ok"]
    assert rest_of(live) == "ended\n"
    assert sidecar.control("policy.put", policy=json.loads(POLICY.encode()))["ok"]
    assert works(agent)


def test_at_the_deadline_the_sidecar_cuts_by_itself(opened: tuple[Sidecar, Agent, Answer]) -> None:
    sidecar, agent, _ = opened
    assert sidecar.control("deadline", seconds=0)["ok"]
    eventually(lambda: sidecar.control("status")["cut"])
    assert not works(agent)
    assert "deadline" in sidecar.control("restore")["error"]["message"]
    assert sidecar.control("deadline", seconds=7200)["ok"]
    assert sidecar.control("restore")["ok"]
    assert works(agent)


# --- what breaks while it runs ---


def signal_daemon(sidecar: Sidecar, uid: int, number: str) -> None:
    sidecar.execute(
        "import os, signal\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        f"    if os.stat('/proc/' + pid).st_uid == {uid}:\n"
        f"        os.kill(int(pid), signal.{number})\n"
    )


@pytest.mark.parametrize("daemon", ["squid", "unbound", "dns", "policy"])
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_a_daemon_that_dies_or_hangs_is_there_again(
    opened: tuple[Sidecar, Agent, Answer], daemon: str, number: str
) -> None:
    sidecar, agent, _ = opened
    uid = {"squid": 64101, "dns": 64102, "unbound": 64103, "policy": 64104}[daemon]
    before = sidecar.control("status")["restarts"][daemon]
    signal_daemon(sidecar, uid, number)
    eventually(lambda: sidecar.control("status")["restarts"][daemon] > before)
    eventually(lambda: works(agent, "control_transparent_https"), sidecar.logs)
    eventually(lambda: works(agent, "control_injection"), sidecar.logs)  # the successor was told the credentials
    eventually(sidecar.healthy)


def tripwires(sidecar: Sidecar) -> int:
    """-1 while the table itself is gone and nothing can be counted."""
    answer = sidecar.control("counters")
    return int(answer["counts"].get("tripwire", 0)) if answer["ok"] else -1


@pytest.mark.parametrize(
    "tamper",
    [
        "flush chain inet egress output",
        "insert rule inet egress output accept",
        "delete table inet egress",
        "flush set inet egress floor4",
        "add element inet egress except4 { 10.0.0.0/8 . 443 }",
        "add chain inet egress output { policy accept; }",
    ],
)
def test_rules_that_were_changed_are_put_back(opened: tuple[Sidecar, Agent, Answer], tamper: str) -> None:
    sidecar, agent, _ = opened
    before = tripwires(sidecar)
    docker("exec", sidecar.name, "/usr/sbin/nft", tamper)
    eventually(lambda: tripwires(sidecar) > before)
    reports = run_attempts(agent, ("raw_tcp4", "raw_udp6", *every("proxy_to_private"), "control_explicit_https"))
    assert [name for name, report in reports.items() if report["reached"]] == ["control_explicit_https"]


# --- the end ---


def test_the_sealed_chain_verifies_and_explains_everything(
    opened: tuple[Sidecar, Agent, Answer], results: tuple[Report, dict[str, str]], world: World
) -> None:
    sidecar, agent, _ = opened
    assert sidecar.control("cut")["ok"]
    assert sidecar.control("restore")["ok"]
    sealed = sidecar.control("seal", outcome="succeeded")
    assert sealed["ok"]
    assert sidecar.control("seal", outcome="again")["head"] == sealed["head"]
    lines = sidecar.receipts()
    report = verify_chain(lines, key=KEY)
    assert (report.status, report.sealed, report.faults) == ("verified", True, ())
    assert (report.head, report.length) == (sealed["head"], sealed["length"])
    receipts = [receipt for receipt in map(parse_receipt, lines) if receipt is not None]
    assert reconcile(receipts) == ()
    known = {policy.digest: policy for policy in (POLICY,)}
    assert [fault for fault in replay(receipts, policies=known) if "not at hand" not in fault.detail] == []
    kinds = {receipt["kind"] for receipt in receipts}
    assert kinds >= {"open", "policy", "decision", "lookup", "answer", "connection", "drop", "tripwire", "cut", "seal"}
    assert "real-secret" not in b"".join(lines).decode()
    world.clear()
    assert not any(report["reached"] for report in run_attempts(agent, CONTROLS[:5]).values())
    assert [packet for packet in world.log().packets if packet[2]] == []


# --- what is broken from the start ---


def _nft(files: dict[str, str]) -> None:
    files["nftables.nft"] = files["nftables.nft"].replace("policy drop", "policy dorp", 1)


def _fewer_rules(files: dict[str, str]) -> None:
    files["nftables.nft"] = files["nftables.nft"].replace("type filter hook output", "type filter hook input", 1)


def _floor(files: dict[str, str]) -> None:
    files["nftables.nft"] = files["nftables.nft"].replace("10.0.0.0/8, ", "", 1)


def _squid(files: dict[str, str]) -> None:
    files["squid.conf"] += "no_such_directive on\n"


def _unbound(files: dict[str, str]) -> None:
    files["unbound.conf"] = files["unbound.conf"].replace("module-config:", "modul-config:")


def _policy(files: dict[str, str]) -> None:
    files["policy.json"] = files["policy.json"][:-40]


def _session(files: dict[str, str]) -> None:
    files["session.json"] = "{}"


@pytest.mark.parametrize("patch", [_nft, _fewer_rules, _floor])
def test_without_its_rules_the_sidecar_does_not_even_start(
    world: World, patch: Callable[[dict[str, str]], None]
) -> None:
    with Sidecar.up(world, POLICY, patch=patch) as sidecar:
        code = docker("wait", sidecar.name).strip()
        assert code not in ("0", "")
        assert "nftables" in sidecar.logs()


def test_without_the_right_to_change_rules_it_does_not_start(world: World) -> None:
    def change(container: Container) -> Container:
        return replace(container, cap_add=tuple(cap for cap in container.cap_add if cap != "NET_ADMIN"))

    with Sidecar.up(world, POLICY, change=change) as sidecar:
        assert docker("wait", sidecar.name).strip() not in ("0", "")
        assert "nftables" in sidecar.logs()


@pytest.mark.parametrize(
    ("patch", "part"), [(_squid, "squid"), (_unbound, "unbound"), (_policy, "policy"), (_session, "control")]
)
def test_a_part_that_cannot_start_is_named_and_nothing_passes(
    world: World, patch: Callable[[dict[str, str]], None], part: str
) -> None:
    with Sidecar.up(world, POLICY, patch=patch) as sidecar:
        answer = sidecar.open()
        assert not answer["ok"]
        assert answer["error"]["part"] == part
        assert not sidecar.healthy()
        assert sidecar.open()["error"] == answer["error"]  # asking again does not make it better
        world.clear()
        reports = run_attempts(sidecar.agent(), ("control_explicit_http", "control_lookup", "raw_tcp4"))
        assert not any(report["reached"] for report in reports.values())
        assert [packet for packet in world.log().packets if packet[2]] == []


def test_a_policy_process_that_hangs_at_the_start_is_named(world: World) -> None:
    with Sidecar.up(world, POLICY) as sidecar:
        stopper = (
            "import os, signal, time\n"
            "for _ in range(3000):\n"
            "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "        try:\n"
            "            if os.stat('/proc/' + pid).st_uid == 64104:\n"
            "                os.kill(int(pid), signal.SIGSTOP)\n"
            "                raise SystemExit\n"
            "        except OSError:\n"
            "            pass\n"
            "    time.sleep(0.002)\n"
        )
        thread = threading.Thread(target=sidecar.execute, args=(stopper,))
        thread.start()
        time.sleep(1)
        answer = sidecar.open(wait_s=12)
        thread.join()
        assert answer["error"]["part"] == "policy", answer
        assert not sidecar.healthy()


def test_without_its_audit_writer_everything_is_denied(world: World) -> None:
    with Sidecar.up(world, POLICY) as sidecar:
        sidecar.must_open()
        agent = sidecar.agent()
        live = stream(agent)
        signal_daemon(sidecar, 64105, "SIGKILL")
        assert rest_of(live) == "ended\n"
        eventually(lambda: not sidecar.healthy())
        world.clear()
        assert not any(report["reached"] for report in run_attempts(agent, CONTROLS[:5]).values())
        assert [packet for packet in world.log().packets if packet[2]] == []
        status = sidecar.control("status")
        assert (status["state"], status["failure"]["part"]) == ("failed", "audit")
        assert sidecar.control("counters")["error"]["part"] == "audit"
        assert sidecar.control("seal", outcome="x")["error"]["part"] == "audit"


def test_a_full_chain_denies_everything_and_can_still_be_sealed(world: World) -> None:
    with Sidecar.up(world, POLICY, max_receipts=40) as sidecar:
        sidecar.must_open()
        agent = sidecar.agent()
        code = "from attempts.tools import proxy_get\nfor n in range(60): proxy_get(f'http://blocked-{n}.test/')"
        agent.run(with_attempts(code))
        assert not works(agent)
        eventually(lambda: not sidecar.healthy())
        sealed = sidecar.control("seal", outcome="killed")
        assert sealed["ok"], sealed
        assert verify_chain(sidecar.receipts(), key=KEY).status == "verified"


def test_offline_is_said_and_is_not_taken_for_success(world: World) -> None:
    world.ask({"op": "deaf", "deaf": True})
    try:
        with Sidecar.up(world, POLICY) as sidecar:
            answer = sidecar.must_open()
    finally:
        world.ask({"op": "deaf", "deaf": False})
    check = next(check for check in answer["checks"] if check["name"] == "resolvers")
    assert not check["ok"]
    assert "cannot be verified" in check["detail"]
