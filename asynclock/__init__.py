"""asynclock: an asyncio-native distributed lock on Redis."""

from __future__ import annotations

from ._engine.inspection import Inspection, NodeView
from ._engine.lease import Lease
from ._primitives.barrier import Barrier
from ._primitives.election import Election, Leader, Term
from ._primitives.event import SharedEvent
from ._primitives.fair import FairLock
from ._primitives.latch import Latch
from ._primitives.lock import Lock
from ._primitives.multi import MultiLease, MultiLock
from ._primitives.readwrite import ReadLock, ReadWriteLock, WriteLock
from ._primitives.reentrant import ReentrantLease, ReentrantLock
from ._primitives.semaphore import Semaphore
from ._reports import NodeHealth, Statistics
from .errors import (
    AcquireTimeoutError,
    AlreadyHeldError,
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
    UnsupportedDeploymentError,
)
from .manager import LockManager, connect

__all__ = [
    "AcquireTimeoutError",
    "AlreadyHeldError",
    "AsyncLockError",
    "Barrier",
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
    "QuorumUnavailableError",
    "ReadLock",
    "ReadWriteLock",
    "ReentrantLease",
    "ReentrantLock",
    "Semaphore",
    "SharedEvent",
    "Statistics",
    "Term",
    "UnsupportedDeploymentError",
    "WriteLock",
    "connect",
]
