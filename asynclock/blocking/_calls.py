"""The calls of a thread, which all run in one task of the event loop.

The asynchronous locks identify a holder by its task. So a thread that acquires a lock which it
holds gets AlreadyHeldError, and can nest a reentrant one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

from .._background import Background
from ..errors import ConfigurationError

T = TypeVar("T")

EXIT_LIMIT = 5.0
"""Maximum seconds that the exit of the process, or an interrupted call, waits for the loop."""


class Outcome(Generic[T]):
    """What the loop has done for a thread, which waits for that with a plain lock.

    A Future waits with a Condition. An exception of a signal handler can leave that locked, and
    then the loop stands still when it has the result. Or it leaves it unlocked, and RuntimeError
    ("cannot release un-acquired lock") takes the place of the exception.
    """

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._value: T | None = None
        self._lock = threading.Lock()
        """Free once this is done."""
        self._lock.acquire()

    def succeed(self, value: T) -> None:
        """End with `value`. Runs in the thread of the loop, once."""
        self._value, self.done = value, True
        self._lock.release()

    def fail(self, error: BaseException) -> None:
        """End with `error`, unless this has ended. Runs in the thread of the loop."""
        if not self.done:
            self.error, self.done = error, True
            self._lock.release()

    def wait(self, limit: float = -1) -> None:
        """Wait for the end, at most `limit` seconds. Runs in the calling thread."""
        if not self.done:
            self._lock.acquire(timeout=limit)

    def result(self) -> T:
        """Wait for the end, and return the value or raise the error."""
        self.wait()
        if self.error is not None:
            raise self.error
        return cast("T", self._value)


class Call(Generic[T]):
    """One call of a thread; its work runs with the thread's context variables."""

    def __init__(
        self,
        work: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        ends: bool = False,
    ) -> None:
        self._work = work
        self._undo = undo
        self.ends = ends
        self.begun = False
        """Whether a task has the call; used only in the loop."""
        self._task: asyncio.Task[Any] | None = None
        self._abandoned = False
        self._context = contextvars.copy_context()
        self.outcome: Outcome[T] = Outcome()

    async def run(self) -> None:
        # Not in a new task with its own context, because the thread's task identifies its holds.
        if self._abandoned:
            return
        tokens = [(variable, variable.set(value)) for variable, value in self._context.items()]
        self._task = asyncio.current_task()
        try:
            value = await self._work()
            if self._abandoned and self._undo is not None:
                await self._undo(value)
            self.outcome.succeed(value)
        except BaseException as error:  # also an exit or a cancellation: the caller's task goes on
            self.outcome.fail(error)
        finally:
            for variable, token in tokens:
                variable.reset(token)
            self.outcome.fail(ConfigurationError("the call was abandoned"))

    def abandon(self, tasks: Background) -> None:
        """Cancel the call, or undo its result: its thread no longer waits. Runs in the loop."""
        self._abandoned = True
        if self.outcome.done:
            if self._undo is not None and self.outcome.error is None:
                tasks.spawn(_awaited(self._undo(self.outcome.result())), "asynclock: undo a call")
        elif self._task is not None:
            self._task.cancel()
        else:
            self.outcome.fail(ConfigurationError("the call was abandoned"))


async def _awaited(work: Awaitable[object]) -> None:
    await work


class Caller:
    """A thread's end of its task in the loop; the task ends when the thread drops this."""

    def __init__(self, soon: Callable[..., object]) -> None:
        self._soon = soon
        self._pid = os.getpid()
        self.calls: asyncio.Queue[Call[Any] | None] = asyncio.Queue()
        """What the task is to run; None ends it."""
        self.calling = False
        """Whether the thread waits for a call."""

    def __del__(self) -> None:
        if self._pid != os.getpid():
            return  # a forked child drops the copies of other threads' objects
        with contextlib.suppress(ConfigurationError):  # the loop has ended already
            self._soon(self.calls.put_nowait, None)
