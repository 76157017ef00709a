"""The command line: parse, call one command, render, exit. Nothing else catches errors or exits.

Global options may stand before or after the verb; `globals_first` moves them to the front before typer parses. Imports
of commands stay inside the functions: `--help` must not pay for an engine client.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from agent_container.cli_call import CALL, KeyOption, RecordArgument, approved
from agent_container.cli_credential import credential_app
from agent_container.cli_egress import egress_app
from agent_container.cli_keeping import runs_stats  # noqa: F401 - its module adds verbs to `runs`
from agent_container.cli_records import host_key_app, runs_app
from agent_container.cli_ssh_key import ssh_key_app
from agent_container.errors import AgentContainerError, UsageError

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
INTERRUPTED = "interrupted; `agent-container ls` shows what goes on, the same command again repairs what was left"

FLAGS = ("--json", "-q", "--quiet", "--verbose", "--no-input")
VALUED = ("-C", "--directory", "-f", "--file", "--passphrase-file", "--passphrase-fd")
GROUPS = ("runs", "host-key", "credential", "egress", "ssh-key")
TAKES_FOREIGN_ARGV = ("exec", "shell")
"""Verbs whose arguments from the first word on belong to a program in the sandbox."""
MISSPELT = {
    "ps": "status",
    "stop": "down",
    "start": "up",
    "rm": "down",
    "kill": "runs stop",
    "init": "plan",
    "logs": "runs logs",
    "help": "--help",
    "stats": "runs stats",
    "runs list": "runs ls",
    "runs kill": "runs stop",
    "runs delete": "runs rm",
    "runs remove": "runs rm",
    "host-key ls": "host-key show",
    "credential add": "credential set",
    "credential list": "credential ls",
    "credential delete": "credential rm",
    "credential remove": "credential rm",
    "egress list": "egress ls",
    "egress remove": "egress rm",
    "egress block": "egress deny",
    "egress stop": "egress cut",
    "egress logs": "egress log",
}
"""Words of other tools, which look like none of ours."""

app = typer.Typer(
    name="agent-container",
    help="Run coding agents in a container whose only way out is an egress sidecar.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(runs_app, name="runs")
app.add_typer(host_key_app, name="host-key")
app.add_typer(credential_app, name="credential")
app.add_typer(egress_app, name="egress")
app.add_typer(ssh_key_app, name="ssh-key")


Accept = Annotated[
    str | None, typer.Option("--accept", metavar="DIGEST", help="Say yes to the spec whose digest begins so.")
]
BindMode = Annotated[bool, typer.Option("--bind", help="The agent works in this directory itself.")]
CloneMode = Annotated[bool, typer.Option("--clone", help="The agent works in a clone.")]
AgentOption = Annotated[str | None, typer.Option("--agent", help="The agent, where there is no spec.")]


@app.callback()
def _global(
    directory: Annotated[Path, typer.Option("-C", "--directory", help="Work as if started there.")] = Path(),
    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="SPEC", help="Another spec file.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON envelope on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="More of it.")] = False,
    no_input: Annotated[bool, typer.Option("--no-input", help="Never ask.")] = False,
    passphrase_file: Annotated[
        Path | None, typer.Option("--passphrase-file", metavar="FILE", help="The credential store's passphrase.")
    ] = None,
    passphrase_fd: Annotated[
        int | None, typer.Option("--passphrase-fd", metavar="N", help="The same, from an open file descriptor.")
    ] = None,
) -> None:
    CALL.passphrase_file, CALL.passphrase_fd = passphrase_file, passphrase_fd
    CALL.directory, CALL.spec = directory, file
    CALL.json, CALL.quiet, CALL.verbose, CALL.no_input = json_output, quiet, verbose, no_input


def _mode(bind: bool, clone: bool) -> str | None:
    if bind and clone:
        raise UsageError("--bind and --clone exclude each other")
    return "bind" if bind else "clone" if clone else None


@app.command()
def plan(agent: AgentOption = None, bind: BindMode = False, clone: CloneMode = False) -> None:
    """What `up` would change, and every egress rule with its origin."""
    from agent_container.commands.plan import plan_environment

    result = plan_environment(CALL.context, agent=agent, mode=_mode(bind, clone))

    def show() -> None:
        ui = CALL.ui
        ui.fields(result.fields)
        ui.heading("egress")
        if result.rules:
            ui.table(("", "host", "ports", "tls", "origin"), [row.cells for row in result.rules])
        else:
            ui.text("nothing is allowed: add hosts to `egress.allow` in agent-container.yaml")
        ui.heading("approval")
        for line in result.approval:
            ui.text(line)
        ui.heading("changes")
        for line in result.changes:
            ui.text(line)

    CALL.ui.result(result, command="plan", show=show)


@app.command()
def render(agent: AgentOption = None, bind: BindMode = False, clone: CloneMode = False) -> None:
    """Every file that `up` would write, as it would write it."""
    from agent_container.commands.plan import render_environment

    files = render_environment(CALL.context, agent=agent, mode=_mode(bind, clone))

    def show() -> None:
        for name, text in files:
            CALL.ui.text(f"# --- {name}")
            CALL.ui.block(text)

    CALL.ui.result(dict(files), command="render", show=show)


@app.command()
def prove(
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="A run, where nothing stands.")] = None,
) -> None:
    """Try to get out of a live sandbox, and sign what was seen."""
    from agent_container.commands.prove import prove as prove_it
    from agent_container.ui.views import show_proof

    proof = prove_it(CALL.context, run=run)
    CALL.ui.result(proof, command="prove", show=lambda: show_proof(CALL.ui, proof))
    if not proof.held:
        raise typer.Exit(1)


@app.command()
def build(
    accept: Accept = None,
    agent: AgentOption = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Then remove this tool's images that nothing has used or made for two weeks."),
    ] = False,
) -> None:
    """Build the images that the spec needs."""
    from agent_container.commands.build import build_images

    result = approved(
        lambda yes: build_images(CALL.context, accept=yes, agent=agent, prune=prune),
        accept=accept,
        again="agent-container build",
    )
    CALL.ui.result(result, command="build", show=lambda: CALL.ui.fields(result.fields))


@app.command()
def up(accept: Accept = None, agent: AgentOption = None, bind: BindMode = False, clone: CloneMode = False) -> None:
    """Bring the project's environment up, or heal it."""
    _up(accept=accept, agent=agent, mode=_mode(bind, clone), recreate=False)


