"""How often a sandbox is looked after: never less than closely while anything happens."""

from __future__ import annotations

from agent_egress.pulse import QUIET_AFTER, STRIDE, Pulse


def test_every_beat_counts_while_the_chain_grows() -> None:
    pulse = Pulse()
    assert all(pulse.beat(head) and pulse.due() for head in range(100))


def test_a_quiet_time_is_looked_at_now_and_then_and_ends_with_the_next_receipt() -> None:
    pulse = Pulse()
    assert all(pulse.beat("a") for _ in range(QUIET_AFTER))
    assert not pulse.quiet
    beats = [pulse.beat("a") for _ in range(10 * STRIDE)]
    assert pulse.quiet and sum(beats) == 10, "still looked at, every so often"
    assert sum(pulse.due() for _ in range(10 * STRIDE)) == 10
    assert pulse.beat("b") and not pulse.quiet
    assert all(pulse.beat("b") and pulse.due() for _ in range(QUIET_AFTER - 1))
