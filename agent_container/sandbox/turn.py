"""Follows one turn from its first frame to its end and says how it ended, in the host's own words where it can.

Limits are judged here by the host's clock; the runner keeps them too, and so does the sidecar's deadline, for the case
that this process dies. Only silence, limits and the process's end count: no line of text ends a run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from agent_container.agents import AgentProfile
from agent_container.engine.protocol import Engine
from agent_container.errors import EngineError
from agent_container.events import AgentError, AgentResult, Event, RunNote, RunStarted, ToolCall, Usage
from agent_container.frames import BadLine, Frame
from agent_container.records import Basis, Outcome
from agent_container.sandbox.runner import Received, RunnerClient
from agent_container.tally import Tally
from agent_egress.budget import USED_UP
from agent_egress.kills import KILLED

POLL_S = 0.5
CHECK_EVERY_S = 2.0
RESULT_GRACE_S = 20.0
"""How long an agent may go on after it has said that it is done."""
RUNNER_SLACK_S = 15.0
"""How much later than the runner the host ends a turn itself: the runner's way flushes more."""
RECONNECTS = 5
"""How often in a row a lost stream is joined again before its follower gives up. The run goes on without one."""
BACKOFF_S = 0.5
STALL_S = 5.0
"""A follower that did not look for so long was stopped itself: what was printed meanwhile is still to be read."""
EXIT_EXPOSED = 76
"""The runner's status when a hidden path was not hidden any more."""
EXPOSED = "a program on the host put another file in the place of a hidden one, which the agent would have seen"
CLOCK_SLACK_S = 3.0
"""How far the runner's clock and the host's may differ over the start of a turn."""


@dataclass(frozen=True)
class TurnEnd:
    """How a turn ended."""

    outcome: Outcome
    reason: str
    exit_code: int | None = None
    signal: str | None = None
    notes: tuple[str, ...] = ()
    basis: Basis | None = None
    """Whose word it is, where the outcome alone does not say."""


@dataclass(frozen=True)
class TurnLimits:
    """What ends a turn that would go on. Turns and cost are the agent's own count; model use is counted in the
    sidecar."""

    time_s: float
    idle_s: float
    turns: int | None = None
    cost_usd: float | None = None


@dataclass
class TurnWatch:
    """What is followed: two containers, a turn, its limits, and a flag that its user raises to end it."""

    engine: Engine
    egress: str
    agent: str
    turn: str
    profile: AgentProfile
    limits: TurnLimits
    on_event: Callable[[Event], None]
    stop: Callable[[], str | None]
    """Why the turn is to end now, as a signal to this process said; None while it may go on."""
    stop_requested: Callable[[], bool]
    """Whether another process asked for its end."""
    now: Callable[[], datetime]
    """The host's clock: when an event arrived."""
    started: RunStarted
    """The first event of the record."""
    note: Callable[[str], str] = lambda _words: ""
    """Keeps what the sidecar's health words tell of its chain; why it could not, in words."""
    told: int = 0
    """How many events were passed on."""

    def begin(self) -> None:
        """Passes on that it was started, once."""
        if not self.told:
            self.told = 1
            self.on_event(self.started.model_copy(update={"seq": self.told}))

    def tell(self, event: Event) -> None:
        """Passes an event on with the number that it has in the record, and the moment of its arrival."""
        self.begin()
        self.told += 1
        self.on_event(event.model_copy(update={"seq": self.told, "at": event.at or self.now()}))

    def remark(self, text: str) -> None:
        """Says what the record has among its notes, without a number."""
        self.on_event(RunNote(text=text, at=self.now()))


class ContactLost(EngineError):
    """Nothing is heard of a run that may well go on: nothing of it is ended or removed."""

    def __init__(self, run: str, reason: str) -> None:
        super().__init__(
            f"lost contact with run {run}, which goes on by itself within its limits: {reason}",
            hint=f"agent-container runs recover {run}",
        )


class _Ended(Exception):
    def __init__(self, end: TurnEnd) -> None:
        super().__init__(end.reason)
        self.end = end


