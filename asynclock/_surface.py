"""All public names in one place; the package `asynclock` exports them."""

from __future__ import annotations

from ._engine.acquire import AcquireContext
from ._engine.engine import NodeHealth, Statistics
from ._engine.inspection import Inspection, NodeView, Waiter
from ._engine.lease import Lease
from ._primitives.base import AnyLease, AnyLock
from ._primitives.lock import FairLock, Lock
from ._primitives.multi import MultiLease, MultiLock
from ._primitives.readwrite import ReadLock, ReadWriteLock, WriteLock
from ._primitives.reentrant import ReentrantLease, ReentrantLock
from ._primitives.semaphore import Semaphore, SemaphorePermits
from ._primitives.shared.election import Election, Leader, Term
from ._primitives.shared.once import Once, Run
from ._primitives.shared.states import Barrier, Latch, SharedEvent
from .errors import (
    AcquireTimeoutError,
    AlreadyHeldError,
    AsyncLockError,
    BrokenBarrierError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
    UnsupportedDeploymentError,
)
from .manager import LockManager, connect

__all__: list[str] = [
    "AcquireContext",
    "AcquireTimeoutError",
    "AlreadyHeldError",
    "AnyLease",
    "AnyLock",
    "AsyncLockError",
    "Barrier",
    "BrokenBarrierError",
    "ConfigurationError",
    "Election",
    "FairLock",
    "Inspection",
    "Latch",
    "Leader",
    "Lease",
    "LeaseLostError",
    "Lock",
    "LockManager",
    "MultiLease",
    "MultiLock",
    "NodeHealth",
    "NodeView",
    "NotAcquiredError",
    "Once",
    "QuorumUnavailableError",
    "ReadLock",
    "ReadWriteLock",
    "ReentrantLease",
    "ReentrantLock",
    "Run",
    "Semaphore",
    "SemaphorePermits",
    "SharedEvent",
    "Statistics",
    "Term",
    "UnsupportedDeploymentError",
    "Waiter",
    "WriteLock",
    "connect",
]
