"""`attach`, `shell` and `exec`: the user's own terminal inside the sandbox, always as the agent."""

from __future__ import annotations

import shlex
import shutil
import sys

from agent_container.agents import Work, profile_of
from agent_container.commands.context import Context
from agent_container.commands.resolve import read_project_spec
from agent_container.commands.standing import examine, must_stand, standing
from agent_container.commands.up import bring_up
from agent_container.errors import NotRunning, UsageError
from agent_container.project import find_project
from agent_container.sandbox.runner import PROGRAM, RunnerClient
from agent_container.session import SessionState
from agent_container.stack_agent import WORKSPACE

PTY = "agent"


def attach_agent(ctx: Context, *, accept: str | None, agent: str | None, mode: str | None) -> int:
    """Opens or rejoins the agent's interface on a pty that the runner keeps; starts what is missing."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("attach needs a terminal", hint='for scripts: agent-container run "what to do"')
    project = find_project(ctx.directory, ctx.spec_path)
    state = standing(ctx, project.id)
    if state is None or examine(ctx, state, ask=False).word != "running":
        bring_up(ctx, accept=accept, agent=agent, mode=mode, recreate=False)
    state = must_stand(ctx, project.id)
    container = _agent_of(state)
    spec = read_project_spec(project, agent=agent or (state.agent if project.spec_path is None else None))
    launch = profile_of(spec).interactive(Work(model=spec.model))
    size = shutil.get_terminal_size()
    with RunnerClient.connect(ctx.engine, container) as runner:
        runner.start_pty(
            name=PTY,
            argv=launch.argv,
            environment=dict(launch.environment),
            cwd=WORKSPACE,
            rows=size.lines,
            cols=size.columns,
        )
    ctx.report(f"Joined {shlex.join(launch.argv)[:80]}; ctrl-p ctrl-q leaves it running")
    return ctx.engine.interactive(container, (*PROGRAM, "attach", PTY), tty=True)


def exec_inside(ctx: Context, argv: tuple[str, ...], *, tty: bool) -> int:
    """Runs a program in the standing sandbox, in the workspace; its exit status."""
    project = find_project(ctx.directory, ctx.spec_path)
    if standing(ctx, project.id) is None:
        raise NotRunning("this project's environment is not up", hint="agent-container up")
    container = _agent_of(must_stand(ctx, project.id))
    return ctx.engine.interactive(container, argv, tty=tty)


def _agent_of(state: SessionState) -> str:
    container = state.container("agent")
    if container is None:
        raise NotRunning("the agent's container is gone", hint="agent-container up")
    return container
