"""Attempts to get out, made for real: the core before a sandbox is given its credentials, the battery when its user
asks for a proof. Only our own programs run, from the sidecar's image: as the agent's uid, in the namespace that the
agent lives in, and for the battery in a twin of its container.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_interface
from typing import Any

from agent_container.engine.protocol import Engine, ExecResult, Once
from agent_container.errors import SidecarError
from agent_egress.attempts_outward import AIMED_AT, DISCARD
from agent_egress.policy import Policy, decide_name
from agent_egress.prober import Facts

PROBER = ("/usr/bin/python3", "-I", "-m", "agent_egress.battery")
CORE_TIMEOUT_S = 20.0
BATTERY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Tried:
    """One attempt, and whether the boundary held."""

    name: str
    group: str
    what: str
    tried: bool
    """Whether it was made: a user's own kill rule keeps some from being made."""
    held: bool
    detail: str
    seconds: float


def probe_core(engine: Engine, egress: str, *, user: str, policy: Policy) -> tuple[Tried, ...]:
    """The core, beside the sidecar's daemons. Raises SidecarError when one got through, or none could be made."""
    state = engine.inspect(egress)
    near = neighbours(state.raw) if state is not None else ()
    facts = Facts(neighbours=near, kills=killed(policy, (*AIMED_AT, *near)))
    line = json.dumps(asdict(facts)).encode() + b"\n"
    done = engine.exec(egress, (*PROBER, "--core"), stdin=line, user=user, timeout_s=CORE_TIMEOUT_S)
    tried = _parse(done)
    through = [one for one in tried if not one.held]
    if through:
        raise SidecarError(
            "the boundary does not hold, so no credential was handed over and no agent was started",
            part="posture",
            details=[f"{one.name}: {one.what}: {one.detail}" for one in through],
            hint="this is a hole, or a change to the rules: SECURITY.md says where to report it",
        )
    return tried


def killed(policy: Policy, hosts: Iterable[str]) -> tuple[str, ...]:
    """Those of the hosts whose contact ends the session, on whatever port."""
    return tuple(host for host in hosts if decide_name(policy, host, DISCARD).action == "kill")


def neighbours(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The last address of each of a container's networks: nobody's, unless the network is full."""
    networks = (raw.get("NetworkSettings") or {}).get("Networks") or {}
    found = []
    for row in networks.values():
        for address, prefix in (
            (row.get("IPAddress"), row.get("IPPrefixLen")),
            (row.get("GlobalIPv6Address"), row.get("GlobalIPv6PrefixLen")),
        ):
            if address and prefix:
                network = ip_interface(f"{address}/{prefix}").network
                found.append(str(network[-2]))
    return tuple(found)


def probe_twin(
    engine: Engine, agent: str, *, image: str, labels: Sequence[tuple[str, str]], facts: Facts
) -> tuple[Tried, ...]:
    """The whole battery, in a twin of the agent's container. Raises SidecarError when it could not be made."""
    job = Once(
        image=image,
        argv=PROBER,
        user="",
        labels=tuple(labels),
        stdin=json.dumps(asdict(facts)).encode() + b"\n",
        timeout_s=BATTERY_TIMEOUT_S,
    )
    return _parse(engine.run_twin(agent, job))


def _parse(done: ExecResult) -> tuple[Tried, ...]:
    try:
        rows = json.loads(done.stdout)["findings"]
        found = tuple(
            Tried(
                name=str(row["name"]),
                group=str(row["group"]),
                what=str(row["what"]),
                tried=row["tried"] is True,
                held=row["held"] is True,
                detail=str(row["detail"]),
                seconds=float(row["seconds"]),
            )
            for row in rows
        )
    except (ValueError, KeyError, TypeError):
        found = ()
    if not found or done.exit_code != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise SidecarError("no attempt could be made, so nothing is known", part="posture", details=words[-8:])
    return found
