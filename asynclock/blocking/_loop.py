"""The event loop that works for the threads of this process, with one task per thread.

All calls of a thread run in one task, because the asynchronous locks identify a holder by its task.
So a thread that acquires a lock which it holds gets AlreadyHeldError, and can nest a reentrant one.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from .._background import Background
from ..errors import ConfigurationError

T = TypeVar("T")

EXIT_LIMIT = 5.0
"""Maximum seconds that the exit of the process, or an interrupted call, waits for the loop."""


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="asynclock", daemon=True)
        self._callers = threading.local()
        self._ends = False
        self.tasks = Background()
        self.portal: BlockingPortal
        self.loop: asyncio.AbstractEventLoop
        self._thread.start()
        self._started.result()

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            elif not (self._ends and isinstance(error, RuntimeError)):
                raise
            # Else the process ends, and since Python 3.12 it starts no thread then. An event loop
            # that has resolved a host's name wants one, only to wait for the threads that did it.

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with BlockingPortal() as self.portal:
            self._started.set_result(None)
            await self.portal.sleep_until_stopped()

    def call(
        self,
        work: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        ends: bool = False,
    ) -> T:
        """Run `work` in the task of the calling thread and return its result.

        An interrupted call (KeyboardInterrupt) is cancelled; if it has a result, `undo` gets it.
        A call that `ends` something is not cancelled. Nor is it refused in the thread of a running
        event loop, or in a signal handler that interrupts another call of the thread.
        """
        if threading.current_thread() is self._thread:
            raise ConfigurationError(
                "this is the thread of the event loop (an observer?), where no call may block"
            )
        if not ends and _loop_runs_here():
            raise ConfigurationError(
                "this call would block the event loop that runs in this thread, and every task in "
                "it. In async code use asynclock.connect() and `async with`, or call the blocking "
                "code in another thread: await asyncio.to_thread(...)"
            )
        try:
            caller: _Caller = self._callers.caller
        except AttributeError:
            caller = self._callers.caller = _Caller(self)
        return caller.call(_Call(work, undo, ends=ends))

    def stop(self) -> None:
        """End the loop and its thread."""
        self._ends = True
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self.portal.start_task_soon(self.portal.stop, True)
        self._thread.join(EXIT_LIMIT)


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Call(Generic[T]):
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
        except Exception as error:
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


class _Caller:
    """A thread's end of its task in the loop; the task ends when the thread drops this."""

    def __init__(self, background: BackgroundLoop) -> None:
        self._loop = background.loop
        self._tasks = background.tasks
        self._pid = os.getpid()
        self._calling = False
        self._calls: asyncio.Queue[_Call[Any] | None] = asyncio.Queue()
        # Each call brings its own context variables; those of the first must not stay.
        contextvars.Context().run(background.portal.start_task_soon, _serve, self._calls)

    def call(self, call: _Call[T]) -> T:
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

    def _begin(self, call: _Call[Any], inside: bool) -> None:
        call.begun = True
        if inside:  # not behind the call that it interrupts
            self._tasks.spawn(call.run(), "asynclock: a call of a signal handler")
        else:
            self._calls.put_nowait(call)

    def _abandon(self, call: _Call[Any], inside: bool) -> None:
        if not call.ends:
            call.abandon(self._tasks)
        elif not call.begun:
            self._begin(call, inside)

    def __del__(self) -> None:
        if self._pid != os.getpid():
            return  # a forked child drops the copies of other threads' objects
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._calls.put_nowait, None)


async def _serve(calls: asyncio.Queue[_Call[Any] | None]) -> None:
    while (call := await calls.get()) is not None:
        await call.run()
        del call  # the result belongs to the thread


# ---- one per process -----------------------------------------------------------------------------

_guard = threading.RLock()
_current: BackgroundLoop | None = None
_starting = False
_inherited: list[BackgroundLoop | None] = []
"""Loops of the process that this one was forked from. They are kept, because ending them would
close the sockets of that process."""
_at_end: list[Callable[[], None]] = []


def background() -> BackgroundLoop:
    """Return the loop of this process; the first call starts it."""
    global _current, _starting
    with _guard:
        if _current is None:
            if _starting:
                raise ConfigurationError(
                    "a signal handler can't use locks while it interrupts the very first call"
                )
            try:
                _starting = True
                _current = BackgroundLoop()
            finally:
                _starting = False
        return _current


def soon(work: Callable[[], object]) -> None:
    """Call `work` in the loop, if there is one; may be called from any thread or finalizer."""
    if _current is not None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            _current.loop.call_soon_threadsafe(work)


def at_end(work: Callable[[], None]) -> Callable[[], None]:
    """Call `work` at the exit of the process, before the loop ends."""
    _at_end.append(work)
    return work


@atexit.register
def _end() -> None:
    global _current
    if _current is None:
        return
    for work in _at_end:
        with contextlib.suppress(Exception):
            work()
    _current.stop()
    _current = None


def _after_fork() -> None:
    # The thread of the loop exists only in the parent.
    global _current, _guard
    _guard = threading.RLock()
    _inherited.append(_current)
    _current = None


# A fork waits while a loop is being started: otherwise the child would inherit unfinished imports.
os.register_at_fork(
    before=lambda: _guard.acquire(),
    after_in_parent=lambda: _guard.release(),
    after_in_child=_after_fork,
)
