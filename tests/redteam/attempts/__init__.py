"""Attempts to get out, by name: each a small function that runs inside the agent's namespace and says whether it got
through. The standard library only: the package is carried there as a zip.

The world behind the sidecar answers on every address, so a refusal here is the boundary's and not an empty network's.
`ok.test` is allowed and spliced, `api.test` and `other.test` hold a credential each, `metered.test` has a small budget,
`seen.test` is inspected, `trap.test` killed, `lan.test` resolves into a private range that no rule opens, the resolver
is slow with `slow-1.test`, `evil.test` is allowed by nothing. What leaves unseen from here is judged on the world's
side.
"""

from __future__ import annotations

from . import (
    bodies,
    budget,
    controls,
    credential,
    ending,
    framing,
    hunting,
    ipv6,
    names,
    proxy,
    shared,
    standing,
    straight,
)
from .tools import (
    ATTEMPTS,
    DECOY,
    METADATA,
    METERED_BYTES,
    METERED_DECOY,
    METERED_REQUESTS,
    OK4,
    OK6,
    PRIVATE,
    SECRETS,
)

__all__ = ["ATTEMPTS", "DECOY", "METADATA", "METERED_BYTES", "METERED_DECOY", "METERED_REQUESTS"]
__all__ += ["OK4", "OK6", "PRIVATE", "SECRETS"]
__all__ += [
    module.__name__.rpartition(".")[2]
    for module in (
        bodies,
        budget,
        controls,
        credential,
        ending,
        framing,
        hunting,
        ipv6,
        names,
        proxy,
        shared,
        standing,
        straight,
    )
]
