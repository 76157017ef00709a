"""What every recipe is given: the store, the engine, the host's settings, the clock, randomness, and a way to report.

Effects are made on first use, so that `--help`, `plan` and `status` of nothing pay for none of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from agent_container.errors import UsageError
from agent_container.store import Passphrases, Store, default_roots, open_store

if TYPE_CHECKING:
    from agent_container.engine.docker import DockerEngine
    from agent_container.settings import Settings

SETTINGS_VARIABLE = "AGENT_CONTAINER_CONFIG"


def _now() -> datetime:
    return datetime.now(UTC)


def _ignore(text: str) -> None:
    del text


@dataclass
class Context:
    """One call of the tool."""

    directory: Path
    """Where the user stands, or `-C`."""
    spec_path: Path | None = None
    """`--file`."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    report: Callable[[str], None] = _ignore
    """One line a finished step, in the past tense."""
    progress: Callable[[str], None] = _ignore
    """What a long step is doing just now."""
    now: Callable[[], datetime] = _now
    entropy: Callable[[int], bytes] = os.urandom
    passphrase_fd: int | None = None
    """`--passphrase-fd`."""
    passphrase_file: Path | None = None
    """`--passphrase-file`."""
    ask: Callable[[str], str] | None = None
    """Asks the user for a line that is not shown; None where nobody can answer."""

    @cached_property
    def store(self) -> Store:
        """The user's store; its directories are made."""
        passphrases = Passphrases(self.environ, fd=self.passphrase_fd, file=self.passphrase_file, ask=self.ask)
        return open_store(self.environ, passphrases=passphrases)

    @cached_property
    def engine(self) -> DockerEngine:
        """The Docker engine behind a checked socket."""
        from agent_container.engine.connection import connect
        from agent_container.engine.docker import DockerEngine

        return DockerEngine(connect(self.environ, state_dir=self.store.state))

    @cached_property
    def settings(self) -> Settings:
        """The host's settings."""
        from agent_container.settings import load_settings

        named = self.environ.get(SETTINGS_VARIABLE)
        if named and not Path(named).is_file():
            raise UsageError(f"{SETTINGS_VARIABLE} names {named}, which is no file", hint=f"unset {SETTINGS_VARIABLE}")
        return load_settings(Path(named) if named else default_roots(self.environ).config / "config.yaml")
