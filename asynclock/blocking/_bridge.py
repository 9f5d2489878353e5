"""How a thread calls the asynchronous manager, which works in the event loop of this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypedDict, TypeVar

from .._engine.spec import HandOff
from .._forks import of_one_process
from ..errors import ConfigurationError
from ..manager import LockManager as AsyncLockManager
from . import _loop

T = TypeVar("T")


class WaitSettings(TypedDict, total=False):
    """The settings of `asynclock.LockManager.fair_lock` that make sense for a thread."""

    ttl: float | None
    timeout: float | None
    renew: bool
    max_hold: float | None


class LockSettings(WaitSettings, total=False):
    """The settings of `asynclock.LockManager.lock` that make sense for a thread; in seconds."""

    handoff: HandOff


@of_one_process
class Bridge:
    """The part of a manager through which its locks and leases reach the event loop."""

    def __init__(self, locks: AsyncLockManager) -> None:
        self._locks = locks
        self._pid = os.getpid()
        self._used = False

    def asynchronous(self) -> AsyncLockManager:
        """Return the asynchronous manager; use it only in the event loop, as `run` does.

        Raises ConfigurationError in a child that was forked after the first use.
        """
        if self._pid != os.getpid():
            if self.inherited:
                raise ConfigurationError(
                    f"these locks were used by process {self._pid}, from which this one was "
                    "forked: its connections and leases are not ours. Call connect() in the child "
                    "(Celery: worker_process_init, gunicorn: post_fork), or only make the manager "
                    "before the fork and use it after"
                )
            self._pid = os.getpid()  # the asynchronous manager has noticed the fork, too
        return self._locks

    @property
    def used_here(self) -> bool:
        """Whether this process has used the manager."""
        return self._used and self._pid == os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this process was forked after the first use."""
        return self._used and self._pid != os.getpid()

    def call(
        self,
        work: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        ends: bool = False,
    ) -> T:
        """Run `work` in the event loop for the calling thread; for the leases and locks.

        Args:
            work: makes the awaitable, in the event loop.
            undo: undoes a result that comes after the thread was interrupted (KeyboardInterrupt).
            ends: whether `work` ends something. Once the loop has such a call, that runs to its end
                before this raises what interrupted the thread.
        """
        self.asynchronous()
        self._used = True
        return _loop.background().call(work, undo, ends=ends)

    def ask(self, function: Callable[[], T]) -> T:
        """Return what a plain function of the asynchronous manager returns in the event loop."""

        async def work() -> T:
            return function()

        return self.call(work)

    def start(self, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start `work` in the event loop without waiting for it.

        Args:
            work: an async function.
            args: its arguments.
        """
        self.asynchronous()
        _loop.background().start(work, *args)

    def finish(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work`, which ends what this thread had when it was interrupted, and may be repeated.

        Waits for a bounded time. Does nothing in a child that was forked after the first use.
        """
        if self.used_here:
            _loop.background().finish(work)

    def drop(self, box: list[Any]) -> None:
        """Empty `box` in the event loop, unless this process was forked."""
        if self._pid == os.getpid():
            _loop.soon(box.clear)

    def run(self, function: Callable[[AsyncLockManager], Awaitable[T]]) -> T:
        """Run an async function with the asynchronous manager, for calls without a method here.

            leader = locks.run(lambda locks: locks.election("cron").leader())

        The function must not block the event loop: all leases of the process are renewed there.
        Raises what the function raises, also CancelledError and SystemExit.
        """
        return self.call(lambda: _awaitable(function(self.asynchronous())))


def _awaitable(made: Awaitable[T]) -> Awaitable[T]:
    if not isinstance(made, Awaitable):
        raise ConfigurationError(
            "pass `run` a function that returns an awaitable, such as "
            f"`lambda locks: locks.inspect('a')`; this one returned {type(made).__name__}"
        )
    return made


async def listed(found: AsyncIterator[T]) -> list[T]:
    """Return everything that `found` yields."""
    return [one async for one in found]
