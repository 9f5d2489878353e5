"""asynclock: an asyncio-native distributed lock on Redis.

The public names are imported when the first of them is used. Otherwise the command line would have
to import the whole library before it could handle Ctrl-C or print its version.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know this name; importing typing would take longer
if TYPE_CHECKING:
    __version__: str
    from ._surface import (
        AcquireContext,
        AcquireTimeoutError,
        AlreadyHeldError,
        AnyLease,
        AnyLock,
        AsyncLockError,
        Barrier,
        BrokenBarrierError,
        ConfigurationError,
        Election,
        FairLock,
        Inspection,
        Latch,
        Leader,
        Lease,
        LeaseLostError,
        Lock,
        LockManager,
        MultiLease,
        MultiLock,
        NodeHealth,
        NodeView,
        NotAcquiredError,
        Once,
        QuorumUnavailableError,
        ReadLock,
        ReadWriteLock,
        ReentrantLease,
        ReentrantLock,
        Run,
        Semaphore,
        SemaphorePermits,
        SharedEvent,
        Statistics,
        Term,
        UnsupportedDeploymentError,
        Waiter,
        WriteLock,
        connect,
    )
else:

    def __getattr__(name: str) -> object:
        if not name.startswith("_"):
            from . import _surface

            globals().update(
                (one, getattr(_surface, one)) for one in vars(_surface).keys() & __all__
            )
            if name in globals():
                return globals()[name]
        if name == "__version__":
            from importlib.metadata import version

            return version("asynclock")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
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
    "__version__",
    "connect",
]
