"""A lease on several names or permits: how to get all or none of them; and `multi_lock`."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import lru_cache, partial
from itertools import cycle, starmap
from typing import Any
from weakref import ReferenceType

from .. import _settings
from .._engine.acquire import Acquire, AcquireContext
from .._engine.engine import Engine
from .._engine.grant import Grant
from .._engine.inspection import Inspection, inspect_parts
from .._engine.lease import NOT_DETACHED, L, Lease, give_back, let_go
from .._engine.spec import LeaseOptions, LockSpec
from .._keys import HASH_TAG, lock_key
from .._nodes.wire import Script
from ..errors import (
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)
from .base import BATCH, OTHER, PRELUDE, Acquirable, Kind, use
from .lock import MUTEX, spec


class Try(Acquire):
    """A call that doesn't wait and reports no failure: its caller tries another way then."""

    __slots__ = ()

    def _report(self, error: AsyncLockError) -> None: ...


async def obtain(lease: L, calls: Sequence[Callable[[], Acquire]]) -> L:
    """Make one call after the other, which all get grants for `lease`; return it.

    A failure or a cancellation gives back what they got. That isn't awaited, because the caller's
    timeout may have ended.
    """
    try:
        for call in calls:
            await call()
    except BaseException:
        give_back(lease)
        raise
    return lease


@types.coroutine
def obtain_at_once(lease: L, calls: Sequence[Try]) -> Generator[Any, Any, L | None]:
    """Make calls that don't wait, in this task; return None if one of them gets no grant.

    All send their requests, which travel together, before any waits. If one fails, those behind it
    are closed, and what those before it got is given back.
    """
    begun = [call.__await__() for call in calls]
    try:
        # Each call waits for its request first (`Ask.send`). No timeout of the call is around that
        # wait, so a cancellation need not be raised in the call: the call is closed.
        requests = [next(steps) for steps in begun]
        for steps, request in zip(begun, requests, strict=True):
            if request is None or not request.done():  # else the reply came with another's
                yield request
            yield from steps
    except BaseException as error:
        for steps in begun:
            steps.close()
        give_back(lease)
        if isinstance(error, NotAcquiredError | QuorumUnavailableError):
            return None
        raise
    return lease


async def obtain_behind(
    gate: Callable[[], AcquireContext[Lease]], call: Callable[[], Awaitable[L]]
) -> L:
    """Make the call while the lease of `gate` keeps other callers out.

    If that lease is lost, all begins again.
    """
    while True:
        lease = None
        try:
            async with gate() as turn:
                try:
                    lease = await call()
                except NotAcquiredError:
                    let_go(turn)  # leaving the block would wait for the replies
                    raise
        except BaseException as error:
            if lease is not None:
                give_back(lease)
            if not isinstance(error, LeaseLostError):
                raise  # a call whose timeout ended behind a lost gate gets AcquireTimeoutError
        else:
            return lease


SCRIPT = Script.load(__package__, *PRELUDE, BATCH, "queue.lua", "multi.lua", "holding.lua")
KIND = Kind(
    "multi_lock", (SCRIPT,), lambda on, name, *how: use(MultiLock(on, (name, name + OTHER), *how))
)
"""The keys are those of mutexes."""

MOST_LOCKED_NAMES = 64
"""Maximum number of names: a server does nothing else while it locks them."""


