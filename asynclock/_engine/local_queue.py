"""The local queue of one name: of a process's waiters, only the first one asks the nodes.

A released grant goes to the next waiter if that is fair and safe: the grant is still valid, the
options are the same, and the process has not used up the time that it may keep a name. The next
holder gets a fence of its own (see fences.py).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from .options import LeaseOptions
from .spec import QueueKey

if TYPE_CHECKING:
    from .attempt import Attempt

KEEP_TIME = 0.1
"""Seconds that a process may keep a name while it knows of no other process that waits for it. When
they are over, it asks the nodes again, and finds out."""


class Proceed(Enum):
    """The right to ask the nodes."""

    NOW = "now"


class Passable(Protocol):
    """A grant, as far as this queue needs it."""

    @property
    def ttl(self) -> float:
        """Seconds the grant lives without renewal."""

    @property
    def valid_until(self) -> float:
        """When the grant ends if it is not renewed again."""

    @property
    def since(self) -> float:
        """When the nodes gave this process the name in the order of all who waited."""

    @property
    def contended(self) -> bool:
        """Whether other processes waited then."""


G = TypeVar("G", bound=Passable)
Waiter = asyncio.Future[G | Proceed | None]
"""One waiter in the queue. Its result is a live grant to take over, or the right to ask the nodes,
or None if its timeout ended before its turn came."""


class Search(Protocol):
    """The task of this process that asks the nodes, as far as this queue needs it."""

    @property
    def unanswered(self) -> Attempt | None:
        """Its last attempt, if too few nodes voted."""


_NOBODY: OrderedDict[Any, tuple[LeaseOptions, float]] = OrderedDict()
"""An empty queue that all names without waiters share; nothing may be put into it."""


class LocalQueue(Generic[G]):
    """The tasks of this process that want one name: some hold, one asks, the rest wait in order."""

    __slots__ = (
        "asking",
        "grants",
        "kept",
        "key",
        "name",
        "permits",
        "search",
        "turn",
        "waiters",
    )

    def __init__(self, name: str, key: QueueKey, permits: int, turn: float) -> None:
        self.name: str = name
        self.key: QueueKey = key
        self.permits: int = permits
        """Maximum number of tasks that may hold at once; the same for all with this key."""
        self.turn: float = turn
        """Seconds that this process may keep the name while other processes wait."""
        self.grants: list[G] = []
        self.asking: int = 0
        """Number of tasks that are asking the nodes or have just been told to."""
        self.kept: G | None = None
        """The grant released last, while this process may take the name again first."""
        self.search: Search | None = None
        """The last task that asked the nodes."""
        self.waiters: OrderedDict[Waiter[G], tuple[LeaseOptions, float]] = _NOBODY
        """For each waiter: its options, and when its call began."""

    @property
    def full(self) -> bool:
        """Whether this process holds all permits of the name."""
        return len(self.grants) >= self.permits

    def join(self, options: LeaseOptions, since: float) -> Waiter[G]:
        """Add a waiter at the end of the queue; the returned future gives it its turn.

        `since`: when its call began.
        """
        waiter: Waiter[G] = asyncio.get_running_loop().create_future()
        if self.waiters is _NOBODY:
            self.waiters = OrderedDict()
        self.waiters[waiter] = options, since
        return waiter

    def leave(self, waiter: Waiter[G]) -> G | Proceed | None:
        """Remove a waiter. Return the turn that it has already got: the caller must pass it on."""
        self.waiters.pop(waiter, None)
        return waiter.result() if waiter.done() and not waiter.cancelled() else None

    def give_up(self, waiter: Waiter[G]) -> None:
        """End a waiter's wait without a turn, unless it has just got one."""
        if self.waiters.pop(waiter, None) is not None and not waiter.done():
            waiter.set_result(None)

    def used_up(self, grant: G, now: float) -> bool:
        """Whether this process has had the name for so long that others must go first."""
        return now - grant.since >= (self.turn if grant.contended else KEEP_TIME)

    def free(self, grant: G) -> None:
        """Note that this process holds `grant` no longer; a second call does nothing."""
        if grant in self.grants:
            self.grants.remove(grant)

    def keep(self, grant: G, now: float) -> bool:
        """Whether to keep the freed name for a moment, in case this process asks for it again.

        There is no need without waiters in other processes: nobody else would get the name.
        """
        if not grant.contended or self.permits > 1 or self.used_up(grant, now):
            return False
        self.kept = grant
        return True

    def take_kept(self, now: float) -> float | None:
        """Stop keeping the name. Return when the turn began; None if the turn is over."""
        kept, self.kept = self.kept, None
        return kept.since if kept is not None and now - kept.since < self.turn else None

    def hand_on(self, grant: G, given_up: LeaseOptions, now: float) -> bool:
        """Give the grant to the next waiter; return False if nobody may take it over.

        The grant must be valid, the process's turn not used up, and the waiter's options alike.
        """
        # `max_hold` limits what one lease may hold, so its grant is not passed on.
        if not given_up.handoff or given_up.max_hold is not None:
            return False
        if now >= grant.valid_until or self.used_up(grant, now):
            return False
        queue = self.waiters
        while queue:
            waiter, entry = queue.popitem(last=False)
            if waiter.done():  # it was cancelled, but its task has not run since
                continue
            options = entry[0]
            if options.ttl == grant.ttl and (options is given_up or alike(options, given_up)):
                waiter.set_result(grant)
                return True
            queue[waiter] = entry
            queue.move_to_end(waiter, last=False)
            return False
        return False

    def let_ask(self, turn: Proceed) -> bool:
        """Let the next waiter ask the nodes; return False if nobody waits."""
        while self.waiters:
            waiter, _ = self.waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(turn)
                return True
        return False


def alike(options: LeaseOptions, given_up: LeaseOptions) -> bool:
    """Return whether `options` equal `given_up`, apart from the ttl.

    The caller compares the ttl with the grant's, which `extend` may have changed. `given_up` has
    no max_hold, because a lease with max_hold is not handed over.
    """
    return (
        options.handoff == given_up.handoff
        and options.renew == given_up.renew
        and options.max_hold is None
    )
