"""Work that is told to stop, as a request of a web server: then its calls wait for locks no longer.

The calls learn from a context variable which work they belong to, also in tasks that the work has
started. Only a call that has to wait looks at it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar


class Work:
    """The calls of one piece of work that wait for locks."""

    def __init__(self, *, stopped: bool = False) -> None:
        self.stopped: bool = stopped
        """Whether calls take a lock that is free, and don't wait."""
        self._ends: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[], object]]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the calls that the block makes belong to this work; it ends with the block.

        A task that goes on after that waits for its locks as any other does.
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
        """Note that `call` waits, and how to end its wait in the loop that runs."""
        self._ends[call] = asyncio.get_running_loop(), end
        if self.stopped:
            self._end(call)

    def goes_on(self, call: object) -> None:
        """Note that `call` waits no longer."""
        self._ends.pop(call, None)


WORK: ContextVar[Work | None] = ContextVar("asynclock_work", default=None)
"""The work that the current task belongs to."""
