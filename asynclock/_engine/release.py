"""Counts the nodes' replies to a release."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from .._nodes.replies import Failure
from .._nodes.wakeup import Wakeups
from .spec import LockSpec
from .ticket import woken

_log = logging.getLogger("asynclock")

KEPT = "a node refuses releases, so locks last for their whole ttl: %s"
UNWOKEN = "a node can't wake who waits for a lock that was released: %s"
WRONGTYPE = "WRONGTYPE"
"""Code of a failure at a key that another program has written: by then the lock is deleted."""


class Release:
    """One release; it is done once a quorum agrees or every node has answered."""

    __slots__ = (
        "_complaints",
        "_deleted",
        "_foreign",
        "_future",
        "_left",
        "_quorum",
        "_spare",
        "_spec",
        "_wakeups",
        "on_certain",
    )

    def __init__(
        self, spec: LockSpec, wakeups: Wakeups, size: int, quorum: int, complaints: set[str]
    ) -> None:
        self._complaints = complaints
        self._spec = spec
        self._wakeups = wakeups
        self.on_certain: Callable[[], None] | None = None
        """Called once when the release is done."""
        self._left = size
        self._quorum = quorum
        self._spare = size - quorum
        self._deleted = self._foreign = 0
        self._future: asyncio.Future[None] | None = None

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of one node."""
        if type(reply) is Failure:
            if reply.permanent:
                self._complain(reply)
        else:
            if reply[0]:
                self._deleted += 1
            else:
                self._foreign += 1
            if len(reply) > 2 and reply[1] and self.on_certain is None:
                self._wake(index, reply)
        self._left -= 1
        future = self._future
        if future is not None and not future.done() and self._certain():
            future.set_result(None)
        if self.on_certain is not None and self._certain():
            tell, self.on_certain = self.on_certain, None
            tell()

    def _wake(self, index: int, reply: Any) -> None:
        # The waiter may be ours: servers send no push for changes by our own connection.
        for ticket in woken(self._spec, reply):
            self._wakeups.wake(ticket, index)

    def _complain(self, failure: Failure) -> None:
        # Not an error, because the lease was ours until now.
        if failure.cause not in self._complaints:
            self._complaints.add(failure.cause)
            _log.warning(UNWOKEN if failure.code == WRONGTYPE else KEPT, failure.cause)

    def _certain(self) -> bool:
        return not self._left or self._deleted >= self._quorum or self._foreign > self._spare

    async def confirmed(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Wait at most one node timeout; return whether the nodes no longer kept the lease."""
        if not self._certain():
            self._future = loop.create_future()
            await self._future
        return self._foreign > self._spare
