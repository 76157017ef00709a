"""What the host rendered for one session beside its policy: session.json, read once when the session opens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agent_egress.budget import ModelLimits
from agent_egress.daemons import PartError


@dataclass(frozen=True)
class Settings:
    """What session.json says."""

    session: str
    deadline_s: float
    credential_headers: tuple[str, ...]
    model: ModelLimits
    git: bool
    """Whether there is a git gateway."""

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Raises: PartError."""
        try:
            document = json.loads(path.read_bytes())
            return cls(
                session=str(document["session"]),
                deadline_s=float(document["deadline_s"]),
                credential_headers=tuple(map(str, document["credential_headers"])),
                model=ModelLimits.parse(document.get("model")),
                git=document.get("git") is True,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PartError("control", f"{path} cannot be used: {error!r}") from error
