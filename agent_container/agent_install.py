"""How a coding agent gets into its image: the package, the version and the program, as a value.

Versions are pinned by the agents' own modules, one each; what the build does with it is for `image_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AgentInstall:
    """One agent's program. A version is always named: npm may pick an older one by itself."""

    kind: Literal["none", "native", "node"] = "none"
    """`none`: it is in the image already; `native`: the npm package brings programs that need no Node; `node`: it needs
    Node at run time."""
    package: str = ""
    version: str = ""
    program: str = ""
    """Its name in /usr/local/bin."""


NOTHING = AgentInstall()
