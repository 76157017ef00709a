from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent_container.image_plan import AGENT_REPOSITORY, EGRESS_REPOSITORY
from agent_container.image_prune import LocalImage, plan_prune

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def image(name: str, days: float, repository: str = AGENT_REPOSITORY, id_: str = "") -> LocalImage:
    return LocalImage(f"{repository}:{name}", id_ or f"sha256:{name}", NOW - timedelta(days=days))


NEW = [image("new1", 1), image("new2", 2)]
CASES = [
    ("an old one that nobody needs goes", [*NEW, image("old", 30)], (), ["old"]),
    ("the oldest goes first", [*NEW, image("old", 30), image("older", 60)], (), ["older", "old"]),
    ("one of the last two weeks stays", [*NEW, image("recent", 13.9)], (), []),
    ("the two newest stay, however old", [image("a", 90), image("b", 80), image("c", 70)], (), ["a"]),
    ("one of a container stays", [*NEW, image("old", 30)], ("sha256:old",), []),
    ("one that is named by its tag stays", [*NEW, image("old", 30)], (f"{AGENT_REPOSITORY}:old",), []),
    ("an old tag of a new image stays", [*NEW, image("old", 30, id_="sha256:new1")], (), []),
    ("each repository has its own newest", [*NEW, image("e", 30, EGRESS_REPOSITORY)], (), []),
    ("a foreign one is never looked at", [*NEW, image("x", 90, "debian"), image("y", 90, "evil/agent-container/agent")],
     (), []),
    ("nothing at all", [], (), []),
]  # fmt: skip


@pytest.mark.parametrize(("images", "needed", "gone"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_goes(images: list[LocalImage], needed: tuple[str, ...], gone: list[str]) -> None:
    found = plan_prune(images, needed=needed, now=NOW)
    assert [row.tag.rpartition(":")[2] for row in found] == gone