@app.command()
def redeploy(
    accept: Accept = None, agent: AgentOption = None, bind: BindMode = False, clone: CloneMode = False
) -> None:
    """Bring it up anew from the newest spec and images; workspace, home and keys stay."""
    _up(accept=accept, agent=agent, mode=_mode(bind, clone), recreate=True)


def _up(*, accept: str | None, agent: str | None, mode: str | None, recreate: bool) -> None:
    from agent_container.commands.up import bring_up

    verb = "redeploy" if recreate else "up"
    result = approved(
        lambda yes: bring_up(CALL.context, accept=yes, agent=agent, mode=mode, recreate=recreate),
        accept=accept,
        again=f"agent-container {verb}",
    )

    def show() -> None:
        for change in result.changes:
            CALL.ui.text(change)
        CALL.ui.text(result.summary)

    CALL.ui.result(result, command=verb, show=show)


@app.command()
def down(
    volumes: Annotated[bool, typer.Option("-v", "--volumes", help="Home, memory and workspace volumes too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even where work would be lost.")] = False,
    project: Annotated[str | None, typer.Option("--project", help="Another one, by name or id.")] = None,
    all_projects: Annotated[bool, typer.Option("--all", help="Every environment of this user.")] = False,
    orphans: Annotated[bool, typer.Option("--orphans", help="Runs that nobody drives any more, too.")] = False,
) -> None:
    """Take the environment down: seal, drain, stop, remove. Records stay, and volumes unless asked for."""
    from agent_container.commands.down import take_down

    result = take_down(
        CALL.context, volumes=volumes, force=force, project=project, all_projects=all_projects, orphans=orphans
    )

    def show() -> None:
        for line in result.lines:
            CALL.ui.text(line)

    CALL.ui.result(result, command="down", show=show)


@app.command()
def status() -> None:
    """How the project's environment is; changes nothing."""
    from agent_container.commands.status import read_status

    result = read_status(CALL.context)

    def show() -> None:
        CALL.ui.fields(result.fields)
        if result.hosts:
            CALL.ui.table(("host", "seen"), result.hosts)
        for line in result.amiss:
            CALL.ui.warn(line)

    CALL.ui.result(result, command="status", show=show)


@app.command("ls")
def ls() -> None:
    """All environments and unfinished runs of this user."""
    from agent_container.commands.status import list_sessions

    rows = list_sessions(CALL.context)

    def show() -> None:
        if not rows:
            CALL.ui.info('nothing is up and no run is going on: agent-container up, or run "what to do"')
            return
        CALL.ui.table(("project", "kind", "agent", "state", "session", "directory"), [row.cells for row in rows])

    CALL.ui.result(rows, command="ls", show=show)


