"""Counts the nodes' replies to a release."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from .._nodes.replies import Failure
from .._nodes.script import Command, Word
from ..events import GONE
from .context import Context
from .grant import Grant
from .holder import Holder
from .said import released
from .spec import LockSpec
from .ticket import woken

_log = logging.getLogger("asynclock")

UNRELEASED = "a node refuses releases, so locks last for their whole ttl: %s"
"""Log message: a node refused to release a lock."""
UNWOKEN = "a node can't wake who waits for a lock that was released: %s"
"""Log message: a node released a lock and can't wake its next waiter."""
WAKE_NOBODY = (1,)
"""Argument of a release that wakes nobody."""
WRONGTYPE = "WRONGTYPE"
"""Code of a failure at a key that another program has written: by then the lock is deleted."""


class Release:
    """One release; it is done once a quorum agrees or every node has answered."""

    __slots__ = (
        "_answered",
        "_context",
        "_deleted",
        "_foreign",
        "_future",
        "_grant",
        "_lease",
        "_until",
        "kept",
        "on_certain",
        "owner",
        "spec",
    )

    def __init__(
        self,
        context: Context,
        grant: Grant,
        now: float,
        *,
        lease: Holder | None = None,
        kept: bool = False,
    ) -> None:
        self.spec: LockSpec = grant.spec
        self.owner: str = grant.owner
        self.kept: bool = kept
        """Whether the nodes wake nobody, because this process may ask again within its turn."""
        self.on_certain: Callable[[], None] | None = None
        """Called once when the release is done."""
        self._context = context
        self._grant = grant
        self._lease = lease  # is told if the replies show that it was lost before
        self._until = now + grant.ttl
        self._answered = self._deleted = self._foreign = 0
        self._future: asyncio.Future[None] | None = None

    def command(self) -> Command:
        """Build the command for this name alone."""
        more: tuple[Word, ...] = WAKE_NOBODY if self.kept else ()
        command = self.spec.release(self.owner, self._grant.asked_since, self._until, more)
        command.wakes = self.spec.watched
        return command

    def agreed(self, nodes: int) -> None:
        """Count a quorum of nodes that have released the name and on which nobody waits."""
        self._deleted += nodes
        self._answered += nodes
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of one node."""
        said = released(reply)
        if type(said) is Failure:
            if said.permanent:
                self._complain(said)
        else:
            if said.done:
                self._deleted += 1
            else:
                self._foreign += 1
            # A waiter may be ours: servers send no push for changes by our own connection.
            for ticket in woken(self.spec, said):
                self._context.multiplexer.wakeups.wake(ticket, index)
        self._answered += 1
        self._settle()

    def _settle(self) -> None:
        if not self._certain():
            return
        if self._lease is not None and self._refuted():
            lease, self._lease = self._lease, None
            lease._was_lost(GONE)
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)
        if self.on_certain is not None:
            tell, self.on_certain = self.on_certain, None
            tell()

    def _complain(self, failure: Failure) -> None:
        # Not an error, because the lease was ours until now.
        complaints = self._context.complaints
        if failure.cause not in complaints:
            complaints.add(failure.cause)
            _log.warning(UNWOKEN if failure.code == WRONGTYPE else UNRELEASED, failure.cause)

    def _certain(self) -> bool:
        nodes = self._context.multiplexer
        enough = self._deleted >= nodes.quorum or self._answered >= len(nodes.nodes)
        return enough or self._refuted()

    def _refuted(self) -> bool:
        # Whether too many nodes for a quorum had lost the lease before the release.
        nodes = self._context.multiplexer
        return self._foreign > len(nodes.nodes) - nodes.quorum

    def done(self) -> asyncio.Future[None]:
        """Return a future that is done once the outcome is certain, within one node timeout."""
        self._future = asyncio.Future(loop=self._context.multiplexer.loop)
        if self._answered and self._certain():
            self._future.set_result(None)
        return self._future
