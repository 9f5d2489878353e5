"""The event loop that works for the threads of this process, with one task per thread."""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import anyio

from .._background import Background
from ..errors import ConfigurationError
from ._calls import EXIT_LIMIT, Call, Caller, Outcome

T = TypeVar("T")

_log = logging.getLogger("asynclock")


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._started: Outcome[None] = Outcome()
        self._thread = threading.Thread(target=self._run, name="asynclock", daemon=True)
        self._callers = threading.local()
        self.ends = False
        """Whether the process ends: the leases have been released, or that can't be done."""
        self.over = False
        """Whether nothing is served any more."""
        self._waiting: set[Outcome[Any]] = set()
        self.tasks = Background()
        self._stop = asyncio.Event()
        self._todo: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        # In another thread, because `start` waits with a Condition (see Outcome).
        _thread.start_new_thread(self._start, ())
        self._started.result()

    def _start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:
            self._started.fail(error)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.get_loop().add_reader(self._awake, self._do)
                try:
                    self._run_on(runner.get_loop())
                finally:
                    self.over = True
                    runner.get_loop().remove_reader(self._awake)
                    self._stop.set()
                    for outcome in tuple(self._waiting):
                        outcome.fail(_ended())
        except BaseException as error:
            if not self._started.done:
                self._started.fail(error)
            elif not (self.ends and isinstance(error, RuntimeError)):
                raise
            # Else the process ends, and since Python 3.12 it starts no thread then. An event loop
            # that has resolved a host's name wants one, only to wait for the threads that did it.
        finally:
            self._awake.close()
            self._waker.close()

    def _run_on(self, loop: asyncio.AbstractEventLoop) -> Any:
        """Run the loop until `stop`, also after one of its tasks has called `sys.exit`.

        asyncio passes SystemExit and KeyboardInterrupt through the loop to the thread, for which
        they mean nothing here: the loop has the leases of all other threads.
        """
        work: Any = self._serve()
        while True:
            try:
                return loop.run_until_complete(work)
            except (SystemExit, KeyboardInterrupt):
                _log.exception("the event loop of the blocking locks goes on after an exit")
                work = self._main

    async def _serve(self) -> None:
        self._main = asyncio.current_task()
        with anyio.CancelScope():  # anyio imports its parts now, where no fork can come between
            await asyncio.sleep(0)
        self._started.succeed(None)
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._stop.wait()
            _forget_cancellation()

    def soon(self, work: Callable[..., object], *args: Any) -> None:
        """Call `work`, which must not raise, in the loop; any thread and finalizer may call this.

        Raises ConfigurationError when the loop has ended. Does what `call_soon_threadsafe` does, at
        two thirds of its cost: asyncio reads twice from its own pair of sockets, and after each
        read it may have to wait for the GIL.
        """
        self._todo.append((work, args))
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            pass  # full: the loop has been woken often enough
        except OSError:
            raise _ended() from None

    def _do(self) -> None:
        self._awake.recv(4096)
        while self._todo:
            work, args = self._todo.popleft()
            work(*args)

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
        caller = self._caller()
        inside = caller.calling
        if inside and not ends:
            raise ConfigurationError(
                "this call interrupts another call of its thread, as a signal handler does: there "
                "only release and close can be called"
            )
        call = Call(work, undo, ends=ends)
        # Not behind the call that this one interrupts.
        begin = self._spawn if inside else caller.calls.put_nowait
        # An interruption may come between any two lines, and must leave neither call behind.
        try:
            try:
                caller.calling = True
                self._waiting.add(call.outcome)
                self._check()  # after the addition: the loop ends in the other order
                self.soon(self._begin, call, begin)
                return call.outcome.result()
            finally:
                caller.calling = inside
                self._waiting.discard(call.outcome)
        except BaseException as error:
            if error is not call.outcome.error and not self.over:  # this thread was interrupted
                self.soon(self._interrupted, call, begin)
                call.outcome.wait(EXIT_LIMIT)
            raise

    def _caller(self) -> Caller:
        try:
            caller: Caller = self._callers.caller
        except AttributeError:
            self._check()
            caller = Caller(self.soon)
            self.soon(self._serve_calls, caller.calls)
            self._callers.caller = caller
        return caller

    def _begin(self, call: Call[Any], begin: Callable[[Call[Any]], None]) -> None:
        if not call.begun:
            call.begun = True
            begin(call)

    def _interrupted(self, call: Call[Any], begin: Callable[[Call[Any]], None]) -> None:
        if call.ends:
            self._begin(call, begin)
        else:
            call.abandon(self.tasks)

    def _spawn(self, call: Call[Any]) -> None:
        self.tasks.spawn(call.run(), "asynclock: a call of a thread")

    def _serve_calls(self, calls: asyncio.Queue[Call[Any] | None]) -> None:
        self.tasks.spawn(self._serve_caller(calls), "asynclock: the calls of a thread")

    async def _serve_caller(self, calls: asyncio.Queue[Call[Any] | None]) -> None:
        # A cancellation ends the call that it reaches, and between two calls nothing. It comes from
        # a function that `run` got, or from the loss of a lease that such a function has entered.
        while not self.over:
            try:
                if (call := await calls.get()) is None:
                    return
                await call.run()
                del call  # the result belongs to the thread
            except asyncio.CancelledError:
                pass
            _forget_cancellation()

    def start(self, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start `work`, which must not raise, without waiting for it."""
        self._check()
        self.soon(self._spawn, Call(lambda: work(*args)))

    def finish(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work`, which ends what an interrupted thread had; wait at most `EXIT_LIMIT` s."""
        call = Call(work, ends=True)
        with contextlib.suppress(ConfigurationError):  # the loop has ended already
            self.soon(self._spawn, call)
            if threading.current_thread() is not self._thread:
                call.outcome.wait(EXIT_LIMIT)

    def _check(self) -> None:
        if self.over:
            raise _ended()

    def stop(self, last: Iterable[Callable[[], Awaitable[object]]] = ()) -> None:
        """End the loop and its thread after all of `last`; wait at most `EXIT_LIMIT` seconds."""
        self.ends = self.over = True
        with contextlib.suppress(ConfigurationError):  # the loop has ended already
            self.soon(self._begin_end, tuple(last))
        try:
            self._thread.join(EXIT_LIMIT)
        except BaseException:  # interrupted
            self._thread.join(EXIT_LIMIT)
            raise
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
        self._stop.set()


def _ended() -> ConfigurationError:
    return ConfigurationError(
        "the event loop of the blocking locks has ended, and nothing renews their leases: the "
        "process ends, or something has stopped or broken the loop"
    )


def _forget_cancellation() -> None:
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
        with contextlib.suppress(ConfigurationError):  # the loop has ended already
            _current.soon(work)


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
