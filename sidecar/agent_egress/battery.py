"""The battery of `agent-container prove`, and its core, which `up` runs: every attempt to get past the boundary, made
as the agent's uid from inside its network namespace, by our own programs alone. They are safe on anybody's machine:
what they aim at are documentation addresses, reserved names and this namespace itself."""

from __future__ import annotations

import argparse
import json
import sys

from agent_egress import attempts_inside, attempts_outward, attempts_proxy
from agent_egress.prober import ATTEMPTS, Facts, row, try_all

TABLES = (attempts_outward, attempts_proxy, attempts_inside)
"""They register their attempts when they are imported."""


def main(argv: list[str] | None = None) -> None:
    """Facts come on stdin; the findings go to stdout as one JSON object."""
    parser = argparse.ArgumentParser(prog="agent_egress.battery")
    parser.add_argument("--core", action="store_true", help="what is tried before credentials are handed over")
    options = parser.parse_args(argv)
    facts = Facts.parse(sys.stdin.readline() or "{}")
    chosen = [one for one in ATTEMPTS if one.core or not options.core]
    findings = [row(finding) for finding in try_all(chosen, facts)]
    sys.stdout.write(json.dumps({"version": 1, "findings": findings}) + "\n")


if __name__ == "__main__":
    main()