@app.command()
def attach(accept: Accept = None, agent: AgentOption = None, bind: BindMode = False, clone: CloneMode = False) -> None:
    """The agent's own interface, rejoined or started; starts what is missing. Leave with ctrl-p ctrl-q."""
    from agent_container.commands.attach import attach_agent

    code = approved(
        lambda yes: attach_agent(CALL.context, accept=yes, agent=agent, mode=_mode(bind, clone)),
        accept=accept,
        again="agent-container attach",
    )
    raise typer.Exit(code)


@app.command()
def shell() -> None:
    """A shell in the sandbox, as the agent."""
    from agent_container.commands.attach import exec_inside

    raise typer.Exit(exec_inside(CALL.context, ("/bin/bash", "-l"), tty=sys.stdin.isatty()))


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def exec_(command: Annotated[list[str], typer.Argument(metavar="COMMAND...")]) -> None:
    """Run a program in the sandbox, as the agent; its exit status is the command's."""
    from agent_container.commands.attach import exec_inside

    raise typer.Exit(exec_inside(CALL.context, tuple(command), tty=sys.stdin.isatty() and sys.stdout.isatty()))


@app.command()
def run(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="What to do; `-` reads it from stdin.")] = None,
    file: Annotated[Path | None, typer.Option("-F", "--task-file", help="Read the task from a file.")] = None,
    accept: Accept = None,
    agent: AgentOption = None,
    model: Annotated[str | None, typer.Option("--model", help="Another model than the spec's.")] = None,
    bind: BindMode = False,
    clone: CloneMode = False,
    committed: Annotated[bool, typer.Option("--committed", help="Leave uncommitted work out of the clone.")] = False,
    resume: Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Go on from a run's session.")] = None,
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Return once it runs; `runs attach` rejoins.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Kept in the record, to find it by.")
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", hidden=True)] = None,
) -> None:
    """Run one task in a sandbox of its own, and keep the record."""
    from agent_container.commands.run import RunRequest, read_task, run_detached, run_task
    from agent_container.commands.run_filters import parse_labels

    ui = CALL.ui
    words = read_task(task, file, stdin=sys.stdin.buffer, verbs=[c.name or "" for c in runs_app.registered_commands])
    request = RunRequest(
        task=words,
        agent=agent,
        model=model,
        mode=_mode(bind, clone),
        resume=resume,
        committed=committed,
        labels=parse_labels(label or ()),
        run_id=run_id,
    )
    if detach:
        started = approved(
            lambda yes: run_detached(CALL.context, replace(request, accept=yes)),
            accept=accept,
            again="agent-container run",
        )
        ui.result(started, command="run", show=lambda: ui.text(started.run))
        ui.info(f"it goes on by itself: agent-container runs attach {started.run}")
        return
    from agent_container.ui.views import show_live, show_summary

    ui.outlive_readers()
    result = approved(
        lambda yes: run_task(
            CALL.context,
            replace(request, accept=yes),
            on_event=lambda event: ui.stream(event, command="run", show=lambda: show_live(ui, event)),
        ),
        accept=accept,
        again="agent-container run",
    )
    ui.result(result.record, command="run", show=lambda: show_summary(ui, result.record))
    if result.next_command is not None:
        ui.info(f"next: {result.next_command}")
    raise typer.Exit(result.record.exit_status)


@app.command("verify-egress")
def verify_egress(run: RecordArgument = None, key: KeyOption = None) -> None:
    """Check every receipt of a run or session: links, seal, head, and each decision under its policy."""
    from agent_container.commands.verify_egress import verify_egress as verify

    result = verify(CALL.context, run, key=key)
    CALL.ui.result(result, command="verify-egress", show=lambda: _show_verification(result))
    raise typer.Exit(result.exit_code)


def _show_verification(result: Any) -> None:
    from agent_container.ui.views import show_verification

    show_verification(CALL.ui, result)


@app.command()
def schema() -> None:
    """The spec's format as JSON Schema, for editors."""
    import json

    from agent_container.spec import json_schema

    document = json_schema()
    CALL.ui.result(document, command="schema", show=lambda: CALL.ui.block(json.dumps(document, indent=2)))


