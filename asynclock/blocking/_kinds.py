"""Kinds of locks that can do more than be acquired, for code that blocks."""

from __future__ import annotations

from typing import Any

from .. import _settings
from .._engine.inspection import Inspection
from .._primitives import fair, multi, readwrite, semaphore
from .._primitives.base import UNSET, Timeout
from ._bridge import Bridge
from ._leases import Lease, MultiLease, ReentrantLease
from ._locks import Acquirable, Lock


@_settings.made_by("connect(...).reentrant_lock(name)")
class ReentrantLock(Acquirable[ReentrantLease]):
    """A mutex that the thread which holds it may acquire again."""


@_settings.made_by("connect(...).multi_lock(*names)")
class MultiLock(Acquirable[MultiLease]):
    """Mutexes on several names at once, for code that blocks."""

    _lock: multi.MultiLock

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted and without duplicates."""
        return self._lock.names

    def inspect(self) -> Inspection:
        """Return which owner has each name, node by node (`parts`)."""
        return self._manager.run(lambda _: self._lock.inspect())


@_settings.made_by("connect(...).fair_lock(name)")
class FairLock(Lock):
    """A mutex that goes to the longest waiter, for code that blocks."""

    _lock: fair.FairLock

    def inspect(self) -> Inspection:
        """Return which owner has the lock, node by node; takes at most one node timeout."""
        return self._manager.run(lambda _: self._lock.inspect())


@_settings.made_by("connect(...).semaphore(name, permits)")
class Semaphore(Lock):
    """A limited number of leases at a time, for code that blocks; see `asynclock.Semaphore`."""

    _lock: semaphore.Semaphore

    @property
    def permits(self) -> int:
        """Maximum number of leases at a time."""
        return self._lock.permits

    def several(self, permits: int) -> SemaphorePermits:
        """Return a lock on `permits` of the permits at once, all or none, used like any lock.

        Raises ConfigurationError.

        Args:
            permits: number of permits, from 1 to all.
        """
        return SemaphorePermits(self._manager, lock=self._lock.several(permits))

    def inspect(self) -> Inspection:
        """Return the owner of each slot, node by node (`parts`); takes at most one node timeout."""
        return self._manager.run(lambda _: self._lock.inspect())


@_settings.made_by("connect(...).semaphore(name, permits).several(permits)")
class SemaphorePermits(Acquirable[MultiLease]):
    """Several permits of one semaphore at once; see `asynclock.SemaphorePermits`."""

    _lock: semaphore.SemaphorePermits

    @property
    def permits(self) -> int:
        """The number of permits that a lease holds."""
        return self._lock.permits


@_settings.made_by("connect(...).rwlock(name)")
class ReadWriteLock:
    """A read-write lock for code that blocks; see `asynclock.ReadWriteLock`."""

    def __init__(self, manager: Bridge, *, lock: readwrite.ReadWriteLock) -> None:
        self._manager = manager
        self._lock = lock
        self._read = Lock(manager, lock=lock.read())
        self._write = Lock(manager, lock=lock.write())

    def __repr__(self) -> str:
        return f"<blocking ReadWriteLock {self.name!r}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._read.name

    def read(self) -> Lock:
        """Return the shared side, to be used like any lock."""
        return self._read

    def write(self) -> Lock:
        """Return the exclusive side, to be used like any lock."""
        return self._write

    def upgrade(self, lease: Lease, *, timeout: Timeout = UNSET) -> Lease:
        """Get a write lease beside the read lease `lease`, which stays.

        The errors are those of `asynclock.ReadWriteLock.upgrade`. After an error or a
        KeyboardInterrupt the read lease is as it was.

        Args:
            lease: a lease of `read()`, which is held.
            timeout: seconds to wait (None: no limit; default: the lock's own timeout).
        """

        async def work() -> Any:
            given: dict[str, Any] = {} if timeout is UNSET else {"timeout": timeout}
            return await self._lock.upgrade(_inner(lease), **given)

        writer: Lease = self._write.obtain(work)
        return writer

    def downgrade(self, lease: Lease) -> Lease:
        """Return a read lease in place of the write lease `lease`, which ends; without a gap.

        The errors are those of `asynclock.ReadWriteLock.downgrade`. After a KeyboardInterrupt
        nothing but the write lease can be left, and that only if its `held` is True.

        Args:
            lease: a lease of `write()` or `upgrade()`, which is held.
        """
        reader: Lease = self._read.obtain(lambda: self._lock.downgrade(_inner(lease)))
        return reader

    def inspect(self) -> Inspection:
        """Return the writer and every reader, node by node (`parts`)."""
        return self._manager.run(lambda _: self._lock.inspect())


def _inner(lease: Any) -> Any:
    """Return the asynchronous lease in a blocking one; anything else as it is, to be refused."""
    return lease._lease if isinstance(lease, Lease) else lease
