"""The Lease through which one task holds a lock.

Each lease ends once: it is released, handed over (see local_queue.py) or lost. The replies to its
release may show that it was lost before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from .. import _clock, _settings
from .._forks import of_one_process
from ..errors import QuorumUnavailableError
from ..events import UNNOTICED
from .check import still_ours
from .interruption import Interruption
from .lease_state import LeaseState


@of_one_process
class Lease(LeaseState):
    """One holding of a lock by one task: `acquire` returns it and `async with` enters it.

    Use the lease as a context manager or call `release`. Leaving the context releases it. If the
    lease was lost in the meantime and the body raised nothing itself, leaving raises
    LeaseLostError. With `interrupt` (the default) a loss also ends a running body: what the body
    awaits is cancelled, and the `async with` turns that cancellation into LeaseLostError.
    """

    __slots__ = ()

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
        failures = await self._engine.extend_now(self._grant, ttl)
        if not self.held:
            raise self._loss_error()
        if failures is not None:
            nodes = self._engine.multiplexer.nodes
            raise QuorumUnavailableError(
                f"too few nodes answered to extend {self.name!r}",
                name=self.name,
                nodes={nodes[i].address: failure.cause for i, failure in failures.items()},
            )

    async def check(self) -> bool:
        """Return whether the nodes still keep the lease for us, without renewing it.

        `held` answers from our own clock; this asks the nodes, for at most one node timeout. True
        means that a quorum kept the lease at a moment of this call. If too few nodes keep it for a
        quorum, the lease is lost at once: this returns False, and `lost_reason` says why. For a
        lease that has ended this returns False without a request. Raises QuorumUnavailableError if
        too few nodes answered: that changes nothing, and the lease is held until its deadline.
        """
        self._check_loop()
        grant = self._grant
        return (
            grant is not None and self.held and await still_ours(self._engine, grant) and self.held
        )

    async def release(self) -> bool:
        """Release the lock. Return whether it was held until now; if not, the loss is reported.

        A second call sends and awaits nothing, and returns the same, as far as that is known yet.
        The request is queued for all nodes before the first await, so cancelling this call doesn't
        stop the release. Normally returns when a quorum has confirmed, or after one node timeout.
        If a task of this process waits for the lock, the lock is handed over without asking a node.
        If other processes wait and this process may take the lock again within its turn, this
        returns True without waiting for the nodes. A loss that their replies show later sets
        `lost_reason` and is logged. Leaving `async with` waits for the replies, unless the block
        has called this. Raises ConfigurationError in another event loop than the manager's.
        """
        return await self._release(wait=False)

    async def _release(self, *, wait: bool) -> bool:
        """Release; with `wait`, wait for the nodes also within a turn."""
        if self._outcome is None:
            engine, grant = self._engine, self._grant
            if grant is None:
                self._outcome = False
            else:
                if asyncio.get_running_loop() is not engine.multiplexer.loop:
                    self._check_loop()
                now = _clock.now()
                self._outcome = now < grant.valid_until
                # Not in `_let_go`: a lease that a failed call gives back was no hold of its caller.
                if engine.paces and self._outcome:
                    engine.paces.held(grant.spec.pace_key, now - grant.held_since)
                release = engine.end_lease(self, grant, now)
                if release is not None and (wait or not release.kept):
                    await release.done()
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

    # entered

    def _enter(self) -> Lease:
        """Begin the body, as `async with` does.

        Raises LeaseLostError if the lease has ended, RuntimeError if it has been entered already,
        ConfigurationError in another event loop than the manager's.
        """
        self._notice_end()
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
            await self._release(wait=True)
        if self.lost_reason is not None and (interrupted or kind is None):
            raise self._loss_error() from error
