"""`run`: one task in a session of its own, from the task's words to the published record.

The order is the safety: approval before images, the session in the store before anything in Docker, the record on disk
before anything is removed. Whatever ends this process in between, `recovery` finishes from the session's state.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from agent_container.agents import Work
from agent_container.commands.context import Context
from agent_container.commands.imaging import make_images
from agent_container.commands.recovery import reap_orphans, still_works
from agent_container.commands.resolve import Resolved, approve, resolve
from agent_container.commands.resuming import find_resumed
from agent_container.commands.starting import NeverStarted, Start, close_failed, start_session
from agent_container.errors import AgentContainerError, EngineError, UsageError
from agent_container.events import Event
from agent_container.ids import ID_PATTERN, new_id
from agent_container.records import Outcome, RunRecord
from agent_container.sandbox.closing import BUNDLE, close_run
from agent_container.sandbox.noting import note_stand
from agent_container.sandbox.recording import Closing
from agent_container.sandbox.runner import RunnerClient, TurnRequest
from agent_container.sandbox.turn import TurnEnd, TurnLimits, TurnWatch, follow_turn
from agent_container.session import Phase
from agent_container.stack_agent import WORKSPACE

MAX_TASK_BYTES = 1024 * 1024
DETACH_WAIT_S = 120.0


@dataclass(frozen=True)
class RunRequest:
    """What is to be run, as the command line says it."""

    task: str
    accept: str | None = None
    agent: str | None = None
    model: str | None = None
    mode: str | None = None
    resume: str | None = None
    """The run that this one goes on from."""
    committed: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    run_id: str | None = None


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    record: RunRecord
    directory: Path
    next_command: str | None


@dataclass(frozen=True)
class Detached:
    """A run that goes on without this process."""

    run: str
    pid: int


def read_task(task: str | None, file: Path | None, *, stdin: BinaryIO, verbs: Sequence[str]) -> str:
    """The task's words, from an argument, a file or stdin. Raises UsageError for none, two, or what is no text."""
    if (task is None) == (file is None):
        raise UsageError(
            "give one task: as an argument, with -F FILE, or `-` for stdin", hint='agent-container run "what to do"'
        )
    if file is not None:
        try:
            raw, origin = file.read_bytes(), str(file)
        except OSError as error:
            raise UsageError(f"the task file {file} cannot be read: {error.strerror}") from None
    elif task == "-":
        raw, origin = stdin.read(MAX_TASK_BYTES + 1), "stdin"
    else:
        raw, origin = os.fsencode(task or ""), "the task"
        if task in verbs and "--" not in sys.argv:
            raise UsageError(
                f"`run {task}` would hand the word {task!r} to the agent",
                hint=f"agent-container runs {task}   (or, if it is the task: agent-container run -- {task})",
            )
    if len(raw) > MAX_TASK_BYTES:
        raise UsageError(f"{origin} holds more than {MAX_TASK_BYTES} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{origin} is not UTF-8: byte {error.start + 1} is {raw[error.start]:#04x}") from None
    if "\0" in text:
        raise UsageError(f"{origin} holds a NUL character, which no program can be given")
    if not text.strip():
        raise UsageError(f"{origin} is empty", hint='agent-container run "what to do"')
    return text


