"""Asking the nodes until they grant: attempts, and the pauses between them.

Refused, it arms a wake-up, asks again, then waits: a release in between is not missed. Every wait
is bounded by the holder's remaining ttl, by pacing and by the caller's deadline.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .. import _clock
from .._nodes.link import Failure
from .._nodes.script import Word
from .._nodes.wakeup import Wakeups, Watch
from .._rules import pacing, validity
from ..events import Contended, SplitVote, Voted
from . import refusals
from .attempt import Attempt
from .recipe import Recipe, ms

if TYPE_CHECKING:
    from .engine import Engine

HOPS = 5
"""So many other places of a name are tried at once; then rivals get some room. Enough for a
semaphore to look at every slot and then take the one that is free."""
OUTAGE = 3.0
"""Who waits for ever rides out an outage of the longest quarantine and so many seconds more."""


class Search:
    """One task's way to a grant; `find` is its only use."""

    __slots__ = (
        "_contended",
        "_deadline",
        "_engine",
        "_hops",
        "_once",
        "_outage_since",
        "_pauses",
        "_recipe",
        "_ticket",
        "_ttl",
        "_watch",
        "_yielded",
    )

    def __init__(
        self,
        engine: Engine,
        recipe: Recipe,
        ttl: float,
        deadline: float | None,
        *,
        once: bool,
        yielded: float | None,
    ) -> None:
        self._engine = engine
        self._recipe = recipe
        self._ttl = ttl
        self._deadline = deadline
        self._once = once
        self._yielded = yielded
        self._ticket = self._draw_ticket()
        self._watch: Watch | None = None
        self._pauses = self._hops = 0
        self._outage_since: float | None = None
        self._contended: Attempt | None = None
        """The last attempt that others won."""

    @property
    def name(self) -> str:
        """What is wanted."""
        return self._recipe.name

    @property
    def contended(self) -> bool:
        """Whether others had it at some time of this search."""
        return self._contended is not None

    async def find(self) -> Attempt:
        """→ the attempt that was won. Raises what the caller is to be told otherwise."""
        engine, recipe = self._engine, self._recipe
        engine.searching += 1
        try:
            while not engine.closed:
                attempt = Attempt(engine, recipe, self._ttl, self._ticket)
                engine.counts.attempts += 1
                watch, limit = self._watch, None
                if watch is not None:
                    watch.reset()
                if watch is not None or self._pauses:
                    limit = self._limit(attempt.started)
                won = await attempt.decide(armed=watch is not None, limit=limit)
                if engine.observers:
                    engine.observers(Voted(self._recipe.name, attempt.votes()))
                if won:
                    self._ticket = ()
                    return attempt
                if engine.closed:
                    break
                engine.ready()
                if attempt.outage:
                    recipe = self._recipe
                    self._judge_outage(attempt)
                    await self._pause(attempt)
                else:
                    recipe = await self._wait_for_others(attempt)
            raise refusals.closed()
        finally:
            engine.searching -= 1
            if self._contended is not None or self._ticket:
                self._leave()

    def _limit(self, now: float) -> float | None:
        # Only near the deadline: an attempt ends by itself within two node timeouts.
        if self._deadline is None or self._once:
            return None
        left = self._deadline - now
        return left if left < 2 * self._engine.settings.node_timeout else None

    # others have it

    async def _wait_for_others(self, attempt: Attempt) -> Recipe:
        """→ what to ask for next, once it is time."""
        engine = self._engine
        engine.refused.add(self)
        self._outage_since, self._contended = None, attempt
        other = self._elsewhere(attempt)
        if other is not None and self._hops < HOPS:
            self._hops += 1
            return other
        self._note_refusal(attempt)
        if self._recipe.queued:
            self._tell_first(attempt.holder)
        if other is not None:
            # There is a place, but rivals got in our way: spread out.
            engine.spread.split()
            await asyncio.sleep(engine.spread.width * engine.random())
            return other
        if self._watch is None and engine.multiplexer.tracks():
            wakeups, recipe = engine.multiplexer.wakeups, self._recipe
            self._watch = wakeups.watch(recipe.watched, queued=recipe.queued)
            return self._recipe
        await self._pause(attempt)
        if self._late():
            raise refusals.too_long(attempt)
        return self._recipe

    def _elsewhere(self, attempt: Attempt) -> Recipe | None:
        choose = attempt.recipe.elsewhere
        if choose is None or not attempt.hints:
            return None
        nodes = self._engine.multiplexer
        spare = len(nodes.nodes) - nodes.quorum
        return choose(attempt.hints, spare, self._engine.random())

    def _note_refusal(self, attempt: Attempt) -> None:
        engine, name = self._engine, self._recipe.name
        engine.counts.refused += 1
        if attempt.split:
            engine.counts.split_votes += 1
            engine.spread.split()
            if engine.observers:
                engine.observers(SplitVote(name))
        if engine.observers:
            holder = refusals.label(attempt.holder)
            engine.observers(Contended(name, holder, attempt.remaining))
        if self._once:
            raise refusals.refused(attempt)
        self._forbid_waiting_for_ourselves(attempt)
        if self._late():
            raise refusals.too_long(attempt)

    def _forbid_waiting_for_ourselves(self, attempt: Attempt) -> None:
        # Where one place of a name excludes another, or one name another, no line can tell.
        ours = self._engine.renewals.find(attempt.holder or "")
        if ours is None or ours.lease is None or ours.recipe.permits > 1:
            return
        if ours.lease.task is asyncio.current_task():
            raise refusals.already_held(self._recipe.name)

    def _late(self) -> bool:
        return self._deadline is not None and _clock.now() >= self._deadline

    # too few nodes answer

    def _judge_outage(self, attempt: Attempt) -> None:
        now, settings = _clock.now(), self._engine.settings
        if self._late() and self._contended and now - attempt.started < settings.node_timeout:
            # The caller's time was up before the nodes' own was: no outage, as far as we know.
            raise refusals.too_long(self._contended)
        hopeless = refusals.hopeless(attempt, len(self._engine.multiplexer.nodes))
        if hopeless is not None:
            raise hopeless
        if self._outage_since is None:
            self._outage_since = attempt.started
        patience = validity.quarantine(settings.max_ttl) + OUTAGE
        waited_out = self._deadline is None and now - self._outage_since >= patience
        if self._once or waited_out or self._late():
            raise refusals.outage(attempt)

    # between two attempts

    async def _pause(self, attempt: Attempt) -> None:
        engine, watch = self._engine, self._watch
        listening = watch is not None and not attempt.outage and engine.multiplexer.tracks()
        listening = listening and not attempt.split
        pause = self._length(attempt, listening=listening)
        self._pauses += 1
        self._hops = 0
        if not listening or watch is None:
            engine.counts.wakeups["pacing"] += 1
            await asyncio.sleep(pause)
        elif await watch.wait(pause):
            engine.counts.wakeups["push"] += 1
            pause = 0.0
            if self._yielded is not None:
                # No two processes let others ahead at the same moment: this spreads rivals, too.
                pause = pacing.courtesy(_clock.now() - self._yielded)
            elif len(engine.multiplexer.nodes) > 1:
                # Rivals were woken by the same release: spread out, or the vote is split.
                pause = engine.spread.width * engine.random()
            if pause:
                await asyncio.sleep(pause)
        else:
            engine.counts.wakeups["expiry"] += 1

    def _length(self, attempt: Attempt, *, listening: bool) -> float:
        random = self._engine.random()
        remaining = None if attempt.outage else attempt.remaining
        if attempt.split:
            pause = self._engine.spread.width * random
        elif listening:
            pause = pacing.until_expiry(remaining, random)
        else:
            pause = pacing.without_push(self._pauses, remaining, random)
        if self._recipe.patience:
            pause = min(pause, self._recipe.patience / 2)
        if self._deadline is not None:
            pause = min(pause, max(0.0, self._deadline - _clock.now()))
        return pause

    # the nodes' own queue, where a primitive has one

    def _tell_first(self, first: str | None) -> None:
        # Their order is not always ours: after a failover, say, all of us queued once more.
        for search in self._engine.refused:
            if search._ticket and search._ticket[0] == first and search._watch is not None:
                search._watch.wake()

    def _draw_ticket(self) -> tuple[Word, ...]:
        # Remembered by the nodes for as long as we come back in time; not by those we only ask.
        patience = self._recipe.patience
        if not patience:
            return ()
        return (self._engine.new_owner(), 0 if self._once else ms(patience))

    def _leave(self) -> None:
        nodes = self._engine.multiplexer
        self._engine.refused.discard(self)
        if self._watch is not None:
            self._watch.close()
        if self._ticket:
            nodes.broadcast(self._recipe.leave(self._ticket[0]), Left(nodes.wakeups, self._recipe))


class Left:
    """The sink for answers to a ticket's end: may others of ours go on now?"""

    __slots__ = ("_recipe", "_wakeups")

    def __init__(self, wakeups: Wakeups, recipe: Recipe) -> None:
        self._recipe = recipe
        self._wakeups = wakeups

    def cast(self, index: int, reply: Any) -> None:
        """Wake them: servers don't tell us what our own connection changed."""
        if type(reply) is not Failure and reply[0]:
            for key in (*self._recipe.watched, *self._recipe.neighbours):
                self._wakeups.wake(key, index)
