"""Acquires a lease: first through the local queue of this process, then from the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import Any

from .. import _clock
from ..errors import AsyncLockError
from ..events import Acquired, Failed
from . import refusals
from .acquire_loop import AcquireLoop
from .acquiring import REUSED, UNUSED, AcquireContext
from .attempt import Attempt
from .engine import Engine
from .fences import reserve_ahead, reserve_now
from .grant import Grant
from .lease import Lease
from .local_queue import LocalQueue, Proceed, Waiter
from .options import LeaseOptions
from .spec import LockSpec


class Acquire(AcquireContext[Lease]):
    """One acquire of a lock, with a deadline (None: no limit) or only if the lock is free (`once`).

    Awaiting it returns the lease. Raises NotAcquiredError (`once`), AcquireTimeoutError,
    QuorumUnavailableError or ConfigurationError. After an error or a cancellation nothing is held.
    """

    __slots__ = ("_deadline", "_engine", "_once", "_options", "_spec", "_started")

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
        self._started = _clock.now() if since is None else since
        self._deadline = None if timeout is None else self._started + timeout

    @property
    def _name(self) -> str:
        return self._spec.name

    def __await__(self) -> Generator[Any, Any, Lease]:
        # No coroutine in here: a hand-over between tasks runs only this, and must be cheap.
        if self._entered is not UNUSED:
            raise RuntimeError(REUSED)
        self._entered = None
        engine = self._engine
        engine.ready()
        try:
            queue = self._queue()
            if queue is None:
                attempt = yield from self._contend(barge=False).run().__await__()
                return self._won(attempt, None, None)
            if not queue.asking and len(queue.grants) < queue.permits:
                queue.asking += 1
                return (yield from self._as_head(queue, Proceed.NOW).__await__())
            waiter = self._join(queue)
            try:
                turn = yield from waiter
            except GeneratorExit:
                engine.soon(partial(self._leave, queue, waiter))
                raise
            except BaseException:
                self._leave(queue, waiter)
                raise
            if turn is None:
                raise self._too_long(queue)
            engine.counts.wakeups["turn"] += 1
            if type(turn) is Grant and self._options.handoff is True:
                lease = self._take_over(turn, turn.ttl / 2)
                if lease is not None:
                    return lease
            return (yield from self._as_head(queue, turn).__await__())
        except AsyncLockError as error:
            if engine.observers:
                outcome = refusals.OUTCOMES.get(type(error), "error")
                waited = _clock.now() - self._started
                engine.observers(Failed(self._spec.name, outcome, waited))
            raise

    def _queue(self) -> LocalQueue[Grant] | None:
        # try_acquire never queues: fail at once if this process holds it, else ask the nodes.
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
                raise refusals.held_here(spec.name, queue.grants[0])
            return None
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
        waiter = queue.join(self._options)
        left = self._left()
        if left is not None:
            timer = waiter.get_loop().call_later(left, queue.give_up, waiter)
            waiter.add_done_callback(lambda _: timer.cancel())
        return waiter

    def _too_long(self, queue: LocalQueue[Grant]) -> AsyncLockError:
        if queue.grants:
            return refusals.too_long_here(self._spec.name, queue.grants[0])
        unanswered = None if queue.search is None else queue.search.unanswered
        if unanswered is not None:  # nobody has it: the task that asks gets too few votes
            return refusals.outage(unanswered)
        return refusals.too_long_here(self._spec.name, None)

    def _leave(self, queue: LocalQueue[Grant], waiter: Waiter[Grant]) -> None:
        # Cancelled or closed just after our turn came: pass the turn on, if the options match.
        turn = queue.leave(waiter)
        waiter.cancel()  # has no effect if a turn was given; otherwise it stops the timer
        if turn is None:
            return
        if isinstance(turn, Grant):
            if queue.hand_on(turn, self._options, _clock.now()):
                return
            self._engine.release(turn)
        else:
            if queue.let_ask(turn):
                return
            queue.asking -= 1
        self._engine.next_in_line(queue)

    async def _as_head(self, queue: LocalQueue[Grant], turn: Grant | Proceed) -> Lease:
        engine = self._engine
        asking, owed = not isinstance(turn, Grant), queue.kept is not None
        try:
            if engine.closed:
                raise refusals.closed()
            if isinstance(turn, Grant):
                await self._prepare(turn)
                lease = self._take_over(turn, 0.0)
                if lease is not None:
                    return lease
                engine.release(turn)
                if self._left() == 0:
                    raise refusals.too_long_here(self._spec.name, turn)
                queue.asking += 1
                asking = True
            kept = None if queue.kept is None else queue.take_kept(_clock.now())
            loop = self._contend(barge=kept is not None)
            if queue.search is not None:
                loop.unanswered = queue.search.unanswered
            queue.search = loop
            attempt = await loop.run()
            owed = False
            return self._won(attempt, queue, kept if loop.contended is None else None)
        finally:
            if owed:  # the release woke no waiter, and perhaps no request since then woke one
                engine.pass_on(self._spec)
            queue.asking -= asking
            engine.next_in_line(queue)

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
            engine.release(grant)
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

    def _contend(self, *, barge: bool) -> AcquireLoop:
        ttl = self._options.ttl
        return AcquireLoop(
            self._engine,
            self._spec,
            ttl,
            self._deadline,
            once=self._once,
            asked=self._started,
            barge=barge,
        )

    def _won(self, attempt: Attempt, queue: LocalQueue[Grant] | None, kept: float | None) -> Lease:
        engine, options = self._engine, self._options
        ballot = attempt.ballot
        engine.spread.won()
        now = _clock.now()
        grant = Grant(
            attempt.spec,
            attempt.owner,
            ballot.fence,
            options.ttl,
            attempt.valid_until,
            ballot.claims,
            attempt.started,
            queue,
            now if kept is None else kept,
            contended=attempt.others,
        )
        if queue is not None:
            queue.grants.append(grant)
        lease = engine.make_lease(grant, ballot.fence, options, now)
        engine.renewals.add(grant, attempt.started)
        if engine.observers:
            self._announce(lease, votes=len(ballot.claims), handed_over=False)
        return lease

    def _announce(self, lease: Lease, *, votes: int, handed_over: bool) -> None:
        waited = lease._acquired_at - self._started
        self._engine.observers(
            Acquired(lease.name, lease.owner, lease.fence, waited, votes, handed_over)
        )
