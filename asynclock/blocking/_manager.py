"""The manager for code that blocks: an asynchronous manager inside the loop of this process."""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from .._engine.inspection import Inspection
from .._engine.options import HandOff
from .._nodes.deployment import NodeAddress
from .._primitives.synchronized import check_function, check_template, shown_signature
from .._reports import NodeHealth, Statistics
from .._settings import ConnectSettings
from ..errors import ConfigurationError
from ..manager import LockManager as AsyncLockManager
from ..manager import connect as connect_asynchronously
from . import _loop
from ._locks import Lock, MultiLock, ReadWriteLock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class LockSettings(TypedDict, total=False):
    """The settings of `asynclock.LockManager.lock` that make sense for a thread; in seconds."""

    ttl: float | None
    timeout: float | None
    renew: bool
    max_hold: float | None
    handoff: HandOff


class _Settings(LockSettings, total=False):
    interrupt: bool


def connect(*nodes: NodeAddress, **settings: Unpack[ConnectSettings]) -> LockManager:
    """Make a manager of locks for code that blocks; the arguments are those of `asynclock.connect`.

    This does no I/O and starts no thread; the first use of a lock does. So a manager may be made
    at the import of a module, before a server forks its workers. Observers are called in the
    thread of the event loop and must be quick. Raises ConfigurationError.

    Args:
        nodes: those of `asynclock.connect`.
        settings: those of `asynclock.connect`; times are in seconds.
    """
    return LockManager(lambda: connect_asynchronously(*nodes, **settings))


