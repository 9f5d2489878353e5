"""What leases ask of the engine that keeps them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from .._nodes.replies import Failure
from ..events import Lost
from .context import Context
from .grant import Grant
from .holder import Holder
from .release import Release


class Keeper(Context):
    """A context that also carries out what its leases ask for."""

    @abstractmethod
    def extend_now(
        self, grant: Grant, ttl: float | None = None
    ) -> asyncio.Future[dict[int, Failure] | None]:
        """Ask all nodes to extend `grant` now, to the ttl that it has or to another one.

        The future's result is None once a quorum has extended, otherwise the failures by node.
        """

    @abstractmethod
    def end_lease(self, lease: Holder, grant: Grant, now: float) -> Release | None:
        """End `lease`; return the release that was sent, if its replies may still show a loss.

        None if the next waiter took the grant over, or if the lease had run out: then it was lost.
        """

    @abstractmethod
    def report_loss(self, loss: Lost) -> None:
        """Count a loss, log it and tell the observers."""

    @abstractmethod
    def mark_lost(self, grant: Grant, reason: str) -> None:
        """Mark `grant` as lost: interrupt the body, report it once, let the next waiter ask."""
