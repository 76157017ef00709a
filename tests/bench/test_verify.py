"""How fast a record is verified, beside what no verifier gets around: one HMAC and one SHA-256 a receipt.

The aim was 200,000 receipts a second. On a machine where those two hashes alone, as the standard library has them, run
at 150,000 to 250,000 a second in one thread, Python does not get there: reading the JSON takes about as much again, and
counting, replaying and reconciling the same once more. What is left is a ratio.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from pathlib import Path

from agent_container.store import Store
from agent_container.verify import verify_run
from agent_egress.receipts import Fields, Writer, open_receipt, seal_receipt
from tests.bench.conftest import measure
from tests.support.records import KEY, POLICY, RUN, decision, publish_run

RECEIPTS = 100_000


def rows() -> Iterator[Fields]:
    """As an agent at work leaves them: requests to its model, a refused host now and then, lookups."""
    allowed = {"allow": True, "rule": "allow api.test", "via": "tls"}
    yield {"kind": "answer", "name": "api.test", "addresses": ["203.0.113.7"]}
    yield {"kind": "connection", "address": "203.0.113.7", "port": 443, "packets": 9}
    for number in range(RECEIPTS // 5):
        yield decision("api.test", client=40_000 + number % 20_000, **allowed)  # type: ignore[arg-type]
        path = {
            "method": "POST",
            "path": f"/v1/messages/{number}",
            "path_hash": "0123456789abcdef",
            "credential": "demo",
        }
        yield {**decision("api.test", client=40_000 + number % 20_000, **allowed), **path}  # type: ignore[arg-type]
        yield {"kind": "transfer", "host": "api.test", "port": 443, "requests": 1, "up": number, "down": 2 * number}
        yield decision(f"n{number % 50}.test", allow=False, reason="no rule allows it", client=1234)
        yield {
            "kind": "lookup",
            "name": "evil.test",
            "type": "A",
            "action": "deny",
            "rule": "",
            "policy": POLICY.short_digest,
        }


def test_receipts_verified_a_second(tmp_path: Path, say: Callable[[str], None]) -> None:
    writer = Writer(key=KEY)
    body = writer.append([open_receipt(session=RUN, policy_digest=POLICY.digest, key=KEY)], t_ms=1796000000000)
    body += writer.append(list(rows()), t_ms=1796000000001)
    body += writer.append([seal_receipt(writer, outcome="succeeded")], t_ms=1796000000002)
    lines = body.splitlines(keepends=True)
    store = Store(tmp_path / "data", tmp_path / "state").prepare()
    record = publish_run(store, lines=lines).place.path

    def ours() -> None:
        assert verify_run(record, host_key=store.host_key.published()).exit_code == 0

    def floor() -> None:
        key, mac = KEY, b"0" * 64
        for line in lines:
            mac = hmac.digest(key, mac + line, "sha256").hex().encode()
            key = hashlib.sha256(b"ratchet" + key).digest()

    pairs = measure(ours, floor, pairs=5)
    best = len(lines) / min(pairs.subject)
    say(pairs.line(f"a record of {len(lines)} receipts verified", floor="HMAC and SHA-256 of the same lines alone"))
    say(f"  at best {best:.0f} receipts a second; the floor {len(lines) / min(pairs.floor):.0f}")
    assert pairs.ratio > 0
