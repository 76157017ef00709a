"""Makes the base image from this machine's Debian archive, as `agent-container build` would, without a project."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from agent_container.engine.base import IMPORTABLE, import_base
from agent_container.engine.connection import connect
from agent_container.errors import AgentContainerError


def main(reference: str) -> int:
    """Exit status; the error in words on stderr."""
    with tempfile.TemporaryDirectory() as state:
        try:
            import_base(reference, suite=IMPORTABLE[reference], connection=connect(os.environ, state_dir=Path(state)))
        except AgentContainerError as error:
            print(error.message, *error.details, error.hint or "", sep="\n", file=sys.stderr)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
