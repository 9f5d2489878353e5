"""A call's turn in the local queue of its process: to take a lease over, or to ask the nodes."""

from __future__ import annotations

import asyncio
from functools import partial

from .. import _clock
from ..errors import AsyncLockError
from ..events import Acquired
from . import refusals
from .acquiring import UNUSED
from .engine import Engine
from .fences import reserve_ahead, reserve_now
from .grant import Grant
from .lease import Lease
from .local_queue import LocalQueue, Waiter
from .options import LeaseOptions
from .request import Request
from .spec import LockSpec
from .work import WORK


class LocalAcquire(Request):
    """A call that waits for the tasks of its process that came before; `Acquire` asks the nodes."""

    __slots__ = ("_deadline", "_engine", "_once", "_options", "_started")

    def __init__(
        self,
        engine: Engine,
        spec: LockSpec,
        options: LeaseOptions,
        timeout: float | None,
        *,
        once: bool = False,
        since: float | None = None,
    ) -> None:
        self._entered = UNUSED
        self._engine = engine
        self._spec = spec
        self._options = options
        self._once = once
        # Each of several calls that don't wait gets its own time for answers.
        self._started = _clock.now() if since is None or once or timeout == 0 else since
        self._deadline = None if timeout is None else self._started + timeout

    @property
    def _name(self) -> str:
        return self._spec.name

    def _queue(self) -> LocalQueue[Grant] | None:
        # try_acquire never waits in the queue. It fails at once if this process holds the name, and
        # else asks the nodes. Its grant enters the queue unless another task asks or may go first.
        spec, queues = self._spec, self._engine.queues
        if spec.queue_key is None:
            return None
        queue = queues.get(spec.queue_key)
        if queue is None:
            turn = self._engine.settings.turn
            queue = LocalQueue(spec.name, spec.queue_key, spec.permits, turn)
            queues[spec.queue_key] = queue
        elif self._once:
            if queue.full:
                raise refusals.held_here(self._engine, queue)
            if queue.asking or queue.kept is not None:
                return None
        elif queue.asking and queue.asking + len(queue.grants) < queue.permits:
            # Another task asks for a permit. A call that doesn't wait asks for one more beside it.
            return None if self._left() == 0 else queue
        return queue

    def _join(self, queue: LocalQueue[Grant]) -> Waiter[Grant]:
        ours, task = 0, asyncio.current_task()
        for grant in queue.grants:
            lease = grant.lease
            if lease is not None:
                ours += lease._inside(task)
                if not grant.fences:
                    reserve_ahead(self._engine, grant, lease._options)
        spec = self._spec
        if ours == queue.permits or (spec.shared and self._engine.renewals.shares(spec, task)):
            raise refusals.already_held(spec.name)
        waiter = queue.join(self._options, self._started)
        left = self._left()
        if left is not None:
            timer = waiter.get_loop().call_later(left, queue.give_up, waiter)
            waiter.add_done_callback(lambda _: timer.cancel())
        work = WORK.get()
        if work is not None:
            waiter.add_done_callback(work.goes_on)
            work.waits(waiter, partial(queue.give_up, waiter))
        return waiter

    def _too_long(self, queue: LocalQueue[Grant]) -> AsyncLockError:
        unanswered = None if queue.search is None else queue.search.unanswered
        if unanswered is not None and not queue.grants:
            # Nobody has it: the task that asks gets too few votes.
            return refusals.outage(unanswered)
        return refusals.too_long_here(self._engine, queue)

    def _leave(self, queue: LocalQueue[Grant], waiter: Waiter[Grant]) -> None:
        # Cancelled or closed just after our turn came: pass the turn on, if the options match.
        turn = queue.leave(waiter)
        waiter.cancel()  # has no effect if a turn was given; otherwise it stops the timer
        if turn is None:
            return
        if isinstance(turn, Grant):
            if not queue.hand_on(turn, self._options, _clock.now()):
                self._give_back(queue, turn)
        elif not queue.let_ask(turn):
            queue.asking -= 1
            self._engine.next_in_line(queue)

    def _give_back(self, queue: LocalQueue[Grant], grant: Grant) -> None:
        self._engine.release(grant)
        self._engine.next_in_line(queue)

    async def _accept(self, queue: LocalQueue[Grant], grant: Grant) -> Lease | None:
        """Take over a grant that needs a fence or an extension; if it can't, ask the nodes next."""
        engine, lease = self._engine, None
        try:
            if engine.closed:
                raise refusals.closed()
            await self._prepare(grant)
            lease = self._take_over(grant, 0.0)
            if lease is None:
                engine.release(grant)
                if self._left() == 0:
                    raise refusals.too_long_here(engine, queue)
                queue.asking += 1
        finally:
            engine.clean_up(partial(engine.next_in_line, queue))
        return lease

    async def _prepare(self, grant: Grant) -> None:
        engine, options = self._engine, self._options
        try:
            if not grant.fences or options.handoff == "strict":
                reserved = reserve_now(engine, grant, options)
                if reserved is not None:
                    await asyncio.wait((reserved,), timeout=self._left())
            if grant.valid_until - _clock.now() < grant.ttl / 2:
                extended = engine.extend_now(grant)
                await asyncio.wait((extended,), timeout=self._left())
        except BaseException:
            engine.clean_up(partial(engine.release, grant))
            raise

    def _left(self) -> float | None:
        # Seconds until the deadline.
        return None if self._deadline is None else max(0.0, self._deadline - _clock.now())

    def _take_over(self, grant: Grant, least: float) -> Lease | None:
        # Returns None if no fence is ready, or if at most `least` seconds of validity are left.
        now = _clock.now()
        if not grant.fences or grant.valid_until - now <= least:
            return None
        engine = self._engine
        engine.counts.handovers += 1
        lease = engine.make_lease(grant, grant.take_fence(), self._options, now)
        if engine.observers:
            self._announce(lease, votes=0, handed_over=True)
        return lease

    def _announce(self, lease: Lease, *, votes: int, handed_over: bool) -> None:
        waited = lease._acquired_at - self._started
        self._engine.observers(
            Acquired(lease.name, lease.owner, lease.fence, waited, votes, handed_over)
        )
