"""Opens the manager of an application, and ends the waits for locks when the server stops.

Holders go on. aiohttp tells an application that the server begins to stop. An ASGI server tells it
only after the last request has ended. But the object of a uvicorn server handles the signals, in
workers of gunicorn too, and has a flag for that. So while requests run, this finds that object
through the handler of the signals, which stays in place, and reads the flag.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from .._engine.acquire import Work
from .._engine.lease import Lease
from .._nodes.deployment import NodeAddress
from .._primitives.lock import Lock
from .._settings import ConnectSettings
from ..errors import ConfigurationError, NotAcquiredError
from ..manager import LockManager, connect
from ._problems import Contended, checked

_log = logging.getLogger("asynclock.web")

LOOK_INTERVAL: Final = 0.1
"""Seconds between two looks at the server's flag, which uvicorn itself reads as often."""


class Requests:
    """The requests that an application serves, and that may wait for locks."""

    def __init__(self) -> None:
        self._works: set[Work] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        """Let calls in the block wait for locks until the server begins to stop.

        From then on they raise AcquireTimeoutError instead of waiting.
        """
        if self._timer is None and not self._stopping:
            self._look()
        work = Work(stopped=self._stopping)
        self._works.add(work)
        try:
            with work.running():
                yield
        finally:
            self._works.discard(work)

    async def acquire(self, lock: Lock, retry_after: float | None) -> Lease:
        """Acquire the lock of a route.

        `retry_after`: what a refusal advises, if the route says so.
        """
        with self.serve():
            try:
                return await lock.acquire()
            except NotAcquiredError as error:
                if retry_after is not None:
                    error.retry_after = retry_after
                raise

    def end(self) -> None:
        """End all waits: the server begins to stop."""
        self._stopping = True
        for work in tuple(self._works):
            work.stop()

    def _look(self) -> None:
        if _server_stops():
            self.end()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOOK_INTERVAL, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._works:
            self._look()


def _server_stops() -> bool:
    """Return whether the server that handles the signals of this process is about to exit."""
    handlers = map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))
    owners = (getattr(handler, "__self__", None) for handler in handlers)
    return any(getattr(owner, "should_exit", False) is True for owner in owners)


_requests: WeakKeyDictionary[LockManager, Requests] = WeakKeyDictionary()


def requests_of(locks: LockManager) -> Requests:
    """Return the requests of the application that uses this manager."""
    found = _requests.get(locks)
    if found is None:
        found = _requests[locks] = Requests()
    return found


def begin(locks: LockManager) -> None:
    """Note that an application starts with this manager, which another one may have used."""
    _requests[locks] = Requests()


def warn(paths: Iterable[str]) -> None:
    """Log which routes wait for their locks without a timeout."""
    if routes := tuple(dict.fromkeys(paths)):
        _log.warning(
            "these routes wait for their locks without a timeout, so requests pile up while a "
            "holder stays, and some servers wait for them when they stop: %s",
            ", ".join(routes),
            extra={"asynclock_routes": routes},
        )


# ---- Gives an application its manager, from settings that `setup` may replace before the start ---


Nodes: TypeAlias = "Sequence[NodeAddress | LockManager]"


class Source:
    """Nodes and settings, or an existing manager.

    A second `setup` of the same application replaces them, so that a test can use other nodes.
    """

    def __init__(self, nodes: Nodes, settings: ConnectSettings, contended: Contended = 409) -> None:
        self._runs = 0  # several if test clients overlap
        self._take(nodes, settings, contended)

    def replace(self, nodes: Nodes, settings: ConnectSettings, contended: Contended) -> None:
        """Replace all settings. Raises ConfigurationError while the application runs."""
        if self._runs:
            raise ConfigurationError("the application runs: call setup before it starts")
        self._take(nodes, settings, contended)

    def _take(self, nodes: Nodes, settings: ConnectSettings, contended: Contended) -> None:
        self.contended = checked(contended)
        addresses = [node for node in nodes if not isinstance(node, LockManager)]
        if len(addresses) == len(nodes):
            # Made only to raise the error of a wrong setting here, not at the start of the server.
            connect(*addresses, **settings)
        elif len(nodes) > 1:
            raise ConfigurationError("a LockManager has its nodes already: pass nothing else")
        elif settings:
            raise ConfigurationError(f"a LockManager has its settings already: {sorted(settings)}")
        self._nodes, self._addresses, self._settings = tuple(nodes), addresses, settings

    @asynccontextmanager
    async def run(self) -> AsyncIterator[LockManager]:
        """Open the manager while the application runs."""
        given = next((node for node in self._nodes if isinstance(node, LockManager)), None)
        self._runs += 1
        try:
            async with given or connect(*self._addresses, **self._settings) as locks:
                begin(locks)
                yield locks
        finally:
            self._runs -= 1
