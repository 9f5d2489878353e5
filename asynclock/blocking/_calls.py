"""The calls of a thread, which all run in one task of the event loop.

The asynchronous locks identify a holder by its task. So a thread that acquires a lock which it
holds gets AlreadyHeldError, and can nest a reentrant one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

from .._background import Background
from ..errors import ConfigurationError

T = TypeVar("T")

EXIT_LIMIT = 5.0
"""Maximum seconds that the exit of the process, or an interrupted call, waits for the loop."""


class Call(Generic[T]):
    """One call of a thread; its work runs with the thread's context variables."""

    def __init__(
        self,
        work: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None,
        *,
        ends: bool,
    ) -> None:
        self._work = work
        self._undo = undo
        self.ends = ends
        self.begun = False
        """Whether a task has the call; used only in the loop."""
        self._scope: anyio.CancelScope | None = None
        self._abandoned = False
        self._context = contextvars.copy_context()
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    async def run(self) -> None:
        # Not in a new task with its own context, because the thread's task identifies its holds.
        if self._abandoned:
            return
        tokens = [(variable, variable.set(value)) for variable, value in self._context.items()]
        try:
            with anyio.CancelScope() as self._scope:
                value = await self._work()
                if self._abandoned and self._undo is not None:
                    with anyio.CancelScope(shield=True):
                        await self._undo(value)
                self.outcome.set_result(value)
        except BaseException as error:  # also an exit or a cancellation: the caller's task goes on
            if not self.outcome.done():
                self.outcome.set_exception(error)
        finally:
            for variable, token in tokens:
                variable.reset(token)
            if not self.outcome.done():
                self.outcome.set_exception(ConfigurationError("the call was abandoned"))

    def abandon(self, tasks: Background) -> None:
        """Cancel the call, or undo its result: its thread no longer waits. Runs in the loop."""
        self._abandoned = True
        if self.outcome.done():
            if self._undo is not None and self.outcome.exception() is None:
                tasks.spawn(_awaited(self._undo(self.outcome.result())), "asynclock: undo a call")
        elif self._scope is not None:
            self._scope.cancel()
        else:
            self.outcome.set_exception(ConfigurationError("the call was abandoned"))


async def _awaited(work: Awaitable[object]) -> None:
    await work


class Caller:
    """A thread's end of its task in the loop; the task ends when the thread drops this."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tasks: Background) -> None:
        self._loop = loop
        self._tasks = tasks
        self._pid = os.getpid()
        self._calling = False
        self.calls: asyncio.Queue[Call[Any] | None] = asyncio.Queue()
        """What the task is to run; None ends it."""

    def call(self, call: Call[T]) -> T:
        inside = self._calling
        if inside and not call.ends:
            raise ConfigurationError(
                "this call interrupts another call of its thread, as a signal handler does: there "
                "only release and close can be called"
            )
        # An interruption may come between any two lines, and must leave neither call behind.
        try:
            self._calling = True
            self._loop.call_soon_threadsafe(self._begin, call, inside)
            return call.outcome.result()
        except BaseException as error:
            if not call.outcome.done() or call.outcome.exception() is not error:
                # The call has not failed: this thread was interrupted.
                self._loop.call_soon_threadsafe(self._abandon, call, inside)
                with contextlib.suppress(Exception):
                    call.outcome.result(EXIT_LIMIT)
            raise
        finally:
            self._calling = inside

    def _begin(self, call: Call[Any], inside: bool) -> None:
        call.begun = True
        if inside:  # not behind the call that it interrupts
            self._tasks.spawn(call.run(), "asynclock: a call of a signal handler")
        else:
            self.calls.put_nowait(call)

    def _abandon(self, call: Call[Any], inside: bool) -> None:
        if not call.ends:
            call.abandon(self._tasks)
        elif not call.begun:
            self._begin(call, inside)

    def __del__(self) -> None:
        if self._pid != os.getpid():
            return  # a forked child drops the copies of other threads' objects
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self.calls.put_nowait, None)