class _Progress:
    """What has been seen of the turn so far."""

    def __init__(self, watch: TurnWatch) -> None:
        self.started = self.last_output = self.last_check = self.last_look = time.monotonic()
        self.next_seq = 1
        self.result: AgentResult | None = None
        self.result_at: float | None = None
        self.asked_to_stop: TurnEnd | None = None
        self.asked_at = 0.0
        self.last_error = ""
        self.noted = self.trouble = ""
        self.tool_calls = 0
        self.turns = 0
        self.cost_usd = 0.0
        self._tally = Tally(watch.profile.parser())
        self._tell = watch.tell
        self._only_retries = False

    def take(self, frame: Frame | BadLine) -> None:
        """Counts a frame of output and passes its events on, as they stand in the record."""
        events = list(self._tally.read(frame))
        self._pass_on(events)
        if isinstance(frame, BadLine) or frame.channel not in ("stdout", "stderr"):
            return
        self.next_seq = max(self.next_seq, frame.seq + 1)
        # An agent that says again and again that it tries again is as good as silent.
        self._only_retries = bool(events) and all(isinstance(e, AgentError) and e.retrying for e in events)
        if not self._only_retries:
            self.last_output = time.monotonic()

    def finish(self) -> None:
        """Passes on what stands after the last line end: an agent's result may be there."""
        self._pass_on(self._tally.rest())

    def _pass_on(self, events: Iterable[Event]) -> None:
        for event in events:
            self._count(event)
            self._tell(event)

    def _count(self, event: Event) -> None:
        match event:
            case AgentResult():
                self.result, self.result_at = event, time.monotonic()
                self.turns = max(self.turns, event.turns or 0)
            case AgentError() if not event.retrying:
                self.last_error = event.message
            case ToolCall():
                self.tool_calls += 1
                self.turns = max(self.turns, self.tool_calls + 1)
            case Usage() if event.cost_usd is not None:
                self.cost_usd = event.cost_usd + (0.0 if event.cumulative else self.cost_usd)
            case _:
                pass


def follow_turn(watch: TurnWatch, joined: RunnerClient | None = None) -> TurnEnd:
    """Blocks until the turn has ended, for whatever reason; leaves no process of the turn behind while it can.

    `joined` is a conversation with its runner that is there already; it is closed here.

    Raises:
        ContactLost: the stream was lost and could not be joined again, while nothing says that the run has ended.
    """
    progress = _Progress(watch)
    watch.begin()
    failures = 0
    while True:
        seen = progress.next_seq
        try:
            with joined or RunnerClient.connect(watch.engine, watch.agent) as runner:
                joined = None
                _follow(watch, progress, runner)
            reason = "the stream from the agent's container ended"
        except _Ended as ended:
            return ended.end
        except EngineError as error:
            reason = str(error)
        # Only losses in a row count: a run of many hours may lose its stream many times.
        failures = 1 if progress.next_seq > seen else failures + 1
        if failures > RECONNECTS:
            raise ContactLost(watch.turn, f"{reason}; gave up after {RECONNECTS} attempts to rejoin")
        time.sleep(BACKOFF_S * 2 ** (failures - 1))
        try:
            _wait_while_paused(watch, progress)
            _check_alive(watch, progress)
        except _Ended as ended:
            return progress.asked_to_stop or ended.end
        except EngineError:
            continue  # an engine that is being restarted; whether its containers live is seen when it answers


def _wait_while_paused(watch: TurnWatch, progress: _Progress) -> None:
    """A paused container answers nobody and has lost nothing. Its user may still stop the run, and its time runs."""
    while _paused(watch) and watch.stop() is None and not watch.stop_requested():
        now = time.monotonic()
        if now - progress.started > watch.limits.time_s + RUNNER_SLACK_S:
            raise _Ended(timed_out(watch.limits.time_s))
        progress.last_output = progress.last_look = now
        time.sleep(POLL_S)


def _paused(watch: TurnWatch) -> bool:
    state = watch.engine.inspect(watch.agent)
    return state is not None and state.status == "paused"


def _follow(watch: TurnWatch, progress: _Progress, runner: RunnerClient) -> None:
    for received in runner.stream(watch.turn, start=progress.next_seq, poll_s=POLL_S):
        if received is not None:
            _take(watch, progress, received)
        _judge(watch, progress)


def _take(watch: TurnWatch, progress: _Progress, received: Received) -> None:
    frame = received.frame
    progress.take(frame)
    if isinstance(frame, BadLine) or frame.channel != "exit":
        return
    progress.finish()
    now = time.monotonic()
    host = HostsView(
        elapsed_s=now - progress.started,
        time_s=watch.limits.time_s,
        silent_s=now - progress.last_output,
        idle_s=watch.limits.idle_s,
        printed=progress.next_seq > 1,
        limited=watch.limits.turns is not None or watch.limits.cost_usd is not None,
    )
    if progress.asked_to_stop is None and frame.reason in ("stopped", "interrupted") and watch.stop_requested():
        raise _Ended(TurnEnd(Outcome.INTERRUPTED, "stopped by its user", frame.code, frame.signal))
    end = end_of(frame, watch.profile, progress.result, host, last_error=progress.last_error)
    raise _Ended(progress.asked_to_stop or end)