def run_task(ctx: Context, request: RunRequest, *, on_event: Callable[[Event], None]) -> RunResult:
    """Runs the task to its end and publishes its record. Raises before anything is made, or after all is closed."""
    resolved = _resolved(ctx, request)
    resumed = find_resumed(ctx, resolved, request.resume) if request.resume is not None else None
    approve(ctx, resolved, accept=request.accept)
    images = make_images(ctx, resolved)
    reap_orphans(ctx, resolved.project.id)
    session = _run_id(ctx, request.run_id)
    with ctx.store.sessions.lock(session, doing="run"), _signals() as stop:
        started_monotonic = time.monotonic()
        start = Start(
            resolved=resolved,
            images=images,
            session=session,
            kind="run",
            task=request.task,
            model=request.model,
            resumed=resumed,
            committed=request.committed,
            labels=request.labels,
        )
        try:
            with stop.raising():
                opened = start_session(ctx, start)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt) or stop.reason is not None
            close_failed(ctx, resolved, session, error=error, interrupted=interrupted)
            if interrupted:
                raise KeyboardInterrupt from None
            if not isinstance(error, AgentContainerError):
                raise
            raise NeverStarted(error.message, details=error.details, hint=error.hint) from None
        work = Work(
            task=request.task,
            model=request.model or resolved.spec.model,
            resume=resumed.session if resumed is not None else None,
            turns=resolved.spec.limits.turns,
            cost_usd=resolved.spec.limits.cost_usd,
        )
        end = _turn(ctx, resolved, session, work, stop=stop, on_event=on_event)
        closing = Closing(
            state=ctx.store.sessions.load(session),
            end=end,
            profile=resolved.profile,
            ended=ctx.now(),
            duration_s=time.monotonic() - started_monotonic,
            posture=opened.posture,
            engine_version=ctx.engine.ping(),
        )
        closed = close_run(ctx.engine, ctx.store, closing, report=ctx.report)
    # The work stays in the record: it enters the user's repository only when they ask, and after a look at it.
    for name in closed.left_behind:
        ctx.report(f"Note: not in the bundle of its work: {name}")
    tree = closed.record.host.workspace
    changed = tree is not None and bool(tree.commits or tree.files_changed)
    command = f"agent-container runs apply {session}" if changed and (closed.place.path / BUNDLE).is_file() else None
    return RunResult(record=closed.record, directory=closed.place.path, next_command=command)


def _resolved(ctx: Context, request: RunRequest) -> Resolved:
    if request.committed and request.resume is not None:
        raise UsageError("--committed and --resume exclude each other: a resumed run starts from what the other left")
    return resolve(ctx, verb="run", agent=request.agent, mode=request.mode, model=request.model)


def _turn(
    ctx: Context,
    resolved: Resolved,
    session: str,
    work: Work,
    *,
    stop: _Stop,
    on_event: Callable[[Event], None],
) -> TurnEnd:
    """Starts the one turn of a run and follows it."""
    state = ctx.store.sessions.load(session)
    egress, agent = state.container("egress"), state.container("agent")
    if egress is None or agent is None:
        raise EngineError(f"session {session} has lost its containers")
    launch = resolved.profile.headless(work)
    limits = resolved.spec.limits
    watch = TurnWatch(
        engine=ctx.engine,
        egress=egress,
        agent=agent,
        turn=session,
        profile=resolved.profile,
        limits=TurnLimits(time_s=limits.time_s, idle_s=limits.idle_s, turns=limits.turns, cost_usd=limits.cost_usd),
        on_event=on_event,
        stop=stop,
        stop_requested=lambda: ctx.store.sessions.stop_requested(session),
        now=ctx.now,
        started=state.started(),
        note=lambda words: note_stand(ctx.store, session, words),
    )
    notes: tuple[str, ...] = ()
    with contextlib.ExitStack() as stack:
        joined: RunnerClient | None = None
        try:
            runner = stack.enter_context(RunnerClient.connect(ctx.engine, agent))
            state = ctx.store.sessions.save(state.updated(phase=Phase.RUNNING, turn_started=ctx.now()))
            interrupted = stop()
            if interrupted is not None:
                return TurnEnd(Outcome.INTERRUPTED, interrupted)
            notes = runner.put_home(resolved.home_files(state.decoys))
            runner.start_turn(
                TurnRequest(
                    turn=session,
                    argv=launch.argv,
                    environment=launch.environment,
                    cwd=WORKSPACE,
                    stdin=launch.stdin,
                    time_s=limits.time_s,
                    idle_s=limits.idle_s,
                )
            )
            joined = runner  # its output comes over the same conversation: another one is another Python to start
        except EngineError as error:
            if not still_works(ctx.engine, state):  # a busy machine may start it and answer too late
                return TurnEnd(Outcome.NEVER_STARTED, str(error))
        ctx.report("Started the agent")
        for words in notes:
            watch.remark(words)
        end = follow_turn(watch, joined)
    return replace(end, notes=(*notes, *end.notes)) if notes else end