@app.command()
def version() -> None:
    """The tool's version."""
    from agent_container import __version__

    CALL.ui.result({"version": __version__}, command="version", show=lambda: CALL.ui.text(__version__))


def globals_first(argv: Sequence[str]) -> list[str]:
    """Moves global options to the front, so that they may stand after the verb too. What follows `--` stays."""
    front: list[str] = []
    rest: list[str] = []
    words = list(argv)
    verb: str | None = None
    while words:
        word = words.pop(0)
        if word == "--" or (verb in TAKES_FOREIGN_ARGV and not word.startswith("-")):
            rest += [word, *words]
            break
        if word in FLAGS:
            front.append(word)
        elif word in VALUED and words:
            front += [word, words.pop(0)]
        elif word.startswith(("--directory=", "--file=", "--passphrase-file=", "--passphrase-fd=")):
            front.append(word)
        else:
            verb = verb or (None if word.startswith("-") else word)
            rest.append(word)
    return front + rest


def verb_of(words: Sequence[str]) -> str:
    """The verb in words that `globals_first` has ordered; empty when there is none."""
    rest = iter(words)
    for word in rest:
        if word in VALUED:
            next(rest, None)
        elif not word.startswith("-"):
            second = next(rest, "") if word in GROUPS else ""
            return f"{word} {second}".strip() if not second.startswith("-") else word
    return ""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The program. Exit statuses: docs/reference.md."""
    if argv is None:
        _speak_utf8()
        # Imports make objects by the ten thousand and none of them is garbage: looking for it every 700 is a tenth of
        # a short command's time.
        gc.set_threshold(20_000)
    words = globals_first(sys.argv[1:] if argv is None else argv)
    verb = verb_of(words)
    try:
        status = app(args=words, standalone_mode=False, prog_name="agent-container")
        code = status if isinstance(status, int) else 0
    except AgentContainerError as error:
        CALL.ui.error(error, command=verb)
        code = error.exit_code
    except (KeyboardInterrupt, EOFError):
        CALL.ui.info(INTERRUPTED)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit flush does not fail too
        code = 1
    except typer.Exit as exited:
        code = exited.exit_code
    except Exception as error:
        code = _other(error, verb)
    sys.stdout.flush()
    raise SystemExit(code)


def _speak_utf8() -> None:
    """Starts again in Python's UTF-8 mode where the locale says something else (`LC_ALL=C`, as cron has it).

    Paths would be held as surrogates there, which neither JSON nor the engine takes.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-P", "-X", "utf8", "-m", "agent_container.cli", *sys.argv[1:]])  # noqa: S606


def _hint(error: Exception, verb: str) -> str:
    """The command that was meant, where one looks like it; else the help of the one that was typed."""
    context = getattr(error, "ctx", None)
    typed = getattr(context, "command_path", None) or "agent-container"
    command: Any = getattr(context, "command", None)
    verbs = command.list_commands(context) if hasattr(command, "list_commands") else ()
    word = verb.removeprefix(typed.partition(" ")[2]).strip()
    if word and verbs and word not in verbs:
        near = get_close_matches(word, verbs, n=1)
        if verb in MISSPELT or near:
            return f"agent-container {MISSPELT[verb]}" if verb in MISSPELT else f"{typed} {near[0]}"
    return f"{typed} --help"


def _other(error: Exception, verb: str) -> int:
    """Click's usage errors in our form; all else is a bug and said so, its traceback only on demand."""
    format_message = getattr(error, "format_message", None)
    if callable(format_message):
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(format_message())
            return 0
        words, hint = str(format_message()), _hint(error, verb)
        if verb.startswith("credential") and "extra argument" in words:
            # What was typed is most likely the secret: it is in the shell's history already, and goes nowhere else.
            words = "one word too many; a secret is never an argument: it is asked for, or read with --stdin"
        elif verb == "run" and "extra argument" in words:
            hint = 'agent-container run "the whole task in quotes"'
        CALL.ui.error(UsageError(words, hint=hint), command=verb)
        return UsageError.exit_code
    if type(error).__name__ == "Abort":
        CALL.ui.info(INTERRUPTED)
        return EXIT_INTERRUPTED
    if os.environ.get("AGENT_CONTAINER_DEBUG"):
        raise error
    CALL.ui.error(
        AgentContainerError(
            f"a bug in agent-container: {type(error).__name__}: {error}",
            hint="set AGENT_CONTAINER_DEBUG=1, run it again, and report what it prints",
        ),
        command=verb,
    )
    return EXIT_BUG


if __name__ == "__main__":
    main()
