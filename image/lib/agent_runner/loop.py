"""One thread, one selector, timers and signals: the runner's only concurrency.

Not asyncio: PID 1 must reap every orphan with waitpid(-1), which takes the children away from asyncio's own watchers.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import sys
import time
import traceback
from typing import Callable, Dict, List, Tuple

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Timer:
    """A callback that is due once; `cancel` makes it void."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Never call it."""
        self.cancelled = True


class Loop:
    """Calls back on readiness of descriptors, on signals and at times, until `stop`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signals: Dict[int, Callable[[], None]] = {}
        self._running = True
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        self.watch(self._wake_r, READ, self._on_wake)

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(events)` while `fd` is ready; a second call changes the events; 0 forgets the fd."""
        known = fd in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(fd)
        elif known:
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, `delay_s` from now."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + max(0.0, delay_s), next(self._order), timer))
        return timer

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        """Call back in the loop, never inside a handler."""
        self._signals[number] = callback
        signal.signal(number, lambda _number, _frame: None)

    def stop(self) -> None:
        """Leave `run` after this round."""
        self._running = False

    def run(self) -> None:
        """Until `stop`. A callback that raises is reported on stderr and costs nothing else: PID 1 must not die."""
        while self._running:
            for key, events in self._selector.select(self._wait_s()):
                if key.fd in self._selector.get_map():
                    self._guard(lambda key=key, events=events: key.data(events))
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if not timer.cancelled:
                    self._guard(timer.callback)

    def _wait_s(self) -> float:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return 3600.0
        return min(3600.0, max(0.0, self._timers[0][0] - time.monotonic()))

    def _on_wake(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in sorted(set(os.read(self._wake_r, 4096))):
                if number in self._signals:
                    self._guard(self._signals[number])

    def _guard(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            traceback.print_exc(limit=20, file=sys.stderr)
