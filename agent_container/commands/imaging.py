"""The two images of a resolved project: planned from what is on this machine, made when they are missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent_container.commands.context import Context
from agent_container.commands.resolve import Resolved
from agent_container.errors import EngineError, UsageError
from agent_container.image_plan import (
    DEFAULT_BASE,
    ImagePlan,
    SetupStep,
    plan_agent_image,
    plan_sidecar_image,
)
from agent_container.images import ensure_base, ensure_image, find_private_ca, read_image_files, read_sidecar_files
from agent_container.spec import OwnAgent, ProjectSpec


@dataclass(frozen=True)
class Images:
    """What both containers are made from."""

    egress: ImagePlan
    agent: ImagePlan


def plan_images(ctx: Context, resolved: Resolved) -> Images:
    """Both plans, from the bases that the engine has now; builds nothing and needs no engine."""
    spec = resolved.spec
    ca = _build_ca(ctx)
    own = spec.agent.packages if isinstance(spec.agent, OwnAgent) else ()
    return Images(
        egress=plan_sidecar_image(sidecar_files=read_sidecar_files(), base_id=_base_id(ctx, DEFAULT_BASE), ca=ca),
        agent=plan_agent_image(
            base=spec.image.base,
            packages=(*spec.image.packages, *own),
            setup=[SetupStep(run=step.run, root=step.root, network=step.network) for step in spec.image.setup],
            install=resolved.profile.install,
            uid=resolved.uid,
            gid=resolved.gid,
            image_files=read_image_files(),
            base_id=_base_id(ctx, spec.image.base),
            ca=ca,
        ),
    )


def make_images(ctx: Context, resolved: Resolved) -> Images:
    """Both images, pulled and built where they are missing. Only after the spec was approved: a build runs as root."""
    for reference in dict.fromkeys((DEFAULT_BASE, base_of(resolved.spec))):
        if ctx.engine.image_id(reference) is None:
            ensure_base(reference, connection=ctx.engine.connection, report=ctx.report)
    images = plan_images(ctx, resolved)
    for plan in (images.egress, images.agent):
        if ctx.engine.image_id(plan.tag) is None:
            ensure_image(plan, connection=ctx.engine.connection, report=ctx.progress)
            ctx.report(f"Built the {plan.name}")
    return images


def base_of(spec: ProjectSpec) -> str:
    """The image that the spec builds on."""
    return spec.image.base


def _base_id(ctx: Context, reference: str) -> str:
    try:
        return ctx.engine.image_id(reference) or ""
    except EngineError:
        return ""  # a plan can be read without an engine; its tag is then that of a base nobody has seen


def _build_ca(ctx: Context) -> bytes | None:
    """The host's certificates for the build steps that use the network, where the settings do not say otherwise."""
    setting = ctx.settings.build_ca
    if setting == "off":
        return None
    if setting == "auto":
        return find_private_ca(ctx.environ)
    try:
        return Path(setting).read_bytes()
    except OSError as error:
        raise UsageError(
            f"build_ca: {setting} cannot be read: {error.strerror}", hint="correct `build_ca` in the configuration file"
        ) from None
