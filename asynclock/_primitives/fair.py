"""The fair lock: first come, first served, task by task, across processes."""

from __future__ import annotations

from functools import lru_cache

from .. import _settings
from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect
from .._engine.spec import LeaseOptions, LockSpec
from .._keys import lock_key
from .base import Lockable
from .kind import Held, Kind, Queue
from .lock import SCRIPT

WAITERS = Queue(SCRIPT, "waiters")
MUTEX = Held(SCRIPT, "fair", kind="fair_lock", queue=WAITERS.suffix)
KIND = Kind("fair", (SCRIPT,), (MUTEX, WAITERS))


@lru_cache(maxsize=1024)
def spec(prefix: str, name: str) -> LockSpec:
    """Return the spec of a fair lock on `name`."""
    return MUTEX.spec(name, lock_key(prefix, name), queue_key=None)


@_settings.made_by("connect(...).fair_lock(name)")
class FairLock(Lockable):
    """A mutex that goes to the task that has waited longest, in any process.

    The nodes keep the queue: if a quorum of them knows of a task that waits before another one
    asks, it goes first (docs/guarantees.md). A waiter that crashed is skipped after 2 s; a waiter
    that stops waiting leaves at once. Every hand-over goes through the nodes, so this is slower
    than `lock`, which hands over inside a process. Works on every deployment.
    """

    __slots__ = ()

    def __init__(
        self, engine: Engine, prefix: str, name: str, options: LeaseOptions, timeout: float | None
    ) -> None:
        super().__init__(engine, spec(prefix, _settings.name(name)), options, timeout)

    async def inspect(self) -> Inspection:
        """Return which owner has the lock, node by node; takes at most one node timeout."""
        return await inspect(self._engine, self._spec, "fair_lock")
