"""`verify-egress`: the egress half of `runs verify`. Receipts, chain key and the host's checkpoint; nothing is run."""

from __future__ import annotations

from agent_container.commands.context import Context
from agent_container.commands.runs import verify_record
from agent_container.verify import VerifyResult


def verify_egress(context: Context, run: str | None) -> VerifyResult:
    """Checks every receipt of a run; `exit_code` is 0 verified, 5 tampered, 6 cannot be verified."""
    return verify_record(context, run, egress_only=True)
