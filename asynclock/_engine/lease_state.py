"""What is known about a lease: whose it is, whether it is held, and which bodies a loss ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .. import _clock
from ..errors import LeaseLostError
from ..events import Lost
from .grant import Grant
from .interruption import Interruption
from .keeper import Keeper
from .options import LeaseOptions


class LeaseState:
    """What is known about one holding of a lock, and what the engine changes about it."""

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
        """The name that is locked."""
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

    def _check_loop(self) -> None:
        """Raise ConfigurationError in another event loop than the manager's."""
        self._engine.multiplexer.check_loop()

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

    # called by the engine

    def _ended(self, reason: str | None) -> None:
        """Mark the lease as ended, with the reason of a loss, or None for a release."""
        self._grant = None
        self.lost_reason = reason
        if self._loss is not None and not self._loss.done():
            self._loss.set_result(None)
        if reason is not None and self._options.interrupt:
            # The task that closes the manager ends its own lease, and goes on after that.
            closer = asyncio.current_task() if self._engine.closed else None
            for body in self._bodies if self._body is None else (self._body, *self._bodies):
                if body.task is not closer:
                    body.interrupt()

    def _was_lost(self, reason: str) -> None:
        """Count and report the loss that the replies to the release show."""
        self._outcome = False
        self.lost_reason = reason
        held = _clock.now() - self._acquired_at
        self._engine.report_loss(Lost(self.name, self.owner, self.fence, reason, held))

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
