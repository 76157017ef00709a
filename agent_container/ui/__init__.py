"""What the user sees: the only printer, the `--json` envelope, and the views of runs. See `console.Ui`."""

from __future__ import annotations

from agent_container.ui.clean import clean, one_line
from agent_container.ui.console import Step, Ui, duration, size
from agent_container.ui.envelope import envelope, jsonable

__all__ = ["Step", "Ui", "clean", "duration", "envelope", "jsonable", "one_line", "size"]
