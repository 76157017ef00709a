"""Where the files that are not Python lie: templates, the agent image and the sidecar image's build context.

A wheel carries them as package data under `agent_container/_data`; a checkout has them at its root. Callers ask for
`data_dir() / "templates"`, `/ "image"` or `/ "sidecar"` and need not know which of the two they run from.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir() -> Path:
    """The directory that holds `templates/`, `image/` and `sidecar/`."""
    packaged = _PACKAGE / "_data"
    return packaged if packaged.is_dir() else _PACKAGE.parent
