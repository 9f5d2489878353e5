"""Acquires a lease: first through the local queue of this process, then from the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import Any

from .. import _clock
from ..errors import AsyncLockError
from ..events import Failed, Voted
from . import refusals
from .acquire_loop import WHOLE, AcquireLoop
from .acquiring import REUSED, UNUSED
from .attempt import Attempt
from .batch import batch_acquire
from .grant import Grant
from .lease import Lease
from .local_acquire import LocalAcquire
from .local_queue import LocalQueue
from .work import WORK, Work


class Acquire(LocalAcquire):
    """One acquire of a lock, with a deadline (None: no limit) or only if the lock is free (`once`).

    Awaiting it returns the lease. Raises NotAcquiredError (`once`), AcquireTimeoutError,
    QuorumUnavailableError or ConfigurationError. After an error or a cancellation nothing is held.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Lease]:
        if self._entered is not UNUSED:
            raise RuntimeError(REUSED)
        self._entered = None
        return self._call()

    def _detached(self) -> Generator[Any, Any, Lease]:
        # The engine refers to the object that makes the call. If that were the caller's object,
        # the call would go on after the caller has dropped it.
        twin = Acquire(self._engine, self._spec, self._options, None, once=self._once)
        twin._started, twin._deadline = self._started, self._deadline
        self._entered = twin._entered = None
        return twin._call()

    def _call(self) -> Generator[Any, Any, Lease]:
        # No coroutine in here: a hand-over between tasks runs only this, and must be cheap.
        engine = self._engine
        engine.ready()
        try:
            queue = self._queue()
            if queue is None:
                return (yield from self._ask(None))
            if not queue.asking and len(queue.grants) < queue.permits:
                queue.asking += 1
                return (yield from self._ask(queue))
            waiter = self._join(queue)
            try:
                turn = yield from waiter
            except BaseException:
                engine.clean_up(partial(self._leave, queue, waiter))
                raise
            if turn is None:
                raise self._too_long(queue)
            engine.counts.wakeups["turn"] += 1
            if type(turn) is Grant:
                if self._options.handoff is True:
                    lease = self._take_over(turn, turn.ttl / 2)
                    if lease is not None:
                        return lease
                lease = yield from self._accept(queue, turn).__await__()
                if lease is not None:
                    return lease
            return (yield from self._ask(queue))
        except AsyncLockError as error:
            if engine.observers:
                outcome = refusals.OUTCOMES.get(type(error), "error")
                waited = _clock.now() - self._started
                engine.observers(Failed(self._spec.name, outcome, waited))
            raise

    def _ask(self, queue: LocalQueue[Grant] | None) -> Generator[Any, Any, Lease]:
        """Ask the nodes until they grant: this task is the first in `queue`, or there is none."""
        engine, lease, first, kept = self._engine, None, None, None
        owed = queue is not None and queue.kept is not None
        try:
            if owed and queue is not None:
                kept = queue.take_kept(_clock.now())
            left = None
            if self._deadline is not None:  # the nodes get the time for one answer in any case
                latest = max(self._deadline, self._started + engine.settings.node_timeout)
                left = latest - _clock.now()
            in_time = (left is None or left > 0) and not engine.closed
            if self._spec.batched and kept is None and in_time:
                yield from self._first(left)
                lease = self._won_in_batch(queue)
                if lease is None:
                    first = self._alone()
                    first.conclude()
            if lease is None:
                lease = yield from self._contend(queue, first, kept).__await__()
        except BaseException:
            engine.clean_up(partial(self._give_up, queue, owed=owed))
            raise
        if queue is not None:
            queue.asking -= 1
            if queue.waiters:
                engine.next_in_line(queue)
        return lease

    def _give_up(self, queue: LocalQueue[Grant] | None, *, owed: bool) -> None:
        if owed:  # the release woke no waiter, and perhaps no request since then woke one
            self._engine.pass_on(self._spec)
        if queue is not None:
            queue.asking -= 1
            self._engine.next_in_line(queue)

    def _first(self, left: float | None) -> Generator[Any, Any, None]:
        """Ask once, together with all others of this tick, and wait for the verdict."""
        engine, timer = self._engine, None
        engine.counts.attempts += 1
        engine.asking += 1
        no_ticket = self._once or engine.no_quorum_since
        batch_acquire(engine, self, self._options.ttl, () if no_ticket else self._spec.waits)
        if left is not None and left < WHOLE * engine.settings.node_timeout:
            timer = self._future.get_loop().call_later(left, self._expire)
        try:
            yield from self._future
        except BaseException:
            if self._batch.sent or asyncio._get_running_loop() is not engine.multiplexer.loop:
                engine.clean_up(partial(self._withdraw, timer))
            else:  # then no node will know of it
                self._withdraw(timer)
            raise
        engine.asking -= 1
        if timer is not None:
            timer.cancel()
        if engine.undos.pop(self, None) is None:
            raise refusals.closed()

    def _withdraw(self, timer: asyncio.TimerHandle | None) -> None:
        self._engine.asking -= 1
        if timer is not None:
            timer.cancel()
        if self._engine.undos.pop(self, None) is not None:
            self._abandon()

    async def _contend(
        self, queue: LocalQueue[Grant] | None, first: Attempt | None, kept: float | None
    ) -> Lease:
        """Ask until the nodes grant; `first` is the attempt of the batch, if there was one.

        `kept`: the moment since which this process may go first.
        """
        work = WORK.get()
        # A call of stopped work still takes what is free, as with a timeout of 0.
        stopped = work is not None and work.stopped
        loop = AcquireLoop(
            self._engine,
            self._spec,
            self._options.ttl,
            self._started if stopped else self._deadline,
            once=self._once,
            asked=self._started,
            barge=kept is not None,
        )
        if queue is not None:
            if queue.search is not None:
                loop.unanswered = queue.search.unanswered
            queue.search = loop
        if work is None or stopped:
            attempt = await loop.run(first)
        else:
            attempt = await _until_stopped(work, loop, first)
        return self._won(attempt, queue, kept if loop.contended is None else None)

    def _won_in_batch(self, queue: LocalQueue[Grant] | None) -> Lease | None:
        """Return the lease if the whole batch was won and is still valid; otherwise None."""
        engine, batch, now = self._engine, self._batch, _clock.now()
        if not self._fence or now >= batch.valid_until:
            return None
        if engine.observers:
            engine.observers(Voted(self._spec.name, self._alone().votes()))
        if queue is not None:
            queue.search = None
        until, sent, voters = batch.valid_until, batch.started, batch.voters
        grant = Grant(
            self._spec, self._owner, self._fence, batch.ttl, until, voters, sent, queue, now
        )
        return self._hold(grant, now)

    def _won(self, attempt: Attempt, queue: LocalQueue[Grant] | None, kept: float | None) -> Lease:
        now = _clock.now()
        grant = Grant(
            attempt.spec,
            attempt.owner,
            attempt.ballot.fence,
            self._options.ttl,
            attempt.valid_until,
            attempt.ballot.claims,
            attempt.started,
            queue,
            now if kept is None else kept,
            contended=attempt.others,
        )
        return self._hold(grant, now)

    def _hold(self, grant: Grant, now: float) -> Lease:
        engine = self._engine
        engine.spread.won()
        if grant.queue is not None:
            grant.queue.grants.append(grant)
        lease = engine.make_lease(grant, grant.fence, self._options, now)
        engine.renewals.add(grant, grant.asked_since)
        if engine.observers:
            self._announce(lease, votes=len(grant.voters), handed_over=False)
        return lease


async def _until_stopped(work: Work, loop: AcquireLoop, first: Attempt | None) -> Attempt:
    """Run `loop` until it wins or `work` is stopped."""
    limit = asyncio.timeout(None)
    try:
        async with limit:
            work.waits(loop, lambda: limit.reschedule(0.0))
            try:
                return await loop.run(first)
            finally:
                work.goes_on(loop)
    except AsyncLockError:  # AcquireTimeoutError is a TimeoutError, too
        raise
    except TimeoutError:
        raise loop.out_of_time() from None
