"""One owner's acquire in a batch, until it is decided with the batch or alone."""

from __future__ import annotations

import asyncio
from typing import Protocol

from .._nodes.replies import Failure
from .._nodes.script import Word
from .acquiring import AcquireContext
from .attempt import Attempt
from .context import Context
from .lease import Lease
from .spec import LockSpec


class SentBatch(Protocol):
    """A batch, as far as its requests need it."""

    context: Context
    ttl: float
    """Seconds for which the names are requested."""
    waits: tuple[Word, ...]
    """Arguments of an acquire that waits if it is refused; () if none of these waits."""
    requests: list[Request]
    started: float
    valid_until: float
    sent: bool
    sending: bool
    """Whether the batch is being sent just now."""
    sent_to: list[int]
    """The nodes that the command was sent to; none if single commands were sent."""
    absent: dict[int, Failure]
    """Why the other nodes were not asked."""
    voters: tuple[int, ...]
    """The nodes that decided the batch."""

    def claims(self, request: Request) -> dict[int, int]:
        """Return the fences that `request` got from the nodes that replied like the first one."""


class Request(AcquireContext[Lease]):
    """One owner's acquire in a batch; `batch_acquire` sets what is asked."""

    __slots__ = ("_attempt", "_batch", "_fence", "_future", "_owner", "_spec")

    _attempt: Attempt | None
    """The vote on this request alone; None while the batch may be decided as a whole."""
    _batch: SentBatch
    _fence: int
    """The fence, once the whole batch was won; 0 before, and if `_attempt` decides."""
    _future: asyncio.Future[None]
    """Done once the verdict is certain."""
    _owner: str
    _spec: LockSpec

    def _alone(self) -> Attempt:
        """Return the vote on this request alone, with what the nodes have replied so far.

        Call this only after the batch was sent: the attempt copies the list of the nodes asked.
        """
        if self._attempt is None:
            batch = self._batch
            self._attempt = attempt = Attempt(
                batch.context, self._spec, batch.ttl, None, batch.waits, self._owner, batch.started
            )
            attempt.take_over(self._future, batch.sent_to, batch.absent, batch.claims(self))
        return self._attempt

    def _expire(self) -> None:
        """Count all nodes that have not replied as failed: the caller's time is over."""
        if not self._batch.sent:  # uvloop runs timers first: the tick has not ended yet
            self._batch.context.multiplexer.flush()
        if not self._future.done():
            self._alone().expire()

    def _abandon(self) -> None:
        """Undo the request: the caller was cancelled, or the manager is being closed."""
        batch = self._batch
        if not batch.sent:
            batch.requests.remove(self)  # no node will know of it
            if not self._future.done():
                self._future.set_result(None)
            return
        if batch.sending:  # a garbage collection closed the call: its release follows the batch
            batch.context.soon(self._abandon)
            return
        attempt = self._alone()
        attempt.abandon()
        attempt.leave_queue()
