"""What all locks and all leases have in common, for annotations and for stand-ins in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

from .._engine.acquire import AcquireContext


class AnyLease(Protocol):
    """A lease of any kind: `Lease`, `MultiLease` or `ReentrantLease`."""

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""

    @property
    def owner(self) -> str:
        """The random id stored in Redis, with the label of this process."""

    @property
    def fence(self) -> int:
        """The fencing token to pass to the store."""

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None if it was not."""

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the lease is not entered."""

    def remaining(self) -> float:
        """Return the seconds until the lease ends without renewal; 0 once it has ended."""

    async def wait_lost(self) -> None:
        """Wait until the lease has ended; after a release `lost_reason` is None."""

    async def extend(self, ttl: float | None = None) -> None:
        """Renew the lease now for `ttl` seconds (default: its present ttl), and keep that ttl."""

    async def check(self) -> bool:
        """Return whether the nodes still keep the lease for us, without renewing it."""

    async def detach(self) -> bytes:
        """Hand the lease out of this process, if it can be: return the ticket to resume it."""

    async def publish(self, text: str) -> bool:
        """Publish a message for people; return whether a quorum of nodes stores it now."""

    async def release(self) -> bool:
        """Release the lease. Return whether it was held until now."""

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None: ...


class AnyLock(Protocol):
    """A lock of any kind: what `lock`, `semaphore`, `multi_lock` and the like return.

    Of a read-write lock, each of its two sides is such a lock.
    """

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""

    def acquire(self, *, timeout: float | None = ...) -> AcquireContext[AnyLease]:
        """Get a lease: `await` it, or enter it with `async with`."""

    async def try_acquire(self) -> AnyLease | None:
        """Get a lease if the lock is free now, else None."""

    async def __aenter__(self) -> AnyLease: ...

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> Coroutine[Any, Any, bool | None]: ...
