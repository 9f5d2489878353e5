"""What is held: a Holding on the nodes, and the Lease through which one task holds it.

Inside a process a holding may pass from one lease to the next (see waiting.py); on the nodes its
owner stays the same. Each lease ends once: it is released, handed over or lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from weakref import ReferenceType

from .. import _clock, _settings
from ..errors import LeaseLostError
from .interruption import Interruption
from .recipe import Recipe

if TYPE_CHECKING:
    from .engine import Engine
    from .waiting import Line

LeaseReference = ReferenceType["Lease"]
HandOff = Literal["block", "strict"] | bool

FOREVER = float("inf")
_NOWHERE: dict[int, float] = {}
"""An empty dict that most holdings share: no node forgot them, nobody shortened them. Read-only."""
DROPPED = "its Lease was dropped without being released"
"""The reason of a loss when the Lease was garbage-collected without a release."""
UNNOTICED = "its time ran out while the event loop was busy"
"""The reason of a loss that no timer reported in time, because the loop was busy for too long."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Options of a lease, validated where the lock is made; times in seconds."""

    ttl: float
    renew: bool = True
    max_hold: float | None = None
    interrupt: bool = True
    handoff: HandOff = True


class Holding:
    """One owner's key on the nodes, which renewal keeps alive."""

    __slots__ = (
        "alarm",
        "asked_since",
        "asked_until",
        "asking",
        "cut_short",
        "fence",
        "hold_until",
        "last_fence",
        "line",
        "lost_reason",
        "lowered",
        "next_fence",
        "owner",
        "recipe",
        "reference",
        "renew_until",
        "reserving",
        "restore_at",
        "restored",
        "since",
        "top",
        "ttl",
        "ttl_from",
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
        self.recipe: Recipe = recipe
        self.owner: str = owner
        self.fence: int = fence
        self.ttl: float = ttl
        self.valid_until: float = valid_until
        self.voters: tuple[int, ...] = tuple(voters)
        """The nodes whose grants won the vote."""
        self.since: float = 0.0
        """When the present lease began."""
        self.asked_since: float = 0.0
        """When the nodes were first asked for the lock."""
        self.alarm: float = 0.0
        """When renewal checks this next; 0 once renewal has dropped it."""
        self.renew_until: float = 0.0
        """The latest moment until which renewal keeps this valid; 0 for no renewal."""
        self.hold_until: float = FOREVER
        """The latest moment until which `extend` keeps this valid."""
        self.lowered: int = 0
        """The number of the last request for a shorter ttl: earlier ones no longer prolong it."""
        self.ttl_from: int = 0
        """The number of the request that `ttl` comes from."""
        self.asked_until: float = valid_until
        """The latest end in any request that may still be answered."""
        self.asking: tuple[int, float] | None = None
        """The last `extend` call until it is answered: its number and its ttl."""
        self.cut_short: dict[int, float] = _NOWHERE
        """For each node that may still execute a request for a shorter ttl: that ttl."""
        self.reference: LeaseReference | None = None
        """A weak reference to the present lease; None between two leases. Only users keep it."""
        self.line: Line | None = None
        self.lost_reason: str | None = None
        self.next_fence: int = 1
        self.last_fence: int = 0
        """The fences from `next_fence` to `last_fence` are reserved for hand-overs."""
        self.top: int = fence
        """The highest value to which we have raised the counter at a quorum."""
        self.restored: dict[int, float] = _NOWHERE
        """For each node that forgot the key and took it back: when that was requested."""
        self.restore_at: float = FOREVER
        """When a node that forgot the key may take it back; a renewal is due then."""
        self.reserving: asyncio.Future[None] | None = None

    @property
    def lease(self) -> Lease | None:
        """The present lease; None between two leases or if the lease was dropped."""
        return None if self.reference is None else self.reference()

    @property
    def wanted_ttl(self) -> float:
        """The ttl to renew with: what an `extend` is asking for, or else the present one."""
        return self.ttl if self.asking is None else self.asking[1]

    @property
    def dropped(self) -> bool:
        """Whether the program has dropped the lease without releasing it."""
        return self.reference is not None and self.reference() is None


class Lease:
    """One holding of a lock by one task: `acquire` returns it and `async with` enters it.

    Use the lease as a context manager or call `release`. Leaving the context releases it. If the
    lease was lost in the meantime and the body raised nothing itself, leaving raises
    LeaseLostError. With `interrupt` (the default) a loss also ends a running body: what the body
    awaits is cancelled, and the `async with` turns that cancellation into LeaseLostError.
    """

    __slots__ = (
        "__weakref__",
        "_bodies",
        "_body",
        "_engine",
        "_holding",
        "_loss",
        "_outcome",
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
        now: float,
    ) -> None:
        self.name: str = holding.recipe.name
        self.part: str = holding.recipe.part
        """The part of the name that is held: a semaphore's slot, "read" or "write"; else ""."""
        self.owner: str = holding.owner
        """The random id stored in Redis, with the label of this process."""
        self.fence: int = fence
        """Fencing token; rises with every lease on this name. Pass it to the store, which must
        reject lower ones."""
        self.lost_reason: str | None = None
        """Why the lease was lost; None if it was not."""
        self.acquired_at: float = now
        self._engine = engine
        self._holding: Holding | None = holding
        self.terms: Terms = terms
        """The options that the lease was requested with."""
        self._body: Interruption | None = None
        self._bodies: tuple[Interruption, ...] = ()
        self._loss: asyncio.Future[None] | None = None
        self._outcome: bool | None = None
        holding.reference = ReferenceType(self, engine.on_drop)
        until = FOREVER if terms.max_hold is None else now + terms.max_hold
        holding.hold_until = until
        holding.renew_until = until if terms.renew else 0.0

    def __repr__(self) -> str:
        state = "held" if self.held else (self.lost_reason or "released")
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        holding = self._holding  # read once: another thread may ask, too
        return self.terms.ttl if holding is None else holding.ttl

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the lease is not entered."""
        return None if self._body is None else self._body.task

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""
        holding = self._holding
        return holding is not None and _clock.now() < holding.valid_until

    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed again; 0 once it has ended."""
        holding = self._holding
        return 0.0 if holding is None else max(0.0, holding.valid_until - _clock.now())

    async def wait_lost(self) -> None:
        """Wait until the lease has ended; after a release `lost_reason` is None."""
        if self._holding is not None:
            await asyncio.shield(self.ending())

    def on_end(self, tell: Callable[[], None]) -> None:
        """Call `tell` in the loop soon after the lease was released or lost."""
        self.ending().add_done_callback(lambda _: tell())

    def ending(self) -> asyncio.Future[None]:
        """Return the shared future that is done once the lease has ended; don't cancel it."""
        self.check_loop()
        if self._loss is None:
            self._loss = asyncio.get_running_loop().create_future()
            if self._holding is None:
                self._loss.set_result(None)
        return self._loss

    async def extend(self, ttl: float | None = None) -> None:
        """Renew the lease now for `ttl` seconds (default: its present ttl), and keep that ttl.

        The range of `ttl` is that of `lock(ttl=)`; other values raise ConfigurationError. With
        `max_hold`, this doesn't move the end past `max_hold` seconds after the acquire. A shorter
        ttl counts at once, whatever the nodes reply. Raises LeaseLostError if the lease is no
        longer held. Raises QuorumUnavailableError if too few nodes answered: the lease then ends
        when it would have, or when the shorter ttl is over. If this call is cancelled, the nodes
        may or may not have extended.
        """
        if ttl is not None:
            settings = self._engine.settings
            timeout, longest = settings.node_timeout, settings.max_ttl
            ttl = _settings.ttl(ttl, node_timeout=timeout, max_ttl=longest)
        if self._holding is None or not self.held:
            raise self.loss_error()
        self.check_loop()
        await self._engine.extend(self, self._holding, ttl)

    async def release(self) -> bool:
        """Release the lock. Return whether it was held until now; a second call returns the same.

        The request is sent to all nodes before the first await, so cancelling this call doesn't
        stop the release. Returns when a quorum has confirmed, or after one node timeout. If a task
        of this process waits for the lock, the lock is handed over without asking a node. Raises
        ConfigurationError in another event loop than the manager's.
        """
        if self._outcome is None:
            engine, holding = self._engine, self._holding
            if holding is None:
                self._outcome = False
            else:
                loop = asyncio.get_running_loop()
                if loop is not engine.multiplexer.loop:
                    self.check_loop()
                now = _clock.now()
                self._outcome = held = now < holding.valid_until
                release = engine.let_go(self, holding, now)
                if release is not None and await release.confirmed(loop) and held:
                    self._outcome = False
                    engine.lost_before(self, holding)
        return self._outcome

    def release_soon(self) -> None:
        """Release in the next round of the loop, for a coroutine that is being closed."""
        self._engine.soon(self.let_go)

    def soon(self, act: Callable[[], None]) -> None:
        """Call `act` in the manager's loop, from any thread, unless the manager is closed."""
        if not self._engine.closed:
            self._engine.soon(act)

    def abandon(self) -> None:
        """Stop the renewal of a dropped lease, so that it ends with its ttl."""
        if self._holding is not None:
            self._holding.renew_until = 0.0

    def let_go(self) -> None:
        """Release now, without waiting for the nodes' replies."""
        if self._outcome is None and self._holding is not None:
            now = _clock.now()
            self._outcome = now < self._holding.valid_until
            self._engine.let_go(self, self._holding, now)

    def check_loop(self) -> None:
        """Raise ConfigurationError in another event loop than the manager's."""
        self._engine.multiplexer.check_loop()

    # called by the engine

    def ended(self, reason: str | None) -> None:
        """Mark the lease as ended, with the reason of a loss, or None for a release."""
        self._holding = None
        self.lost_reason = reason
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(None)
        if reason is not None and self.terms.interrupt:
            for body in self._bodies if self._body is None else (self._body, *self._bodies):
                body.interrupt()

    def forked(self, reason: str) -> None:
        """In a forked child: mark the lease as not held, without an event or a cancellation."""
        self._holding = None
        self.lost_reason = reason

    def loss_error(self) -> LeaseLostError:
        """Return the error for code that uses a lease that is no longer held."""
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
        """Begin the body, as `async with` does.

        Raises LeaseLostError if the lease has ended, RuntimeError if it has been entered already,
        ConfigurationError in another event loop than the manager's.
        """
        if self._holding is not None and not self.held:
            self._engine.lose(self._holding, UNNOTICED)
        if self._holding is None:
            raise self.loss_error()
        if self._body is not None:
            raise RuntimeError("this lease has been entered already")
        body = Interruption()
        if body.task.get_loop() is not self._engine.multiplexer.loop:
            self.check_loop()  # a loss could not end a body there
        self._body = body
        return self

    def notice_end(self) -> None:
        """Count the lease as lost if it has ended and nothing has noticed that yet."""
        if self._holding is not None and not self.held:
            self._engine.lose(self._holding, UNNOTICED)

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts.

        Use this when a body is entered in one task and continues in another, as fixtures and exit
        stacks may do. Raises LeaseLostError if the lease has ended, RuntimeError if it is not
        entered, ConfigurationError in another event loop than the manager's.
        """
        if self._body is None:
            raise RuntimeError("this lease is not entered")
        self.check_loop()
        if not self.held:
            raise self.loss_error()
        self._body.move()

    def guard(self, body: Interruption) -> None:
        """Interrupt `body` as well when the lease is lost; `body` may need other leases too."""
        self._bodies = (*self._bodies, body)

    def unguard(self, body: Interruption) -> None:
        """Stop interrupting `body`."""
        self._bodies = tuple(other for other in self._bodies if other is not body)

    def inside(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` runs a body of this lease, so that it would wait for itself."""
        if self._body is not None and self._body.task is task:
            return True
        return bool(self._bodies) and any(body.task is task for body in self._bodies)

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
        if kind is GeneratorExit:
            self.release_soon()
        else:
            await self.release()
        if self.lost_reason is not None and (interrupted or kind is None):
            raise self.loss_error() from error
