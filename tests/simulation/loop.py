"""The event loop of a simulation: time that jumps when idle, and processes that can be stopped."""

from __future__ import annotations

import collections
import contextvars
import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from asynclock.testing.memory.virtual import VirtualLoop

GRAIN = 1e-6
"""Seconds that a timer takes at least, or `while now < deadline` would never end."""


class Stoppable(Protocol):
    """What may be stopped while the others go on, as by SIGSTOP."""

    stopped: bool
    stash: list[Call]


RUNNING: contextvars.ContextVar[Stoppable] = contextvars.ContextVar("running")
"""Whose code runs; each call that the loop makes knows it by its context."""


class Call:
    """In place of asyncio's handles, which cost three times as much to make and to run."""

    __slots__ = ("_when", "args", "callback", "cancelled_", "context")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self._when = when
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.cancelled_ = False

    def cancel(self) -> None:
        """As of a handle."""
        self.cancelled_ = True

    def cancelled(self) -> bool:
        """As of a handle."""
        return self.cancelled_

    def when(self) -> float:
        """As of a timer's handle."""
        return self._when


class SimulatedLoop(VirtualLoop):
    """Virtual time at half the price of asyncio's own machinery.

    What a stopped process would do next is put aside until the process goes on. Timers of one
    moment run in the order in which they were set, so that a schedule is always played alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ready: collections.deque[Call] = collections.deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._numbers = count()

    def call_soon(  # type: ignore[override]  # said in simpler types than typeshed's
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Call:
        """As everywhere."""
        call = Call(0.0, callback, args, context)
        self.ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Call:
        """As everywhere, but never sooner than GRAIN seconds from now."""
        when = max(when, self.now + GRAIN)
        timer = Call(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Call:
        """As everywhere."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        ready = self.ready
        while not self._stopping:  # type: ignore[attr-defined]  # what `stop` sets
            if not ready:
                self._let_time_pass()
            call = ready.popleft()
            if call.cancelled_:
                continue
            process = call.context.get(RUNNING)
            if process is not None and process.stopped:
                process.stash.append(call)
                continue
            try:
                call.context.run(call.callback, *call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": "a callback failed", "exception": error})

    def _let_time_pass(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled_:
            heapq.heappop(timers)
        if not timers:
            raise RuntimeError("everybody waits, and no timer is set: a deadlock")
        self.now = now = timers[0][0]
        while timers and timers[0][0] <= now:
            self.ready.append(heapq.heappop(timers)[2])
