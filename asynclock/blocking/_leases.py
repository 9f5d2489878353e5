"""Leases for code that blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio.to_thread

from .._forks import of_one_process
from .._primitives.multi import MultiLease as AsyncMultiLease
from .._primitives.protocols import AnyLease
from .._primitives.reentrant import ReentrantLease as AsyncReentrantLease
from ..errors import AsyncLockError
from ._bridge import Bridge
from ._endings import Block, noticed

_log = logging.getLogger("asynclock")


@of_one_process
class Lease:
    """One holding of a lock by one thread: `acquire` returns it and `with` enters it.

    Leaving the `with` releases the lease. If the lease was lost in the meantime and the body raised
    nothing itself, leaving raises LeaseLostError. A loss never interrupts the body. Any thread of
    the process may use the lease; in a forked child its methods raise ConfigurationError.
    """

    __slots__ = ("__weakref__", "_ended", "_lease", "_manager", "_with")

    def __init__(self, manager: Bridge, lease: AnyLease) -> None:
        self._manager = manager
        self._lease = lease
        self._ended = False
        """Whether the lease has been released, so that any thread may drop it."""
        self._with: object = None
        """Set while a `with` is to be watched."""

    def __repr__(self) -> str:
        return f"<blocking {self._lease!r}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._lease.name

    @property
    def part(self) -> str | None:
        """Which part of the name is held, for a store that tells them apart; None for the whole."""
        return getattr(self._lease, "part", None)

    @property
    def owner(self) -> str:
        """The random id stored in Redis, with the label of this process."""
        return self._lease.owner

    @property
    def fence(self) -> int:
        """Fencing token, which rises with every lease on this name.

        Pass it to the store, which must reject lower ones.
        """
        return self._lease.fence

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        return self._lease.ttl

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""
        return self._lease.held

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None if it was not."""
        return self._lease.lost_reason

    def remaining(self) -> float:
        """Return the seconds until the lease ends without renewal; 0 once it has ended."""
        return self._lease.remaining()

    def extend(self, ttl: float | None = None) -> None:
        """Renew the lease now for `ttl` seconds (default: its present ttl), and keep that ttl.

        Raises the same errors as `asynclock.Lease.extend`: LeaseLostError if the lease is no longer
        held, QuorumUnavailableError if too few nodes answered, ConfigurationError for a wrong ttl.
        """
        self._manager.call(lambda: self._lease.extend(ttl))

    def check(self) -> bool:
        """Return whether the nodes still keep the lease for us; see `asynclock.Lease.check`.

        Takes at most one node timeout. Raises QuorumUnavailableError if too few nodes answered.
        """
        return self._manager.call(self._lease.check)

    def release(self) -> bool:
        """Release the lock. Return whether it was held until now.

        A second call sends and awaits nothing, and returns the same, as far as that is known yet.
        `asynclock.Lease.release` says when this waits for the nodes.
        """
        try:
            held = self._manager.call(self._lease.release, ends=True)
        except BaseException:
            self._finish()
            raise
        self._ended = True
        return held

    def _finish(self) -> None:
        """Release for a thread that was interrupted, unless that has been done."""
        self._with = None
        self._manager.finish(self._lease.release)

    def _begin(self, block: Block, end: Callable[[], None]) -> Self:
        """Begin the body; call `end` if the `with` is over without the end of its body."""
        self._with = block.watch(end)
        return self

    def on_lost(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` with this lease in another thread when the lease is lost.

        If the lease has been lost already, the call comes at once; after a release it never comes.
        The callback sees the context variables as they are now. Its exceptions are logged.
        """
        self._manager.start(self._watch, callback)

    async def _watch(self, callback: Callable[[Self], object]) -> None:
        await self._lease.wait_lost()
        if self._lease.lost_reason is None:
            return
        try:
            await anyio.to_thread.run_sync(callback, self)
        except BaseException:  # also an exit: it would end the event loop of all threads
            _log.exception("a callback failed on the loss of %r", self.name)

    def __enter__(self) -> Self:
        try:
            block = Block(self)
            refusal = self._manager.call(self._enter)
            if refusal is None:
                return self._begin(block, self._finish)
        except AsyncLockError:
            raise
        except BaseException:  # interrupted: the body doesn't begin, so nothing else releases it
            self.release()
            raise
        raise refusal

    async def _enter(self) -> RuntimeError | None:
        try:
            await self._lease.__aenter__()
        except RuntimeError as error:  # a handler may raise a RuntimeError, too
            return error
        return None

    @noticed
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._manager.inherited:
            return  # in a forked child: don't replace the exception that ends the body's copy
        try:
            self._manager.call(lambda: self._lease.__aexit__(kind, error, trace), ends=True)
            self._with = None
        except BaseException:
            self._finish()
            raise
        self._ended = True

    def __del__(self) -> None:
        # Drop the last reference in the loop: the end of a lease changes objects of the loop.
        if not getattr(self, "_ended", True):  # without it its making was interrupted
            last = [self._lease]
            del self._lease
            self._manager.drop(last)


class MultiLease(Lease):
    """The hold on several names or permits, with a fence for each."""

    __slots__ = ()

    _lease: AsyncMultiLease

    @property
    def fences(self) -> dict[str, int]:
        """The fence for each name, or for each slot of a semaphore."""
        return self._lease.fences

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The lease on all names; on Cluster one lease per name, of a semaphore one per permit."""
        return tuple(Lease(self._manager, lease) for lease in self._lease.leases)


class ReentrantLease(Lease):
    """One of the holds of a thread on a reentrant lock."""

    __slots__ = ()

    _lease: AsyncReentrantLease

    @property
    def depth(self) -> int:
        """The number of holds on the lease at this moment."""
        return self._lease.depth


def wrapped(manager: Bridge, lease: Any) -> Any:
    """Return the blocking counterpart of an asynchronous lease."""
    kinds = {AsyncMultiLease: MultiLease, AsyncReentrantLease: ReentrantLease}
    return kinds.get(type(lease), Lease)(manager, lease)
