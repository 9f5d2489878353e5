"""The reentrant lock: a task that holds it may take it again, at no cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self

from .._engine.acquiring import Acquiring, Deferred
from .._engine.lease import Lease
from .base import UNSET, Entered, Timeout, limited
from .body import Body
from .lock import Lock

Key = tuple[str, object]
Registry = MutableMapping[Key, "Nesting"]
"""What is held now: by (name, task)."""

_inherited: ContextVar[Mapping[Key, Nesting]] = ContextVar(
    "asynclock_inherited", default=MappingProxyType({})
)
"""What tasks above this one hold and share: by (name, registry)."""


class Nesting:
    """One lease, and how often it is held in this process."""

    __slots__ = ("_registry", "count", "key", "lease")

    def __init__(self, lease: Lease, key: Key, registry: Registry) -> None:
        self.lease = lease
        self.key = key
        self.count = 0
        self._registry = registry
        registry[key] = self

    def left(self) -> bool:
        """One holds it no more. → whether that was the last."""
        self.count -= 1
        if self.count == 0:
            self._registry.pop(self.key, None)
        return self.count == 0


class ReentrantLease:
    """One of the holds, nested or not, on one lease: as a `Lease`, given back by the last of all.

    All share owner, fence and renewal; a loss ends each body that was entered, in whichever task.
    """

    __slots__ = ("_body", "_nesting", "_outcome")

    def __init__(self, nesting: Nesting) -> None:
        nesting.count += 1
        self._nesting = nesting
        self._outcome: bool | None = None
        self._body = Body()

    def __repr__(self) -> str:
        return f"<ReentrantLease of {self._nesting.lease!r}>"

    @property
    def name(self) -> str:
        """The name it locks."""
        return self._nesting.lease.name

    @property
    def owner(self) -> str:
        """The random id stored in Redis."""
        return self._nesting.lease.owner

    @property
    def fence(self) -> int:
        """The number for the store, the same for all holds."""
        return self._nesting.lease.fence

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        return self._nesting.lease.ttl

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that has this hold."""
        return self._body.task

    @property
    def depth(self) -> int:
        """How often the lease is held at this moment."""
        return self._nesting.count

    @property
    def held(self) -> bool:
        """Whether it is ours at this moment; asks nobody."""
        return self._outcome is None and self._nesting.lease.held

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None while it was not."""
        return self._nesting.lease.lost_reason

    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed again; 0 once this hold has ended."""
        return self._nesting.lease.remaining() if self._outcome is None else 0.0

    async def wait_lost(self) -> None:
        """Wait until the lease has ended, lost or given back by the last hold."""
        await self._nesting.lease.wait_lost()

    async def extend(self, ttl: float | None = None) -> None:
        """Renew the lease now, as `Lease.extend` does."""
        if self._outcome is not None:
            raise self._nesting.lease.loss_error()
        await self._nesting.lease.extend(ttl)

    async def release(self) -> bool:
        """End this hold; the last one gives the lease back. → whether it was ours until now."""
        if self._outcome is None:
            self._outcome = self._nesting.lease.held
            if self._nesting.left():
                self._outcome = await self._nesting.lease.release()
        return self._outcome

    async def __aenter__(self) -> Self:
        if not self.held:
            error = self._nesting.lease.loss_error()
            await self.release()  # nobody else would: its body does not begin
            raise error
        self._body.enter((self._nesting.lease,))
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
        await self.release()
        if (lost or lease.lost_reason is not None) and (interrupted or kind is None):
            raise lease.loss_error() from error


class ReentrantLock:
    """A mutex that the task which holds it may take again; the same name as `lock(name)`.

    Only the outermost hold asks the nodes: inner ones are counted in the process and share its
    lease and fence, and the last one to end gives it back. With `inherit`, tasks that were started
    while it was held (as in a task group) count as inside, too. The outermost hold's settings
    count. On every deployment.
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
        """The name it locks."""
        return self._lock.name

    def acquire(self, *, timeout: Timeout = UNSET) -> Acquiring[ReentrantLease]:
        """Get it, as `Lock.acquire` does; at once if it is held here already.

        Raises LeaseLostError if this task's own hold on it was lost meanwhile.
        """
        return Deferred(partial(self._obtain, limited(timeout, self._timeout)))

    async def try_acquire(self) -> ReentrantLease | None:
        """Get it if it is free now or held here already, else None."""
        held = self._held_here()
        if held is not None:
            return held
        lease = await self._lock.try_acquire()
        return None if lease is None else self._outermost(lease)

    async def _obtain(self, timeout: float | None) -> ReentrantLease:
        """What `acquire` does once it is awaited."""
        held = self._held_here()
        return held or self._outermost(await self._lock.acquire(timeout=timeout))

    def _held_here(self) -> ReentrantLease | None:
        nesting = self._registry.get((self.name, asyncio.current_task()))
        if nesting is None and self._inherit:
            nesting = _inherited.get().get((self.name, id(self._registry)))
        if nesting is None or not nesting.count:
            return None
        if not nesting.lease.held:
            raise nesting.lease.loss_error()
        return ReentrantLease(nesting)

    def _outermost(self, lease: Lease) -> ReentrantLease:
        nesting = Nesting(lease, (self.name, asyncio.current_task()), self._registry)
        if self._inherit:
            alive = {key: other for key, other in _inherited.get().items() if other.count}
            alive[self.name, id(self._registry)] = nesting
            _inherited.set(MappingProxyType(alive))
        return ReentrantLease(nesting)

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
