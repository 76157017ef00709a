"""`build`: the images that a spec needs, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from agent_container.commands.context import Context
from agent_container.commands.imaging import make_images
from agent_container.commands.resolve import approve, resolve


@dataclass(frozen=True)
class BuildResult:
    """Tags and ids of both images."""

    egress: str
    agent: str

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """For people."""
        return ("egress image", self.egress), ("agent image", self.agent)


def build_images(ctx: Context, *, accept: str | None, agent: str | None) -> BuildResult:
    """Builds what is missing, once the spec is approved."""
    resolved = resolve(ctx, verb="run", agent=agent)
    approve(ctx, resolved, accept=accept)
    images = make_images(ctx, resolved)
    return BuildResult(egress=images.egress.tag, agent=images.agent.tag)
