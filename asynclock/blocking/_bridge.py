"""How a thread calls the asynchronous manager, which works in the event loop of this process."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

from .. import _settings
from .._forks import of_one_process
from ..errors import AsyncLockError, ConfigurationError
from ..manager import LockManager as AsyncLockManager
from . import _loop

T = TypeVar("T")

# What a `with` has taken ends also if its thread is interrupted. Python runs signal handlers
# between two steps of the main thread, also before the first line of an `__exit__`, where no `try`
# of ours can catch what a handler raises. But `with` looks `__exit__` up before it enters, and
# drops what it has found when it is over, however that comes. So a `with` that has dropped it
# before the block was left has been interrupted.

_looked_up = threading.local()


class Exit:
    """An `__exit__` that remembers which object the thread has got by its last look-up."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, instance: object, owner: object = None) -> Callable[..., None]:
        bound = () if instance is None else (instance,)  # an exit stack asks the class
        found = partial(self._function, *bound)
        _looked_up.exit = weakref.ref(found)
        return found


class Block:
    """The block of a `with` that this thread is about to enter."""

    def __init__(self, entered: object) -> None:
        found = vars(_looked_up).pop("exit", lambda: None)()
        ours = found is not None and all(one is entered for one in found.args)
        self._exit = found if ours else None

    def watch(self, end: Callable[[], None]) -> weakref.ref[Any] | None:
        """Call `end` when the `with` is over, unless the result has been dropped until then."""
        return None if self._exit is None else weakref.ref(self._exit, lambda _: end())


@of_one_process
class Bridge:
    """A manager, as far as its locks and leases need it to reach the event loop."""

    def __init__(self, *, locks: AsyncLockManager) -> None:
        self._locks = locks
        self._pid = os.getpid()
        self._used = False
        self._with: object = None
        """Set while a `with` is to be watched."""
        _managers.add(weakref.ref(self, _managers.discard))

    def __repr__(self) -> str:
        return f"<blocking {repr(self._locks)[1:]}"

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name: str) -> Never:
            text = f"blocking locks have no {name!r}"
            if name in _settings.METHODS_HERE:
                text += f": write {_settings.METHODS_HERE[name]}"
            elif hasattr(AsyncLockManager, name) and not name.startswith("_"):
                text += f": write locks.run(lambda locks: locks.{name}(...)...)"
            raise AttributeError(text, name=name, obj=self)

        __aenter__ = __aexit__ = _settings.enter_plain

    def asynchronous(self) -> AsyncLockManager:
        """Return the asynchronous manager; use it only in the event loop, as `run` does.

        Raises ConfigurationError in a child that was forked after the first use.
        """
        if self._pid != os.getpid():
            if self._used:
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

    def call(
        self, work: _loop.Work[T], undo: _loop.Undo[T] | None = None, *, ends: bool = False
    ) -> T:
        """Run `work` in the event loop for the calling thread; see `BackgroundLoop.call`."""
        self.asynchronous()
        self._used = True
        return _loop.background().call(work, undo, ends=ends)

    def start(self, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start `work(*args)` in the event loop without waiting for it."""
        self.asynchronous()
        _loop.background().start(work, *args)

    def finish(self, work: _loop.Work[object]) -> None:
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

        The function must not block the event loop: all leases of the process are renewed there. Its
        locks and leases are asynchronous ones, to be used by such functions only. An interruption
        of this call (KeyboardInterrupt) cancels the function. Raises what the function raises, also
        CancelledError and SystemExit, and ConfigurationError if it returns nothing to await.
        """

        def work() -> Awaitable[T]:
            made = function(self._locks)
            if not isinstance(made, Awaitable):
                raise ConfigurationError(
                    "pass `run` a function that returns an awaitable, such as "
                    f"`lambda locks: locks.inspect('a')`; this one returned {type(made).__name__}"
                )
            return made

        return self.call(work)

    def close(self) -> None:
        """Release all leases and end all connections; a second call does nothing.

        At the exit of the process all managers are closed; later calls do nothing either.
        """
        try:
            ended = _loop.current is not None and _loop.current.ends
            if self.used_here and not ended:
                self.call(self._locks.aclose, ends=True)
        except BaseException:
            self._finish()
            raise

    def _finish(self) -> None:
        """Close for a thread that was interrupted."""
        self._with = None
        self.finish(self._locks.aclose)

    def __enter__(self) -> Self:
        block = Block(self)
        try:
            self.call(self._locks.__aenter__)
            self._with = block.watch(self._finish)
        except AsyncLockError:
            raise
        except BaseException:  # interrupted
            self.close()
            raise
        return self

    @Exit
    def __exit__(self, *_: object) -> None:
        self.close()
        self._with = None


_managers: set[weakref.ref[Bridge]] = set()


@atexit.register
def _end() -> None:
    if _loop.current is not None:
        # A copy, because other threads may still make managers, and drop them.
        managers = [manager for one in _managers.copy() if (manager := one()) is not None]
        _loop.current.stop([one._locks.aclose for one in managers if one.used_here])
