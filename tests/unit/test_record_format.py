"""docs/record-format.md is what others build on: what it shows is what the code does."""

from __future__ import annotations

from pathlib import Path

from agent_egress.receipts import KINDS, Writer, open_receipt, seal_receipt, verify_chain

PAGE = (Path(__file__).parents[2] / "docs" / "record-format.md").read_text()
KEY = bytes(range(32))


def test_the_chain_that_the_page_shows_is_the_one_that_the_writer_writes() -> None:
    shown = PAGE.split("<!-- vector -->")[1].split("```")[1].strip().encode().splitlines(keepends=True)
    writer = Writer(key=KEY)
    first = open_receipt(session="20261129-153359-7f3a2c", policy_digest="sha256:" + "ab" * 32, key=KEY)
    refusal = {"kind": "decision", "host": "evil.test", "port": 443, "method": "CONNECT", "action": "deny", "rule": ""}
    written = writer.append([first], t_ms=1796000000000)
    written += writer.append([{**refusal, "policy": "ab" * 8, "count": 3}], t_ms=1796000000007)
    written += writer.append([seal_receipt(writer, outcome="succeeded")], t_ms=1796000000100)
    assert b"".join(shown) == written.rstrip(b"\n")
    assert verify_chain(shown, key=KEY).status == "verified"


def test_every_kind_of_receipt_is_on_the_page() -> None:
    table = PAGE.split("### Kinds")[1].split("\n## ")[0]
    assert {kind for kind in KINDS if f"`{kind}`" not in table} == set()
