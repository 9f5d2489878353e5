"""Locks for code that blocks: a name, settings and the asynchronous lock that does the work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Never, TypeVar

from .. import _settings
from .._primitives.base import UNSET, Timeout
from .._primitives.protocols import AnyLock
from ._bridge import Bridge
from ._endings import Block, noticed
from ._leases import Lease, wrapped

L = TypeVar("L", bound=Lease)


class Acquirable(Generic[L]):
    """A name and settings that can be acquired. Any number of threads may share it."""

    def __init__(self, manager: Bridge, *, lock: AnyLock) -> None:
        self._manager = manager
        self._lock = lock
        self._entered: list[tuple[int, L]] = []
        """The leases that `with` on this object has entered, each with its thread."""

    def __repr__(self) -> str:
        return f"<blocking {type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._lock.name

    def acquire(self, *, timeout: Timeout = UNSET, **unknown: Never) -> L:
        """Get the lease; use it with `with`, or call its `release`.

        Waits at most `timeout` seconds (None: without limit; default: the lock's own timeout).
        Raises AcquireTimeoutError if others had the lock all that time, QuorumUnavailableError if
        too few nodes answered, AlreadyHeldError if this very thread holds the lock,
        ConfigurationError if the call can never succeed or if an event loop runs in this thread.
        After a KeyboardInterrupt nothing is held.
        """
        if unknown:
            raise _settings.unknown(unknown)

        return self._acquire(timeout)

    def _acquire(self, timeout: Timeout, *, enter: bool = False) -> L:
        async def work() -> Any:
            given: dict[str, Any] = {} if timeout is UNSET else {"timeout": timeout}
            lease = await self._lock.acquire(**given)
            return await lease.__aenter__() if enter else lease

        found: L = self.obtain(work, enter=enter)
        return found

    def try_acquire(self) -> L | None:
        """Get the lease if the lock is free now, else None. Too few answers raise an error.

        That is QuorumUnavailableError, after one node timeout.
        """
        found: L | None = self.obtain(self._lock.try_acquire)
        return found

    def obtain(self, work: Callable[[], Awaitable[Any]], *, enter: bool = False) -> Any:
        # A KeyboardInterrupt may come between any two lines; then nothing may stay held.
        block = Block(self)
        lease, entry = None, None
        try:
            lease = self._manager.call(work, undo=_release)
            if lease is None:
                return None
            found: L = wrapped(self._manager, lease)
            if enter:
                entry = threading.get_ident(), found
                self._entered.append(entry)
                return found._begin(block, partial(self._cut, entry))
            return found  # noqa: TRY300 - still inside: an interruption here must release it
        except BaseException:
            if lease is not None:
                with contextlib.suppress(ValueError):
                    self._entered.remove(entry)  # type: ignore[arg-type]  # None is not in it
                with contextlib.suppress(Exception):
                    self._manager.call(lease.release, ends=True)
            raise

    def __enter__(self) -> L:
        return self._acquire(UNSET, enter=True)

    @noticed
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        entry = None
        try:
            for entry in self._innermost_first():
                if self._forget(entry):
                    break
            else:
                raise RuntimeError(f"{self!r} is not entered")  # noqa: TRY301 - nothing is held
            entry[1].__exit__(kind, error, trace)
        except BaseException:
            for left in [entry] if entry else self._innermost_first()[:1]:
                self._cut(left)
            raise

    def _innermost_first(self) -> list[tuple[int, L]]:
        """Return what this thread entered, the last first, and then what others did.

        A generator that was entered in another thread has only the latter.
        """
        thread, entered = threading.get_ident(), list(self._entered)
        return [one for one in reversed(entered) if one[0] == thread] + entered

    def _forget(self, entry: tuple[int, L]) -> bool:
        """Count a block as left; return False if that has been done, by another thread."""
        try:
            self._entered.remove(entry)
        except ValueError:
            return False
        return True

    def _cut(self, entry: tuple[int, L]) -> None:
        """End a block whose thread was interrupted at its end, unless it has ended."""
        self._forget(entry)
        entry[1]._finish()


@_settings.made_by("connect(...).lock(name)")
class Lock(Acquirable[Lease]):
    """A lock of any kind with one name, for code that blocks."""


async def _release(lease: Any) -> None:
    if lease is not None:
        await lease.release()