def run_detached(ctx: Context, request: RunRequest) -> Detached:
    """Hands the run to a process of its own, and returns when its agent works or it has failed."""
    resolved = _resolved(ctx, request)
    if request.resume is not None:
        find_resumed(ctx, resolved, request.resume)  # what is wrong with it is said here, not in a log
    approve(ctx, resolved, accept=request.accept)
    make_images(ctx, resolved)
    session = _run_id(ctx, None)
    argv = [sys.executable, "-P", "-m", "agent_container.cli", "--no-input", "-q", "-C", str(ctx.directory.resolve())]
    if ctx.spec_path is not None:
        argv += ["-f", str(ctx.spec_path)]
    argv += ["run", "--run-id", session]
    for flag, value in (("--agent", request.agent), ("--model", request.model), ("--resume", request.resume)):
        argv += [flag, value] if value else []
    argv += [f"--{request.mode}"] if request.mode else []
    argv += ["--committed"] if request.committed else []
    argv += [f"--label={key}={value}" for key, value in request.labels]
    log = ctx.store.sessions.rendered_dir(session).parent / "driver.log"
    ctx.store.writer.make_dir(log.parent)
    with log.open("wb") as sink, _handed_on(ctx.store.passphrases.known) as fds:
        child = subprocess.Popen(
            [*argv[:4], *(f"--passphrase-fd={fd}" for fd in fds), *argv[4:], "-"],
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            start_new_session=True,
            env=dict(ctx.environ),
        )
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(request.task.encode())
    deadline = time.monotonic() + DETACH_WAIT_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            if child.returncode == 0 or ctx.store.runs.place(resolved.project.id, session).path.is_dir():
                break  # it was quick
            words = log.read_text(errors="replace").strip().splitlines()[-8:]
            raise EngineError("the run did not start", details=words)
        with contextlib.suppress(AgentContainerError):
            if ctx.store.sessions.load(session).phase is Phase.RUNNING:
                break
        time.sleep(0.1)
    return Detached(run=session, pid=child.pid)


@contextlib.contextmanager
def _handed_on(passphrase: bytes | None) -> Iterator[tuple[int, ...]]:
    """The store's passphrase on a pipe for the process that goes on, when this one needed it."""
    if passphrase is None:
        yield ()
        return
    reads, writes = os.pipe()  # it holds 64 KiB, so this write does not wait for a reader
    try:
        with os.fdopen(writes, "wb") as stream:
            stream.write(passphrase)
        yield (reads,)
    finally:
        os.close(reads)


def _run_id(ctx: Context, given: str | None) -> str:
    if given is not None and not ID_PATTERN.fullmatch(given):
        raise UsageError(f"{given!r} is no run id")
    return given or new_id(ctx.now(), ctx.entropy(3))


class _Stop:
    """Raised by a signal, read by the loop that follows the turn."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._raises = False

    def __call__(self) -> str | None:
        return self.reason

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """While nobody reads it, a signal ends what is being done there and then."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks, a second INT insists."""
        del frame
        insists = self.reason is not None and number == signal.SIGINT
        self.reason = self.reason or f"interrupted by {signal.Signals(number).name}"
        if self._raises or insists:
            self._raises = False  # what is made is being closed now; that takes a second INT to end
            raise KeyboardInterrupt


@contextlib.contextmanager
def _signals() -> Iterator[_Stop]:
    """INT, TERM and HUP end the turn in order: the agent is stopped, the record written. A second INT is final."""
    stop = _Stop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop.handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
