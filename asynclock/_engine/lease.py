"""The Lease through which one task holds a lock.

Each lease ends once: it is released, handed over (see local_queue.py) or lost.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .. import _clock, _settings
from ..errors import LeaseLostError
from .context import Context
from .grant import Grant
from .interruption import Interruption
from .options import LeaseOptions
from .release import Release

UNNOTICED = "its time ran out while the event loop was busy"
"""The reason of a loss that no timer reported in time, because the loop was busy for too long."""
GONE = "the nodes no longer held it for us when it was released"


class Keeper(Context):
    """A context that also carries out what its leases ask for."""

    @abstractmethod
    async def extend(self, lease: Lease, grant: Grant, ttl: float | None) -> None:
        """Renew the lease now. Raises LeaseLostError or QuorumUnavailableError."""

    @abstractmethod
    def end_lease(self, lease: Lease, grant: Grant, now: float) -> Release | None:
        """End `lease`. Return the release that was sent, or None if the next waiter took over."""

    @abstractmethod
    def report_late_loss(self, grant: Grant, reason: str) -> None:
        """Report a loss that the nodes' replies to the release revealed."""

    @abstractmethod
    def mark_lost(self, grant: Grant, reason: str) -> None:
        """Mark `grant` as lost: interrupt the body, report it once, let the next waiter ask."""