def _judge(watch: TurnWatch, progress: _Progress) -> None:
    """Ends the turn where a limit or its user says so; looks after the sidecar now and then."""
    now = time.monotonic()
    stalled = now - progress.last_look
    progress.last_look = now
    if stalled > STALL_S:
        progress.last_output = min(now, progress.last_output + stalled)
    if now - progress.last_check >= CHECK_EVERY_S:
        progress.last_check = now
        ended = _check_alive(watch, progress)
        if progress.asked_to_stop is None and ended is not None:
            _ask_to_stop(watch, progress, ended)
            return
        if progress.asked_to_stop is None and watch.stop_requested():
            _ask_to_stop(watch, progress, TurnEnd(Outcome.INTERRUPTED, "stopped by its user"))
            return
    if progress.asked_to_stop is not None:
        if now - progress.asked_at > RUNNER_SLACK_S:
            raise _Ended(progress.asked_to_stop)
        return
    reason = watch.stop()
    if reason is not None:
        _ask_to_stop(watch, progress, TurnEnd(Outcome.INTERRUPTED, reason))
    elif now - progress.started > watch.limits.time_s + RUNNER_SLACK_S:
        _ask_to_stop(watch, progress, timed_out(watch.limits.time_s))
    elif now - progress.last_output > watch.limits.idle_s + RUNNER_SLACK_S:
        _ask_to_stop(watch, progress, idled_out(watch.limits.idle_s))
    elif words := over_budget(watch.limits, turns=progress.turns, cost_usd=progress.cost_usd):
        _ask_to_stop(watch, progress, TurnEnd(Outcome.BUDGET, words, basis=Basis.AGENT))
    elif progress.result is not None and progress.result_at is not None and now - progress.result_at > RESULT_GRACE_S:
        outcome = Outcome.SUCCEEDED if progress.result.ok else Outcome.FAILED
        note = f"the agent went on for {RESULT_GRACE_S:g} s after its result and was ended"
        _ask_to_stop(watch, progress, TurnEnd(outcome, "the agent reported its result", notes=(note,)))


def _ask_to_stop(watch: TurnWatch, progress: _Progress, end: TurnEnd) -> None:
    """Over a conversation of its own: the one that streams is busy."""
    progress.asked_to_stop, progress.asked_at = end, time.monotonic()
    watch.remark(f"ending the agent: {end.reason}; its work and its record come next")
    with contextlib.suppress(EngineError), RunnerClient.connect(watch.engine, watch.agent) as runner:
        if watch.profile.stop_signal == "INT":
            runner.interrupt(watch.turn, reason=end.reason)
        else:
            runner.stop(watch.turn, reason=end.reason)


def _check_alive(watch: TurnWatch, progress: _Progress) -> TurnEnd | None:
    """How the sidecar ended the session, in its words: by a kill, or by a budget that is used up. None while it goes
    on; a paused container prints nothing, and is not idle."""
    end = None
    for name, container in (("egress sidecar", watch.egress), ("agent's container", watch.agent)):
        state = watch.engine.inspect(container)
        if state is None:
            raise _Ended(TurnEnd(Outcome.LOST, f"the {name} was removed while the run went on"))
        if state.status == "paused":
            progress.last_output = time.monotonic()
            continue
        if state.status != "running":
            words = "was killed for want of memory" if state.oom_killed else f"ended with status {state.exit_code}"
            if container == watch.agent and state.exit_code == EXIT_EXPOSED:
                words = f"ended itself ({EXPOSED})"
            raise _Ended(TurnEnd(Outcome.LOST, f"the {name} {words} while the run went on"))
        if state.health == "unhealthy":
            raise _Ended(TurnEnd(Outcome.LOST, f"the {name} became unhealthy while the run went on"))
        if container == watch.egress:
            end = ended_by(state.health_words)
            _note(watch, progress, state.health_words)
    return end


def _note(watch: TurnWatch, progress: _Progress, words: str) -> None:
    """Whatever is new about the chain is kept on the host; that it could not be is told once."""
    if words == progress.noted:
        return
    progress.noted = words
    trouble = watch.note(words)
    if trouble and trouble != progress.trouble:
        progress.trouble = trouble
        watch.remark(f"where the receipts stand could not be kept: {trouble}")


