"""All public names in one place; the package `asynclock` exports them."""

from __future__ import annotations

from ._engine.acquire import AcquireContext as AcquireContext
from ._engine.engine import NodeHealth as NodeHealth
from ._engine.engine import Statistics as Statistics
from ._engine.inspection import Inspection as Inspection
from ._engine.inspection import NodeView as NodeView
from ._engine.inspection import Waiter as Waiter
from ._engine.lease import Lease as Lease
from ._primitives.base import AnyLease as AnyLease
from ._primitives.base import AnyLock as AnyLock
from ._primitives.election import Election as Election
from ._primitives.election import Leader as Leader
from ._primitives.election import Term as Term
from ._primitives.lock import FairLock as FairLock
from ._primitives.lock import Lock as Lock
from ._primitives.multi import MultiLease as MultiLease
from ._primitives.multi import MultiLock as MultiLock
from ._primitives.once import Once as Once
from ._primitives.once import Run as Run
from ._primitives.readwrite import ReadLock as ReadLock
from ._primitives.readwrite import ReadWriteLock as ReadWriteLock
from ._primitives.readwrite import WriteLock as WriteLock
from ._primitives.reentrant import ReentrantLease as ReentrantLease
from ._primitives.reentrant import ReentrantLock as ReentrantLock
from ._primitives.semaphore import Semaphore as Semaphore
from ._primitives.semaphore import SemaphorePermits as SemaphorePermits
from ._primitives.shared import Barrier as Barrier
from ._primitives.shared import Latch as Latch
from ._primitives.shared import SharedEvent as SharedEvent
from .errors import AcquireTimeoutError as AcquireTimeoutError
from .errors import AlreadyHeldError as AlreadyHeldError
from .errors import AsyncLockError as AsyncLockError
from .errors import BrokenBarrierError as BrokenBarrierError
from .errors import ConfigurationError as ConfigurationError
from .errors import LeaseLostError as LeaseLostError
from .errors import NotAcquiredError as NotAcquiredError
from .errors import QuorumUnavailableError as QuorumUnavailableError
from .errors import UnsupportedDeploymentError as UnsupportedDeploymentError
from .manager import LockManager as LockManager
from .manager import connect as connect
