"""How often a sandbox is looked after: closely while its chain grows, less often once nothing happens any more."""

from __future__ import annotations

QUIET_AFTER = 10
"""Beats without a new receipt after which nobody seems to work."""
STRIDE = 5
"""Of so many beats, and of so many watches, one looks closely in a quiet time."""


class Pulse:
    """Counts beats since the chain's head last changed."""

    def __init__(self) -> None:
        self._head: object = None
        self._still = 0
        self._watches = 0

    @property
    def quiet(self) -> bool:
        """Whether nobody seems to work."""
        return self._still >= QUIET_AFTER

    def beat(self, head: object) -> bool:
        """One more second with this head; whether to look closely now."""
        if head != self._head:
            self._head, self._still = head, 0
        else:
            self._still += 1
        return not self.quiet or self._still % STRIDE == 0

    def due(self) -> bool:
        """One more watch; whether to make it."""
        self._watches += 1
        return not self.quiet or self._watches % STRIDE == 0
