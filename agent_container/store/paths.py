"""Where the store lives: the XDG directories of this user, and which names are allowed inside them.

The only module that knows platformdirs. It decides paths and makes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import StoreError

APP = "agent-container"
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,127}")
DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


@dataclass(frozen=True)
class Roots:
    """The three directories that belong to this tool; none need exist yet."""

    data: Path
    """What must never be lost: records, keys, policies."""
    state: Path
    """What this machine is doing: sessions, locks, approvals, verified heads."""
    config: Path
    """What the user wrote for all projects."""


def default_roots(environ: Mapping[str, str]) -> Roots:
    """The user's XDG directories. Raises StoreError for a relative variable, which the XDG specification forbids."""
    import platformdirs

    for variable in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        value = environ.get(variable, "")
        if value and not Path(value).is_absolute():
            raise StoreError(
                f"{variable} is {value!r}; it must be an absolute path",
                hint=f"unset {variable}",
            )
    return Roots(
        data=_xdg(environ, "XDG_DATA_HOME", Path(platformdirs.user_data_dir(APP))),
        state=_xdg(environ, "XDG_STATE_HOME", Path(platformdirs.user_state_dir(APP))),
        config=_xdg(environ, "XDG_CONFIG_HOME", Path(platformdirs.user_config_dir(APP))),
    )


def _xdg(environ: Mapping[str, str], variable: str, default: Path) -> Path:
    value = environ.get(variable, "")
    return Path(value) / APP if value else default


def safe_name(text: str, *, what: str) -> str:
    """`text`, when it can be one path component of the store. Raises StoreError otherwise."""
    if not SAFE_NAME.fullmatch(text):
        raise StoreError(f"{text!r} cannot be the name of a {what}", details=("letters, digits and . _ + @ - only",))
    return text


def digest_name(digest: str) -> str:
    """The file name of a digest: its 64 hex digits. Raises StoreError when it is no SHA-256 digest."""
    match = DIGEST.fullmatch(digest)
    if match is None:
        raise StoreError(f"{digest!r} is not a SHA-256 digest")
    return match.group(1)
