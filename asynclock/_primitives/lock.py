"""The mutexes: one holder at a time, over one node or a quorum."""

from __future__ import annotations

from functools import lru_cache

from .. import _settings
from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect
from .._engine.spec import LeaseOptions, LockSpec
from .._keys import lock_key
from .._nodes.wire import Script
from .base import BATCH, CLOCK, FUNCTIONS, Held, Kind, Lockable, Queue, use

FILES = (
    CLOCK,
    "uncontended.lua",
    FUNCTIONS,
    BATCH,
    "queue.lua",
    "quiet.lua",
    "lock.lua",
    "holding.lua",
)
SCRIPT = Script.load(__package__, *FILES)
QUEUE = "queue"
MUTEX = Held(SCRIPT, queue=QUEUE)


async def _trial(on: Engine, name: str, options: LeaseOptions, wait: float) -> None:
    async with Lock(on, spec(on.settings.prefix, name), options, wait) as lease:
        await lease.extend()


KIND = Kind("lock", (SCRIPT,), _trial, (MUTEX, Queue(SCRIPT, QUEUE)))


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
FAIR = Held(SCRIPT, "fair", queue=FAIR_WAITERS.suffix)


async def _fair_trial(on: Engine, name: str, options: LeaseOptions, wait: float) -> None:
    await use(FairLock(on, fair_spec(on.settings.prefix, name), options, wait))


FAIR_KIND = Kind("fair", (SCRIPT,), _fair_trial, (FAIR, FAIR_WAITERS), method="fair_lock")


@lru_cache(maxsize=1024)
def fair_spec(prefix: str, name: str) -> LockSpec:
    """Return the spec of a fair lock on `name`."""
    return FAIR.spec(name, lock_key(prefix, name), queue_key=None)


@_settings.made_by("connect(...).fair_lock(name)")
class FairLock(Lockable):
    """A mutex that goes to the task that has waited longest, in any process.

    The nodes keep the queue: if a quorum of them knows of a task that waits before another one
    asks, it goes first (docs/guarantees.md). A waiter that crashed is skipped after its
    `ticket_ttl`; a waiter that stops waiting leaves at once. Every hand-over goes through the
    nodes, so this is slower than `lock`, which hands over inside a process. Works on every
    deployment.
    """

    __slots__ = ()

    async def inspect(self) -> Inspection:
        """Return which owner has the lock, node by node; takes at most one node timeout."""
        return await inspect(self._engine, self._spec, "fair_lock")
