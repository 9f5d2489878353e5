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
from enum import Enum
from typing import TYPE_CHECKING, Any

from .. import _clock
from .._nodes.link import Failure
from .lease import Holding, Terms

if TYPE_CHECKING:
    from .engine import Engine

BLOCK = 1024
"""Fences reserved at once. They run ahead of the clock by as many microseconds, no more."""
SPARE = BLOCK // 4
"""With fewer left than that, the next block is reserved."""
KEEP_COUNT = 8192
KEEP_TIME = 0.1
"""So often, and for so many seconds, may a process hand a name on before others get a chance."""


class Ask(Enum):
    """The right to ask the nodes."""

    NOW = "now"
    YIELDING = "yielding"
    """Others are let ahead first: the process kept the name for long enough."""


Turn = Holding | Ask
"""What the one next in line is given: a live holding to take over, or the right to ask."""
Place = asyncio.Future[Turn | None]
"""Of one who waits; None when its time was up before its turn came."""


class Line:
    """Those of this process who want one name: some hold, one asks, the rest wait in order."""

    __slots__ = (
        "_queue",
        "asking",
        "contended",
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
        self.contended = False
        """Whether others had it when this process last got it from the nodes."""
        self.yielded: float | None = None
        """When this process last had used the name up and let others ahead."""
        self._queue: OrderedDict[Place, Terms] = OrderedDict()

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

    def join(self, terms: Terms) -> Place:
        """A place at the end of the line: await it for the turn."""
        place: Place = asyncio.get_running_loop().create_future()
        self._queue[place] = terms
        return place

    def leave(self, place: Place) -> Turn | None:
        """It is awaited no more. → the turn that it had been given already: pass that on."""
        self._queue.pop(place, None)
        return place.result() if place.done() and not place.cancelled() else None

    def give_up(self, place: Place) -> None:
        """Its time is up: wake it with nothing, unless it has just got its turn."""
        if self._queue.pop(place, None) is not None and not place.done():
            place.set_result(None)

    def used_up(self, now: float) -> bool:
        """Whether this process kept the name for so long that others come first."""
        return self.handed >= KEEP_COUNT or now - self.since >= KEEP_TIME

    def hand_on(self, holding: Holding, given_up: Terms, now: float) -> bool:
        """Give the holding to the next in line, if it is good, that is fair, and as asked for."""
        # A bound on renewal belongs to one lease: its holding is not passed on.
        if not given_up.handoff or given_up.max_hold is not None:
            return False
        if now >= holding.valid_until or self.used_up(now):
            return False
        queue = self._queue
        while queue:
            place, terms = queue.popitem(last=False)
            if place.done():  # it is being cancelled and only not gone yet
                continue
            if terms.ttl == holding.ttl and (terms is given_up or alike(terms, given_up)):
                place.set_result(holding)
                self.handed += 1
                return True
            queue[place] = terms
            queue.move_to_end(place, last=False)
            return False
        return False

    def let_ask(self, turn: Ask) -> bool:
        """Let the next in line ask. → False when nobody waits."""
        while self._queue:
            place, _ = self._queue.popitem(last=False)
            if not place.done():
                place.set_result(turn)
                return True
        return False


def alike(terms: Terms, given_up: Terms) -> bool:
    """Whether `terms` ask for what `given_up` was, except for the ttl.

    That is compared with the holding's, which `extend` may have changed. `given_up` has no
    max_hold, or nothing would be handed on.
    """
    return (
        terms.handoff == given_up.handoff
        and terms.renew == given_up.renew
        and terms.max_hold is None
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
            holding.next_fence, holding.last_fence = first, self._m
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
        if self._holding.reserving is self._done:
            self._holding.reserving = None


def reserve_ahead(engine: Engine, holding: Holding, terms: Terms) -> None:
    """Have fences ready before they are needed."""
    left = holding.last_fence - holding.next_fence
    if terms.handoff is True and left < SPARE and holding.reserving is None:
        Reservation(engine, holding, BLOCK)


def reserve_now(engine: Engine, holding: Holding, terms: Terms) -> asyncio.Future[None] | None:
    """Have a fence for the next lease on `holding`. → what to wait for, unless there is one."""
    if terms.handoff == "strict":
        # One that was left, or is under way, was asked for before this hand-over: too old.
        holding.last_fence = 0
        Reservation(engine, holding, 1)
    elif holding.next_fence > holding.last_fence and holding.reserving is None:
        Reservation(engine, holding, BLOCK)
    return holding.reserving if holding.next_fence > holding.last_fence else None