def ended_by(words: str) -> TurnEnd | None:
    """The end that a sidecar's health words tell of, in their first line."""
    words = words.strip().partition("\n")[0]
    if words.startswith(KILLED):
        return TurnEnd(Outcome.KILLED, words.removeprefix(KILLED).strip()[:300])
    if words.startswith(USED_UP):
        return TurnEnd(Outcome.BUDGET, words.removeprefix(USED_UP)[:200])
    return None


def over_budget(limits: TurnLimits, *, turns: int, cost_usd: float) -> str:
    """Which of the limits that the agent counts itself is exceeded, in words; empty when none is."""
    if limits.turns is not None and turns > limits.turns:
        return f"limits.turns: it took more than {limits.turns} turns"
    if limits.cost_usd is not None and cost_usd > limits.cost_usd:
        return f"limits.cost_usd: it has cost {cost_usd:.2f} USD, more than {limits.cost_usd:g}"
    return ""


def timed_out(time_s: float) -> TurnEnd:
    """The wall-clock limit."""
    return TurnEnd(Outcome.TIMEOUT, f"it took longer than limits.time, {time_s:g} s")


def idled_out(idle_s: float) -> TurnEnd:
    """The idle limit."""
    return TurnEnd(Outcome.TIMEOUT, f"it printed nothing for limits.idle, {idle_s:g} s")


@dataclass(frozen=True)
class HostsView:
    """What the host itself has seen of a turn, by its own clock: the runner has the agent's uid, and its word alone
    never becomes the host's."""

    elapsed_s: float
    time_s: float
    silent_s: float | None = None
    """None when nobody watched."""
    idle_s: float = 0.0
    printed: bool = True
    """Whether any output was seen, or may have been."""
    limited: bool = False
    """Whether the agent was given a limit that it holds itself."""

    def says(self, reason: str) -> bool:
        """Whether the host can vouch for the reason that the runner gives."""
        match reason:
            case "time":
                return self.elapsed_s >= self.time_s - CLOCK_SLACK_S
            case "idle":
                return self.silent_s is not None and self.silent_s >= self.idle_s - CLOCK_SLACK_S
            case "spawn":
                return not self.printed
            case _:
                return False


def end_of(
    frame: Frame, profile: AgentProfile, result: AgentResult | None, host: HostsView, *, last_error: str = ""
) -> TurnEnd:
    """The outcome that an exit frame stands for: success takes status 0 and, where the agent has one, a good result.

    Of the reasons that are the host's word, only those count that the host can vouch for; it asks for stops itself.
    """
    code, signal = frame.code, frame.signal
    match frame.reason:
        case "time" if host.says("time"):
            return TurnEnd(Outcome.TIMEOUT, f"it took longer than limits.time ({frame.detail})", code, signal)
        case "idle" if host.says("idle"):
            return TurnEnd(Outcome.TIMEOUT, f"it printed nothing for limits.idle ({frame.detail})", code, signal)
        case "spawn" if host.says("spawn"):
            return TurnEnd(Outcome.NEVER_STARTED, f"the agent's program could not be started: {frame.detail}", code)
        case "time" | "idle" | "spawn" | "stopped" | "interrupted" | "lost" | "output" | "volume":
            words = f"the runner says that it ended the agent ({frame.reason}): {frame.detail}"
            return TurnEnd(Outcome.FAILED, words, code, signal)
        case _:
            pass
    if result is not None and result.budget and not result.ok and host.limited:
        words = f"the agent ended at a limit that it was given: {result.text[:200]}"
        return TurnEnd(Outcome.BUDGET, words, code, signal, basis=Basis.AGENT)
    if code == 0 and result is not None and result.ok:
        return TurnEnd(Outcome.SUCCEEDED, "the agent reported success and exited with status 0", code)
    if code == 0 and not profile.has_result:
        return TurnEnd(Outcome.SUCCEEDED, "the command exited with status 0", code)
    if code == 0 and result is None:
        return TurnEnd(Outcome.FAILED, "the agent exited with status 0 without reporting a result", code)
    if result is not None and not result.ok:
        return TurnEnd(Outcome.FAILED, f"the agent reported failure: {result.text[:200]}".rstrip(": "), code, signal)
    ended = f"by signal {signal}" if signal else f"with status {code}"
    said = f": {last_error[:200]}" if last_error else ""
    return TurnEnd(Outcome.FAILED, f"the agent ended {ended}{said}", code, signal)
