"""Interrupts the body of an `async with` when its lease is lost.

This works like `asyncio.timeout` without a clock (docs/decisions/0004): it cancels the task once,
and `uncancel` tells this cancellation from all others (see asyncio.Task.uncancel). An anyio scope
doesn't work here, because it must be left in the task that entered it.
"""

from __future__ import annotations

import asyncio
from typing import Any

ENDED_BY = asyncio.CancelledError, GeneratorExit
"""What an interruption raises in a body: the latter in an async generator that is closed because
its consumer was interrupted, who awaited something else than the generator."""


class Interruption:
    """Guards one body, which runs in the task that creates this object."""

    __slots__ = ("_before", "_handle", "_interrupted", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can only be entered inside a task")
        self.task: asyncio.Task[Any] = task
        """The task that runs the body."""
        self._before = task.cancelling()
        self._handle: asyncio.Handle | None = None
        self._interrupted = False

    def move(self) -> None:
        """Note that the body continues in the calling task."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can only be held inside a task")
        self.task, self._before = task, task.cancelling()

    def interrupt(self) -> None:
        """Cancel what the body awaits, in the next round of the loop."""
        # Not at once: the body itself may be running now, and may end before that.
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        self._interrupted = True
        self.task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """Note that the body has ended with `kind`; return whether this interruption ended it."""
        if self._handle is None:
            return False
        self._handle.cancel()
        # A coroutine may also be closed in a thread without a loop, which has no current task.
        loop = asyncio._get_running_loop()  # noqa: SLF001 - unlike its public sister it never raises
        here = loop is not None and asyncio.current_task() is self.task
        if not self._interrupted or not here:
            return False
        others = self.task.uncancel() > self._before
        return not others and kind is not None and issubclass(kind, ENDED_BY)
