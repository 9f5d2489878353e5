"""Ends the body of a task when what it stands on is gone.

As `asyncio.timeout` does it, without a clock (docs/decisions/0004): the task is cancelled once,
and `uncancel` tells this cancellation from everybody else's. An anyio scope can't be used, for it
must be left in the task that entered it. See the documentation of asyncio.Task.uncancel.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Interruption:
    """Around one body of the task that makes it."""

    __slots__ = ("_before", "_handle", "_struck", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can only be entered inside a task")
        self.task: asyncio.Task[Any] = task
        """Whose body it is."""
        self._before = task.cancelling()
        self._handle: asyncio.Handle | None = None
        self._struck = False

    def strike(self) -> None:
        """Cancel what the body awaits."""
        # Soon, not now: the body itself may be running, and must be able to leave before.
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        self._struck = True
        self.task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """The body has ended with `kind`. → whether it was this that ended it."""
        if self._handle is None:
            return False
        self._handle.cancel()
        if not self._struck or asyncio.current_task() is not self.task:
            return False
        others = self.task.uncancel() > self._before
        return not others and kind is not None and issubclass(kind, asyncio.CancelledError)
