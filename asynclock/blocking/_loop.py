"""The event loop that works for the threads of this process, with one task per thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

from .._background import Background
from ..errors import ConfigurationError
from ._calls import EXIT_LIMIT, Call, Caller

T = TypeVar("T")

_log = logging.getLogger("asynclock")


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="asynclock", daemon=True)
        self._callers = threading.local()
        self.ends = False
        """Whether the process ends: the leases have been released, or that can't be done."""
        self.over = False
        """Whether nothing is served any more."""
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self.tasks = Background()
        self.portal: BlockingPortal
        self.loop: asyncio.AbstractEventLoop
        self._thread.start()
        self._started.result()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                try:
                    self._run_on(runner.get_loop())
                finally:
                    self.over = True
                    for outcome in tuple(self._waiting):
                        if not outcome.done():
                            outcome.set_exception(_ended())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            elif not (self.ends and isinstance(error, RuntimeError)):
                raise
            # Else the process ends, and since Python 3.12 it starts no thread then. An event loop
            # that has resolved a host's name wants one, only to wait for the threads that did it.

    def _run_on(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Run the loop until `stop`, also after one of its tasks has called `sys.exit`.

        asyncio passes SystemExit and KeyboardInterrupt through the loop to the thread, for which
        they mean nothing here: the loop has the leases of all other threads.
        """
        self.loop = loop
        work: Any = self._serve()
        while True:
            try:
                return loop.run_until_complete(work)
            except (SystemExit, KeyboardInterrupt):
                _log.exception("the event loop of the blocking locks goes on after an exit")
                work = self._main

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        async with BlockingPortal() as self.portal:
            self._started.set_result(None)
            while not self.over:
                with _no_cancellation():
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
        call = Call(work, undo, ends=ends)
        self._waiting.add(call.outcome)
        try:
            self._check()  # after the addition: the loop ends in the other order
            return self._caller().call(call)
        finally:
            self._waiting.discard(call.outcome)

    def _caller(self) -> Caller:
        try:
            caller: Caller = self._callers.caller
        except AttributeError:
            caller = Caller(self.loop, self.tasks)
            # Each call brings its own context variables; those of the first must not stay.
            start = self.portal.start_task_soon
            contextvars.Context().run(start, self._serve_caller, caller.calls)
            self._callers.caller = caller
        return caller

    async def _serve_caller(self, calls: asyncio.Queue[Call[Any] | None]) -> None:
        # A cancellation ends the call that it reaches, and between two calls nothing. It comes from
        # a function that `run` got, or from the loss of a lease that such a function has entered.
        while not self.over:
            with _no_cancellation():
                if (call := await calls.get()) is None:
                    return
                await call.run()
                del call  # the result belongs to the thread

    def start(self, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start `work`, which must not raise, without waiting for it."""
        self._check()
        self.portal.start_task_soon(work, *args)

    def _check(self) -> None:
        if self.over:
            raise _ended()

    def stop(self, last: Iterable[Callable[[], Awaitable[object]]] = ()) -> None:
        """End the loop and its thread after all of `last`; wait at most `EXIT_LIMIT` seconds."""
        self.ends = self.over = True
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self.loop.call_soon_threadsafe(self._begin_end, tuple(last))
        self._thread.join(EXIT_LIMIT)
        if self._thread.is_alive():
            _log.warning(
                "the event loop of the blocking locks has not ended in %g s (does an observer "
                "block it?): leases that it could not release end with their ttl",
                EXIT_LIMIT,
            )

    def _begin_end(self, last: Iterable[Callable[[], Awaitable[object]]]) -> None:
        self.tasks.spawn(self._end(last), "asynclock: exit")

    async def _end(self, last: Iterable[Callable[[], Awaitable[object]]]) -> None:
        await asyncio.gather(*(work() for work in last), return_exceptions=True)
        await self.portal.stop(True)


def _ended() -> ConfigurationError:
    return ConfigurationError(
        "the event loop of the blocking locks has ended, and nothing renews their leases: the "
        "process ends, or something has stopped or broken the loop"
    )


@contextlib.contextmanager
def _no_cancellation() -> Iterator[None]:
    """End the body when it is cancelled, and forget the cancellation."""
    with contextlib.suppress(asyncio.CancelledError):
        yield
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# ---- one per process -----------------------------------------------------------------------------

_guard = threading.RLock()
_current: BackgroundLoop | None = None
_starting = False
_inherited: list[BackgroundLoop | None] = []
"""Loops of the process that this one was forked from. They are kept, because ending them would
close the sockets of that process."""
_at_end: list[Callable[[], Awaitable[object]]] = []


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


def at_end(work: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
    """Run `work` in the loop at the exit of the process, before the loop ends."""
    _at_end.append(work)
    return work


def process_ends() -> bool:
    """Return whether the loop has ended because the process does."""
    return _current is not None and _current.ends


@atexit.register
def _end() -> None:
    if _current is not None:
        _current.stop(_at_end)


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
