"""The manager for code that blocks: an asynchronous manager inside the loop of this process."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Never, TypeVar, Unpack

from .. import _settings
from .._connect import connect as connect_asynchronously
from .._engine.inspection import Inspection
from .._engine.reports import NodeHealth, Statistics
from .._nodes.deployment import NodeAddress
from .._settings import ConnectSettings
from ..errors import AsyncLockError
from ..events import Observer
from ..manager import LockManager as AsyncLockManager
from . import _loop
from ._catalogue import Catalogue
from ._endings import Block, noticed
from ._leases import Lease

T = TypeVar("T")


def connect(*nodes: NodeAddress, **settings: Unpack[ConnectSettings]) -> LockManager:
    """Make a manager of locks for code that blocks; the arguments are those of `asynclock.connect`.

    This does no I/O and starts no thread; the first use of a lock does. So a manager may be made
    at the import of a module, before a server forks its workers. Observers are called in the
    thread of the event loop and must be quick. Raises ConfigurationError.

    Args:
        nodes: those of `asynclock.connect`.
        settings: those of `asynclock.connect`; times are in seconds.
    """
    return LockManager(locks=connect_asynchronously(*nodes, **settings))


@_settings.made_by("connect(...)")
class LockManager(Catalogue):
    """Makes locks for code that blocks. `connect` makes it; all threads of a process may share it.

    `close` or `with` closes it, and so does the exit of the process. It belongs to the process that
    used it first: in a forked child it raises ConfigurationError, so call `connect` there again.
    """

    def __init__(self, *, locks: AsyncLockManager) -> None:
        super().__init__(locks)
        self._with: object = None
        """Set while a `with` is to be watched."""
        _managers.add(self)

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name: str) -> Never:
            text = f"blocking locks have no {name!r}"
            if hasattr(AsyncLockManager, name) and not name.startswith("_"):
                text += f": write locks.run(lambda locks: locks.{name}(...)...)"
            raise AttributeError(text, name=name, obj=self)

    def inspect(self, name: str) -> Inspection:
        """Return which owner has the mutex `name`, node by node; takes at most one node timeout."""
        return self.run(lambda locks: locks.inspect(name))

    def inspect_all(self) -> list[Inspection]:
        """Return everything that is held on the nodes; see `asynclock.LockManager.inspect_all`."""

        async def found(locks: AsyncLockManager) -> list[Inspection]:
            return [one async for one in locks.inspect_all()]

        return self.run(found)

    def nodes(self) -> tuple[NodeHealth, ...]:
        """Return the health of each node, without asking the nodes."""
        return self.run(_soon(lambda locks: locks.nodes()))

    def statistics(self) -> Statistics:
        """Return the manager's counts, without asking the nodes."""
        return self.run(_soon(lambda locks: locks.statistics()))

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are held through this manager, oldest first."""
        return tuple(Lease(self, lease) for lease in self.run(_soon(lambda locks: locks.leases())))

    def waiters(self) -> dict[str, int]:
        """Return the number of this manager's threads that wait for each name that is held now."""
        return self.run(_soon(lambda locks: locks.waiters()))

    def waits(self) -> dict[str, list[float]]:
        """Return the seconds that each of these threads has waited, by name, longest first."""
        return self.run(_soon(lambda locks: locks.waits()))

    def observe(self, observer: Observer) -> None:
        """Call `observer` with every event from now on, in the thread of the event loop."""
        self.run(_soon(lambda locks: locks.observe(observer)))

    def unobserve(self, observer: Observer) -> None:
        """Stop calling `observer`; does nothing if it isn't an observer."""
        self.run(_soon(lambda locks: locks.unobserve(observer)))

    def ready(self, *, voting: bool = False, timeout: float | None = None) -> None:
        """Wait until the nodes have been met, or vote; see `asynclock.LockManager.ready`.

        Args:
            voting: whether to wait until locks can be granted.
            timeout: maximum seconds to wait (default: that of `asynclock.LockManager.ready`).
        """
        self.run(lambda locks: locks.ready(voting=voting, timeout=timeout))

    def close(self) -> None:
        """Release all leases and end all connections; a second call does nothing.

        At the exit of the process all managers are closed; later calls do nothing either.
        """
        try:
            if self.used_here and not _loop.process_ends():
                self.call(self._locks.aclose, ends=True)
        except BaseException:
            self._finish()
            raise

    def _finish(self) -> None:
        """Close for a thread that was interrupted."""
        self._with = None
        self.finish(self._locks.aclose)

    def __enter__(self) -> LockManager:
        block = Block(self)
        try:
            self.run(lambda locks: locks.__aenter__())
            self._with = block.watch(self._finish)
        except AsyncLockError:
            raise
        except BaseException:  # interrupted
            self.close()
            raise
        return self

    @noticed
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._with = None


def _soon(
    function: Callable[[AsyncLockManager], T],
) -> Callable[[AsyncLockManager], Awaitable[T]]:
    async def run(locks: AsyncLockManager) -> T:
        return function(locks)

    return run


_managers: weakref.WeakSet[LockManager] = weakref.WeakSet()


@_loop.at_end
async def _close_all() -> None:
    ours = [manager.asynchronous() for manager in _managers if manager.used_here]
    await asyncio.gather(*(locks.aclose() for locks in ours), return_exceptions=True)
