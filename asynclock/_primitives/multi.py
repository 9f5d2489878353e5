"""Several mutexes as one: all or nothing, in one round trip where the deployment allows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from .. import _clock
from .._engine.acquiring import AcquireContext, Deferred
from .._engine.acquisition import Wish
from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect_parts
from .._engine.lease import Lease, Terms
from .._engine.recipe import Recipe
from .._keys import HASH_TAG, lock_key
from .._nodes.script import Script
from ..errors import NotAcquiredError
from .base import PRELUDE, UNSET, Entered, Timeout, limited
from .body import Body
from .kind import Kind
from .lock import MUTEX, recipe

SCRIPT = Script.load(__package__, PRELUDE, "multi.lua")
KIND = Kind("multi_lock", (SCRIPT,))
"""The keys are those of mutexes."""

MOST = 64
"""Maximum number of names: a server does nothing else while it locks them."""


class MultiLease:
    """The hold on several names: like a `Lease`, but with a fence for each name.

    One lease covers all names; on Cluster each name has its own. The loss of any name ends all.
    """

    __slots__ = ("_body", "fences", "leases", "name")

    def __init__(self, name: str, names: Sequence[str], leases: Sequence[Lease]) -> None:
        self.name: str = name
        """All names, joined by commas."""
        self.leases: tuple[Lease, ...] = tuple(leases)
        """The lease on all names, or on Cluster one lease per name."""
        each = leases if len(leases) > 1 else [leases[0]] * len(names)
        self.fences: dict[str, int] = {
            one: lease.fence for one, lease in zip(names, each, strict=True)
        }
        """The fence for each name."""
        # A single lease interrupts its body itself.
        self._body = Body() if len(leases) > 1 else None

    def __repr__(self) -> str:
        return f"<MultiLease {self.name!r} held={self.held}>"

    @property
    def fence(self) -> int:
        """The highest of the fences; the fence of each name, except on Cluster."""
        return max(lease.fence for lease in self.leases)

    @property
    def owner(self) -> str:
        """The random id stored in Redis under the first name; under all, except on Cluster."""
        return self.leases[0].owner

    @property
    def ttl(self) -> float:
        """Seconds the hold lives without renewal: the shortest ttl of its leases."""
        return min(lease.ttl for lease in self.leases)

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while this is not entered."""
        return self.leases[0].task if self._body is None else self._body.task

    @property
    def held(self) -> bool:
        """Whether all names are held at this moment by our own clock, without asking the nodes."""
        return all(lease.held for lease in self.leases)

    @property
    def lost_reason(self) -> str | None:
        """Why a name was lost (the first of them in sorted order); None if none was lost."""
        reasons = (lease.lost_reason for lease in self.leases)
        return next((reason for reason in reasons if reason is not None), None)

    def remaining(self) -> float:
        """Return the seconds until the first name ends without renewal; 0 once one has ended."""
        return min(lease.remaining() for lease in self.leases)

    async def wait_lost(self) -> None:
        """Wait until the lease on any name has ended; after a release `lost_reason` is None."""
        endings = [lease.ending() for lease in self.leases]
        await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)

    async def extend(self, ttl: float | None = None) -> None:
        """Renew all names now, one lease after the other; see `Lease.extend`."""
        for lease in self.leases:
            await lease.extend(ttl)

    async def release(self) -> bool:
        """Release all names; return whether all were held until now. See `Lease.release`."""
        return await _give_back(self.leases)

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts; see `Lease.adopt`."""
        if self._body is None:
            self.leases[0].adopt()
        elif not self.held:
            raise next(lease for lease in self.leases if not lease.held).loss_error()
        else:
            self._body.move()

    async def __aenter__(self) -> Self:
        if self._body is None:
            self.leases[0].enter()
            return self
        for lease in self.leases:
            if not lease.held:
                error = lease.loss_error()
                await _give_back(self.leases)
                raise error
        self._body.enter(self.leases)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        if self._body is None:
            await self.leases[0].__aexit__(kind, error, trace)
            return
        interrupted = self._body.leave(kind)
        lost = [lease for lease in self.leases if not lease.held and lease.lost_reason is None]
        if kind is GeneratorExit:
            _release_soon(self.leases)
        else:
            await self.release()
        lost += [lease for lease in self.leases if lease.lost_reason is not None]
        if lost and (interrupted or kind is None):
            raise lost[-1].loss_error() from error


def _release_soon(leases: Sequence[Lease]) -> None:
    """Release all in the next round of the loop: a coroutine being closed can't await."""
    for lease in reversed(leases):
        lease.release_soon()


