"""What is held: a Holding on the nodes, and the Lease through which one task holds it.

Inside a process one holding may pass from lease to lease (see waiting.py); to the nodes it is one
owner all the time. A lease ends once: released, handed on, or lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from .. import _clock
from ..errors import LeaseLostError
from .interruption import Interruption
from .recipe import Recipe

if TYPE_CHECKING:
    from .engine import Engine
    from .waiting import Line

HandOff = Literal["block", "strict"] | bool

FOREVER = float("inf")
UNNOTICED = "its time ran out unnoticed"
"""Our own loop was busy for so long that no timer told us before."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How something is to be held; validated where a lock is made. Seconds."""

    ttl: float
    renew: bool = True
    max_hold: float | None = None
    interrupt: bool = True
    handoff: HandOff = True


class Holding:
    """One owner's hold on the nodes: what renewal keeps alive."""

    __slots__ = (
        "alarm",
        "fence",
        "last_fence",
        "lease",
        "line",
        "lost_reason",
        "next_fence",
        "owner",
        "recipe",
        "renew_until",
        "reserving",
        "since",
        "top",
        "ttl",
        "valid_until",
        "voters",
    )

    def __init__(
        self,
        recipe: Recipe,
        owner: str,
        fence: int,
        ttl: float,
        valid_until: float,
        voters: Iterable[int],
    ) -> None:
        self.recipe = recipe
        self.owner = owner
        self.fence = fence
        self.ttl = ttl
        self.valid_until = valid_until
        self.voters = tuple(voters)
        """The nodes whose grants it was won with."""
        self.since = 0.0
        """When this process got it."""
        self.alarm = 0.0
        """When renewal looks at it next; 0 once it no longer does."""
        self.renew_until = 0.0
        self.lease: Lease | None = None
        """Who holds it now; None while it is between two."""
        self.line: Line | None = None
        self.lost_reason: str | None = None
        self.next_fence = 1
        self.last_fence = 0
        """From the one to the other: fences that are ours to give out."""
        self.top = fence
        """The highest counter we have raised a quorum to."""
        self.reserving: asyncio.Future[None] | None = None


class Lease:
    """One holding of a lock by one task: what `acquire` gives and `async with` enters.

    Use it as a context manager or call `release`. Leaving the context releases; if the lease was
    lost meanwhile and the body raised nothing itself, leaving raises LeaseLostError. With
    `interrupt` (the default) a body that still runs at that moment is ended: what it awaits is
    cancelled, and the cancellation becomes LeaseLostError at the `async with`.
    """

    __slots__ = (
        "_body",
        "_engine",
        "_holding",
        "_loss",
        "_outcome",
        "_task",
        "acquired_at",
        "fence",
        "lost_reason",
        "name",
        "owner",
        "part",
        "terms",
    )

    def __init__(
        self,
        engine: Engine,
        holding: Holding,
        fence: int,
        terms: Terms,
        task: asyncio.Task[Any] | None,
        now: float,
    ) -> None:
        self.name: str = holding.recipe.name
        self.part: str = holding.recipe.part
        """Which of several places of the name: a semaphore's slot, "read" or "write"; else ""."""
        self.owner: str = holding.owner
        """The random id stored in Redis, with the label of this process."""
        self.fence: int = fence
        """Rises with every holding of this name: hand it to the store and let it refuse less."""
        self.lost_reason: str | None = None
        """Why the lease was lost; None while it was not."""
        self.acquired_at = now
        self._engine = engine
        self._holding: Holding | None = holding
        self.terms = terms
        """How it was asked for."""
        self._task = task
        self._body: Interruption | None = None
        self._loss: asyncio.Future[None] | None = None
        self._outcome: bool | None = None
        holding.lease = self
        longest = FOREVER if terms.max_hold is None else terms.max_hold
        holding.renew_until = now + longest if terms.renew else 0.0

    def __repr__(self) -> str:
        state = "held" if self.held else (self.lost_reason or "released")
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        return self.terms.ttl if self._holding is None else self._holding.ttl

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that acquired it."""
        return self._task

    @property
    def held(self) -> bool:
        """Whether it is ours at this moment, by our own clock; asks nobody."""
        return self._holding is not None and _clock.now() < self._holding.valid_until

    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed again; 0 once it has ended."""
        if self._holding is None:
            return 0.0
        return max(0.0, self._holding.valid_until - _clock.now())

    async def wait_lost(self) -> None:
        """Wait until the lease has ended; `lost_reason` tells a loss from a release."""
        if self._holding is not None:
            await asyncio.shield(self._ending())

    def on_end(self, tell: Callable[[], None]) -> None:
        """Have `tell` called soon after the lease has ended, lost or released."""
        self._ending().add_done_callback(lambda _: tell())

    def _ending(self) -> asyncio.Future[None]:
        if self._loss is None:
            self._loss = asyncio.get_running_loop().create_future()
            if self._holding is None:
                self._loss.set_result(None)
        return self._loss

    async def extend(self, ttl: float | None = None) -> None:
        """Renew it now, for `ttl` seconds from now on (default: as before).

        Raises LeaseLostError if it is no longer ours, QuorumUnavailableError if too few nodes
        answered; it then stays valid as long as it was. Cancelling leaves it extended or not.
        """
        if self._holding is None or not self.held:
            raise self.loss_error()
        await self._engine.extend(self, self._holding, ttl)

    async def release(self) -> bool:
        """Give it back. → whether it was ours until now; the same answer when called again.

        The request is on its way to all nodes before the first await, so cancelling loses
        nothing; returns when a quorum has confirmed, or after one node timeout. With a task of
        this process next in line the lease passes on and no node is asked.
        """
        if self._outcome is None:
            holding = self._holding
            if holding is None:
                self._outcome = False
            else:
                now = _clock.now()
                self._outcome = held = now < holding.valid_until
                release = self._engine.let_go(self, holding, now)
                if release is not None and await release.confirmed() and held:
                    self._outcome = False
                    self._engine.lost_before(self, holding)
        return self._outcome

    # told by the engine

    def ended(self, reason: str | None) -> None:
        """It is over: `reason` of the loss, or None when it was released."""
        self._holding = None
        self.lost_reason = reason
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(None)
        if reason is not None and self._body is not None and self.terms.interrupt:
            self._body.strike()

    def loss_error(self) -> LeaseLostError:
        """The error for whoever still wants to use it."""
        reason = self.lost_reason or ("it was released" if self._outcome is not None else "expired")
        return LeaseLostError(
            f"the lease on {self.name!r} (fence {self.fence}) is no longer held: {reason}",
            name=self.name,
            reason=reason,
            owner=self.owner,
            fence=self.fence,
        )

    # entered

    def enter(self) -> Lease:
        """The body begins here: what `async with` does first."""
        if self._holding is not None and not self.held:
            self._engine.lose(self._holding, UNNOTICED)
        if self._holding is None:
            raise self.loss_error()
        if self._body is not None:
            raise RuntimeError("this lease has been entered already")
        self._body = Interruption()
        self._task = self._body.task
        return self

    async def __aenter__(self) -> Lease:
        return self.enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        body, self._body = self._body, None
        interrupted = body is not None and body.leave(kind)
        if not interrupted and self._holding is not None and not self.held:
            self._engine.lose(self._holding, UNNOTICED)
        await self.release()
        if self.lost_reason is not None and (interrupted or kind is None):
            raise self.loss_error() from error
