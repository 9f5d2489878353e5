"""The manager for code that blocks: an asynchronous manager inside the loop of this process."""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Never, ParamSpec, TypeVar, Unpack

from .. import _settings
from .._connect import connect as connect_asynchronously
from .._nodes.deployment import NodeAddress
from .._primitives.synchronized import check_function, check_template, fill_in, shown_signature
from .._settings import ConnectSettings
from ..errors import AsyncLockError, ConfigurationError
from ..manager import LockManager as AsyncLockManager
from . import _loop
from ._bridge import LockSettings
from ._endings import Block, noticed
from ._generated import Catalogue, Lock

P = ParamSpec("P")
R = TypeVar("R")


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

    def lock(self, name: str, **settings: Unpack[LockSettings]) -> Lock:
        """Make a mutex on `name`. Raises ConfigurationError.

        Args:
            name: what is locked; async code and other processes use the same name.
            settings: those of `asynclock.LockManager.lock`, without `interrupt`: nothing interrupts
                a thread.
        """
        made = self.asynchronous().lock(name, **settings, interrupt=False)
        return Lock(self, inner=made)

    def synchronized(
        self, template: str, *, lease: str | None = None, **settings: Unpack[LockSettings]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function: each call holds the mutex that `template` names.

            @locks.synchronized("orders:{order_id}", timeout=2)
            def ship(order_id: int) -> None: ...

        Raises ConfigurationError.

        Args:
            template: the name, with `{order_id}` and the like for the call's arguments.
            lease: the name of a keyword-only parameter that gets the lease.
            settings: those of `asynclock.LockManager.lock`.
        """
        check_template(template)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{function!r} is async: decorate it with asynclock.LockManager.synchronized"
                )
            check_function(function, template, lease)
            shown = shown_signature(function, lease)

            @functools.wraps(function)
            def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
                bound = shown.bind(*args, **kwargs)
                bound.apply_defaults()
                with self.lock(fill_in(template, bound.arguments), **settings) as held:
                    if lease is not None:
                        kwargs[lease] = held
                    return function(*args, **kwargs)

            if lease is not None:
                wrapper.__signature__ = shown  # type: ignore[attr-defined]  # functions have it, their type doesn't say
            return wrapper

        return decorate

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


_managers: weakref.WeakSet[LockManager] = weakref.WeakSet()


@_loop.at_end
async def _close_all() -> None:
    ours = [manager.asynchronous() for manager in _managers if manager.used_here]
    await asyncio.gather(*(locks.aclose() for locks in ours), return_exceptions=True)
