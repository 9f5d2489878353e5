"""Work that can be stopped, such as a request of a web server: its calls stop waiting for locks.

A context variable tells a call which work it belongs to, also in tasks that the work has started.
Only a call that has to wait reads the variable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar


class Work:
    """One piece of work, and its calls that wait for locks."""

    def __init__(self, *, stopped: bool = False) -> None:
        self.stopped: bool = stopped
        """Whether calls only take a lock that is free, without waiting."""
        self._ends: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[], object]]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the calls that the block makes belong to this work.

        The work ends with the block. A task of the block that goes on after that waits for locks
        like any other task.
        """
        token = WORK.set(self)
        try:
            yield
        finally:
            WORK.reset(token)
            self.stopped = False

    def stop(self) -> None:
        """End all waits with AcquireTimeoutError; later calls take only what is free."""
        self.stopped = True
        for call, (loop, _) in tuple(self._ends.items()):
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(self._end, call)

    def _end(self, call: object) -> None:
        if call in self._ends:
            self._ends.pop(call)[1]()

    def waits(self, call: object, end: Callable[[], object]) -> None:
        """Note that `call` waits; `end()` ends its wait, in the running loop."""
        self._ends[call] = asyncio.get_running_loop(), end
        if self.stopped:
            self._end(call)

    def goes_on(self, call: object) -> None:
        """Note that `call` no longer waits."""
        self._ends.pop(call, None)


WORK: ContextVar[Work | None] = ContextVar("asynclock_work", default=None)
"""The work that the current task belongs to."""
