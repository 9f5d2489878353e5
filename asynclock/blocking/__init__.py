"""The same locks for code without asyncio: threads, scripts, Django, Celery.

    from asynclock import blocking

    locks = blocking.connect("redis://localhost:6379")

    with locks.lock("orders:42", timeout=2) as lease:
        orders.save(order, fence=lease.fence)

One event loop in a thread of this process does the work: it renews leases while your code runs.
The engine, the protocol and the guarantees are those of the asynchronous locks. Only a loss can't
interrupt your code, because nothing can interrupt a thread. So check `lease.held`, pass a callback
to `lease.on_lost`, and expect LeaseLostError from `extend` and at the end of `with`.
"""

from __future__ import annotations

from ._generated import (
    Barrier,
    FairLock,
    Latch,
    Lease,
    Lock,
    LockManager,
    LockSettings,
    MultiLease,
    MultiLock,
    Once,
    ReadWriteLock,
    ReentrantLease,
    ReentrantLock,
    Run,
    Semaphore,
    SemaphorePermits,
    SharedEvent,
    connect,
)

__all__ = [
    "Barrier",
    "FairLock",
    "Latch",
    "Lease",
    "Lock",
    "LockManager",
    "LockSettings",
    "MultiLease",
    "MultiLock",
    "Once",
    "ReadWriteLock",
    "ReentrantLease",
    "ReentrantLock",
    "Run",
    "Semaphore",
    "SemaphorePermits",
    "SharedEvent",
    "connect",
]
