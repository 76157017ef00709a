"""Edits of a spec's text, as a table of before and after: what is not edited stays byte for byte."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_container.errors import UsageError
from agent_container.spec_edit import Entry, add_entry, remove_entries

NEW = Entry("new.test")

ADDED: dict[str, tuple[str, str]] = {
    "an empty file": ("", "egress:\n  allow:\n    - new.test\n"),
    "no egress": ("agent: demo\n", "agent: demo\negress:\n  allow:\n    - new.test\n"),
    "no newline at the end": ("agent: demo", "agent: demo\negress:\n  allow:\n    - new.test\n"),
    "egress of nothing": ("egress:\nagent: demo\n", "egress:\n  allow: [new.test]\nagent: demo\n"),
    "egress of nothing, last": ("agent: demo\negress:", "agent: demo\negress:\n  allow: [new.test]\n"),
    "an empty mapping": ("egress: {}  # none\n", "egress: {allow: [new.test]}  # none\n"),
    "a list in blocks": (
        "egress:\n  allow:\n    - a.test  # one\n    # about b\n    - b.test\n\nagent: demo # last\n",
        "egress:\n  allow:\n    - a.test  # one\n    # about b\n    - b.test\n    - new.test\n\nagent: demo # last\n",
    ),
    "dashes under the key": ("egress:\n  allow:\n  - a.test\n", "egress:\n  allow:\n  - a.test\n  - new.test\n"),
    "after a mapping": (
        "egress:\n  allow:\n    - host: a.test\n      ports: [22]\n  deny: [b.test]\n",
        "egress:\n  allow:\n    - host: a.test\n      ports: [22]\n    - new.test\n  deny: [b.test]\n",
    ),
    "a list in brackets": ("egress: {allow: [a.test]}\n", "egress: {allow: [a.test, new.test]}\n"),
    "empty brackets": ("egress:\n  allow: []  # none yet\n", "egress:\n  allow: [new.test]  # none yet\n"),
    "brackets over lines": (
        "egress:\n  allow: [a.test,\n    b.test]\n",
        "egress:\n  allow: [a.test,\n    b.test, new.test]\n",
    ),
    "a key without a value": (
        "egress:\n  allow:\n  deny: [b.test]\n",
        "egress:\n  allow:\n    - new.test\n  deny: [b.test]\n",
    ),
    "another list alone": (
        "egress:\n  deny:\n    - b.test\n# the end\n",
        "egress:\n  deny:\n    - b.test\n  allow:\n    - new.test\n# the end\n",
    ),
    "another list in braces": ("egress: {deny: [b.test]}\n", "egress: {deny: [b.test], allow: [new.test]}\n"),
    "windows lines": (
        "agent: demo\r\negress:\r\n  allow:\r\n    - a.test\r\n",
        "agent: demo\r\negress:\r\n  allow:\r\n    - a.test\r\n    - new.test\r\n",
    ),
    "quoted keys": ('"egress":\n  "allow": ["a.test"]\n', '"egress":\n  "allow": ["a.test", new.test]\n'),
}


@pytest.mark.parametrize("name", ADDED)
def test_an_entry_is_added_and_nothing_else_changes(name: str) -> None:
    before, after = ADDED[name]
    assert add_entry(before, "allow", NEW) == after


REMOVED: dict[str, tuple[str, str]] = {
    "one of a block": (
        "egress:\n  allow:\n    - a.test  # one\n    - b.test  # two\n    - c.test\n",
        "egress:\n  allow:\n    - a.test  # one\n    - c.test\n",
    ),
    "a mapping over lines": (
        "egress:\n  allow:\n    - host: B.test.\n      ports: [22]\n    - c.test\nagent: demo\n",
        "egress:\n  allow:\n    - c.test\nagent: demo\n",
    ),
    "the only one": ("egress:\n  allow:\n    - b.test\n  deny: [x.test]\n", "egress:\n  allow:\n  deny: [x.test]\n"),
    "twice": ("egress:\n  allow: [b.test, {host: b.test, ports: [22]}, c.test]\n", "egress:\n  allow: [c.test]\n"),
    "none": ("egress:\n  allow: [c.test]\n", "egress:\n  allow: [c.test]\n"),
    "no egress": ("agent: demo\n", "agent: demo\n"),
}


@pytest.mark.parametrize("name", REMOVED)
def test_an_entry_is_removed_and_nothing_else_changes(name: str) -> None:
    before, after = REMOVED[name]
    assert remove_entries(before, "allow", "b.test") == after


REFUSED = {
    "an alias": "shared: &hosts [a.test]\negress:\n  allow: *hosts\n",
    "a merge": "base: &base {allow: [a.test]}\negress:\n  <<: *base\n",
    "no mapping": "- a\n- b\n",
    "no yaml": "egress: [\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_cannot_be_edited_safely_is_left_alone(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        add_entry(REFUSED[name], "allow", NEW)
    assert "not changed" in refused.value.message


def test_ports_and_ranges_are_written_on_one_line() -> None:
    entry = Entry("llm.test", (1234,), ("10.20.0.0/16", "fd00::/8"))
    text = add_entry("egress:\n  allow:\n    - a.test\n", "allow", entry)
    assert text.splitlines()[-1] == "    - {host: llm.test, addresses: [10.20.0.0/16, 'fd00::/8'], ports: [1234]}"


_HOST = st.sampled_from(["a.test", "b.test", "*.c.test", "10.0.0.0/8", "2001:db8::/32"])


@settings(max_examples=40)
@given(
    st.lists(_HOST, max_size=4), st.lists(_HOST, max_size=3), _HOST, st.booleans(), st.sampled_from([None, True, False])
)
def test_what_is_written_means_what_was_asked(
    allow: list[str], deny: list[str], host: str, comment: bool, flow: bool | None
) -> None:
    document = {"agent": "demo", "egress": {"allow": allow, "deny": deny}, "env": {"A": "1"}}
    body = yaml.safe_dump(document, sort_keys=False, default_flow_style=flow) + ("# end\n" if comment else "")
    after = add_entry(body, "allow", Entry(host))
    assert yaml.safe_load(after)["egress"] == {"allow": [*allow, host], "deny": deny}
    again = remove_entries(after, "allow", host)
    left = [one for one in allow if one != host]
    assert (yaml.safe_load(again)["egress"]["allow"] or []) == left
    assert ("# end" in again) is comment
