"""The last step of opening: requests that walk the whole way, so that a session begins only where what is allowed
passes and what is refused does not."""

from __future__ import annotations

import asyncio

from agent_egress import probes
from agent_egress.daemons import Fleet, PartError, probe

CANARY_S = 5.0
RESOLVER_S = 1.0
_FATAL = {
    "allowed request": ("squid", probes.allowed_canary),
    "refused request": ("squid", probes.refused_canary),
    "refused name": ("dns", probes.dns_refuses),
}


async def walk(fleet: Fleet, *, ruleset_digest: str) -> list[dict[str, object]]:
    """Proves both directions: rows of name, ok and detail. The last, the way to the resolvers, is reported and may be
    missing (an offline host). Raises: PartError."""
    *problems, offline = await asyncio.gather(
        *(probe(ask, timeout_s=CANARY_S) for _, ask in _FATAL.values()),
        probe(probes.resolver_answers, timeout_s=RESOLVER_S),
    )
    checks: list[dict[str, object]] = [{"name": "ruleset", "ok": True, "detail": ruleset_digest}]
    for (name, (part, _)), problem in zip(_FATAL.items(), problems, strict=True):
        if problem:
            raise PartError(part, f"canary, {name}: {problem}", "\n".join(fleet.children[part].tail))
        checks.append({"name": name, "ok": True, "detail": ""})
    detail = f"the allowed path beyond the sidecar cannot be verified: {offline}" if offline else ""
    return [*checks, {"name": "resolvers", "ok": not offline, "detail": detail}]
