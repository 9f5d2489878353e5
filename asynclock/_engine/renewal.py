"""Keeps leases alive: one timer for all leases of a manager, one batch per node.

There is no task and no timer per lease, but a heap of the moments at which each holding must be
checked. A renewal that does not reach a quorum is repeated until the lease's deadline. The deadline
is in the heap as well, so an unresponsive network can't delay the report of a loss.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from contextvars import Context
from itertools import count
from typing import Any

from .. import _clock
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from .._nodes.script import Command, Word
from .._rules import validity
from .lease import DROPPED, FOREVER, Holding
from .recipe import ms
from .restoring import Restores
from .round import Done, Round

INHERITED = "it belongs to the process that forked this one"
TOGETHER = 0.01
"""Seconds within which due renewals are sent as one batch."""


class Renewals:
    """All live holdings of a manager."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        retention: int,
        lose: Callable[[Holding, str], None],
        renewed: Callable[[Holding], None],
    ) -> None:
        self._multiplexer = multiplexer
        self._retention = retention
        self.restores: Restores = Restores(multiplexer, retention, self._renew_at)
        self._lose = lose
        self._renewed = renewed
        self._heap: list[tuple[float, int, Holding]] = []
        self._number = count()
        self._alive: dict[str, Holding] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._context = Context()
        """An empty context for the timer, instead of that of the task that happens to set it."""

    def add(self, holding: Holding, sent: float) -> None:
        """Keep `holding` alive; its validity counts from `sent`."""
        self._alive[holding.owner] = holding
        self._set(holding, self._next_look(holding, sent))

    def remove(self, holding: Holding) -> None:
        """Stop renewing `holding`, because it was released or lost."""
        if holding.alarm:
            holding.alarm = 0.0
            del self._alive[holding.owner]
            if len(self._heap) > 64 and len(self._heap) > 4 * len(self._alive):
                self._heap = [entry for entry in self._heap if entry[0] == entry[2].alarm]
                heapq.heapify(self._heap)

    def holdings(self) -> list[Holding]:
        """Return the live holdings, oldest first."""
        return list(self._alive.values())

    def find(self, owner: str) -> Holding | None:
        """Return the live holding of `owner`, or None if the owner isn't one of ours."""
        return self._alive.get(owner)

    def close(self) -> None:
        """Stop all renewals."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def forked(self) -> None:
        """In a forked child: drop all holdings, which stay with the parent."""
        for holding in self._alive.values():
            holding.alarm = holding.valid_until = 0.0
            holding.lost_reason = INHERITED
            if (lease := holding.lease) is not None:
                lease.forked(INHERITED)
            holding.reference = None
        self._alive.clear()
        self.close()

    def shorten(self, by: float) -> None:
        """End all leases `by` seconds sooner, because our clock stood still for that long."""
        for holding in self.holdings():
            holding.valid_until -= by
            self._set(holding, max(_clock.now(), holding.alarm - by))

    def extend(
        self,
        holdings: Sequence[Holding],
        ttl: float,
        done: Done | None = None,
    ) -> None:
        """Ask all nodes to extend these holdings of one script to `ttl`, then call `done`."""
        sent, number = _clock.now(), next(self._number)
        until = validity.valid_until(sent, ttl)
        shortened = [one for one in holdings if _shortens(one, ttl, until)]
        for holding in holdings:
            holding.asked_until = max(holding.asked_until, until)
        for holding in shortened:
            self._shorten(holding, until, number, ttl)
        keys: list[str] = [key for holding in holdings for key in holding.recipe.keys]
        owners = [holding.owner for holding in holdings]
        args: tuple[Word, ...] = ("extend", ms(ttl), self._retention, *owners)
        command = Command(holdings[0].recipe.script, keys, args)
        size = len(self._multiplexer.nodes)
        round_ = Round(self, holdings, ttl, size, sent, number, shortened, done)
        self._multiplexer.broadcast(command, round_)

    def extend_one(self, holding: Holding, ttl: float | None, done: Done) -> None:
        """Extend one holding for an `extend` call, at most to its `hold_until`.

        If `ttl` is None, use the holding's ttl, or that of an `extend` call without a reply so far.
        """
        ttl = holding.wanted_ttl if ttl is None else ttl
        asking = holding.asking = next(self._number), ttl

        def finished(failures: dict[int, Failure] | None) -> None:
            if holding.asking == asking:  # there was no newer call
                holding.asking = None
            done(failures)

        self.extend((holding,), _within(holding, ttl, holding.hold_until), finished)

    def _shorten(self, holding: Holding, until: float, number: int, ttl: float) -> None:
        # Done before the request is sent: nodes may execute it and their replies may get lost.
        holding.valid_until = min(holding.valid_until, until)
        holding.ttl, holding.asked_until = ttl, until
        holding.lowered = holding.ttl_from = number
        if holding.alarm:
            self._set(holding, min(holding.alarm, holding.valid_until))

    # called by a round

    def granted(
        self, holding: Holding, sent: float, number: int, ttl: float, stood_still: float
    ) -> None:
        """Count an extension by a quorum: request `number`, sent when `stood_still` was that."""
        if holding.alarm:
            if number >= holding.lowered:
                # If our clock stood still since then, the lease ends that much sooner.
                missed = self.stood_still - stood_still
                self._prolong(holding, validity.valid_until(sent, ttl) - missed, number, ttl)
            self._set(holding, self._next_look(holding, sent))
            self._renewed(holding)

    @staticmethod
    def _prolong(holding: Holding, until: float, number: int, ttl: float) -> None:
        if until < holding.hold_until:
            # A quorum may answer an older request after a newer one.
            if number >= holding.ttl_from:
                holding.ttl, holding.ttl_from = ttl, number
        else:  # the last renewal: its ttl was the rest of the time
            until = max(holding.hold_until, holding.valid_until)
        holding.valid_until = max(until, holding.valid_until)

    def gone(self, holding: Holding) -> None:
        """Mark `holding` as lost: too few nodes still keep it for a quorum."""
        if holding.alarm:
            self._lose(holding, "the nodes no longer hold it for us")

    def undecided(self, holding: Holding) -> None:
        """Schedule a repetition soon, or the deadline if that is sooner: too few nodes answered."""
        if holding.alarm:
            again = validity.retry_at(_clock.now(), holding.ttl)
            self._set(holding, min(again, holding.valid_until))

    def counts(self, index: int, sent: float, voters: Sequence[int]) -> bool:
        """Return whether node `index`, asked at `sent`, may count for a lease won with `voters`."""
        return self._multiplexer.counts(index, sent, voters)

    @property
    def stood_still(self) -> float:
        """Seconds that our clock has stood still so far."""
        return self._multiplexer.stood_still

    @property
    def quorum(self) -> int:
        """Number of nodes that must extend."""
        return self._multiplexer.quorum

    # the timer

    def _next_look(self, holding: Holding, sent: float) -> float:
        at = validity.renew_at(sent, holding.ttl)
        last = max(at, holding.valid_until) >= holding.renew_until
        return holding.valid_until if last else min(at, holding.valid_until, holding.restore_at)

    def _renew_at(self, holding: Holding, at: float) -> None:
        if at < min(holding.valid_until, holding.renew_until):
            holding.restore_at = min(holding.restore_at, at)
            self._set(holding, min(holding.alarm, at))

    def _set(self, holding: Holding, at: float) -> None:
        holding.alarm = at
        heapq.heappush(self._heap, (at, next(self._number), holding))
        if self._timer is None or at < self._timer_at:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(0.0, at - _clock.now())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, self._look, context=self._context)

    def _look(self) -> None:
        self._timer = None
        now = _clock.now()
        due: dict[Holding, None] = {}  # the heap may have a holding twice with the same moment
        heap = self._heap
        while heap and (heap[0][0] <= now + TOGETHER or heap[0][0] != heap[0][2].alarm):
            at, _, holding = heapq.heappop(heap)
            if at == holding.alarm:
                due[holding] = None
        self._renew(list(due), now)
        if self._heap and (self._timer is None or self._heap[0][0] < self._timer_at):
            self._arm(self._heap[0][0])

    def _renew(self, due: list[Holding], now: float) -> None:
        batches: dict[tuple[Any, int, float], list[Holding]] = {}
        for holding in due:
            if now >= holding.valid_until:
                self._lose(holding, self._why_late(holding))
            elif holding.valid_until < holding.renew_until and not self._ends_next(holding, now):
                holding.restore_at = FOREVER
                # Until the round has its replies, the next check is at the deadline.
                self._set(holding, holding.valid_until)
                ttl = _within(holding, holding.wanted_ttl, holding.renew_until)
                key = (holding.recipe.script, len(holding.recipe.keys), ttl)
                batches.setdefault(key, []).append(holding)
            else:
                self._set(holding, holding.valid_until)
        size = self._multiplexer.batch
        for (_, _, ttl), batch in batches.items():
            for start in range(0, len(batch), size):
                self.extend(batch[start : start + size], ttl)

    @staticmethod
    def _ends_next(holding: Holding, now: float) -> bool:
        # A renewal this close to the deadline comes too late: only wait for the deadline.
        return holding.valid_until - now <= TOGETHER

    @staticmethod
    def _why_late(holding: Holding) -> str:
        lease = holding.lease
        abandoned = lease is not None and lease.terms.renew and not holding.renew_until
        if holding.dropped or abandoned:
            return DROPPED
        if not holding.renew_until:
            return "its ttl ran out (renew=False)"
        if holding.valid_until >= holding.renew_until:
            return "its max_hold is over"
        return "no quorum renewed it before its ttl ran out"


def _shortens(holding: Holding, ttl: float, until: float) -> bool:
    """Return whether the request may make the keys end sooner, even if it arrives late."""
    asked_until = max(holding.valid_until, holding.asked_until)
    return until < asked_until or (ttl < holding.ttl and until < holding.hold_until)


def _within(holding: Holding, ttl: float, end: float) -> float:
    """Return `ttl`, or a shorter one that ends at `end` or at the present end, if that is later."""
    if end == FOREVER:
        return ttl
    return min(ttl, validity.ttl_until(_clock.now(), max(end, holding.valid_until)))
