"""Keeps leases alive: one timer for all leases of a manager, one batch per node.

No task and no timer per lease: a heap of moments at which a holding needs a look. A renewal that
does not reach a quorum is repeated until the lease's own deadline, and the deadline itself is such
a moment: a mute network can't delay the news of a loss.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from .. import _clock
from .._nodes.link import Failure
from .._nodes.multiplexer import Multiplexer
from .._nodes.script import Command, Word
from .._rules import validity
from .lease import Holding
from .recipe import ms

QUARANTINED = Failure("it is quarantined, and this lease was won without it")
TOGETHER = 0.01
"""Renewals due within so many seconds travel together."""


class Renewals:
    """All holdings of a manager that are alive."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        retention: int,
        lose: Callable[[Holding, str], None],
        renewed: Callable[[Holding], None],
    ) -> None:
        self._multiplexer = multiplexer
        self._retention = retention
        self._lose = lose
        self._renewed = renewed
        self._heap: list[tuple[float, int, Holding]] = []
        self._number = count()
        self._alive: dict[str, Holding] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, holding: Holding, sent: float) -> None:
        """Keep `holding` alive, whose validity counts from `sent`."""
        self._alive[holding.owner] = holding
        self._set(holding, self._next_look(holding, sent))

    def remove(self, holding: Holding) -> None:
        """Leave it alone: released or lost."""
        if holding.alarm:
            holding.alarm = 0.0
            del self._alive[holding.owner]
            if len(self._heap) > 64 and len(self._heap) > 4 * len(self._alive):
                self._heap = [entry for entry in self._heap if entry[0] == entry[2].alarm]
                heapq.heapify(self._heap)

    def holdings(self) -> list[Holding]:
        """What is held now, oldest first."""
        return list(self._alive.values())

    def find(self, owner: str) -> Holding | None:
        """What `owner` holds now, if that is one of ours."""
        return self._alive.get(owner)

    def close(self) -> None:
        """No more renewals."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def shorten(self, by: float) -> None:
        """Our clock stood still for `by` seconds: everything ends that much sooner."""
        for holding in self.holdings():
            holding.valid_until -= by
            self._set(holding, max(_clock.now(), holding.alarm - by))

    def extend(
        self,
        holdings: Sequence[Holding],
        ttl: float,
        done: Callable[[dict[int, Failure]], None] | None = None,
    ) -> None:
        """Ask all nodes to extend these (of one script) to `ttl`; `done` hears how it ended."""
        keys: list[str] = [key for holding in holdings for key in holding.recipe.keys]
        owners = [holding.owner for holding in holdings]
        args: tuple[Word, ...] = ("extend", ms(ttl), self._retention, *owners)
        command = Command(holdings[0].recipe.script, keys, args)
        round_ = Round(self, holdings, ttl, len(self._multiplexer.nodes), done)
        self._multiplexer.broadcast(command, round_)

    # told by a round

    def granted(self, holding: Holding, sent: float, ttl: float) -> None:
        """A quorum extended it."""
        if holding.alarm:
            until = validity.valid_until(sent, ttl)
            if until > holding.valid_until or ttl < holding.ttl:
                holding.valid_until = until
            holding.ttl = ttl
            self._set(holding, self._next_look(holding, sent))
            self._renewed(holding)

    def gone(self, holding: Holding) -> None:
        """So many nodes hold it for somebody else, or not at all, that no quorum is left."""
        if holding.alarm:
            self._lose(holding, "the nodes no longer hold it for us")

    def undecided(self, holding: Holding) -> None:
        """Too few nodes answered: again soon, or at the deadline if that comes first."""
        if holding.alarm:
            again = validity.retry_at(_clock.now(), holding.ttl)
            self._set(holding, min(again, holding.valid_until))

    def counts(self, index: int, sent: float, voters: Sequence[int]) -> bool:
        """Whether a node's yes may keep a lease alive."""
        return self._multiplexer.counts(index, sent, voters)

    @property
    def quorum(self) -> int:
        """How many nodes must extend."""
        return self._multiplexer.quorum

    # its own clockwork

    def _next_look(self, holding: Holding, sent: float) -> float:
        at = validity.renew_at(sent, holding.ttl)
        return at if at < holding.renew_until else holding.valid_until

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
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        now = _clock.now()
        due: list[Holding] = []
        heap = self._heap
        while heap and (heap[0][0] <= now + TOGETHER or heap[0][0] != heap[0][2].alarm):
            at, _, holding = heapq.heappop(heap)
            if at == holding.alarm:
                due.append(holding)
        self._renew(due, now)
        if self._heap and (self._timer is None or self._heap[0][0] < self._timer_at):
            self._arm(self._heap[0][0])

    def _renew(self, due: list[Holding], now: float) -> None:
        batches: dict[tuple[Any, int, float], list[Holding]] = {}
        for holding in due:
            if now >= holding.valid_until:
                self._lose(holding, self._why_late(holding))
            elif now + TOGETHER < holding.renew_until and not self._ends_next(holding, now):
                # While the round is out, the next look is at the deadline.
                self._set(holding, holding.valid_until)
                key = (holding.recipe.script, len(holding.recipe.keys), holding.ttl)
                batches.setdefault(key, []).append(holding)
            else:
                self._set(holding, holding.valid_until)
        size = self._multiplexer.batch
        for (_, _, ttl), batch in batches.items():
            for start in range(0, len(batch), size):
                self.extend(batch[start : start + size], ttl)

    @staticmethod
    def _ends_next(holding: Holding, now: float) -> bool:
        # Within TOGETHER of the deadline no renewal helps: wait for the deadline itself.
        return holding.valid_until - now <= TOGETHER

    @staticmethod
    def _why_late(holding: Holding) -> str:
        if not holding.renew_until:
            return "its ttl ran out (renew=False)"
        if holding.valid_until > holding.renew_until:
            return "its max_hold is over"
        return "no quorum renewed it before its ttl ran out"


