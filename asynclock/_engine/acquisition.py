"""From wanting a lock to a lease: through the line of this process, then through the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .. import _clock
from .._rules import pacing
from ..errors import AsyncLockError
from ..events import Acquired, Failed
from . import refusals
from .acquiring import Acquiring
from .attempt import Attempt
from .lease import Holding, Lease, Terms
from .recipe import Recipe
from .search import Search
from .waiting import Ask, Line, Place, Turn, reserve_ahead, reserve_now

if TYPE_CHECKING:
    from .engine import Engine

YIELD = 0.002
"""Seconds that a process which used a name up waits where it has met nobody: the wake-up of one it
does not know of must have the time to travel, and who did not have the name lately asks at once."""


class Wish(Acquiring[Lease]):
    """Somebody wants a lock until a deadline (None: for ever), or only if it is free (`once`).

    Awaited it gives the lease. Raises NotAcquiredError (`once`), AcquireTimeoutError,
    QuorumUnavailableError or ConfigurationError; cancelled or failed, it leaves nothing.
    """

    __slots__ = ("_deadline", "_engine", "_once", "_recipe", "_started", "_task", "_terms")

    def __init__(
        self,
        engine: Engine,
        recipe: Recipe,
        terms: Terms,
        timeout: float | None,
        *,
        once: bool = False,
    ) -> None:
        self._entered = None
        self._engine = engine
        self._recipe = recipe
        self._terms = terms
        self._once = once
        self._started = _clock.now()
        self._task: asyncio.Task[Any] | None = None
        self._deadline = None if timeout is None else self._started + timeout

    def __await__(self) -> Generator[Any, Any, Lease]:
        # Not a coroutine inside: this is what a hand-over from task to task costs.
        engine = self._engine
        engine.ready()
        self._task = asyncio.current_task()
        try:
            line = self._line()
            if line is None:
                attempt = yield from self._search(None).find().__await__()
                return self._won(attempt, None)
            if not line.asking and not line.full:
                line.asking += 1
                return (yield from self._as_head(line, Ask.NOW).__await__())
            place = self._join(line)
            try:
                turn = yield from place
            except asyncio.CancelledError:
                self._leave(line, place)
                raise
            if turn is None:
                first = line.holdings[0] if line.holdings else None
                raise refusals.too_long_here(self._recipe.name, first)
            engine.counts.wakeups["turn"] += 1
            if type(turn) is Holding and self._terms.handoff is True:
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

    def _line(self) -> Line | None:
        # Who only asks whether it is free waits for nobody: unless we have it, the nodes tell.
        recipe, lines = self._recipe, self._engine.lines
        if recipe.line is None:
            return None
        line = lines.get(recipe.line)
        if line is None:
            line = lines[recipe.line] = Line(recipe.name, recipe.line, recipe.permits)
        elif self._once:
            if line.full:
                raise refusals.held_here(recipe.name, line.holdings[0])
            return None
        return line

    def _join(self, line: Line) -> Place:
        ours = 0
        for holding in line.holdings:
            lease = holding.lease
            if lease is not None:
                ours += lease.task is self._task
                if holding.next_fence > holding.last_fence:
                    reserve_ahead(self._engine, holding, lease.terms)
        if ours == line.permits:
            raise refusals.already_held(self._recipe.name)
        place = line.join(self._terms)
        left = self._left()
        if left is not None:
            timer = place.get_loop().call_later(left, line.give_up, place)
            place.add_done_callback(lambda _: timer.cancel())
        return place

    def _leave(self, line: Line, place: Place) -> None:
        # Cancelled in the moment it was our turn: the next one gets it just so, if it fits.
        turn = line.leave(place)
        if turn is None:
            return
        if isinstance(turn, Holding):
            if line.hand_on(turn, self._terms, _clock.now()):
                return
            self._engine.give_back(turn)
        else:
            if line.let_ask(turn):
                return
            line.asking -= 1
        self._engine.next_in_line(line)

    async def _as_head(self, line: Line, turn: Turn) -> Lease:
        engine = self._engine
        asking = not isinstance(turn, Holding)
        try:
            if engine.closed:
                raise refusals.closed()
            if isinstance(turn, Holding):
                await self._prepare(turn)
                lease = self._take_over(turn, 0.0)
                if lease is not None:
                    return lease
                engine.give_back(turn)
                if self._left() == 0:
                    raise refusals.too_long_here(self._recipe.name, turn)
                line.asking += 1
                asking = True
            elif turn is Ask.YIELDING:
                pause = pacing.courtesy(0.0) if line.contended else YIELD
                await asyncio.sleep(pause + engine.random() * engine.spread.width)
            search = self._search(line.yielded)
            attempt = await search.find()
            line.contended = search.contended
            return self._won(attempt, line)
        finally:
            line.asking -= asking
            engine.next_in_line(line)

    async def _prepare(self, holding: Holding) -> None:
        engine, terms = self._engine, self._terms
        try:
            if holding.next_fence > holding.last_fence or terms.handoff == "strict":
                reserved = reserve_now(engine, holding, terms)
                if reserved is not None:
                    await asyncio.wait((reserved,), timeout=self._left())
            if holding.valid_until - _clock.now() < holding.ttl / 2:
                stretched = engine.stretch(holding, holding.ttl)
                await asyncio.wait((stretched,), timeout=self._left())
        except BaseException:
            engine.give_back(holding)
            raise

    def _left(self) -> float | None:
        # Seconds until the deadline.
        return None if self._deadline is None else max(0.0, self._deadline - _clock.now())

    def _take_over(self, holding: Holding, least: float) -> Lease | None:
        # None: no fence is ready, or it is valid for no more than `least` seconds.
        now = _clock.now()
        fence = holding.next_fence
        if fence > holding.last_fence or holding.valid_until - now <= least:
            return None
        holding.next_fence = fence + 1
        engine = self._engine
        engine.counts.handovers += 1
        lease = engine.grant(holding, fence, self._terms, self._task, now)
        if engine.observers:
            self._announce(lease, votes=0, handed_over=True)
        return lease

    def _search(self, yielded: float | None) -> Search:
        ttl = self._terms.ttl
        return Search(
            self._engine, self._recipe, ttl, self._deadline, once=self._once, yielded=yielded
        )

    def _won(self, attempt: Attempt, line: Line | None) -> Lease:
        engine, terms = self._engine, self._terms
        ballot = attempt.ballot
        engine.spread.won()
        holding = Holding(
            attempt.recipe,
            attempt.owner,
            ballot.fence,
            terms.ttl,
            attempt.valid_until,
            ballot.claims,
        )
        now = holding.since = _clock.now()
        if line is not None:
            holding.line = line
            line.holdings.append(holding)
            line.since = line.since or now
        lease = engine.grant(holding, ballot.fence, terms, self._task, now)
        engine.renewals.add(holding, attempt.started)
        if engine.observers:
            self._announce(lease, votes=len(ballot.claims), handed_over=False)
        return lease

    def _announce(self, lease: Lease, *, votes: int, handed_over: bool) -> None:
        waited = lease.acquired_at - self._started
        self._engine.observers(
            Acquired(lease.name, lease.owner, lease.fence, waited, votes, handed_over)
        )
