"""`verify-egress`: the egress half of `runs verify`. Receipts, chain key and the host's checkpoint; nothing is run."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.commands.runs import project_here, standing_records
from agent_container.commands.verifying import is_directory, verify_named
from agent_container.verify import VerifyResult


def verify_egress(context: Context, run: str | None, *, key: Path | None = None) -> VerifyResult:
    """Checks every receipt of a run; `exit_code` is 0 verified, 5 tampered, 6 cannot be verified. With `key`, `run` is
    the directory of a record that may lie anywhere."""
    named = run if run or is_directory(run, key) else newest(context)
    return verify_named(context, named, key=key, egress_only=True)


def newest(context: Context) -> str | None:
    """The id of this project's newest record, be it a run's or a standing environment's."""
    here = project_here(context)
    places = [*context.store.runs.list(here)[:1], *islice(standing_records(context.store, here), 1)]
    return max((place.run_id for place in places), default=None)
