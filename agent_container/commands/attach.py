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
from agent_container.errors import EngineError, NoProgram, NotRunning, UsageError
from agent_container.project import find_project
from agent_container.sandbox.runner import PROGRAM, RunnerClient
from agent_container.session import SessionState
from agent_container.stack_agent import WORKSPACE

PTY = "agent"
CANNOT_START = 9
LOOK = f"""
import os, shutil, sys
name = sys.argv[1]
path = shutil.which(name)
if path is None:
    if "/" not in name:
        why = "no program of that name is in its PATH"
    elif os.path.isdir(name):
        why = "it is a directory"
    else:
        why = "it is not executable" if os.path.exists(name) else "there is no such file"
    print(why)
    sys.exit({CANNOT_START})
try:
    with open(path, "rb") as stream:
        head = stream.readline(256)
except OSError:
    head = b""
interpreter = head[2:].split()[0] if head[:2] == b"#!" and head[2:].split() else b""
if interpreter and not os.path.exists(interpreter):
    print("its interpreter is missing:", os.fsdecode(interpreter))
    sys.exit({CANNOT_START})
"""
CHECK = ("/usr/bin/python3", "-I", "-X", "utf8", "-c", LOOK)


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
    _check_program(ctx, container, argv[0])
    return ctx.engine.interactive(container, argv, tty=tty)


def _check_program(ctx: Context, container: str, name: str) -> None:
    """Raises NoProgram for what the engine could only refuse in its own words, which name its parts and no cause.

    Looked for beforehand: the engine prints its refusal among the program's output, and its 126 and 127 are any
    shell's too. A check that fails says nothing, and the engine has the word.
    """
    if not name.isprintable():
        return  # a name that is not UTF-8 does not reach the engine as it is
    try:
        found = ctx.engine.exec(container, (*CHECK, name))
    except EngineError:
        return
    why = found.stdout.decode(errors="replace").strip()
    if found.exit_code == CANNOT_START and why:
        raise NoProgram(
            f"{name!r} cannot be started in the sandbox: {why}",
            hint="add its package to `image.packages` in agent-container.yaml, then agent-container redeploy",
        )


def _agent_of(state: SessionState) -> str:
    container = state.container("agent")
    if container is None:
        raise NotRunning("the agent's container is gone", hint="agent-container up")
    return container
