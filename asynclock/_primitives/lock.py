"""The mutexes: one holder at a time, over one node or a quorum; and how their leases are resumed.

The owner that resumes replaces the owner of the detached lease, node by node, and only where that
still has the name; it raises the fence like any other acquire. An attempt that fails deletes what
it took, so at most one owner ever replaces the old one at a quorum (tests/model: DR1, DX1 to DX4).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .. import _settings
from .._engine.acquire import Acquire
from .._engine.ending import NO_TICKET, Detached
from .._engine.inspection import Inspection, inspect
from .._engine.lease import Lease
from .._engine.refusals import is_owner_id
from .._engine.spec import LockSpec
from .._keys import lock_key
from .._nodes.wire import Script
from ..errors import ConfigurationError, LeaseLostError, NotAcquiredError
from .base import BATCH, CLOCK, FUNCTIONS, Held, Kind, Lockable, Queue

FILES = (
    CLOCK,
    "uncontended.lua",
    FUNCTIONS,
    BATCH,
    "quiet.lua",
    "queue.lua",
    "lock.lua",
    "holding.lua",
)
SCRIPT = Script.load(__package__, *FILES)
QUEUE = "queue"
MUTEX = Held(SCRIPT, kind="lock", queue=QUEUE)
KIND = Kind("lock", (SCRIPT,), (MUTEX, Queue(SCRIPT, QUEUE)))


@lru_cache(maxsize=1024)
def spec(prefix: str, name: str) -> LockSpec:
    """Return the spec of a mutex on `name`; cached, since most names are locked repeatedly."""
    return MUTEX.spec(name, lock_key(prefix, name))


@_settings.made_by("connect(...).lock(name)")
class Lock(Lockable):
    """A mutex: at most one lease at a time for its name, whatever fails.

    As with Redlock, this holds in time while clocks drift by less than 1 % of the ttl and the
    guards are on. The fence of each lease lets a store reject late writes without any such
    condition. Works on every deployment. Algorithm: docs/fencing.md; Redlock:
    https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """

    __slots__ = ()


# the fair lock: first come, first served, task by task, across processes

FAIR_WAITERS = Queue(SCRIPT, "waiters")
FAIR = Held(SCRIPT, "fair", kind="fair_lock", queue=FAIR_WAITERS.suffix)
FAIR_KIND = Kind("fair", (SCRIPT,), (FAIR, FAIR_WAITERS))


@lru_cache(maxsize=1024)
def fair_spec(prefix: str, name: str) -> LockSpec:
    """Return the spec of a fair lock on `name`."""
    return FAIR.spec(name, lock_key(prefix, name), queue_key=None)


@_settings.made_by("connect(...).fair_lock(name)")
class FairLock(Lockable):
    """A mutex that goes to the task that has waited longest, in any process.

    The nodes keep the queue: if a quorum of them knows of a task that waits before another one
    asks, it goes first (docs/guarantees.md). A waiter that crashed is skipped after 2 s; a waiter
    that stops waiting leaves at once. Every hand-over goes through the nodes, so this is slower
    than `lock`, which hands over inside a process. Works on every deployment.
    """

    __slots__ = ()

    async def inspect(self) -> Inspection:
        """Return which owner has the lock, node by node; takes at most one node timeout."""
        return await inspect(self._engine, self._spec, "fair_lock")


async def resume(lock: Lockable, detached: Detached) -> Lease:
    """Take a detached lease over, by one attempt: if that fails, a second one would, too."""
    spec, ended = lock._spec, "it has ended, or another resume took it"
    if spec.keys[0] != detached.key:
        raise ConfigurationError(
            "the ticket is of a manager with another prefix, or is damaged: resume the lease with "
            f"the prefix that the detaching manager has; this one's key is {spec.keys[0]!r}",
            name=spec.name,
        )
    if not is_owner_id(_settings.name(detached.owner, "a ticket's owner")):
        raise ConfigurationError(NO_TICKET)
    # No local queue: tasks of this process that wait in it must not keep this call out.
    beside = replace(spec, queue_key=None, exempt=(detached.owner,))
    try:
        lease = await Acquire(lock._engine, beside, lock._options, None, once=True)
    except NotAcquiredError as error:
        raise LeaseLostError(
            f"the detached lease on {spec.name!r} (fence {detached.fence}) can't be resumed: "
            f"{ended}{f'; {error}' * bool(error.owner)}",
            name=spec.name,
            reason=ended,
            owner=detached.owner,
            fence=detached.fence,
        ) from None
    grant = lease._grant
    if grant is not None:
        grant.resumed(spec)
    return lease
