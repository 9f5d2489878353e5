"""Several mutexes as one: all or nothing, in one round trip where the nodes allow it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from .. import _clock
from .._engine.acquiring import Acquiring, Deferred
from .._engine.acquisition import Wish
from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect_parts
from .._engine.lease import Lease, Terms
from .._engine.recipe import Recipe
from .._nodes.script import Script
from .._settings import COUNTER, HASH_TAG
from ..errors import NotAcquiredError
from .base import PRELUDE, UNSET, Entered, Timeout, limited
from .body import Body
from .lock import lock_key, recipe

SCRIPT = Script.load(__package__, PRELUDE, "multi.lua")

MOST = 64
"""Names at most: a server does nothing else while it locks them."""


class MultiLease:
    """The hold on several names: as a `Lease`, with a fence for each of them.

    One lease carries all names, or on Cluster each name has its own; the loss of any ends all.
    """

    __slots__ = ("_body", "fences", "leases", "name")

    def __init__(self, name: str, names: Sequence[str], leases: Sequence[Lease]) -> None:
        self.name: str = name
        """All names in one text."""
        self.leases: tuple[Lease, ...] = tuple(leases)
        """What it is made of."""
        each = leases if len(leases) > 1 else [leases[0]] * len(names)
        self.fences: dict[str, int] = {
            one: lease.fence for one, lease in zip(names, each, strict=True)
        }
        """The fence for each name."""
        # One lease knows by itself how to end a body.
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
        """Seconds it lives without renewal."""
        return min(lease.ttl for lease in self.leases)

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that acquired it."""
        return self.leases[0].task if self._body is None else self._body.task

    @property
    def held(self) -> bool:
        """Whether all names are ours at this moment, by our own clock; asks nobody."""
        return all(lease.held for lease in self.leases)

    @property
    def lost_reason(self) -> str | None:
        """Why the first name that was lost was lost; None while none was."""
        reasons = (lease.lost_reason for lease in self.leases)
        return next((reason for reason in reasons if reason is not None), None)

    def remaining(self) -> float:
        """Seconds until the first name ends if it is not renewed again; 0 once one has ended."""
        return min(lease.remaining() for lease in self.leases)

    async def wait_lost(self) -> None:
        """Wait until any of the names has ended; `lost_reason` tells a loss from a release."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not ended.done():
                ended.set_result(None)

        for lease in self.leases:
            lease.on_end(tell)
        await ended

    async def extend(self, ttl: float | None = None) -> None:
        """Renew all names now, as `Lease.extend` does."""
        for lease in self.leases:
            await lease.extend(ttl)

    async def release(self) -> bool:
        """Give all names back. → whether all were ours until now; see `Lease.release`."""
        return await _give_back(self.leases)

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
        await self.release()
        lost += [lease for lease in self.leases if lease.lost_reason is not None]
        if lost and (interrupted or kind is None):
            raise lost[-1].loss_error() from error


async def _give_back(leases: Sequence[Lease]) -> bool:
    """Release all, the last one first. → whether all were ours until now."""
    if not leases:
        return True
    try:
        ours = await leases[-1].release()
    finally:  # cancelled once or, in a scope of anyio, at each await: the others go all the same
        others = await _give_back(leases[:-1])
    return ours and others


class MultiLock:
    """All of several names, or none: each is the mutex that `lock(name)` would be.

    On single, replicated and quorum deployments one script takes all names on a node at once, so
    nobody waits while holding some of them: no deadlock in whatever order others want them. One
    lease, and one fence that is right for each of the names: above all that any of them has seen.
    Whoever wants many busy names competes with those who want one and may wait for long.

    On Cluster names live on different servers: they are taken one after the other in sorted order,
    which can't deadlock either, each with a lease and fence of its own.
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
        """What it locks, sorted, each once."""
        self.name: str = ", ".join(self.names)
        """All names in one text."""
        self._engine = engine
        self._terms = terms
        self._timeout = limited(timeout, None)
        self._entered: Entered[MultiLease] = Entered()
        self._parts = [recipe(prefix, name) for name in self.names]
        keys = [lock_key(prefix, name) for name in self.names]
        whole = Recipe(
            self.name,
            SCRIPT,
            tuple(key + end for key in keys for end in ("", COUNTER)),
            line="\0".join(keys),
            watched=tuple(keys),
        )
        self._recipes = self._parts if prefix.endswith(HASH_TAG) else [whole]

    def __repr__(self) -> str:
        return f"<MultiLock {self.name!r} ttl={self._terms.ttl:g}>"

    def acquire(self, *, timeout: Timeout = UNSET) -> Acquiring[MultiLease]:
        """Get all names, as `Lock.acquire` gets one; `timeout` is for all together."""
        return Deferred(partial(self._obtain, limited(timeout, self._timeout)))

    async def try_acquire(self) -> MultiLease | None:
        """Get all names if all are free now, else None. An outage raises."""
        try:
            return await self._obtain(None, once=True)
        except NotAcquiredError:
            return None

    async def _obtain(self, timeout: float | None, *, once: bool = False) -> MultiLease:
        """What `acquire` does once it is awaited."""
        deadline = None if timeout is None else _clock.now() + timeout
        leases: list[Lease] = []
        try:
            for one in self._recipes:
                left = None if deadline is None else max(0.0, deadline - _clock.now())
                wish = Wish(self._engine, one, self._terms, left, once=once)
                leases.append(await wish)
        except BaseException:
            await _give_back(leases)
            raise
        return MultiLease(self.name, self.names, leases)

    async def inspect(self) -> Inspection:
        """Who has each name, node by node (`parts`)."""
        return await inspect_parts(self._engine, "multi_lock", self._parts)

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
