"""The page of `runs report` against records whose every text was written by an enemy of its reader."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agent_container.commands import run_report
from agent_container.commands.context import Context
from agent_container.commands.run_report import collect_reports, write_page
from agent_container.drain import EVENTS, RECEIPTS
from agent_container.errors import UsageError
from agent_container.events import AgentMessage, AgentOutput, ToolCall, encode_event
from agent_container.project import find_project
from agent_container.records import AgentView, Egress, HostCount, Refusal, ScanFinding, ToolCount, Tripwire, Workspace
from agent_container.ui.report import render_report
from tests.support import records
from tests.support.records import RUN, STARTED, publish_run, record_of

NOW = datetime(2026, 12, 1, tzinfo=UTC)
SECOND = "20261130-080000-aaaaaa"
HOSTILE = (
    "<script>alert(1)</script>",
    "</style></title></pre></table><script src=//evil.test/x.js></script>",
    '" onmouseover="alert(1)" x="',
    "' onfocus='alert(1)' autofocus='",
    "><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<!--",
    "]]><![CDATA[",
    "<iframe srcdoc='<script>1</script>'>",
    "<meta http-equiv=refresh content='0;url=http://evil.test'>",
    "<base href=http://evil.test/>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202egnp.exe\u2066\u200f",
    "\u2028\u2029\x85\x00\x08\x7f",
    "&lt;script&gt;&#x3c;",
    "\ufeff\ufffe\U000e0041",
)
ALL = " ".join(HOSTILE)
TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "span", "table", "thead", "tbody",
    "tr", "th", "td", "section", "pre", "svg", "rect", "details", "summary",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "scope", "viewbox", "width", "height", "x", "y",
    "role", "preserveaspectratio", "aria-label", "open", "colspan",
}  # fmt: skip


class Seen(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.comments: list[str] = []
        self._texts: list[str] = []
        self.style = ""
        self.feed(page)
        self.close()
        self.text = "".join(self._texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "style" and not self.style:
            self.style = data
        else:
            self._texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def unknown_decl(self, data: str) -> None:
        self.comments.append(data)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(records, "PROJECT", find_project(tmp_path / "project").id)
    environ = {"XDG_DATA_HOME": str(tmp_path / "d"), "XDG_STATE_HOME": str(tmp_path / "s")}
    yield Context(directory=tmp_path / "project", environ=environ, now=lambda: NOW)


def hostile(context: Context, text: str) -> None:
    """A run in which every text that anybody could choose is `text`."""
    path = publish_run(context.store).place.path
    egress = Egress(
        allowed=1, denied=2,
        top_hosts=(HostCount(host=text, allowed=1, denied=2),),
        refusals=(Refusal(host=text, port=443, rule=text, layer=text),),
        tripwires=(Tripwire(host=text, detail=text),),
        findings=(ScanFinding(host=text, direction=text, what=text, action=text),),
    )  # fmt: skip
    record = record_of(
        task=text, project_name=text, reason=text, notes=(text,), labels={text[:60]: text}, egress=egress,
        workspace=Workspace(mode="clone", files_changed=1, note=text), previous_run=text,
    )  # fmt: skip
    agent = AgentView(
        model=text, session=text, final_message=text, tool_calls=(ToolCount(name=text, calls=1),), errors=(text,),
        permission_denials=(text,), signal=text, cost_usd=0.5,
    )  # fmt: skip
    (path / "record.json").write_bytes(record.model_copy(update={"agent": agent}).encode())
    events = [
        AgentMessage(at=STARTED, text=text),
        ToolCall(at=STARTED, name=text, input=text),
        AgentOutput(at=STARTED, text=text),
    ]
    (path / EVENTS).write_bytes(b"".join(map(encode_event, events)))
    row = {
        "seq": 1,
        "t": 1796000000000,
        "kind": "decision",
        "host": text,
        "method": text,
        "path": text,
        "action": "deny",
        "reason": text,
    }
    (path / RECEIPTS).write_text(json.dumps({**row, "rule": text, "mac": "0"}) + "\n")
    (path / "workspace.patch").write_bytes(
        f"diff --git a/{text} b/{text}\n@@ -1 +1 @@\n-{text}\n+{text}\n".encode("utf-8", "surrogatepass")
    )


def page_of(context: Context, *runs: str) -> str:
    return render_report(collect_reports(context, runs or (RUN,)), made=NOW)


@pytest.mark.parametrize("text", [*HOSTILE, ALL], ids=lambda text: ascii(text)[:24])
def test_no_text_becomes_more_than_text(text: str, context: Context) -> None:
    hostile(context, text)
    page = page_of(context)
    seen = Seen(page)
    assert set(seen.tags) <= TAGS
    assert {name for name, _ in seen.attributes} <= ATTRIBUTES
    assert seen.comments == []
    assert seen.tags.count("style") == seen.tags.count("title") == 1
    assert seen.tags.count("meta") == 4
    classes = {value for name, value in seen.attributes if name == "class"}
    assert all(re.fullmatch(r"[a-z ]*", value) for value in classes)
    hidden = ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp")
    bad = {char for char in page if unicodedata.category(char) in hidden and char != "\n"}
    assert bad <= {"\t"}
    if text.isascii() and text.isprintable():
        assert seen.text.count(" ".join(text.split())) >= 10, "it is there, to be read"


def test_the_policy_allows_one_style_sheet_and_nothing_else(context: Context) -> None:
    publish_run(context.store)
    page = page_of(context)
    digest = base64.b64encode(hashlib.sha256(Seen(page).style.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].replace("&#39;", "'") == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert page.index("Content-Security-Policy") < page.index("<style")
    assert "http:" not in page.replace('http-equiv="', "") and "https:" not in page and "url(" not in page


def test_what_stands_on_it(context: Context) -> None:
    publish_run(context.store, labels={"ticket": "A-1"})
    text = Seen(page_of(context)).text
    for words in (
        "say hello",
        "A-1",
        "$0.0100",
        "evil.test",
        "TRIPWIRE api.test",
        "203.0.113.9:5432",
        "succeeded",
        "m-1",
    ):
        assert words in text, words


def test_runs_stand_side_by_side(context: Context) -> None:
    publish_run(context.store)
    publish_run(context.store, run=SECOND, outcome="timeout", basis="host", reason="over its limit")
    page = page_of(context, RUN, SECOND, RUN)
    head = re.search(r"<thead>(.*?)</thead>", page, re.DOTALL)
    assert head is not None and [RUN in head[1], SECOND in head[1], head[1].count("scope")] == [True, True, 2]
    assert page.count("<section>") == 2
    assert 'class="bad">timeout' in page and 'class="good">succeeded' in page


def test_a_changed_record_says_so_first(context: Context) -> None:
    path = publish_run(context.store).place.path
    (path / EVENTS).write_bytes(b"")
    assert "CHANGED since it was recorded" in Seen(page_of(context)).text


def test_nothing_makes_it_long(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "FIRST", 5)
    monkeypatch.setattr(run_report, "LAST", 10)
    monkeypatch.setattr(run_report, "DIFF_LINES", 20)
    path = publish_run(context.store, task="x" * 500_000).place.path
    with (path / EVENTS).open("wb") as stream:
        for number in range(100):
            at = STARTED + timedelta(seconds=number)
            stream.write(encode_event(AgentMessage(at=at, text=f"{number} " + "y" * 50_000)))
    (path / RECEIPTS).write_bytes(b"")
    (path / "workspace.patch").write_text("diff --git a/x b/x\n" + ("+" + "z" * 50_000 + "\n") * 50)
    page = page_of(context)
    assert len(page) < 80_000
    text = Seen(page).text
    assert "85 entries are left out here" in text
    assert "31 more lines are left out" in text
    assert "0 yyy" in text and "99 yyy" in text and "50 yyy" not in text


def test_a_run_that_left_nothing(context: Context) -> None:
    path = publish_run(context.store, lines=[], spool=b"").place.path
    for name in (EVENTS, RECEIPTS):
        (path / name).unlink(missing_ok=True)
    assert RUN in Seen(page_of(context)).text


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    target = write_page(tmp_path / "page.html", "<p>\ud800")
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="exists already"):
        write_page(target, "other")
    assert target.read_text().startswith("<p>")
