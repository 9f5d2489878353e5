"""From wanting a lock to a lease: through the line of this process, then through the nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .. import _clock
from ..errors import AsyncLockError
from ..events import Failed
from . import refusals
from .attempt import Attempt
from .lease import Holding, Lease, Terms
from .recipe import Recipe
from .search import Search
from .waiting import Line, Stranded, Turn, fits, reserve_now, take_fence

if TYPE_CHECKING:
    from .engine import Engine

ASK = Turn(None)
YIELD = 0.002
"""A process that kept a name for long lets the others' wake-ups travel before it asks again."""


class Wish:
    """Somebody wants a lock until a deadline (None: for ever), or only if it is free (`once`)."""

    __slots__ = ("_engine", "_once", "_recipe", "_started", "_terms", "deadline")

    def __init__(
        self, engine: Engine, recipe: Recipe, terms: Terms, *, timeout: float | None, once: bool
    ) -> None:
        self._engine = engine
        self._recipe = recipe
        self._terms = terms
        self._once = once
        self._started = _clock.now()
        self.deadline = None if timeout is None else self._started + timeout

    async def fulfil(self) -> Lease:
        """Get the lease. Raises NotAcquiredError (`once`), AcquireTimeoutError,
        QuorumUnavailableError or ConfigurationError; cancelled or failed, it leaves nothing.
        """
        engine = self._engine
        engine.ready()
        try:
            line = self._line()
            if line is None:
                return self._won(await self._search(None).find(), None)
            if line.asking or line.full:
                self._forbid_deadlock(line)
                return await self._as_head(line, await self._wait_for_turn(line))
            line.asking += 1
            return await self._as_head(line, ASK)
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

    def _forbid_deadlock(self, line: Line) -> None:
        if not line.full:
            return
        task = asyncio.current_task()
        for holding in line.holdings:
            if holding.lease is None or holding.lease.task is not task:
                return
        raise refusals.already_held(self._recipe.name)

    async def _wait_for_turn(self, line: Line) -> Turn:
        engine = self._engine
        engine.waiting += 1
        if line.full:
            engine.expect_handover(line.holdings[0])
        try:
            turn = await line.wait(self._terms, self.deadline)
        except Stranded as error:
            if error.turn is not None:
                self._pass_on(line, error.turn)
            raise (error.__cause__ or error) from None
        finally:
            engine.waiting -= 1
        if turn is None:
            holding = line.holdings[0] if line.holdings else None
            raise refusals.too_long_here(self._recipe.name, holding)
        engine.counts.wakeups["turn"] += 1
        return turn

    def _pass_on(self, line: Line, turn: Turn) -> None:
        # Cancelled in the moment it was our turn: the next one gets it just so, if it fits.
        holding, following = turn.holding, line.next_terms
        good = holding is None or (
            following is not None and fits(holding, following, self._terms, _clock.now())
        )
        if good and line.give(turn):
            return
        if holding is not None:
            self._engine.give_back(holding)
        else:
            line.asking -= 1
        self._engine.next_in_line(line)

    async def _as_head(self, line: Line, turn: Turn) -> Lease:
        engine = self._engine
        asking = turn.holding is None
        try:
            if engine.closed:
                raise refusals.closed()
            if turn.holding is not None:
                lease = await self._take_over(turn.holding)
                if lease is not None:
                    return lease
                line.asking += 1
                asking = True
            elif turn.yielding:
                await asyncio.sleep(YIELD + engine.random() * engine.spread.width)
            return self._won(await self._search(line.yielded).find(), line)
        finally:
            line.asking -= asking
            engine.next_in_line(line)

    async def _take_over(self, holding: Holding) -> Lease | None:
        engine, terms = self._engine, self._terms
        try:
            if not holding.fences or terms.handoff == "strict":
                await reserve_now(engine, holding, terms)
            if holding.valid_until - _clock.now() < holding.ttl / 2:
                await engine.stretch(holding, holding.ttl)
            fence = take_fence(holding)
        except BaseException:
            engine.give_back(holding)
            raise
        now = _clock.now()
        if fence is None or holding.lost_reason or now >= holding.valid_until:
            engine.give_back(holding)
            return None
        engine.counts.handovers += 1
        return engine.grant(
            holding, fence, terms, now, wanted=self._started, votes=0, handed_over=True
        )

    def _search(self, yielded: float | None) -> Search:
        ttl = self._terms.ttl
        return Search(
            self._engine, self._recipe, ttl, self.deadline, once=self._once, yielded=yielded
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
        votes = len(ballot.claims)
        lease = engine.grant(holding, ballot.fence, terms, now, wanted=self._started, votes=votes)
        engine.renewals.add(holding, attempt.started)
        return lease
