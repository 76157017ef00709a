"""`build`: the images that a spec needs, and on request the end of those that no version needs any more."""

from __future__ import annotations

from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.commands.imaging import make_images
from agent_container.commands.resolve import approve, resolve
from agent_container.image_plan import AGENT_REPOSITORY, EGRESS_REPOSITORY
from agent_container.image_prune import KEPT_FOR, plan_prune
from agent_container.session import Phase


@dataclass(frozen=True)
class BuildResult:
    """Tags and ids of both images."""

    egress: str
    agent: str
    removed: tuple[str, ...] = ()
    """Images of former versions that were removed."""

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """For people."""
        return ("egress image", self.egress), ("agent image", self.agent)


def build_images(ctx: Context, *, accept: str | None, agent: str | None, prune: bool = False) -> BuildResult:
    """Builds what is missing, once the spec is approved; with `prune`, then removes what former versions left."""
    resolved = resolve(ctx, verb="run", agent=agent)
    approve(ctx, resolved, accept=accept)
    images = make_images(ctx, resolved)
    removed = _prune(ctx, {images.egress.tag, images.agent.tag}) if prune else ()
    return BuildResult(egress=images.egress.tag, agent=images.agent.tag, removed=removed)


def _prune(ctx: Context, built: set[str]) -> tuple[str, ...]:
    now = ctx.now()
    sessions = [
        state
        for state in ctx.store.sessions.list(closed=True)
        if state.phase is not Phase.CLOSED or now - state.created <= KEPT_FOR
    ]
    needed = built | ctx.engine.images_in_use() | {image for state in sessions for _, image in state.images}
    images = [row for repository in (AGENT_REPOSITORY, EGRESS_REPOSITORY) for row in ctx.engine.images_of(repository)]
    gone = [image for image in plan_prune(images, needed=needed, now=now) if ctx.engine.remove_image(image.tag)]
    mib = sum(image.bytes for image in gone) / 2**20
    size = f", {mib:.0f} MiB at most" if gone else ""  # layers that other images share stay
    ctx.report(f"Removed {len(gone)} of {len(images)} images of this tool's{size}")
    return tuple(image.tag for image in gone)
