"""The reentrant lock: a task that holds it may acquire it again without asking the nodes."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any, Self
from weakref import ReferenceType

from .. import _settings
from .._engine.acquire import Acquire
from .._engine.engine import Engine
from .._engine.lease import Lease, grant_of, live
from .._engine.spec import LeaseOptions, LockSpec
from .base import Acquirable
from .multi import Hold

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
        self.lease: Lease = lease
        self.count: int = 0
        self.dropped: bool = False
        """Whether a hold was dropped without a release, so that its code may still run."""

    def leave(self) -> bool:
        """Count one hold less; return whether the lease is to be released now."""
        self.count -= 1
        grant = grant_of(self.lease)
        if not self.count and self.dropped and grant is not None:
            grant.stop_renewing()  # so that the lease ends with its ttl
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
        warnings.warn(  # noqa: B028 - the loop calls this: no code of the user is on the stack
            f"a hold on {nesting.lease!r} was dropped without being released: when the other holds "
            "have ended, the lease is no longer renewed and ends with its ttl",
            ResourceWarning,
        )


class ReentrantLease(Hold):
    """One of possibly several nested holds on one lease, used like a `Lease`.

    All holds share owner, fence and renewal. The last hold to end releases the lease. A loss
    interrupts each entered body, in every task.
    """

    __slots__ = ("__weakref__", "_inherit", "_nesting", "_registry", "_task")

    def __init__(self, nesting: Nesting, registry: Registry, *, inherit: bool) -> None:
        super().__init__((nesting.lease,))
        nesting.count += 1
        self._nesting = nesting
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
        others = [hold for hold in _live(self._registry.pop(key)) if hold is not self]
        if others:
            self._registry[key] = tuple(map(ReferenceType, others))

    def __del__(self) -> None:
        if self._outcome is None:
            nesting, key = self._nesting, (self.name, id(self._task))
            if not nesting.lease._engine.closed:
                drop = partial(_dropped, self._registry, key, ReferenceType(nesting))
                nesting.lease._engine.soon(drop)

    def __repr__(self) -> str:
        return f"<ReentrantLease of {self._nesting.lease!r}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._nesting.lease.name

    @property
    def depth(self) -> int:
        """The number of holds on the lease at this moment."""
        return self._nesting.count

    def _end(self) -> bool:
        self._unregister()
        return self._nesting.leave()

    def adopt(self) -> None:
        """Give this hold to the calling task, which a loss then interrupts; see `Lease.adopt`."""
        super().adopt()
        self._unregister()
        self._register()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._task is not self.task:  # another task has acquired this hold
            self._unregister()
            self._register()
        return self


@_settings.made_by("connect(...).reentrant_lock(name)")
class ReentrantLock(Acquirable[ReentrantLease]):
    """A mutex that the task which holds it may acquire again; the same mutex as `lock(name)`.

    Only the outermost hold asks the nodes. Inner holds are counted in the process and share the
    lease and its fence; the last hold to end releases the lease. With `inherit`, tasks that were
    started inside a hold (as in a task group) may acquire the lock too while that hold lasts, and
    so may tasks that they start inside their own holds. The settings of the outermost hold apply.
    Acquiring raises LeaseLostError if the lease of the task's own hold was lost in the meantime.
    Works on every deployment.
    """

    __slots__ = ("_inherit", "_registry")

    def __init__(
        self,
        engine: Engine,
        spec: LockSpec,
        options: LeaseOptions,
        timeout: float | None,
        registry: Registry,
        *,
        inherit: bool,
    ) -> None:
        super().__init__(engine, spec, options, timeout)
        self._registry = registry
        self._inherit = inherit

    async def _obtain(self, timeout: float | None, once: bool, since: float) -> ReentrantLease:
        held = self._held_here()
        if held is not None:
            return held
        call = Acquire(self._engine, self._spec, self._options, timeout, once, since)
        return self._hold(Nesting(await call))

    def _held_here(self) -> ReentrantLease | None:
        holds = _live(self._registry.get((self.name, id(asyncio.current_task())), ()))
        if not holds and self._inherit:
            holds = _live(_inherited.get().get((self.name, id(self._registry)), ()))
        if not holds:
            return None
        nesting = holds[-1]._nesting
        live(nesting.lease)  # a task of another loop may have inherited the hold
        return self._hold(nesting)

    def _hold(self, nesting: Nesting) -> ReentrantLease:
        return ReentrantLease(nesting, self._registry, inherit=self._inherit)
