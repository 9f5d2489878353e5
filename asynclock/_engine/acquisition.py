"""Acquires a lease: first through the local queue of this process, then from the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import Any

from .. import _clock
from .._rules import pacing
from ..errors import AsyncLockError
from ..events import Acquired, Failed
from . import refusals
from .acquiring import REUSED, UNUSED, AcquireContext
from .attempt import Attempt
from .engine import Engine
from .fences import reserve_ahead, reserve_now
from .grant import Grant
from .lease import Lease
from .options import Terms
from .recipe import Recipe
from .search import Search
from .waiting import Ask, Line, Place

YIELD = 0.002
"""Seconds a process pauses after it has used up its turn and has seen no rival. An unknown waiter's
wake-up has that time to arrive; a process that did not just have the name asks without a pause."""


class Wish(AcquireContext[Lease]):
    """One acquire of a lock, with a deadline (None: no limit) or only if the lock is free (`once`).

    Awaiting it returns the lease. Raises NotAcquiredError (`once`), AcquireTimeoutError,
    QuorumUnavailableError or ConfigurationError. After an error or a cancellation nothing is held.
    """

    __slots__ = ("_deadline", "_engine", "_once", "_recipe", "_started", "_terms")

    def __init__(
        self,
        engine: Engine,
        recipe: Recipe,
        terms: Terms,
        timeout: float | None,
        *,
        once: bool = False,
        since: float | None = None,
    ) -> None:
        self._entered = UNUSED
        self._engine = engine
        self._recipe = recipe
        self._terms = terms
        self._once = once
        self._started = _clock.now() if since is None else since
        self._deadline = None if timeout is None else self._started + timeout

    @property
    def _name(self) -> str:
        return self._recipe.name

    def __await__(self) -> Generator[Any, Any, Lease]:
        # No coroutine in here: a hand-over between tasks runs only this, and must be cheap.
        if self._entered is not UNUSED:
            raise RuntimeError(REUSED)
        self._entered = None
        engine = self._engine
        engine.ready()
        try:
            line = self._line()
            if line is None:
                attempt = yield from self._search(None).find().__await__()
                return self._won(attempt, None)
            if not line.asking and len(line.grants) < line.permits:
                line.asking += 1
                return (yield from self._as_head(line, Ask.NOW).__await__())
            place = self._join(line)
            try:
                turn = yield from place
            except GeneratorExit:
                engine.soon(partial(self._leave, line, place))
                raise
            except BaseException:
                self._leave(line, place)
                raise
            if turn is None:
                first = line.grants[0] if line.grants else None
                raise refusals.too_long_here(self._recipe.name, first)
            engine.counts.wakeups["turn"] += 1
            if type(turn) is Grant and self._terms.handoff is True:
                lease = self._take_over(turn, turn.ttl / 2)
                if lease is not None:
                    return lease
            return (yield from self._as_head(line, turn).__await__())
        except AsyncLockError as error:
            if engine.observers:
                outcome = refusals.OUTCOMES.get(type(error), "error")
                waited = _clock.now() - self._started
                engine.observers(Failed(self._recipe.name, outcome, waited))
            raise

    def _line(self) -> Line[Grant] | None:
        # try_acquire never queues: fail at once if this process holds it, else ask the nodes.
        recipe, lines = self._recipe, self._engine.lines
        if recipe.line is None:
            return None
        line = lines.get(recipe.line)
        if line is None:
            line = lines[recipe.line] = Line(recipe.name, recipe.line, recipe.permits)
        elif self._once:
            if line.full:
                raise refusals.held_here(recipe.name, line.grants[0])
            return None
        return line

    def _join(self, line: Line[Grant]) -> Place[Grant]:
        ours, task = 0, asyncio.current_task()
        for grant in line.grants:
            lease = grant.lease
            if lease is not None:
                ours += lease.inside(task)
                if not grant.fences:
                    reserve_ahead(self._engine, grant, lease.terms)
        recipe = self._recipe
        if ours == line.permits or (recipe.shared and self._engine.renewals.shares(recipe, task)):
            raise refusals.already_held(recipe.name)
        place = line.join(self._terms)
        left = self._left()
        if left is not None:
            timer = place.get_loop().call_later(left, line.give_up, place)
            place.add_done_callback(lambda _: timer.cancel())
        return place

    def _leave(self, line: Line[Grant], place: Place[Grant]) -> None:
        # Cancelled or closed just after our turn came: pass the turn on, if the options match.
        turn = line.leave(place)
        place.cancel()  # has no effect if a turn was given; otherwise it stops the timer
        if turn is None:
            return
        if isinstance(turn, Grant):
            if line.hand_on(turn, self._terms, _clock.now()):
                return
            self._engine.release(turn)
        else:
            if line.let_ask(turn):
                return
            line.asking -= 1
        self._engine.next_in_line(line)

    async def _as_head(self, line: Line[Grant], turn: Grant | Ask) -> Lease:
        engine = self._engine
        asking = not isinstance(turn, Grant)
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
                    raise refusals.too_long_here(self._recipe.name, turn)
                line.asking += 1
                asking = True
            elif turn is Ask.YIELDING:
                pause = pacing.courtesy(0.0) if line.contended else YIELD
                pause += engine.random() * engine.spread.width
                left = self._left()
                await asyncio.sleep(pause if left is None else min(pause, left))
            search = self._search(line.yielded)
            attempt = await search.find()
            line.contended = search.contended is not None
            return self._won(attempt, line)
        finally:
            line.asking -= asking
            engine.next_in_line(line)

    async def _prepare(self, grant: Grant) -> None:
        engine, terms = self._engine, self._terms
        try:
            if not grant.fences or terms.handoff == "strict":
                reserved = reserve_now(engine, grant, terms)
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
        lease = engine.make_lease(grant, grant.take_fence(), self._terms, now)
        if engine.observers:
            self._announce(lease, votes=0, handed_over=True)
        return lease

    def _search(self, yielded: float | None) -> Search:
        ttl = self._terms.ttl
        return Search(
            self._engine,
            self._recipe,
            ttl,
            self._deadline,
            once=self._once,
            asked=self._started,
            yielded=yielded,
        )

    def _won(self, attempt: Attempt, line: Line[Grant] | None) -> Lease:
        engine, terms = self._engine, self._terms
        ballot = attempt.ballot
        engine.spread.won()
        grant = Grant(
            attempt.recipe,
            attempt.owner,
            ballot.fence,
            terms.ttl,
            attempt.valid_until,
            ballot.claims,
            attempt.started,
            line,
        )
        now = _clock.now()
        if line is not None:
            line.grants.append(grant)
            line.since = line.since or now
        lease = engine.make_lease(grant, ballot.fence, terms, now)
        engine.renewals.add(grant, attempt.started)
        if engine.observers:
            self._announce(lease, votes=len(ballot.claims), handed_over=False)
        return lease

    def _announce(self, lease: Lease, *, votes: int, handed_over: bool) -> None:
        waited = lease.acquired_at - self._started
        self._engine.observers(
            Acquired(lease.name, lease.owner, lease.fence, waited, votes, handed_over)
        )
