"""The YAML reader: what is refused, what keeps its text; what a hostile one costs is in tests/process."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_container.spec_yaml import MAX_BYTES, Unquoted, YamlFault, load, shown, to_plain

REFUSED = {
    "a tab as indentation names its line": (b"egress:\n\tallow: []\n", 2, "a tab stands where"),
    "UTF-16 with a byte-order mark": ("name: a".encode("utf-16"), 1, "UTF-16"),
    "UTF-16 without one": ("name: a".encode("utf-16-le"), 1, "UTF-16"),
    "a NUL in the middle": (b"version: 1\nname: a\0b\n", 2, "NUL"),
    "a NUL written as an escape": (b'version: 1\nname: "a\\0b"\n', 2, "NUL"),
    "bytes that are not UTF-8": (b"name: a\nmodel: \xff\n", 2, "0xff is not UTF-8"),
    "text that runs from right to left": ("name: a\nmodel: x\u202ey\n".encode(), 2, "U+202E"),
    "a line separator that editors do not count": ("name: a\u2028b\n".encode(), 1, "U+2028"),
    "a terminal escape": (b"name: a\x1b[2J\n", 1, "U+001B"),
    "a second document": (b"name: a\n---\nname: b\n", 2, "second document"),
    "a list as the whole file": (b"- a\n", 1, "found a list"),
    "a bare value as the whole file": (b"hello\n", 1, "found one bare value"),
    "a tag": (b"name: !!str 5\n", 1, "the tag"),
    "a Python tag": (b"name: !!python/object/apply:os.system [id]\n", 1, "the tag"),
    "a mapping as a key": (b"{a: b}: c\n", 1, "where a key is expected"),
    "an alias to nothing": (b"name: *nope\n", 1, "undefined alias|inside its own anchor"),
    "an alias inside its own anchor": (b"a: &a [*a]\n", 1, "inside its own anchor"),
    "an unclosed quote": (b'name: "a\n', 2, "not valid YAML"),
    "a colon too many": (b"name: a: b\n", 1, "not valid YAML"),
    "nesting without end": (b"a: " + b"[" * 500, 1, "levels deep"),
    "a file over the cap": (b"#" * (MAX_BYTES + 1), 1, str(MAX_BYTES)),
}


@pytest.mark.parametrize(("data", "line", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(data: bytes, line: int, reason: str) -> None:
    with pytest.raises(YamlFault, match=reason.replace("+", r"\+")) as caught:
        load(data)
    assert caught.value.line == line


READ = {
    "a byte-order mark and CRLF leave no trace": (
        b"\xef\xbb\xbfname: a\r\negress:\r\n  allow:\r\n    - api.example.com\r\n",
        {"name": "a", "egress": {"allow": ("api.example.com",)}},
    ),
    "an empty file": (b"", {}),
    "only comments": (b"# name: a\n", {}),
    "plain numbers and booleans": (b"{a: 7, b: -1.5, c: true, d: false}", {"a": 7, "b": -1.5, "c": True, "d": False}),
    "nothing, in each spelling": (b"a:\nb: ~\nc: null\n", {"a": None, "b": None, "c": None}),
    "quoted text stays text": (b"a: 'no'\nb: \"0644\"\nc: '1.10'\n", {"a": "no", "b": "0644", "c": "1.10"}),
    "addresses and ranges are text": (b"a: [10.30.0.0/16, 2001:db8::1, 203.0.113.7]", {
        "a": ("10.30.0.0/16", "2001:db8::1", "203.0.113.7")
    }),
    "dollar signs are nothing special": (b"a: m3d$tone$08$x\nb: '${'\n", {"a": "m3d$tone$08$x", "b": "${"}),
    "a block scalar keeps its lines": (b"a: |\n  one\n  two\n", {"a": "one\ntwo\n"}),
    "a small anchor works": (b"a: &x [1]\nb: *x\n", {"a": (1,), "b": (1,)}),
    "keys keep their text": (b"{on: a, 0644: b}", {"on": "a", "0644": "b"}),
}  # fmt: skip


@pytest.mark.parametrize(("data", "value"), READ.values(), ids=READ)
def test_read(data: bytes, value: object) -> None:
    document = load(data)
    assert to_plain(document.root) == value
    assert not document.problems


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "on",
        "off",
        "yes",
        "y",
        "N",
        "True",
        "0644",
        "22:22",
        "1_000",
        "0x1F",
        "0b1",
        "0o17",
        "012345678901",
        "+5",
        "1e5",
        "1.",
        ".5",
        ".inf",
        ".NaN",
        "2026-01-02",
        "=",
        "1:30:00",
    ],
)
def test_a_spelling_that_yaml_would_change_is_neither_text_nor_value(text: str) -> None:
    assert to_plain(load(f"a: {text}".encode()).root) == {"a": Unquoted(text)}


def test_a_key_given_twice_names_both_lines_at_every_level() -> None:
    data = b"egress: {deny: [a.test]}\nagent: claude\negress: {allow: [b.test]}\nenv:\n  A: x\n  B: y\n  A: z\n"
    document = load(data)
    assert [(p.line, p.path, p.reason) for p in document.problems] == [
        (3, "egress", "the key stands twice, on lines 1 and 3"),
        (7, "env.A", "the key stands twice, on lines 5 and 7"),
    ]


def test_a_merge_key_is_refused_by_name() -> None:
    (problem,) = load(b"a: &a {x: 1}\nb:\n  <<: *a\n").problems
    assert (problem.line, problem.path) == (3, "b.<<")
    assert "merge keys" in problem.reason


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_a_document_or_a_fault_with_a_line(data: bytes) -> None:
    try:
        load(data)
    except YamlFault as fault:
        assert 1 <= fault.line <= data.count(b"\n") + data.count(b"\r") + 2


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*<,#'\"|>?! \n1", max_size=120))
def test_any_small_yaml_gives_a_document_or_a_fault(text: str) -> None:
    try:
        to_plain(load(text.encode()).root)
    except YamlFault as fault:
        assert fault.reason.isprintable()


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_what_is_shown_is_one_printable_line(text: str) -> None:
    assert shown(text).isprintable()