class Round:
    """One renewal of a batch: votes per holding."""

    __slots__ = (
        "_done",
        "_failures",
        "_holdings",
        "_left",
        "_renewals",
        "_sent",
        "_size",
        "_ttl",
        "_votes",
    )

    def __init__(
        self,
        renewals: Renewals,
        holdings: Sequence[Holding],
        ttl: float,
        size: int,
        done: Callable[[dict[int, Failure]], None] | None,
    ) -> None:
        self._renewals = renewals
        self._holdings = holdings
        self._ttl = ttl
        self._size = self._left = size
        self._done = done
        self._sent = _clock.now()
        self._votes = [[0, 0] for _ in holdings]
        self._failures: dict[int, Failure] = {}

    def cast(self, index: int, reply: Any) -> None:
        """Count one node's answer for the whole batch."""
        if type(reply) is Failure:
            self._failures[index] = reply
        else:
            self._count(index, reply[0])
        self._left -= 1
        if not self._left:
            for holding, votes in zip(self._holdings, self._votes, strict=True):
                if self._open(votes):
                    self._renewals.undecided(holding)
            self._tell()

    def _open(self, votes: list[int]) -> bool:
        quorum = self._renewals.quorum
        return votes[0] < quorum and votes[1] <= self._size - quorum

    def _count(self, index: int, marks: bytes) -> None:
        renewals, quorum = self._renewals, self._renewals.quorum
        settled = 0
        for holding, votes, mark in zip(self._holdings, self._votes, marks, strict=True):
            if mark == 49 and not renewals.counts(index, self._sent, holding.voters):
                self._failures[index] = QUARANTINED
            elif mark == 49:  # "1"
                votes[0] += 1
                if votes[0] == quorum:
                    renewals.granted(holding, self._sent, self._ttl)
            else:
                votes[1] += 1
                if votes[1] == self._size - quorum + 1:
                    renewals.gone(holding)
            settled += not self._open(votes)
        if settled == len(self._holdings):
            self._tell()

    def _tell(self) -> None:
        if self._done is not None:
            self._done(self._failures)
            self._done = None
