"""One module per coding agent, listed in one dict."""

from __future__ import annotations

from agent_container.agents import claude, codex, demo, gemini, opencode, pi
from agent_container.agents.own import own_profile
from agent_container.agents.profile import AgentProfile, HomeFile, Launch, StreamParser, Work
from agent_container.errors import SpecError
from agent_container.spec import OwnAgent, ProjectSpec

__all__ = ["PROFILES", "AgentProfile", "HomeFile", "Launch", "StreamParser", "Work", "profile_of"]

PROFILES: dict[str, AgentProfile] = {
    profile.name: profile
    for profile in (claude.PROFILE, codex.PROFILE, gemini.PROFILE, opencode.PROFILE, pi.PROFILE, demo.PROFILE)
}


def profile_of(spec: ProjectSpec) -> AgentProfile:
    """The profile of the spec's agent. Raises SpecError for one that this version cannot run yet."""
    if isinstance(spec.agent, OwnAgent):
        return own_profile(
            command=spec.agent.command,
            environment=tuple(sorted(spec.agent.env.items())),
            hosts=tuple(rule.host for rule in spec.agent.hosts),
        )
    profile = PROFILES.get(spec.agent)
    if profile is None:
        raise SpecError(
            f"agent {spec.agent} is not supported by this version",
            details=(f"supported: {', '.join(PROFILES)}, and a command of your own",),
            hint="write `agent: {command: [...]}`, or `agent: demo` for a first look",
        )
    return profile
