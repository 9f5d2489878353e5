"""The local queue of one name: of a process's waiters, only the first one asks the nodes.

A released holding goes to the next waiter if that is fair and safe: the holding is still valid, the
options are the same, and the process has not used up the number of hand-overs or the time that it
may keep a name. The next holder gets its own fence from a block that was reserved at a quorum
(docs/fencing.md, "Handing a lease over"). By default many fences are reserved at once and ahead of
need, so that a hand-over needs no network; handoff="strict" reserves one at each hand-over.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING, Any

from .. import _clock
from .._nodes.replies import Failure
from .._nodes.script import GRANTED
from .lease import Holding, Terms
from .recipe import QueueKey

if TYPE_CHECKING:
    from .engine import Engine

BLOCK = 1024
"""Number of fences reserved at once; fences then run ahead of the clock by that many µs at most."""
SPARE = BLOCK // 4
"""Number of remaining fences below which the next block is reserved."""
KEEP_COUNT = 8192
KEEP_TIME = 0.1
"""Limits on consecutive local hand-overs (their number, and seconds) before other processes go
first."""


class Ask(Enum):
    """The right to ask the nodes."""

    NOW = "now"
    YIELDING = "yielding"
    """Pause first, so that other processes go first: this process used up its turn."""


Turn = Holding | Ask
"""What the next waiter gets: a live holding to take over, or the right to ask the nodes."""
Place = asyncio.Future[Turn | None]
"""One waiter in the queue; its result is None if its timeout ended before its turn came."""


class Line:
    """The tasks of this process that want one name: some hold, one asks, the rest wait in order."""

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

    def __init__(self, name: str, key: QueueKey, permits: int) -> None:
        self.name: str = name
        self.key: QueueKey = key
        self.permits: int = permits
        """Maximum number of tasks that may hold at once; the same for all with this key."""
        self.holdings: list[Holding] = []
        self.asking: int = 0
        """Number of tasks that are asking the nodes or have just been told to."""
        self.since: float = 0.0
        """When this process got the name after it last yielded to others; 0 before that."""
        self.handed: int = 0
        """Number of hand-overs since then."""
        self.contended: bool = False
        """Whether this process had to wait for others when it last got the name from the nodes."""
        self.yielded: float | None = None
        """When this process last used up its turn and yielded to others."""
        self._queue: OrderedDict[Place, Terms] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether this process holds all permits of the name."""
        return len(self.holdings) >= self.permits

    def drop(self, holding: Holding) -> None:
        """Remove `holding` from the holdings, if it is there."""
        if holding in self.holdings:
            self.holdings.remove(holding)

    def join(self, terms: Terms) -> Place:
        """Add a waiter at the end of the queue; the returned future gives it its turn."""
        place: Place = asyncio.get_running_loop().create_future()
        self._queue[place] = terms
        return place

    def leave(self, place: Place) -> Turn | None:
        """Remove a waiter. Return the turn that it has already got: the caller must pass it on."""
        self._queue.pop(place, None)
        return place.result() if place.done() and not place.cancelled() else None

    def give_up(self, place: Place) -> None:
        """End a waiter's wait without a turn, unless it has just got one."""
        if self._queue.pop(place, None) is not None and not place.done():
            place.set_result(None)

    def used_up(self, now: float) -> bool:
        """Whether this process has had the name for so long that others must go first."""
        return self.handed >= KEEP_COUNT or now - self.since >= KEEP_TIME

    def hand_on(self, holding: Holding, given_up: Terms, now: float) -> bool:
        """Give the holding to the next waiter; return False if nobody may take it over.

        The holding must be valid, the process's turn not used up, and the waiter's options alike.
        """
        # `max_hold` limits the holding of one lease, so that holding is not passed on.
        if not given_up.handoff or given_up.max_hold is not None:
            return False
        if now >= holding.valid_until or self.used_up(now):
            return False
        queue = self._queue
        while queue:
            place, terms = queue.popitem(last=False)
            if place.done():  # it was cancelled, but its task has not run since
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
        """Let the next waiter ask the nodes; return False if nobody waits."""
        while self._queue:
            place, _ = self._queue.popitem(last=False)
            if not place.done():
                place.set_result(turn)
                return True
        return False


def alike(terms: Terms, given_up: Terms) -> bool:
    """Return whether `terms` equal `given_up`, apart from the ttl.

    The caller compares the ttl with the holding's, which `extend` may have changed. `given_up` has
    no max_hold, because a lease with max_hold is not handed over.
    """
    return (
        terms.handoff == given_up.handoff
        and terms.renew == given_up.renew
        and terms.max_hold is None
    )


class Reservation:
    """Reserves fences: raises the counter at a quorum and claims all above its previous values."""

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

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        counts = self._nodes.counts(index, self._sent, self._holding.voters)
        if counts and type(reply) is not Failure and reply[0] == GRANTED:
            self._previous.append(reply[1])
            if len(self._previous) == self._quorum:
                self._claim(max(self._previous))
        self._left -= 1
        if not self._left:
            self._finish()

    def _claim(self, highest: int) -> None:
        # Don't start at "our fence + 1": a raise that reached other nodes may have given that fence
        # to another owner (tests/model catches the variant that starts there). In strict mode claim
        # only the last number: lower ones may be older than this hand-over.
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
    """Reserve a block of fences, if few are left, before a hand-over needs them."""
    left = holding.last_fence - holding.next_fence
    if terms.handoff is True and left < SPARE and holding.reserving is None:
        Reservation(engine, holding, BLOCK)


def reserve_now(engine: Engine, holding: Holding, terms: Terms) -> asyncio.Future[None] | None:
    """Reserve a fence for the next lease on `holding`, if needed; return the future to await."""
    if terms.handoff == "strict":
        # Fences that are left or being reserved were requested before this hand-over: too old.
        holding.last_fence = 0
        Reservation(engine, holding, 1)
    elif holding.next_fence > holding.last_fence and holding.reserving is None:
        Reservation(engine, holding, BLOCK)
    return holding.reserving if holding.next_fence > holding.last_fence else None