class LockManager:
    """Makes locks for code that blocks. `connect` makes it; all threads of a process may share it.

    `close` or `with` closes it, and so does the exit of the process. It belongs to the process that
    used it first: in a forked child it raises ConfigurationError, so call `connect` there again.
    """

    def __init__(self, make: Callable[[], AsyncLockManager]) -> None:
        self._make = make
        self._locks = make()
        self._pid = os.getpid()
        self._used = False
        _managers.add(self)

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
            self._locks, self._pid = self._make(), os.getpid()
        return self._locks

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
            ends: whether `work` ends something, and so runs to its end even then.
        """
        self.asynchronous()
        self._used = True
        return _loop.background().call(work, undo, ends=ends)

    def start(self, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start `work` in the event loop without waiting for it.

        Args:
            work: an async function.
            args: its arguments.
        """
        self.asynchronous()
        _loop.background().portal.start_task_soon(work, *args)

    def drop(self, box: list[Any]) -> None:
        """Empty `box` in the event loop, unless this process was forked."""
        if self._pid == os.getpid():
            _loop.soon(box.clear)

    def run(self, function: Callable[[AsyncLockManager], Awaitable[T]]) -> T:
        """Run an async function with the asynchronous manager, for calls without a method here.

            leader = locks.run(lambda locks: locks.election("cron").leader())

        The function must not block the event loop: all leases of the process are renewed there.
        """
        return self.call(lambda: function(self.asynchronous()))

    def lock(self, name: str, **settings: Unpack[LockSettings]) -> Lock:
        """Make a mutex on `name`. Raises ConfigurationError.

        Args:
            name: what is locked; async code and other processes use the same name.
            settings: those of `asynclock.LockManager.lock`.
        """
        given = _given(settings)
        return Lock(self, lambda locks: locks.lock(name, **given))

    def reentrant_lock(self, name: str, **settings: Unpack[LockSettings]) -> Lock:
        """Make a mutex on `name` that the thread which holds it may acquire again.

        Args:
            name: what is locked, as in `lock`.
            settings: those of `asynclock.LockManager.lock`.
        """
        given = _given(settings)
        return Lock(self, lambda locks: locks.reentrant_lock(name, **given))

    def multi_lock(self, *names: str, **settings: Unpack[LockSettings]) -> MultiLock:
        """Make a lock on all of `names` at once; each is the mutex of `lock(name)`.

        Args:
            names: what is locked; at most 64 names.
            settings: those of `asynclock.LockManager.lock`.
        """
        given = _given(settings)
        return MultiLock(self, lambda locks: locks.multi_lock(*names, **given))

    def rwlock(self, name: str, **settings: Unpack[LockSettings]) -> ReadWriteLock:
        """Make a read-write lock on `name`: `.read()` is shared, `.write()` is exclusive.

        Args:
            name: what is locked.
            settings: those of `asynclock.LockManager.lock`.
        """
        given = _given(settings)
        return ReadWriteLock(
            Lock(self, lambda locks: locks.rwlock(name, **given).read()),
            Lock(self, lambda locks: locks.rwlock(name, **given).write()),
        )

    def fair_lock(self, name: str, **settings: Unpack[LockSettings]) -> Lock:
        """Make a mutex on `name` that goes to the longest waiter; not available over a quorum.

        Args:
            name: what is locked, apart from the mutex of `lock`.
            settings: those of `asynclock.LockManager.lock`.
        """
        given: Any = _given(settings)
        return Lock(self, lambda locks: locks.fair_lock(name, **given))

    def semaphore(self, name: str, permits: int, **settings: Unpack[LockSettings]) -> Lock:
        """Make a semaphore on `name`: at most `permits` leases at a time.

        Args:
            name: the name of the semaphore.
            permits: maximum number of leases, 1 to 256; the same in every process.
            settings: those of `asynclock.LockManager.lock`.
        """
        given = _given(settings)
        return Lock(self, lambda locks: locks.semaphore(name, permits, **given))

    def synchronized(
        self, template: str, *, lease: str | None = None, **settings: Unpack[LockSettings]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function: each call holds the mutex that `template` names.

            @locks.synchronized("orders:{order_id}", timeout=2)
            def ship(order_id: int) -> None: ...

        Raises ConfigurationError.

        Args:
            template: the name, with `{order_id}` and the like for the call's arguments.
            lease: the name of a keyword-only parameter that gets the lease.
            settings: those of `asynclock.LockManager.lock`.
        """
        check_template(template)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{function!r} is async: decorate it with asynclock.LockManager.synchronized"
                )
            check_function(function, template, lease)
            shown = shown_signature(function, lease)

            @functools.wraps(function)
            def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
                bound = shown.bind(*args, **kwargs)
                bound.apply_defaults()
                with self.lock(template.format_map(bound.arguments), **settings) as held:
                    if lease is not None:
                        kwargs[lease] = held
                    return function(*args, **kwargs)

            if lease is not None:
                wrapper.__signature__ = shown  # type: ignore[attr-defined]  # functions have it, their type doesn't say
            return wrapper

        return decorate

    def inspect(self, name: str) -> Inspection:
        """Return which owner has the mutex `name`, node by node; takes at most one node timeout."""
        return self.run(lambda locks: locks.inspect(name))

    def inspect_all(self) -> list[Inspection]:
        """Return everything that is held on the nodes; see `asynclock.LockManager.inspect_all`."""

        async def found(locks: AsyncLockManager) -> list[Inspection]:
            return [one async for one in locks.inspect_all()]

        return self.run(found)

    def nodes(self) -> tuple[NodeHealth, ...]:
        """Return the health of each node, without asking the nodes."""
        return self.run(_soon(lambda locks: locks.nodes()))

    def statistics(self) -> Statistics:
        """Return the manager's counts, without asking the nodes."""
        return self.run(_soon(lambda locks: locks.statistics()))

    def close(self) -> None:
        """Release all leases and end all connections; a second call does nothing."""
        if self._used and self._pid == os.getpid():
            self.call(lambda: self._locks.aclose(), ends=True)

    def __enter__(self) -> LockManager:
        self.run(lambda locks: locks.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _given(settings: LockSettings) -> _Settings:
    return {**settings, "interrupt": False}


def _soon(
    function: Callable[[AsyncLockManager], T],
) -> Callable[[AsyncLockManager], Awaitable[T]]:
    async def run(locks: AsyncLockManager) -> T:
        return function(locks)

    return run


_managers: weakref.WeakSet[LockManager] = weakref.WeakSet()


@_loop.at_end
def _close_all() -> None:
    for manager in list(_managers):
        manager.close()
