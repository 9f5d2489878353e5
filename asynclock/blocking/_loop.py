"""The event loop that works for the threads of this process, with one task per thread.

The asynchronous locks identify a holder by its task. So a thread that acquires a lock which it
holds gets AlreadyHeldError, and can nest a reentrant one.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import io
import logging
import os
import selectors
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Generic, TypeVar, cast

import anyio.lowlevel

from .._process import Background
from ..errors import ConfigurationError

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]
Undo = Callable[[T], Coroutine[Any, Any, object]]

EXIT_LIMIT = 5.0
"""Maximum seconds that the exit of the process, or an interrupted call, waits for the loop."""

_log = logging.getLogger("asynclock")


class Call(Generic[T]):
    """One call of a thread, which waits for the end with a plain lock.

    A Future waits with a Condition. An exception of a signal handler can leave that locked, and
    then the loop stands still when it has the result. Or it leaves it unlocked, and RuntimeError
    ("cannot release un-acquired lock") takes the place of the exception.
    """

    done: bool = False
    error: BaseException | None = None
    _value: T | None = None
    _task: asyncio.Task[Any] | None = None
    _begun = _abandoned = False

    def __init__(self, work: Work[T], undo: Undo[T] | None = None) -> None:
        self._work = work
        self._undo = undo
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()  # free once this is done
        self._lock.acquire()

    async def run(self, task: asyncio.Task[Any] | None = None) -> None:
        """Do the work in the running task, with the context variables of the thread.

        A second call does nothing. If the call may be abandoned, `task` is the running one.
        """
        # Not in a new task with its own context, because the thread's task identifies its holds.
        if self._begun or self._abandoned:
            return
        self._begun = True
        tokens = [(variable, variable.set(value)) for variable, value in self._context.items()]
        self._task = task
        try:
            value = await self._work()
            if self._abandoned and self._undo is not None and value is not None:
                await self._undo(value)
            self.end(value)
        except BaseException as error:  # also an exit or a cancellation: the caller's task goes on
            self.end(None, error)
        finally:
            for variable, token in tokens:
                variable.reset(token)

    def end(self, value: T | None, error: BaseException | None = None) -> None:
        """End with a value or an error, unless this has ended. Runs in the thread of the loop."""
        if not self.done:
            self._value, self.error, self.done = value, error, True
            self._lock.release()

    def abandon(self, tasks: Background) -> None:
        """Cancel the call, or undo its result: its thread no longer waits. Runs in the loop."""
        self._abandoned = True
        if self.done:
            if self._undo is not None and self._value is not None:
                tasks.spawn(self._undo(self._value), "asynclock: undo a call")
        elif self._task is not None:
            self._task.cancel()
        else:
            self.end(None, ConfigurationError("the call was abandoned"))

    def wait(self) -> None:
        """Wait for the end, at most `EXIT_LIMIT` seconds. Runs in the calling thread."""
        if not self.done:
            self._lock.acquire(timeout=EXIT_LIMIT)

    def result(self) -> T:
        """Wait for the end, and return the value or raise the error."""
        if not self.done:
            self._lock.acquire()
        if self.error is not None:
            raise self.error
        return cast("T", self._value)


class Caller(deque[Call[Any]]):
    """The calls of a thread, in order; the task that runs them ends when the thread drops this."""

    calling = False
    """Whether the thread waits for a call."""
    dropped = False
    """Whether the thread has dropped this. Until `__del__` returns, `ref()` still returns it."""
    waiter: asyncio.Future[None] | None = None
    """What the task waits for when it has no call."""

    def __init__(self, background: BackgroundLoop) -> None:
        super().__init__()
        self._background = background

    def put(self, call: Call[Any]) -> None:
        """Add a call, and wake the task. Runs in the loop."""
        self.append(call)
        _wake(self.waiter)

    def __del__(self) -> None:
        self.dropped = True
        # A forked child drops the copies of other threads' objects.
        if self._background.pid == os.getpid():
            for call in self:  # the thread was interrupted, and does not wait for it
                self._background.soon(self._background.spawn, call)
            self._background.soon(_wake, self.waiter)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class _Selector(selectors.DefaultSelector):
    """Waits for sockets, and does what threads have put into `todo`."""

    def __init__(self) -> None:
        super().__init__()
        self.todo: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.asleep = False
        """Whether a thread must wake the loop. First it puts its work into `todo`."""
        self._looked = False
        # A pipe takes a quarter of the time of two sockets. A closed file object writes nowhere,
        # but the number of a closed file may be that of another one.
        awake, waker = os.pipe()
        self._awake, self.waker = io.FileIO(awake), io.FileIO(waker, "w")
        os.set_blocking(waker, False)
        self._bell = self.register(self._awake, selectors.EVENT_READ)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = []
        todo = self.todo
        if timeout == 0 and self._looked:
            # A loop that has work to do looks at the sockets in every second round only: nearly
            # always what it has read in the last one makes this round, and nothing new is there.
            self._looked = False
        else:
            self._looked = self.asleep = True
            found = super().select(0 if todo else timeout)
            self.asleep = False
            for one in found:
                if one[0] is self._bell:
                    self._awake.read(4096)
                    found.remove(one)
                    break
        while todo:
            work, args = todo.popleft()
            try:
                work(*args)
            except Exception:
                _log.exception("the event loop of the blocking locks could not begin a call")
        return found

    def close(self) -> None:
        super().close()
        self.waker.close()  # first: a write to a pipe that nobody reads is a signal
        self._awake.close()
        self.asleep = True  # so that `soon` notices


class BackgroundLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self._thread = threading.Thread(target=self._run, name="asynclock", daemon=True)
        self._callers = threading.local()
        self.ends: bool = False
        """Whether the process ends: the leases have been released, or that can't be done."""
        self.over: bool = False
        """Whether nothing is served any more."""
        self._waiting: set[Call[Any]] = set()
        self.tasks: Background = Background()
        self._stopped = False
        # The first call: anyio imports its parts now, where no fork can come between.
        self._started = Call(anyio.lowlevel.checkpoint)
        # In another thread, because `start` waits with a Condition (see Call).
        _thread.start_new_thread(self._start, ())
        self._started.result()

    def _start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:
            self._started.end(None, error)

    def _run(self) -> None:
        try:
            with contextlib.closing(_Selector()) as selector:
                self._selector, self._todo, self._waker = selector, selector.todo, selector.waker
                self.soon(self.spawn, self._started)
                make = partial(asyncio.SelectorEventLoop, selector)
                with asyncio.Runner(loop_factory=make) as runner:
                    try:
                        self._serve(runner.get_loop())
                    finally:
                        self.over = True
                        selector.todo = deque()  # nothing more begins
                        for call in self._waiting.copy():
                            call.end(None, _ended())
        except BaseException as error:
            if not self._started.done:
                self._started.end(None, error)
            elif not (self.ends and isinstance(error, RuntimeError)):
                raise
            # Else the process ends, and since Python 3.12 it starts no thread then. An event loop
            # that has resolved a host's name wants one, only to wait for the threads that did it.

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until `stop`, also after a task has called `sys.exit` or stopped the loop.

        asyncio passes SystemExit and KeyboardInterrupt through the loop to the thread, for which
        they mean nothing here: the loop has the leases of all other threads.
        """
        while not self._stopped:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                _log.exception("the event loop of the blocking locks goes on after an exit")

    def soon(self, work: Callable[..., object], *args: Any) -> bool:
        """Call `work`, which must not raise, in the loop; any thread and finalizer may call this.

        Return False if the loop has ended. `call_soon_threadsafe` costs twice as much: it also
        wakes a loop that is awake, which reads twice and begins a round later.
        """
        self._todo.append((work, args))
        if self._selector.asleep:
            try:
                # No signal handler runs between these two lines: nothing would wake the loop then.
                self._selector.asleep = False
                self._waker.write(b"\0")  # None if it is full: the loop was woken often enough
            except (ValueError, OSError):
                self._selector.asleep = True
                return False
        return True

    def call(self, work: Work[T], undo: Undo[T] | None = None, *, ends: bool = False) -> T:
        """Run `work` in the task of the calling thread and return its result.

        An interrupted call (KeyboardInterrupt) is cancelled; if it has a result, `undo` gets it.
        A call that `ends` something is not cancelled. Nor is it refused in the thread of a running
        event loop, or in a signal handler that interrupts another call of the thread.
        """
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - raises nothing
            self._refuse_here(ends=ends)
        caller: Caller | None = getattr(self._callers, "caller", None)
        if caller is None:
            caller = Caller(self)
            serve = partial(self._serve_caller, weakref.ref(caller))
            self.soon(lambda: self.tasks.spawn(serve(), "asynclock: the calls of a thread"))
            self._callers.caller = caller
        inside = caller.calling
        if inside and not ends:
            raise ConfigurationError(
                "this call interrupts another call of its thread, as a signal handler does: there "
                "only release and close can be called"
            )
        call = Call(work, undo)
        # Not behind the call that this one interrupts.
        begin = self.spawn if inside else caller.put
        # An interruption may come between any two lines, and must leave neither call behind.
        try:
            try:
                caller.calling = True
                self._waiting.add(call)
                # After the addition: the loop ends in the other order.
                if self.over or not self.soon(begin, call):
                    raise _ended()
                return call.result()
            finally:
                caller.calling = inside
                self._waiting.discard(call)
        except BaseException as error:
            if error is not call.error and not self.over:  # this thread was interrupted
                if ends:
                    self.soon(begin, call)  # if it has begun, this does nothing
                else:
                    self.soon(call.abandon, self.tasks)
                call.wait()
            raise

    def _refuse_here(self, *, ends: bool) -> None:
        """Raise ConfigurationError in the thread of a running event loop, as `call` says."""
        if threading.current_thread() is self._thread:
            raise ConfigurationError(
                "this is the thread of the event loop (an observer?), where no call may block"
            )
        if not ends:
            raise ConfigurationError(
                "this call would block the event loop that runs in this thread, and every task in "
                "it. In async code use asynclock.connect() and `async with`, or call the blocking "
                "code in another thread: await asyncio.to_thread(...)"
            )

    def spawn(self, call: Call[Any]) -> None:
        """Run `call` in a task of its own. Runs in the loop."""
        self.tasks.spawn(call.run(), "asynclock: a call of a thread")

    async def _serve_caller(self, served: weakref.ref[Caller]) -> None:
        # A cancellation ends the call that it reaches, and between two calls nothing. It comes from
        # a function that `run` got, or from the loss of a lease that such a function has entered.
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        while not self.over and (caller := served()) is not None and not caller.dropped:
            try:
                if caller:
                    call = caller.popleft()
                    del caller  # it belongs to the thread
                    await call.run(task)
                    del call  # so does the result
                else:
                    waiter = caller.waiter = task.get_loop().create_future()
                    del caller
                    await waiter
            except asyncio.CancelledError:
                pass
            while task.cancelling():
                task.uncancel()

    def start(self, work: Work[object]) -> None:
        """Start `work`, which must not raise, without waiting for it."""
        if self.over or not self.soon(self.spawn, Call(work)):
            raise _ended()

    def finish(self, work: Work[object]) -> None:
        """Run `work`, which ends what an interrupted thread had; wait at most `EXIT_LIMIT` s."""
        call = Call(work)
        if self.soon(self.spawn, call) and threading.current_thread() is not self._thread:
            call.wait()

    def stop(self, last: Iterable[Work[object]] = ()) -> None:
        """End the loop and its thread after all of `last`; wait at most `EXIT_LIMIT` seconds."""
        self.ends = self.over = True

        async def end() -> None:
            await asyncio.gather(*(work() for work in last), return_exceptions=True)
            self._stopped = True
            asyncio.get_running_loop().stop()

        self.soon(self.spawn, Call(end))
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


def _ended() -> ConfigurationError:
    return ConfigurationError(
        "the event loop of the blocking locks has ended, and nothing renews their leases: the "
        "process ends, or something has broken the loop"
    )


_guard = threading.RLock()  # of the thread that starts the loop
gate = threading.RLock()  # of the moment that sets `current`, and of a close without a loop: not
# the guard, because a finalizer that closes a manager may run in the thread of a loop that starts
current: BackgroundLoop | None = None
_starting = False
_inherited: list[BackgroundLoop | None] = []
"""Loops of the parent process, kept because ending them would close the sockets of the parent."""


def background() -> BackgroundLoop:
    """Return the loop of this process; the first call starts it."""
    global current, _starting
    if current is not None:
        return current
    with _guard:
        if current is None:
            if _starting:
                raise ConfigurationError(
                    "a signal handler can't use locks while it interrupts the very first call"
                )
            try:
                _starting = True
                started = BackgroundLoop()
                with gate:
                    current = started
            finally:
                _starting = False
        return current


def _after_fork() -> None:
    # The thread of the loop exists only in the parent.
    global current, _guard, gate
    _guard, gate = threading.RLock(), threading.RLock()
    _inherited.append(current)
    current = None


# A fork waits while a loop is being started: otherwise the child would inherit unfinished imports.
os.register_at_fork(
    before=lambda: _guard.acquire(),
    after_in_parent=lambda: _guard.release(),
    after_in_child=_after_fork,
)
