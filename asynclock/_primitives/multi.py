"""Several mutexes as one: all or nothing, in one round trip where the deployment allows it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from .. import _clock, _settings
from .._engine.acquire import Acquire, AcquireContext, LazyAcquire
from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect_parts
from .._engine.lease import Lease
from .._engine.spec import LeaseOptions, LockSpec
from .._keys import HASH_TAG, lock_key
from .._nodes.script import Script
from ..errors import ConfigurationError
from .base import BATCH, PRELUDE, Acquirable
from .hold import Hold
from .kind import Kind
from .lock import MUTEX, spec
from .obtain import obtain

SCRIPT = Script.load(__package__, *PRELUDE, BATCH, "queue.lua", "multi.lua", "holding.lua")
KIND = Kind("multi_lock", (SCRIPT,))
"""The keys are those of mutexes."""

MOST_LOCKED_NAMES = 64
"""Maximum number of names: a server does nothing else while it locks them."""


class MultiLease(Hold):
    """The hold on several names, or on several permits of a semaphore: like a `Lease`.

    Instead of `part` there are `fences`, which name each part. One lease covers all names; on
    Cluster each name has its own, and so has each permit. The loss of any lease ends the hold.
    """

    __slots__ = ("_name", "fences")

    def __init__(self, name: str, parts: Sequence[str], leases: Sequence[Lease]) -> None:
        super().__init__(leases)
        self._name = name
        each = leases if len(leases) > 1 else [leases[0]] * len(parts)
        self.fences: dict[str, int] = {
            one: lease.fence for one, lease in zip(parts, each, strict=True)
        }
        """The fence for each name, or for each slot of a semaphore."""

    def __repr__(self) -> str:
        state = "held" if self.held else (self.lost_reason or "released")
        return f"<MultiLease {self.name!r} fence={self.fence} {state}>"

    @property
    def name(self) -> str:
        """The name of the semaphore, or all names joined by commas."""
        return self._name

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The lease on all names; on Cluster one lease per name, of a semaphore one per permit."""
        return self._leases


@lru_cache(maxsize=1024)
def spec_of_all(prefix: str, names: tuple[str, ...]) -> LockSpec:
    """Return the spec of a lock on all these names at once."""
    keys = [lock_key(prefix, name) for name in names]
    return LockSpec(
        ", ".join(names),
        SCRIPT,
        tuple(one for key in keys for one in MUTEX.keys(key)),
        queue_key=tuple(keys),
        watched=tuple(keys),
    )


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

    __slots__ = ("_prefix", "names")

    def __init__(
        self,
        engine: Engine,
        prefix: str,
        names: Sequence[str],
        options: LeaseOptions,
        timeout: float | None,
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
        whole = spec_of_all(prefix, self.names)
        super().__init__(engine, whole, options, timeout)
        self._prefix = prefix

    def _call(self, timeout: float | None, *, once: bool = False) -> AcquireContext[MultiLease]:
        return LazyAcquire(self.name, partial(self._obtain, once=once), timeout)

    async def _obtain(self, timeout: float | None, *, once: bool) -> MultiLease:
        """Do the work of `acquire` when it is awaited."""
        asked = _clock.now()
        apart = self._prefix.endswith(HASH_TAG)
        calls = [
            partial(Acquire, self._engine, one, self._options, timeout, once=once, since=asked)
            for one in (self._parts() if apart else (self._spec,))
        ]
        leases = await obtain(calls)
        return MultiLease(self.name, self.names, leases)

    def _parts(self) -> list[LockSpec]:
        return [spec(self._prefix, name) for name in self.names]

    async def inspect(self) -> Inspection:
        """Return which owner has each name, node by node (`parts`)."""
        return await inspect_parts(self._engine, KIND.name, self._parts())
