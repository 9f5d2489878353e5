"""Ends the waits of requests for locks when their server begins to stop. Holders go on.

aiohttp tells an application that the server begins to stop. An ASGI server tells it only after the
last request has ended. But the object of a uvicorn server handles the signals, in workers of
gunicorn too, and has a flag for that. So while requests wait, this looks at the handler of the
signals; that takes no signal away from anybody.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from .._engine.lease import Lease
from .._primitives.lock import Lock
from ..errors import NotAcquiredError
from ..manager import LockManager
from ._problems import StoppingError

_log = logging.getLogger("asynclock.web")

LOOK_INTERVAL: Final = 0.1
"""Seconds between two looks at the server's flag, which uvicorn itself reads as often."""


class Waits:
    """The calls of an application's routes that wait for locks."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    async def acquire(self, lock: Lock, retry_after: float | None) -> Lease:
        """Acquire the lock of a route. Raises StoppingError if the server stops first.

        `retry_after`: what a refusal advises, if the route says so.
        """
        if self._timer is None and not self._stopping:
            self._look()
        try:
            lease = await (lock.try_acquire() if self._stopping else self._wait(lock))
        except NotAcquiredError as error:
            if retry_after is not None:
                error.retry_after = retry_after
            raise
        if lease is None:
            raise StoppingError(f"the server stops, and {lock.name!r} is not free", name=lock.name)
        return lease

    async def _wait(self, lock: Lock) -> Lease | None:
        call = asyncio.timeout(None)
        try:
            async with call:
                self._calls.add(call)
                return await lock.acquire()
        except NotAcquiredError:  # a TimeoutError, too
            raise
        except TimeoutError:
            return None
        finally:
            self._calls.discard(call)

    def end(self) -> None:
        """End all waits: the server begins to stop."""
        self._stopping = True
        for call in self._calls:
            if call.when() is None:
                call.reschedule(0.0)

    def _look(self) -> None:
        if _server_stops():
            self.end()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOOK_INTERVAL, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._calls:
            self._look()


def _server_stops() -> bool:
    """Return whether the server that handles the signals of this process is about to exit."""
    handlers = map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))
    owners = (getattr(handler, "__self__", None) for handler in handlers)
    return any(getattr(owner, "should_exit", False) is True for owner in owners)


_waits: WeakKeyDictionary[LockManager, Waits] = WeakKeyDictionary()


def waits_of(locks: LockManager) -> Waits:
    """Return the waits of the application that uses this manager."""
    waits = _waits.get(locks)
    if waits is None:
        waits = _waits[locks] = Waits()
    return waits


def begin(locks: LockManager) -> None:
    """Note that an application starts with this manager, which another one may have used."""
    _waits[locks] = Waits()


def warn(paths: Iterable[str]) -> None:
    """Log which routes wait for their locks without a timeout."""
    if routes := tuple(dict.fromkeys(paths)):
        _log.warning(
            "these routes wait for their locks without a timeout, so requests pile up while a "
            "holder stays, and most servers wait for them when they stop: %s",
            ", ".join(routes),
            extra={"asynclock_routes": routes},
        )
