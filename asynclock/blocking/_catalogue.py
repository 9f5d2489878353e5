"""The primitives for code that blocks, as methods of the manager."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from .._engine.options import HandOff
from .._primitives.register import DEFAULT_KEEP
from .._primitives.synchronized import check_function, check_template, fill_in, shown_signature
from ..errors import ConfigurationError
from ._bridge import Bridge
from ._kinds import FairLock, MultiLock, ReadWriteLock, ReentrantLock, Semaphore
from ._locks import Lock
from ._shared import Barrier, Latch, SharedEvent

P = ParamSpec("P")
R = TypeVar("R")


class LockSettings(TypedDict, total=False):
    """The settings of `asynclock.LockManager.lock` that make sense for a thread; in seconds."""

    ttl: float | None
    timeout: float | None
    renew: bool
    max_hold: float | None
    handoff: HandOff


class _Settings(LockSettings, total=False):
    interrupt: bool


class Catalogue(Bridge):
    """The methods that make primitives; the manager inherits them."""

    def lock(self, name: str, **settings: Unpack[LockSettings]) -> Lock:
        """Make a mutex on `name`. Raises ConfigurationError.

        Args:
            name: what is locked; async code and other processes use the same name.
            settings: those of `asynclock.LockManager.lock`.
        """
        return Lock(self, lock=self.asynchronous().lock(name, **_given(settings)))

    def reentrant_lock(self, name: str, **settings: Unpack[LockSettings]) -> ReentrantLock:
        """Make a mutex on `name` that the thread which holds it may acquire again.

        Args:
            name: what is locked, as in `lock`.
            settings: those of `asynclock.LockManager.lock`.
        """
        return ReentrantLock(
            self, lock=self.asynchronous().reentrant_lock(name, **_given(settings))
        )

    def multi_lock(self, *names: str, **settings: Unpack[LockSettings]) -> MultiLock:
        """Make a lock on all of `names` at once; each is the mutex of `lock(name)`.

        Args:
            names: what is locked; at most 64 names.
            settings: those of `asynclock.LockManager.lock`.
        """
        return MultiLock(self, lock=self.asynchronous().multi_lock(*names, **_given(settings)))

    def rwlock(self, name: str, **settings: Unpack[LockSettings]) -> ReadWriteLock:
        """Make a read-write lock on `name`: `.read()` is shared, `.write()` is exclusive.

        Args:
            name: what is locked.
            settings: those of `asynclock.LockManager.lock`.
        """
        return ReadWriteLock(self, lock=self.asynchronous().rwlock(name, **_given(settings)))

    def fair_lock(self, name: str, **settings: Unpack[LockSettings]) -> FairLock:
        """Make a mutex on `name` that goes to the longest waiter, in any process.

        Args:
            name: what is locked, apart from the mutex of `lock`.
            settings: those of `asynclock.LockManager.lock`.
        """
        given: Any = _given(settings)
        return FairLock(self, lock=self.asynchronous().fair_lock(name, **given))

    def semaphore(self, name: str, permits: int, **settings: Unpack[LockSettings]) -> Semaphore:
        """Make a semaphore on `name`: at most `permits` leases at a time.

        Args:
            name: the name of the semaphore.
            permits: maximum number of leases, 1 to 256; the same in every process.
            settings: those of `asynclock.LockManager.lock`.
        """
        return Semaphore(
            self, lock=self.asynchronous().semaphore(name, permits, **_given(settings))
        )

    def event(self, name: str, *, keep: float = DEFAULT_KEEP) -> SharedEvent:
        """Make an event on `name`: a flag that every process sees. Raises ConfigurationError.

        Args:
            name: the name of the event.
            keep: seconds after the last change at which the nodes forget the event.
        """
        return SharedEvent(self, made=self.asynchronous().event(name, keep=keep))

    def latch(self, name: str, count: int, *, keep: float = DEFAULT_KEEP) -> Latch:
        """Make a latch on `name` that opens after `count` counts. Raises ConfigurationError.

        Args:
            name: the name of the latch.
            count: number of counts that open it, 1 to 1000; the same in every process.
            keep: seconds after the last count at which the nodes forget the latch.
        """
        return Latch(self, made=self.asynchronous().latch(name, count, keep=keep))

    def barrier(
        self, name: str, parties: int, *, ttl: float | None = None, keep: float = DEFAULT_KEEP
    ) -> Barrier:
        """Make a barrier on `name` for `parties` at a time. Raises ConfigurationError.

        Args:
            name: the name of the barrier.
            parties: number of parties that pass together, 1 to 256; the same in every process.
            ttl: seconds after which a party that crashed while it waited stops counting (default:
                the manager's ttl).
            keep: seconds after the last arrival at which the nodes forget the barrier.
        """
        return Barrier(self, made=self.asynchronous().barrier(name, parties, ttl=ttl, keep=keep))

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
                with self.lock(fill_in(template, bound.arguments), **settings) as held:
                    if lease is not None:
                        kwargs[lease] = held
                    return function(*args, **kwargs)

            if lease is not None:
                wrapper.__signature__ = shown  # type: ignore[attr-defined]  # functions have it, their type doesn't say
            return wrapper

        return decorate


def _given(settings: LockSettings) -> _Settings:
    return {**settings, "interrupt": False}
