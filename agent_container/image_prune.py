"""Which images of former versions may go: only our own two repositories, only on request, and never what is in use.

Pure. The engine may be shared: what another user's projects were made from cannot be seen here, so an image counts as
needed for two weeks after it was made or tagged, whoever did it. What a removed one held is built again when asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from agent_container.image_plan import AGENT_REPOSITORY, EGRESS_REPOSITORY

KEPT_FOR = timedelta(days=14)
KEPT_NEWEST = 2


@dataclass(frozen=True)
class LocalImage:
    """One tag of the engine's."""

    tag: str
    id: str
    touched: datetime
    """When it was made or last tagged, whichever is later."""
    bytes: int = 0

    @property
    def repository(self) -> str:
        """The tag without what stands after its last colon."""
        return self.tag.rpartition(":")[0]


def plan_prune(images: Iterable[LocalImage], *, needed: Collection[str], now: datetime) -> tuple[LocalImage, ...]:
    """Those that may go, oldest first. `needed` are ids and tags that a container, a session or a record names."""
    gone: list[LocalImage] = []
    ours = [image for image in images if image.repository in (AGENT_REPOSITORY, EGRESS_REPOSITORY)]
    for repository in (AGENT_REPOSITORY, EGRESS_REPOSITORY):
        rows = sorted((i for i in ours if i.repository == repository), key=lambda i: i.touched, reverse=True)
        newest = {image.id for image in rows[:KEPT_NEWEST]}
        gone += [
            image
            for image in rows[KEPT_NEWEST:]
            if image.id not in newest and not {image.id, image.tag} & set(needed) and now - image.touched > KEPT_FOR
        ]
    return tuple(sorted(gone, key=lambda image: image.touched))
