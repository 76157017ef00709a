"""A flood of refusals, as an agent makes one that wants to fill the disk or to hide one refusal among thousands: the
audit writer and the policy process as they run in the sidecar."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.process.egress.harness import Sidecar

REFUSALS = 20_000
LASTS_S = 5.0
BATCH = 200
LARGEST_BYTES = 400_000
"""Twenty thousand receipts of their own would be ten times that."""
ODD = {"kind": "decision", "action": "deny", "host": "the-one.test", "port": 22, "rule": "deny the-one.test"}


def _noise(number: int, shape: str) -> dict[str, object]:
    row: dict[str, object] = {"kind": "decision", "action": "deny", "host": "no.test", "port": 443, "rule": ""}
    if shape == "names":
        row["host"] = f"n{number}.evil.test"
    elif shape == "paths":
        row |= {"path": f"/{number}", "method": "GET", "why": "request"}
    elif shape == "ports":
        row["port"] = number % 65535 + 1
    elif shape == "lookups":
        return {"kind": "lookup", "action": "deny", "name": f"n{number}.evil.test", "type": "A", "rule": ""}
    return row


@pytest.mark.parametrize("shape", ["one", "names", "paths", "ports", "lookups"])
def test_a_flood_of_refusals_collapses_and_hides_nothing(sidecar: Sidecar, shape: str) -> None:
    sidecar.start_audit()
    began = time.monotonic()
    for first in range(0, REFUSALS, BATCH):
        batch = [_noise(number, shape) for number in range(first, first + BATCH)]
        if first == REFUSALS // 2:
            batch[BATCH // 2] = ODD
        assert sidecar.audit({"id": first, "receipts": batch})["ok"] is True
        ahead = first / REFUSALS * LASTS_S - (time.monotonic() - began)
        time.sleep(max(0.0, ahead))  # spread over the seconds: windows begin and end meanwhile
    sidecar.audit({"id": 1, "op": "seal", "outcome": "succeeded"})
    report = sidecar.verify()
    assert report.status == "verified"
    assert report.counts["decision.deny"] + report.counts.get("lookup.deny", 0) == REFUSALS, "none is lost"
    written = sidecar.receipts()
    assert [row for row in written if row.get("host") == "the-one.test" and row.get("rule") == "deny the-one.test"]
    seconds = time.monotonic() - began
    assert len(written) <= 120 * (seconds + 2), Counter(str(row["kind"]) for row in written)
    assert Path(sidecar.path("receipts.jsonl")).stat().st_size < LARGEST_BYTES * max(1.0, seconds / LASTS_S)