class MultiLease(Lease):
    """The hold on several names, or on several permits of a semaphore: a `Lease` on all of them.

    `part` is "": `fences` names the parts, and `fence` is the highest of them. Each permit, and on
    a Cluster each name, has an owner of its own; `owner` is that of the first one. The loss of any
    part ends the hold. So does the release of one part alone; the others are then kept until the
    hold is released, too, which returns False.
    """

    __slots__ = ("_names", "_whole")

    def __init__(self, engine: Engine, name: str, names: Sequence[str] = ()) -> None:
        # `take` adds the grants.
        self.name = name
        self.part = self.owner = ""
        self.fence = 0
        self._engine = engine
        self._grants = ()
        self._body = self._outcome = None
        self._names = names
        """The names that one grant locks; () if each name or permit has its own grant."""
        self._whole: MultiLease | None = None
        """The hold that this is a part of, which is thereby kept; None for the hold itself."""

    def __repr__(self) -> str:
        return super().__repr__().replace("<Lease", "<MultiLease", 1)

    @property
    def fences(self) -> dict[str, int]:
        """The fence for each name, or for each slot of a semaphore."""
        parts = self._names or [one.spec.part or one.spec.name for one, _ in self._grants]
        return dict(zip(parts, cycle(fence for _, fence in self._grants), strict=False))

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The lease on all names; on Cluster one lease per name, of a semaphore one per permit."""
        return tuple(starmap(self._lease_of, self._grants))

    def _weakly(self) -> Callable[[], Lease | None]:
        whole, pair = self._whole, self._grants[0]
        if whole is None:
            return super()._weakly()
        reference = ReferenceType(whole)  # nobody need keep a part
        return lambda: (kept := reference()) and kept._lease_of(*pair)

    def _lease_of(self, grant: Grant, fence: int) -> Lease:
        found = MultiLease(self._engine, grant.spec.name, self._names)
        found.part, found.owner, found.fence = grant.spec.part, grant.owner, fence
        found._grants = ((grant, fence),)
        found._whole = self
        return found

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the hold is not entered."""
        body = self._body or (self._whole and self._whole._body)
        return body.task if body else None

    async def detach(self) -> bytes:
        """Raise ConfigurationError, except for one of the `leases` of a Cluster's `multi_lock`."""
        if self._whole is not None:
            return await super().detach()
        name = self._grants[0][0].spec.name
        raise ConfigurationError(NOT_DETACHED.format(name), name=name)


@lru_cache(maxsize=1024)
def spec_of_all(prefix: str, names: tuple[str, ...]) -> LockSpec:
    """Return the spec of a lock on all these names at once."""
    keys = tuple(key for name in names for key in MUTEX.keys(lock_key(prefix, name)))
    return LockSpec(", ".join(names), SCRIPT, keys, queue_key=keys[::2], watched=keys[::2])


@_settings.made_by("connect(...).multi_lock(*names)")
class MultiLock(Acquirable[MultiLease]):
    """Locks all of several names or none; each name is the mutex of `lock(name)`.

    On single, replicated and quorum deployments one script takes all names on a node at once. No
    task waits while it holds some of the names, so there is no deadlock in whatever order others
    take them. There is one lease, and one fence that is above all earlier fences of each name. A
    lock on many busy names competes with the locks on single names and may wait for long: it has no
    place in their queues, and may overtake those who wait there. A timeout is for all names
    together.

    On Cluster the names live on different servers. They are locked one after the other in sorted
    order, which can't deadlock either, and each name has its own lease and fence.
    """

    __slots__ = ("names",)

    def __init__(
        self, engine: Engine, names: Sequence[str], options: LeaseOptions, timeout: float | None
    ) -> None:
        if len(names) == 1 and isinstance(names[0], list | tuple | set | frozenset):
            raise ConfigurationError(
                "each name is an argument of its own: write multi_lock(*names)"
            )
        if not 1 <= len(names) <= MOST_LOCKED_NAMES:
            raise ConfigurationError(
                f"multi_lock takes from 1 to {MOST_LOCKED_NAMES} names, not {len(names)}"
            )
        self.names: tuple[str, ...] = tuple(sorted({_settings.name(name) for name in names}))
        """The names, sorted and without duplicates."""
        whole = spec_of_all(engine.settings.prefix, self.names)
        super().__init__(engine, whole, options, timeout)

    async def _obtain(self, timeout: float | None, once: bool, since: float) -> MultiLease:
        apart = self._engine.settings.prefix.endswith(HASH_TAG)
        lease = MultiLease(self._engine, self.name, () if apart else self.names)
        calls = [
            partial(Acquire, self._engine, one, self._options, timeout, once, since, lease)
            for one in (self._parts() if apart else (self._spec,))
        ]
        return await obtain(lease, calls)

    def _parts(self) -> list[LockSpec]:
        return [spec(self._engine.settings.prefix, name) for name in self.names]

    async def inspect(self) -> Inspection:
        """Return which owner has each name, node by node (`parts`)."""
        return await inspect_parts(self._engine, KIND.name, self._parts())