class Lease:
    """One holding of a lock by one task: `acquire` returns it and `async with` enters it.

    Use the lease as a context manager or call `release`. Leaving the context releases it. If the
    lease was lost in the meantime and the body raised nothing itself, leaving raises
    LeaseLostError. With `interrupt` (the default) a loss also ends a running body: what the body
    awaits is cancelled, and the `async with` turns that cancellation into LeaseLostError.
    """

    __slots__ = (
        "__weakref__",
        "_acquired_at",
        "_bodies",
        "_body",
        "_engine",
        "_grant",
        "_loss",
        "_options",
        "_outcome",
        "fence",
        "lost_reason",
        "name",
        "owner",
        "part",
    )

    def __init__(
        self,
        engine: Keeper,
        grant: Grant,
        fence: int,
        options: LeaseOptions,
        now: float,
    ) -> None:
        self.name: str = grant.spec.name
        self.part: str = grant.spec.part
        """The part of the name that is held: a semaphore's slot, "read" or "write"; else ""."""
        self.owner: str = grant.owner
        """The random id stored in Redis, with the label of this process."""
        self.fence: int = fence
        """Fencing token; rises with every lease on this name. Pass it to the store, which must
        reject lower ones."""
        self.lost_reason: str | None = None
        """Why the lease was lost; None if it was not."""
        self._acquired_at: float = now
        self._engine = engine
        self._grant: Grant | None = grant
        self._options: LeaseOptions = options
        """The options that the lease was requested with."""
        self._body: Interruption | None = None
        self._bodies: tuple[Interruption, ...] = ()
        self._loss: asyncio.Future[None] | None = None
        self._outcome: bool | None = None

    def __repr__(self) -> str:
        state = "held" if self.held else (self.lost_reason or "released")
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        grant = self._grant  # read once: another thread may ask, too
        return self._options.ttl if grant is None else grant.ttl

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the lease is not entered."""
        bodies = self._bodies if self._body is None else (self._body,)
        return bodies[0].task if bodies else None

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""
        grant = self._grant
        return grant is not None and _clock.now() < grant.valid_until

    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed again; 0 once it has ended."""
        grant = self._grant
        return 0.0 if grant is None else max(0.0, grant.valid_until - _clock.now())

    async def wait_lost(self) -> None:
        """Wait until the lease has ended; after a release `lost_reason` is None."""
        if self._grant is not None:
            await asyncio.shield(self._ending())

    def _on_end(self, tell: Callable[[], None]) -> None:
        """Call `tell` in the loop soon after the lease was released or lost."""
        self._ending().add_done_callback(lambda _: tell())

    def _ending(self) -> asyncio.Future[None]:
        """Return the shared future that is done once the lease has ended; don't cancel it."""
        self._check_loop()
        if self._loss is None:
            self._loss = asyncio.get_running_loop().create_future()
            if self._grant is None:
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
        if self._grant is None or not self.held:
            raise self._loss_error()
        self._check_loop()
        await self._engine.extend(self, self._grant, ttl)

    async def release(self) -> bool:
        """Release the lock. Return whether it was held until now; a second call returns the same.

        The request is sent to all nodes before the first await, so cancelling this call doesn't
        stop the release. Returns when a quorum has confirmed, or after one node timeout. If a task
        of this process waits for the lock, the lock is handed over without asking a node. Raises
        ConfigurationError in another event loop than the manager's.
        """
        if self._outcome is None:
            engine, grant = self._engine, self._grant
            if grant is None:
                self._outcome = False
            else:
                loop = asyncio.get_running_loop()
                if loop is not engine.multiplexer.loop:
                    self._check_loop()
                now = _clock.now()
                self._outcome = held = now < grant.valid_until
                release = engine.end_lease(self, grant, now)
                if release is not None and await release.confirmed(loop) and held:
                    self._outcome = False
                    self.lost_reason = GONE
                    engine.report_late_loss(grant, GONE)
        return self._outcome

    def _release_soon(self) -> None:
        """Release in the next round of the loop, for a coroutine that is being closed."""
        self._engine.soon(self._let_go)

    def _soon(self, act: Callable[[], None]) -> None:
        """Call `act` in the manager's loop, from any thread, unless the manager is closed."""
        if not self._engine.closed:
            self._engine.soon(act)

    def _abandon(self) -> None:
        """Stop the renewal of a dropped lease, so that it ends with its ttl."""
        if self._grant is not None:
            self._grant.stop_renewing()

    def _let_go(self) -> None:
        """Release now, without waiting for the nodes' replies."""
        if self._outcome is None and self._grant is not None:
            now = _clock.now()
            self._outcome = now < self._grant.valid_until
            self._engine.end_lease(self, self._grant, now)

    def _check_loop(self) -> None:
        """Raise ConfigurationError in another event loop than the manager's."""
        self._engine.multiplexer.check_loop()

    # called by the engine

    def _ended(self, reason: str | None) -> None:
        """Mark the lease as ended, with the reason of a loss, or None for a release."""
        self._grant = None
        self.lost_reason = reason
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(None)
        if reason is not None and self._options.interrupt:
            for body in self._bodies if self._body is None else (self._body, *self._bodies):
                body.interrupt()

    def _forked(self, reason: str) -> None:
        """In a forked child: mark the lease as not held, without an event or a cancellation."""
        self._grant = None
        self.lost_reason = reason

    def _loss_error(self) -> LeaseLostError:
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

    def _enter(self) -> Lease:
        """Begin the body, as `async with` does.

        Raises LeaseLostError if the lease has ended, RuntimeError if it has been entered already,
        ConfigurationError in another event loop than the manager's.
        """
        grant = self._grant
        if grant is not None and _clock.now() >= grant.valid_until:
            self._engine.mark_lost(grant, UNNOTICED)
        if self._grant is None:
            raise self._loss_error()
        if self._body is not None:
            raise RuntimeError("this lease has been entered already")
        body = Interruption()
        if body.task.get_loop() is not self._engine.multiplexer.loop:
            self._check_loop()  # a loss could not end a body there
        self._body = body
        return self

    def _notice_end(self) -> None:
        """Count the lease as lost if it has ended and nothing has noticed that yet."""
        if self._grant is not None and not self.held:
            self._engine.mark_lost(self._grant, UNNOTICED)

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts.

        Use this when a body is entered in one task and continues in another, as fixtures and exit
        stacks may do. Raises LeaseLostError if the lease has ended, RuntimeError if it is not
        entered, ConfigurationError in another event loop than the manager's.
        """
        if self._body is None:
            raise RuntimeError("this lease is not entered")
        self._check_loop()
        if not self.held:
            raise self._loss_error()
        self._body.move()

    def _guard(self, body: Interruption) -> None:
        """Interrupt `body` as well when the lease is lost; `body` may need other leases too."""
        self._bodies = (*self._bodies, body)

    def _unguard(self, body: Interruption) -> None:
        """Stop interrupting `body`."""
        self._bodies = tuple(other for other in self._bodies if other is not body)

    def _inside(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` runs a body of this lease, so that it would wait for itself."""
        if self._body is not None and self._body.task is task:
            return True
        return bool(self._bodies) and any(body.task is task for body in self._bodies)

    async def __aenter__(self) -> Lease:
        return self._enter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        body, self._body = self._body, None
        interrupted = body is not None and body.leave(kind)
        if kind is GeneratorExit:
            # The coroutine may be closed in any thread, or after its loop: send nothing here.
            self._release_soon()
        else:
            grant = self._grant
            if grant is not None and not interrupted and _clock.now() >= grant.valid_until:
                self._engine.mark_lost(grant, UNNOTICED)
            await self.release()
        if self.lost_reason is not None and (interrupted or kind is None):
            raise self._loss_error() from error
