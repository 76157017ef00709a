"""The attempts seen from both sides: what they report, and what arrived in the world that nothing allowed. Shared by
the sidecar's tests and the mutants."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_egress.budget import ModelLimits
from agent_egress.policy import Binding, Policy, Rule
from tests.redteam.attempts import (
    DECOY,
    METADATA,
    METERED_BYTES,
    METERED_DECOY,
    METERED_REQUESTS,
    OK4,
    OK6,
    PRIVATE,
    SECRETS,
)
from tests.support.net import RESOLVER, RESOLVER6, Agent, Log

ATTEMPTS_DIR = Path(__file__).with_name("attempts")
API4, OTHER4, BAD4, METERED4 = "198.51.100.8", "198.51.100.10", "198.51.100.11", "198.51.100.12"
SEEN4, TRAP4 = "198.51.100.13", "198.51.100.14"
INTRANET = "10.99.0.9"
ZONE: dict[str, dict[str, list[str]]] = {
    "ok.test": {"A": [OK4], "AAAA": [OK6], "TXT": ["secret text"]},
    "api.test": {"A": [API4]},
    "other.test": {"A": [OTHER4]},
    "badcert.test": {"A": [BAD4]},
    "metered.test": {"A": [METERED4]},
    "seen.test": {"A": [SEEN4]},
    "trap.test": {"A": [TRAP4]},
    "evil.test": {"A": ["198.51.100.66"]},
    "*.evil.test": {"A": ["198.51.100.66"]},
    "*.ok.test": {"A": ["198.51.100.66"]},
    "lan.test": {"A": [PRIVATE]},
    "metadata.test": {"A": [METADATA]},
    "flip.test": {"flip": [OK4, PRIVATE, METADATA]},
    "intranet.test": {"A": [INTRANET]},
    "slow-1.test": {"A": [OK4], "slow": ["2"]},
}
NAMES = ("ok.test", "api.test", "other.test", "metered.test", "seen.test", "trap.test", "evil.test")


def _binding(name: str, host: str) -> Binding:
    return Binding(
        name=name,
        host=host,
        port=443,
        methods=("GET", "POST"),
        paths=("/v1/messages", "/v1/items/*"),
        header="Authorization",
        format="Bearer {}",
    )


POLICY = Policy(
    rules=(
        Rule("allow", "ok.test", origin="spec egress.allow[0]"),
        Rule("allow", "lan.test", ports=(8080,), origin="spec egress.allow[1]"),
        Rule("allow", "metadata.test", ports=(80,), origin="spec egress.allow[2]"),
        Rule("allow", "flip.test", ports=(8080,), origin="spec egress.allow[3]"),
        Rule("allow", "intranet.test", ports=(8080,), addresses=("10.99.0.0/16",), origin="spec egress.allow[4]"),
        Rule("allow", "api.test", origin="credential api"),
        Rule("allow", "other.test", origin="credential other"),
        Rule("allow", "badcert.test", origin="credential bad"),
        Rule("allow", "metered.test", origin="credential metered"),
        Rule("allow", "slow-1.test", ports=(8080,), origin="spec egress.allow[5]"),
        Rule("inspect", "seen.test", origin="spec egress.inspect[0]"),
        Rule("kill", "trap.test", origin="spec egress.kill[0]"),
    ),
    credentials=(
        _binding("api", "api.test"),
        _binding("other", "other.test"),
        _binding("bad", "badcert.test"),
        _binding("metered", "metered.test"),
    ),
)
MODEL = ModelLimits(
    credentials=frozenset({"metered"}),
    hosts=frozenset({"metered.test"}),
    requests=METERED_REQUESTS,
    bytes=METERED_BYTES,
)
CREDENTIALS = [
    {"name": "api", "decoy": DECOY, "secret": SECRETS[0]},
    {"name": "other", "decoy": "decoy-of-other-0123456789", "secret": SECRETS[1]},
    {"name": "metered", "decoy": METERED_DECOY, "secret": SECRETS[2]},
]
ALLOWED_DESTINATIONS = {
    (RESOLVER, "udp", 53), (RESOLVER, "tcp", 53), (RESOLVER6, "udp", 53),
    (OK4, "tcp", 80), (OK4, "tcp", 443), (OK6, "tcp", 80), (OK6, "tcp", 443), (OK4, "tcp", 8080),
    (API4, "tcp", 443), (OTHER4, "tcp", 443), (BAD4, "tcp", 443), (METERED4, "tcp", 443), (SEEN4, "tcp", 443),
    (INTRANET, "tcp", 8080),
}  # fmt: skip
ALLOWED_NAMES = {rule.pattern for rule in POLICY.rules if rule.allows} | {""}


def with_attempts(code: str) -> str:
    """Code that may import the attempts' package, wherever it runs: the package travels inside it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(ATTEMPTS_DIR.glob("*.py")):
            archive.write(path, f"attempts/{path.name}")
    text = base64.b64encode(packed.getvalue()).decode()
    return f"""import base64, os, sys, tempfile
name = os.path.join(tempfile.mkdtemp(), "attempts.zip")
open(name, "wb").write(base64.b64decode({text!r}))
sys.path.insert(0, name)
{code}
"""


def run_attempts(agent: Agent, names: Sequence[str] = ()) -> dict[str, dict[str, object]]:
    """Each attempt's own report."""
    code = with_attempts(f"from attempts.run import main\nmain({list(names)!r})")
    found: dict[str, dict[str, object]] = json.loads(agent.run(code))
    return found


def seen_outside(log: Log) -> dict[str, str]:
    """What the world saw that no rule allows, by kind; nothing when the boundary holds."""
    found: dict[str, str] = {}
    stray = [p for p in log.packets if p not in ALLOWED_DESTINATIONS and not p[0].startswith("ff02:")]
    if stray:
        found["outside_packet"] = str(stray[:5])
    names = sorted(name for name in log.asked() if name not in ALLOWED_NAMES)
    if names:
        found["outside_query"] = str(names[:5])
    types = sorted({query["type"] for query in log.queries if query["name"] and query["type"] not in (1, 28)})
    if types:
        found["outside_query_type"] = str(types)
    for request in log.requests:
        problem = _stray_secret(request)
        if problem:
            found["outside_secret"] = problem
    if log.having("smuggled"):
        found["outside_smuggled"] = str(log.having("smuggled")[0])[:300]
    if log.having(DECOY):
        found["outside_decoy"] = str(log.having(DECOY)[0])[:300]
    return found


def _stray_secret(request: Mapping[str, object]) -> str:
    """A real secret anywhere but in TLS to its own host, on a bound path."""
    text = json.dumps(request)
    places = (("api.test", API4), ("other.test", OTHER4), ("metered.test", METERED4))
    for secret, (host, address) in zip(SECRETS, places, strict=True):
        if secret not in text:
            continue
        path = str(request["path"])
        bound = path == "/v1/messages" or (path.startswith("/v1/items/") and path.count("/") == 3)
        right = request["tls"] and request["host"] == host and request["address"] == address and bound
        if not right or request["sni"] != host or request["method"] not in ("GET", "POST"):
            return text[:300]
    return ""
