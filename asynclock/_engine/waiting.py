"""The line of one name inside one process: only its head asks the nodes.

A holding that is given back goes to the next in line, if that is fair and safe: it is still well
valid, the terms are the same, and neither the count nor the time that one process may keep a
name is used up. The next holder gets a fence of its own from a block that was reserved at a
quorum (docs/fencing.md, "Handing a lease over"): by default many at once, ahead of need, so that
handing on needs no network; with handoff="strict" one at each hand-over.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _clock
from .._nodes.link import Failure
from .lease import Holding, Terms

if TYPE_CHECKING:
    from .engine import Engine

BLOCK = 1024
"""Fences reserved at once. They run ahead of the clock by as many microseconds, no more."""
KEEP_COUNT = 4096
KEEP_TIME = 0.1
"""So often, and for so many seconds, may a process hand a name on before others get a chance."""


class Turn(NamedTuple):
    """What the one next in line is given: a holding to take over, or (None) the right to ask."""

    holding: Holding | None
    yielding: bool = False
    """Whether others should be let ahead first: the process kept the name for long enough."""


class Line:
    """Those of this process who want one name: some hold, one asks, the rest wait in order."""

    __slots__ = (
        "_queue",
        "asking",
        "handed",
        "holdings",
        "key",
        "name",
        "permits",
        "since",
        "yielded",
    )

    def __init__(self, name: str, key: str, permits: int) -> None:
        self.name = name
        self.key = key
        self.permits = permits
        """How many may hold at once; each with this key says the same."""
        self.holdings: list[Holding] = []
        self.asking = 0
        """How many ask the nodes, or have just been given the turn to."""
        self.since = 0.0
        """When this process got the name after it last let others ahead; 0 before that."""
        self.handed = 0
        """How often it was handed on since then."""
        self.yielded: float | None = None
        """When this process last had used the name up and let others ahead."""
        self._queue: OrderedDict[asyncio.Future[Turn | None], Terms] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether this process holds all there is."""
        return len(self.holdings) >= self.permits

    def drop(self, holding: Holding) -> None:
        """It is held no more."""
        if holding in self.holdings:
            self.holdings.remove(holding)

    @property
    def next_terms(self) -> Terms | None:
        """The terms of the one next in line; None when nobody waits."""
        for place, terms in self._queue.items():
            if not place.done():  # else it is being cancelled: `give` passes over it as well
                return terms
        return None

    async def wait(self, terms: Terms, deadline: float | None) -> Turn | None:
        """Wait for a turn. → it, or None when the deadline came first.

        Cancelled with the turn already given: raises Stranded with it, so that it isn't lost.
        """
        loop = asyncio.get_running_loop()
        place: asyncio.Future[Turn | None] = loop.create_future()
        self._queue[place] = terms
        timer = None
        if deadline is not None:
            timer = loop.call_later(max(0.0, deadline - _clock.now()), self._leave, place)
        try:
            return await place
        except asyncio.CancelledError as error:
            self._queue.pop(place, None)
            if place.done() and not place.cancelled():
                raise Stranded(place.result()) from error
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _leave(self, place: asyncio.Future[Turn | None]) -> None:
        if self._queue.pop(place, None) is not None and not place.done():
            place.set_result(None)

    def used_up(self, now: float) -> bool:
        """Whether this process kept the name for so long that others come first."""
        return self.handed >= KEEP_COUNT or now - self.since >= KEEP_TIME

    def give(self, turn: Turn) -> bool:
        """Give the next in line its turn. → False when nobody waits."""
        while self._queue:
            place, _ = self._queue.popitem(last=False)
            if not place.done():  # else it is being cancelled and only not gone yet
                place.set_result(turn)
                return True
        return False


class Stranded(Exception):
    """A waiter was cancelled in the moment it got its turn: somebody must pass it on."""

    def __init__(self, turn: Turn | None) -> None:
        super().__init__()
        self.turn = turn


def fits(holding: Holding, terms: Terms, given_up: Terms, now: float) -> bool:
    """Whether the holding is what the next in line asked for, and still good."""
    # A bound on renewal belongs to one lease: its holding is not passed on.
    return (
        bool(given_up.handoff)
        and terms.handoff == given_up.handoff
        and terms.ttl == holding.ttl
        and terms.renew == given_up.renew
        and terms.max_hold is None is given_up.max_hold
        and now < holding.valid_until
    )


class Reservation:
    """Raises the counter at a quorum: what lies above all that was there before is ours."""

    __slots__ = (
        "_alone",
        "_done",
        "_holding",
        "_left",
        "_m",
        "_nodes",
        "_previous",
        "_quorum",
        "_sent",
    )

    def __init__(self, engine: Engine, holding: Holding, count: int) -> None:
        self._nodes = nodes = engine.multiplexer
        self._sent = _clock.now()
        self._holding = holding
        self._alone = count == 1
        self._previous: list[int] = []
        self._quorum = nodes.quorum
        self._left = len(nodes.nodes)
        self._m = max(holding.top, holding.fence) + count
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        holding.top = self._m
        holding.reserving = self._done
        command = holding.recipe.write_back(holding.owner, self._m, engine.retention)
        nodes.broadcast(command, self)

    def cast(self, index: int, reply: Any) -> None:
        """Count one node's answer."""
        counts = self._nodes.counts(index, self._sent, self._holding.voters)
        if counts and type(reply) is not Failure and reply[0] == 1:
            self._previous.append(reply[1])
            if len(self._previous) == self._quorum:
                self._claim(max(self._previous))
        self._left -= 1
        if not self._left:
            self._finish()

    def _claim(self, highest: int) -> None:
        # Not "our fence + 1": a raise that met other nodes may have passed that on to somebody
        # else (tests/model: the variant that starts there is caught). And the last one only
        # where each hand-over is to have a raise of its own: what lies below may be older.
        first = self._m if self._alone else highest + 1
        holding = self._holding
        if holding.reserving is self._done and first > max(highest, holding.fence):
            holding.fences = range(first, self._m + 1)
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
        if self._holding.reserving is self._done:
            self._holding.reserving = None


def reserve_ahead(engine: Engine, holding: Holding, terms: Terms) -> None:
    """Have fences ready before they are needed."""
    plenty = len(holding.fences) > BLOCK // 4
    if terms.handoff is True and not plenty and holding.reserving is None:
        Reservation(engine, holding, BLOCK)


async def reserve_now(engine: Engine, holding: Holding, terms: Terms) -> None:
    """Have a fence for the next lease on `holding`, if a quorum can be raised."""
    if terms.handoff == "strict":
        # One that was left, or is under way, was asked for before this hand-over: too old.
        holding.fences = range(0)
        Reservation(engine, holding, 1)
    elif not holding.fences and holding.reserving is None:
        Reservation(engine, holding, BLOCK)
    if not holding.fences and holding.reserving is not None:
        await asyncio.shield(holding.reserving)


def take_fence(holding: Holding) -> int | None:
    """The next reserved fence, or None."""
    if not holding.fences:
        return None
    fence, holding.fences = holding.fences[0], holding.fences[1:]
    return fence
