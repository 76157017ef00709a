"""A command of the user's own as the agent: its exit status is the outcome, and its output is kept as it is."""

from __future__ import annotations

from agent_container.agents.profile import AgentProfile, Launch, PlainText, Work

TASK_PLACEHOLDER = "{task}"


def own_profile(
    *, command: tuple[str, ...], environment: tuple[tuple[str, str], ...], hosts: tuple[str, ...]
) -> AgentProfile:
    """The profile of one command. `{task}` in an argument becomes the task; without it the task comes on stdin."""

    def headless(work: Work) -> Launch:
        takes_argument = any(TASK_PLACEHOLDER in word for word in command)
        argv = tuple(word.replace(TASK_PLACEHOLDER, work.task) for word in command)
        return Launch(argv=argv, stdin=b"" if takes_argument else work.task.encode(), environment=environment)

    def interactive(_: Work) -> Launch:
        return Launch(argv=tuple(word for word in command if TASK_PLACEHOLDER not in word), environment=environment)

    return AgentProfile(
        name="own", headless=headless, interactive=interactive, parser=PlainText, hosts=hosts, has_result=False
    )