async def _give_back(leases: Sequence[Lease]) -> bool:
    """Release all leases, the last one first; return whether all were held until now."""
    if not leases:
        return True
    try:
        ours = await leases[-1].release()
    except GeneratorExit:
        _release_soon(leases[:-1])
        raise
    except BaseException:  # cancelled: once, or at each await in a scope of anyio
        await _give_back(leases[:-1])
        raise
    return await _give_back(leases[:-1]) and ours


class MultiLock:
    """Locks all of several names or none; each name is the mutex of `lock(name)`.

    On single, replicated and quorum deployments one script takes all names on a node at once. No
    task waits while it holds some of the names, so there is no deadlock in whatever order others
    take them. There is one lease, and one fence that is above all earlier fences of each name. A
    lock on many busy names competes with the locks on single names and may wait for long.

    On Cluster the names live on different servers. They are locked one after the other in sorted
    order, which can't deadlock either, and each name has its own lease and fence.
    """

    __slots__ = (
        "_engine",
        "_entered",
        "_parts",
        "_recipes",
        "_terms",
        "_timeout",
        "name",
        "names",
    )

    def __init__(
        self,
        engine: Engine,
        prefix: str,
        names: Sequence[str],
        terms: Terms,
        timeout: float | None,
    ) -> None:
        self.names: tuple[str, ...] = tuple(sorted(set(names)))
        """The names, sorted and without duplicates."""
        self.name: str = ", ".join(self.names)
        """All names, joined by commas."""
        self._engine = engine
        self._terms = terms
        self._timeout = limited(timeout, None)
        self._entered: Entered[MultiLease] = Entered()
        self._parts = [recipe(prefix, name) for name in self.names]
        keys = [lock_key(prefix, name) for name in self.names]
        whole = Recipe(
            self.name,
            SCRIPT,
            tuple(one for key in keys for one in MUTEX.keys(key)),
            line=tuple(keys),
            watched=tuple(keys),
        )
        self._recipes = self._parts if prefix.endswith(HASH_TAG) else [whole]

    def __repr__(self) -> str:
        return f"<MultiLock {self.name!r} ttl={self._terms.ttl:g}>"

    def acquire(self, *, timeout: Timeout = UNSET) -> AcquireContext[MultiLease]:
        """Lock all names, as `Lock.acquire` locks one; `timeout` is for all of them together."""
        return Deferred(self.name, self._obtain, limited(timeout, self._timeout))

    async def try_acquire(self) -> MultiLease | None:
        """Lock all names if all are free now, else return None. Raises QuorumUnavailableError."""
        try:
            return await self._obtain(None, once=True)
        except NotAcquiredError:
            return None

    async def _obtain(self, timeout: float | None, *, once: bool = False) -> MultiLease:
        """Do the work of `acquire` when it is awaited."""
        asked = _clock.now()
        leases: list[Lease] = []
        try:
            for one in self._recipes:
                wish = Wish(self._engine, one, self._terms, timeout, once=once, since=asked)
                leases.append(await wish)
        except GeneratorExit:
            _release_soon(leases)
            raise
        except BaseException:
            for lease in reversed(leases):
                lease.let_go()  # not awaited: the caller's timeout may have ended
            raise
        return MultiLease(self.name, self.names, leases)

    async def inspect(self) -> Inspection:
        """Return which owner has each name, node by node (`parts`)."""
        return await inspect_parts(self._engine, KIND.name, self._parts)

    async def __aenter__(self) -> MultiLease:
        lease = await (await self._obtain(self._timeout)).__aenter__()
        self._entered.append(lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._entered.leave().__aexit__(kind, error, trace)
