"""The reentrant lock: a task that holds it may acquire it again without asking the nodes."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Self
from weakref import ReferenceType, WeakKeyDictionary, WeakSet

from .. import _settings
from .._engine.acquire import Acquire
from .._engine.engine import Engine
from .._engine.lease import NOT_DETACHED, Lease, enter, let_go, live
from .._engine.spec import LeaseOptions, LockSpec
from ..errors import ConfigurationError
from .base import Acquirable

_own = WeakKeyDictionary[object, "WeakSet[ReentrantLease]"]()
"""The holds of each task, also those that have ended; for code that runs in no task, of each loop.
It keeps none of them, so that a dropped hold is noticed."""
_inherited: ContextVar[tuple[ReferenceType[ReentrantLease], ...]] = ContextVar(
    "asynclock_inherited", default=()
)
"""This task's own holds and those it was started inside of, if they let such tasks in."""


class ReentrantLease(Lease):
    """One of possibly several nested holds on one lease, used like a `Lease`.

    All holds share owner, fence and renewal. The last hold to end releases the lease. A loss
    interrupts each entered body, in every task.
    """

    __slots__ = ("_inherit", "_task")

    def __init__(self, other: Lease, *, inherit: bool) -> None:
        # Raises LeaseLostError; and ConfigurationError, as a task of another loop may inherit.
        (grant,) = live(other)
        super().__init__(other._engine, grant, grant.fence, grant.options, grant.held_since)
        self._inherit = inherit
        self._register()

    def _register(self) -> None:
        # The calling task has this hold now; with `inherit`, tasks that it starts inherit it.
        self._task = _caller()
        _own.setdefault(self._task, WeakSet()).add(self)
        if self._inherit:
            # Keep all holds that have not ended: a task that is started now is inside all of them.
            _inherited.set(tuple(map(ReferenceType, (*_inside(), self))))

    def __repr__(self) -> str:
        return f"<ReentrantLease of {super().__repr__()}>"

    @property
    def depth(self) -> int:
        """The number of holds on the lease at this moment."""
        ((grant, fence),) = self._grants
        holds = grant.leases if grant.fence == fence else ()
        return sum(reference() is not None for reference in holds)

    async def detach(self) -> bytes:
        """Raise ConfigurationError: only leases of `lock` and `fair_lock` can be detached."""
        raise ConfigurationError(NOT_DETACHED.format(self.name), name=self.name)

    def adopt(self) -> None:
        """Give this hold to the calling task, which a loss then interrupts; see `Lease.adopt`."""
        super().adopt()
        self._register()

    async def __aenter__(self) -> Self:
        enter(self)
        if self._task is not self.task:  # another task has acquired this hold
            self._register()
        return self


def _caller() -> object:
    return asyncio.current_task() or asyncio.get_running_loop()


def _inside() -> list[ReentrantLease]:
    holds = (reference() for reference in _inherited.get())
    return [hold for hold in holds if hold is not None and hold._outcome is None]


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

    __slots__ = ("_inherit",)

    def __init__(
        self,
        engine: Engine,
        spec: LockSpec,
        options: LeaseOptions,
        timeout: float | None,
        *,
        inherit: bool,
    ) -> None:
        super().__init__(engine, spec, options, timeout)
        self._inherit = inherit

    async def _obtain(self, timeout: float | None, once: bool, since: float) -> ReentrantLease:
        held = self._held_here()
        if held is not None:
            return ReentrantLease(held, inherit=self._inherit)
        lease = await Acquire(self._engine, self._spec, self._options, timeout, once, since)
        try:
            return ReentrantLease(lease, inherit=self._inherit)
        finally:
            let_go(lease)  # the hold has joined it

    def _held_here(self) -> ReentrantLease | None:
        caller = _caller()
        own = [hold for hold in _own.get(caller, ()) if hold._task is caller]
        inherited = _inside() if self._inherit else []
        for hold in (*own, *inherited):
            ours = hold.name == self.name and hold._engine is self._engine
            if ours and hold._outcome is None:
                return hold
        return None
