"""The end of a standing environment, apart from its judging: `status` does not pay for what only an end needs."""

from __future__ import annotations

from agent_container.commands.context import Context
from agent_container.commands.recovery import profile_named
from agent_container.records import Outcome
from agent_container.sandbox.closing import Closed, close_run
from agent_container.sandbox.recording import Closing
from agent_container.sandbox.turn import TurnEnd
from agent_container.session import Phase, SessionState


def close_standing(ctx: Context, state: SessionState, *, reason: str) -> Closed:
    """Seals, drains and removes a standing session; its receipts become a record like a run's."""
    end = TurnEnd(Outcome.INTERRUPTED, reason)
    if state.phase is Phase.CREATED:
        end = TurnEnd(Outcome.NEVER_STARTED, "its sandbox did not come up")
    closing = Closing(state=state, end=end, profile=profile_named(state.agent), ended=ctx.now())
    return close_run(ctx.engine, ctx.store, closing, report=ctx.report)
