"""How much of a model service a session may use: requests that carried one of the agent's credentials, and bytes to and
from their hosts. Pure; what is spent is told by the audit, which outlives whoever counts here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

USED_UP = "budget: "
"""How the health probe's words begin when the budget is used up."""
REQUESTS, BYTES = "limits.model_requests", "limits.model_bytes"


@dataclass(frozen=True)
class ModelLimits:
    """As session.json has them; a limit of 0 is none."""

    credentials: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    requests: int = 0
    bytes: int = 0

    @classmethod
    def parse(cls, value: object) -> ModelLimits:
        """From session.json's `model`. Raises: ValueError for anything that is no limit: it must not be none then."""
        if value is None:
            return cls()
        if not isinstance(value, Mapping) or set(value) != {"credentials", "hosts", "requests", "bytes"}:
            raise ValueError("model: expected credentials, hosts, requests and bytes")
        names = {key: value[key] for key in ("credentials", "hosts")}
        numbers = {key: value[key] for key in ("requests", "bytes")}
        for key, row in names.items():
            if not isinstance(row, list) or not all(isinstance(name, str) for name in row):
                raise ValueError(f"model.{key}: expected a list of texts")
        for key, number in numbers.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise ValueError(f"model.{key}: expected a number")
        return cls(
            frozenset(names["credentials"]), frozenset(names["hosts"]), int(numbers["requests"]), int(numbers["bytes"])
        )


class Spending:
    """What was used so far."""

    def __init__(self, limits: ModelLimits) -> None:
        self.limits = limits
        self.requests = 0
        self.bytes = 0

    def count(self, receipt: Mapping[str, object]) -> None:
        """Adds what one receipt says."""
        if receipt.get("kind") == "decision":
            if receipt.get("action") == "allow" and receipt.get("credential") in self.limits.credentials:
                self.requests += 1
        elif receipt.get("kind") == "transfer" and receipt.get("host") in self.limits.hosts:
            self.bytes += sum(n for key in ("up", "down") if isinstance(n := receipt.get(key), int) and n > 0)

    def moved(self, host: str, count: int) -> None:
        """Adds bytes before there is a receipt of them: a busy agent asks ten times in the second until then."""
        if host in self.limits.hosts:
            self.bytes += count

    def used_up(self) -> str:
        """Which limit is reached, in words; empty while there is something left."""
        limits = self.limits
        if limits.requests and self.requests >= limits.requests:
            return f"{REQUESTS}: all {limits.requests} requests are used"
        if limits.bytes and self.bytes >= limits.bytes:
            return f"{BYTES}: all {limits.bytes} bytes are used"
        return ""
