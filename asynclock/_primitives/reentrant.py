"""The reentrant lock: a task that holds it may acquire it again without asking the nodes."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self
from weakref import ReferenceType

from .._engine.acquiring import AcquireContext, Deferred
from .._engine.lease import Lease
from .base import UNSET, Entered, Timeout, limited
from .body import Body
from .lock import Lock

Key = tuple[str, int]
Holds = tuple["ReferenceType[ReentrantLease]", ...]
"""Holds on one name. The references are weak, so that a dropped hold is noticed."""
Registry = MutableMapping[Key, Holds]
"""The present holds by (name, id of the task), which keeps neither the task nor its lease alive."""

_inherited: ContextVar[Mapping[Key, Holds]] = ContextVar(
    "asynclock_inherited", default=MappingProxyType({})
)
"""This task's own holds and those it was started inside of, by (name, id of the registry)."""


class Nesting:
    """One lease, and the number of its holds in this process."""

    __slots__ = ("__weakref__", "count", "dropped", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.count = 0
        self.dropped = False
        """Whether a hold was dropped without a release, so that its code may still run."""

    def leave(self) -> bool:
        """Count one hold less; return whether the lease is to be released now."""
        self.count -= 1
        if not self.count and self.dropped:
            self.lease.abandon()
        return not self.count and not self.dropped


def _live(holds: Iterable[ReferenceType[ReentrantLease]]) -> list[ReentrantLease]:
    """Return the holds that have not ended."""
    found = (reference() for reference in holds)
    return [hold for hold in found if hold is not None and hold._outcome is None]


def _dropped(registry: Registry, key: Key, reference: ReferenceType[Nesting]) -> None:
    if not _live(registry.get(key, ())):
        registry.pop(key, None)
    nesting = reference()
    if nesting is None:
        return  # the lease was dropped as well and warns itself
    nesting.dropped = True
    nesting.leave()
    if nesting.lease.held:
        warnings.warn(
            f"a hold on {nesting.lease!r} was dropped without being released: when the other holds "
            "have ended, the lease is no longer renewed and ends with its ttl",
            ResourceWarning,
            stacklevel=1,
        )


class ReentrantLease:
    """One of possibly several nested holds on one lease, used like a `Lease`.

    All holds share owner, fence and renewal. The last hold to end releases the lease. A loss
    interrupts each entered body, in every task.
    """

    __slots__ = ("__weakref__", "_body", "_inherit", "_nesting", "_outcome", "_registry", "_task")

    def __init__(self, nesting: Nesting, registry: Registry, *, inherit: bool) -> None:
        nesting.count += 1
        self._nesting = nesting
        self._outcome: bool | None = None
        self._body = Body()
        self._registry = registry
        self._inherit = inherit
        self._task: asyncio.Task[Any] | None = None
        self._register()

    def _register(self) -> None:
        # The calling task has this hold now; with `inherit`, tasks that it starts inherit it.
        self._task = asyncio.current_task()
        key = (self.name, id(self._task))
        others = _live(self._registry.get(key, ()))
        self._registry[key] = tuple(map(ReferenceType, (*others, self)))
        if self._inherit:
            # Keep all holds that have not ended: a task that is started now is inside all of them.
            known = {key: _live(holds) for key, holds in _inherited.get().items()}
            known.setdefault((self.name, id(self._registry)), []).append(self)
            alive = {key: tuple(map(ReferenceType, holds)) for key, holds in known.items() if holds}
            _inherited.set(MappingProxyType(alive))

    def _unregister(self) -> None:
        key = (self.name, id(self._task))
        others = [hold for hold in _live(self._registry.pop(key, ())) if hold is not self]
        if others:
            self._registry[key] = tuple(map(ReferenceType, others))

    def __del__(self) -> None:
        if self._outcome is None:
            nesting, key = self._nesting, (self.name, id(self._task))
            nesting.lease.soon(partial(_dropped, self._registry, key, ReferenceType(nesting)))

    def __repr__(self) -> str:
        return f"<ReentrantLease of {self._nesting.lease!r}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._nesting.lease.name

    @property
    def owner(self) -> str:
        """The random id stored in Redis."""
        return self._nesting.lease.owner

    @property
    def fence(self) -> int:
        """The fencing token to pass to the store; all holds on one lease share it."""
        return self._nesting.lease.fence

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        return self._nesting.lease.ttl

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while this hold is not entered."""
        return self._body.task

    @property
    def depth(self) -> int:
        """The number of holds on the lease at this moment."""
        return self._nesting.count

    @property
    def held(self) -> bool:
        """Whether this hold is valid at this moment by our own clock, without asking the nodes."""
        return self._outcome is None and self._nesting.lease.held

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None if it was not."""
        return self._nesting.lease.lost_reason

    def remaining(self) -> float:
        """Return the seconds until the lease ends without renewal; 0 once this hold has ended."""
        return self._nesting.lease.remaining() if self._outcome is None else 0.0

    async def wait_lost(self) -> None:
        """Wait until the lease has ended: it was lost, or the last hold released it."""
        await self._nesting.lease.wait_lost()

    async def extend(self, ttl: float | None = None) -> None:
        """Renew the lease now, for all holds; see `Lease.extend`."""
        if self._outcome is not None:
            raise self._nesting.lease.loss_error()
        await self._nesting.lease.extend(ttl)

    async def release(self) -> bool:
        """End this hold; the last one releases the lease. Return whether it was held until now."""
        if self._outcome is None:
            if self._nesting.lease.held:
                self._nesting.lease.check_loop()
            if self._end():
                self._outcome = await self._nesting.lease.release()
        return bool(self._outcome)

    def _end(self) -> bool:
        # Returns whether the lease is to be released now.
        self._outcome = self._nesting.lease.held
        self._unregister()
        return self._nesting.leave()

    def adopt(self) -> None:
        """Give this hold to the calling task, which a loss then interrupts; see `Lease.adopt`."""
        if not self.held:
            raise self._nesting.lease.loss_error()
        self._body.move()
        self._unregister()
        self._register()

    async def __aenter__(self) -> Self:
        if not self.held:
            error = self._nesting.lease.loss_error()
            await self.release()  # the body doesn't begin, so nothing else would release it
            raise error
        self._body.enter((self._nesting.lease,))
        if self._task is not self._body.task:  # another task has acquired this hold
            self._unregister()
            self._register()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        interrupted = self._body.leave(kind)
        lease = self._nesting.lease
        lost = self._outcome is None and not lease.held
        if kind is GeneratorExit:
            if self._outcome is None and self._end():
                lease.release_soon()
        else:
            await self.release()
        if (lost or lease.lost_reason is not None) and (interrupted or kind is None):
            raise lease.loss_error() from error


class ReentrantLock:
    """A mutex that the task which holds it may acquire again; the same mutex as `lock(name)`.

    Only the outermost hold asks the nodes. Inner holds are counted in the process and share the
    lease and its fence; the last hold to end releases the lease. With `inherit`, tasks that were
    started inside a hold (as in a task group) may acquire the lock too while that hold lasts, and
    so may tasks that they start inside their own holds. The settings of the outermost hold apply.
    Works on every deployment.
    """

    __slots__ = ("_entered", "_inherit", "_lock", "_registry", "_timeout")

    def __init__(
        self, lock: Lock, registry: Registry, timeout: float | None, *, inherit: bool
    ) -> None:
        self._lock = lock
        self._registry = registry
        self._timeout = timeout
        self._inherit = inherit
        self._entered: Entered[ReentrantLease] = Entered()

    def __repr__(self) -> str:
        return f"<ReentrantLock {self.name!r}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._lock.name

    def acquire(self, *, timeout: Timeout = UNSET) -> AcquireContext[ReentrantLease]:
        """Get a hold: at once if the task has one already, otherwise as `Lock.acquire` does.

        Raises LeaseLostError if the lease of the task's own hold was lost in the meantime.
        """
        return Deferred(self.name, self._obtain, limited(timeout, self._timeout))

    async def try_acquire(self) -> ReentrantLease | None:
        """Get a hold if the lock is free now or the task has a hold already, else None."""
        held = self._held_here()
        if held is not None:
            return held
        lease = await self._lock.try_acquire()
        return None if lease is None else self._hold(Nesting(lease))

    async def _obtain(self, timeout: float | None) -> ReentrantLease:
        """Do the work of `acquire` when it is awaited."""
        held = self._held_here()
        return held or self._hold(Nesting(await self._lock.acquire(timeout=timeout)))

    def _held_here(self) -> ReentrantLease | None:
        holds = _live(self._registry.get((self.name, id(asyncio.current_task())), ()))
        if not holds and self._inherit:
            holds = _live(_inherited.get().get((self.name, id(self._registry)), ()))
        if not holds:
            return None
        nesting = holds[-1]._nesting
        if not nesting.lease.held:
            raise nesting.lease.loss_error()
        return self._hold(nesting)

    def _hold(self, nesting: Nesting) -> ReentrantLease:
        return ReentrantLease(nesting, self._registry, inherit=self._inherit)

    async def __aenter__(self) -> ReentrantLease:
        lease = await (await self.acquire()).__aenter__()
        self._entered.append(lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._entered.leave().__aexit__(kind, error, trace)
