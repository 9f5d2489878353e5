"""Decides what a call does after an attempt that was not won. Nothing here sends or waits.

`Seeking.after` takes what the attempt has shown and returns the next step. `Seeking.waited` does
the same after a pause. Moments are seconds of our own clock; random numbers are in [0, 1).

A call that doesn't wait, or whose time is over, gives up only if somebody else has the name. That
is so if a quorum of the nodes names one owner, or if a node names an owner that it named STEADY
node timeouts ago: each attempt has an owner of its own, and gives back its grants as soon as it is
lost. Otherwise rivals have split the vote, and the call settles it with a ticket. From then on the
call doesn't give up because another ticket goes first: the waiter of that one may give up for ours
at the same moment (docs/decisions/0031; tests/model: B17).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from . import pacing

LONGEST_ATTEMPT = 3
"""Maximum number of node timeouts that an attempt takes: one to connect or to resend a script, one
for the request, and one to write the fence back."""
MOST_HOPS = 5
"""Maximum number of attempts at slots that a call which waits adds to the first one before it
pauses: enough for a semaphore to look at every slot and then take a free one. If a quarter of the
permits is more, that counts: rivals meet at many of the slots that seem to be free."""
MOST_IN_VAIN = 8
"""Number of pushes in vain after which a call no longer asks for pushes: a server whose table of
tracked keys is full sends them for keys that have not changed."""
SETTLING = 4.0
"""Maximum number of node timeouts from a call until it gives up, though nobody has the name."""
EARLY = 0.002
"""Seconds by which a timer may cut an attempt before its time: uvloop's come up to 0.001 early."""
STEADY = 1.5
"""Number of node timeouts after which an owner that a node still names has the name: a lost attempt
takes one, and its release less than half of one if latencies are at most a quarter of it."""


class Step(Enum):
    """What a call does next."""

    AGAIN = "ask again at once"
    ELSEWHERE = "ask for the slot that seems to be free"
    SETTLE = "ask with a ticket, to which rivals give way"
    WAIT = "pause until the name may have been released, or until nodes may answer"
    TAKEN = "give up: somebody else has the name"
    OUTAGE = "give up: too few nodes answer"
    HOPELESS = "give up: no quorum will ever grant the name"
    OUT_OF_TIME = "give up: the caller's time was over before the nodes could answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an attempt that was not won has shown."""

    started: float
    """When the nodes were asked."""
    outage: bool = False
    """Whether too few nodes voted. If so, the next four count, otherwise those after them."""
    cut: bool = False
    """Whether the caller's time ended the attempt."""
    hopeless: bool = False
    """Whether no quorum is left without the nodes that reject the request for good."""
    barred: float = 0.0
    """Seconds until a quorum may vote; 0 if it may now."""
    discarded: bool = False
    """Whether a guard discarded a vote of a node that may vote again by now."""
    owners: Sequence[str] = ()
    """For each node that refused because the name is taken: the owner that it named."""
    granted: bool = False
    """Whether a node granted."""
    reserved: bool = False
    """Whether a node has left the name to a waiter."""
    slot: bool = False
    """Whether another slot seems to be free."""
    unsettled: bool = False
    """Whether a node has another number of the caller's ticket."""
    remaining: float | None = None
    """Seconds until the name is free if nobody renews; None if unknown."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Seeking:
    """What one call knows while it asks again and again, and what it does next."""

    began: float
    """When the call was made."""
    deadline: float | None
    """When the caller's time is over; None for no limit."""
    once: bool
    """Whether the call takes only what is free."""
    queues: bool
    """Whether the nodes keep a place for the call if they refuse it."""
    settles: bool
    """Whether the call takes a ticket if rivals have split the vote."""
    permits: int
    """Number of slots of the name."""
    node_timeout: float
    ticket_ttl: float
    """Seconds for which the nodes keep a place."""
    patience: float
    """Seconds after which a call without a deadline gives up in an outage."""
    owners: Owners
    lost: bool = field(default=False, init=False)
    """Whether an attempt was lost to others."""
    settled: int = 0
    """Number of attempts with a ticket that neither won nor met a holder."""
    pauses: int = 0
    """Number of pauses so far."""
    _until: float = field(init=False)
    """The latest moment for an answer, unless a split vote is being settled."""
    _settled_by: float = field(init=False)
    """The same after a split vote, or after a slot was reported as free."""
    _hops: int = field(default=0, init=False)
    """Number of hops to another slot since the last pause."""
    _most_hops: int = field(init=False)
    _in_vain: int = field(default=0, init=False)
    """Number of pushes in vain; each pause without a push takes one away."""
    _outage_since: float | None = field(default=None, init=False)
    """When the first of the attempts in a row began for which too few nodes voted."""

    def __post_init__(self) -> None:
        self._most_hops = max(MOST_HOPS, self.permits // 4)
        ends = self.began if self.deadline is None and self.once else self.deadline
        self._until = inf if ends is None else answer_by(ends, self.began, self.node_timeout)
        self._settled_by = max(self._until, self.began + SETTLING * self.node_timeout)

    def late(self, now: float) -> bool:
        """Return whether the caller's time is over."""
        return self.deadline is not None and now >= self.deadline

    def limit(self, lost: Seen | None, now: float) -> float | None:
        """Return the seconds for the next attempt, at most 0 if time is over; None for no limit.

        lost: what the last attempt that was lost to others has shown by now; None if there is none.

        A call that waits without a deadline has none. Nor has the first attempt of one that takes
        only what is free: the links know better whether our loop was busy.
        """
        if self.deadline is None and not (self.once and lost):
            return None
        settling = lost is not None and not self._somebody_has_it(lost, now)
        until = self._settled_by if settling or self.settled or self._hops else self._until
        return limit(until, now, self.node_timeout)

    def after(self, seen: Seen, now: float) -> Step:
        """Return the step that follows an attempt."""
        return self._without_quorum(seen, now) if seen.outage else self._refused(seen, now)

    def waited(self, seen: Seen, now: float) -> Step:
        """Return the step that follows a pause; late replies may have added to what was `seen`."""
        if not self.late(now):
            return Step.AGAIN
        if seen.outage:
            return Step.OUTAGE
        over = now >= self._settled_by or self._somebody_has_it(seen, now)
        return Step.TAKEN if over else Step.AGAIN

    def _refused(self, seen: Seen, now: float) -> Step:
        self._outage_since, self.lost = None, True
        if not self.settles:
            return Step.TAKEN
        ends = self.once or self.late(now)
        if ends or not self.queues:
            taken = self._somebody_has_it(seen, now)
            in_time = now < self._settled_by
            if in_time and not taken:
                self.settled += 1
                return Step.SETTLE
            # Each slot that turns out to be taken shows that rivals have got one more permit.
            if in_time and seen.slot and self._hops < self.permits:
                self._hops += 1
                return Step.ELSEWHERE
            if ends:
                return Step.TAKEN
            self.settled = 0
            self.owners.forget()
        if seen.slot and self._hops < self._most_hops:
            self._hops += 1
            held = self._hops < self._most_hops and self._somebody_has_it(seen, now)
            if held or self._hops == 1 or self.settled:
                return Step.ELSEWHERE
            # Rivals that hop together split each vote, so the call needs a place among them. Those
            # in the queue get the slots one after the other: no call waits there without need.
            self.settled = 1
            return Step.SETTLE
        return Step.AGAIN if seen.unsettled and self.queues else Step.WAIT

    def _without_quorum(self, seen: Seen, now: float) -> Step:
        timeout, took = self.node_timeout, now - seen.started
        late = self.late(now + EARLY if seen.cut else now)
        if late and took < timeout:  # the nodes had less than their time: this may be no outage
            if self.lost:
                return Step.TAKEN
            if seen.cut and self._outage_since is None and took < 0.9 * timeout:
                return Step.OUT_OF_TIME
        if seen.hopeless:
            return Step.HOPELESS
        if self._outage_since is None:
            self._outage_since = seen.started
        if self.once and self.lost and seen.cut:
            return Step.TAKEN
        waited_out = self.deadline is None and now - self._outage_since >= self.patience
        # Don't make the caller wait for votes that can't come in time.
        too_slow = now + seen.barred > self._until
        at_once = self.once and not seen.discarded
        return Step.OUTAGE if at_once or waited_out or too_slow or late else Step.WAIT

    def _somebody_has_it(self, seen: Seen, now: float) -> bool:
        # Until the call settles the vote itself, also true if a node has left the name to a waiter
        # and none has granted to us: that waiter will settle the vote. Of several permits it takes
        # only one.
        if seen.reserved and not self.settled and self.permits == 1 and not seen.granted:
            return True
        return self.owners.has_one(seen.owners, seen.started, now)

    # pauses

    @property
    def longest(self) -> float:
        """Maximum seconds of a pause: the nodes must hear of a ticket before it expires."""
        return 0.4 * self.ticket_ttl

    @property
    def expects_pushes(self) -> bool:
        """Whether pushes are worth asking for: not too many have come in vain."""
        return self._in_vain < MOST_IN_VAIN

    def pushed(self, *, called: bool) -> None:
        """Note that a push has ended a pause; `called`: the push said that it is our turn."""
        self._in_vain += called  # if the next attempt wins, nobody looks at this number again

    def unpushed(self) -> None:
        """Note that a pause has ended without a push."""
        self._in_vain = max(0, self._in_vain - 1)

    def pause(self, seen: Seen, now: float, random: float, *, rank: int, listens: bool) -> float:
        """Return the seconds of the pause after this attempt, and count the pause.

        `rank` waiters go first. `listens`: a push ends the pause if the name is released.
        """
        remaining = None if seen.outage else seen.remaining
        if listens:
            seconds = pacing.until_expiry(remaining, random)
        else:
            seconds = pacing.without_push(self.pauses, remaining, random, rank=rank)
        self.pauses += 1
        self._hops = 0
        seconds = min(seconds, self.longest * (0.75 + random / 4))
        end = self._until if self.deadline is None else self.deadline
        return min(seconds, max(0.0, end - now))

    def before_settling(self, now: float, random: float) -> float:
        """Return the seconds to pause before another attempt with a ticket that the nodes know.

        It wins only once rivals have withdrawn.
        """
        seconds = pacing.without_push(self.settled - 1, None, random)
        return min(seconds, self.node_timeout / 4, self._settled_by - now)


def answer_by(deadline: float, began: float, node_timeout: float) -> float:
    """Return the latest moment for an answer: each call gives the nodes time for one."""
    return max(deadline, began + node_timeout)


def limit(until: float, now: float, node_timeout: float) -> float | None:
    """Return the seconds after which an attempt must end; None if it ends by itself sooner."""
    left = until - now
    return left if left < LONGEST_ATTEMPT * node_timeout else None


class Owners:
    """The owners that the nodes have named in one refusal after the other."""

    __slots__ = ("_quorum", "_seen", "_steady")

    def __init__(self, quorum: int, node_timeout: float) -> None:
        self._quorum = quorum
        self._steady = STEADY * node_timeout
        self._seen: dict[str, float] = {}
        """When each of the owners was first named."""

    def has_one(self, named: Sequence[str], asked: float, now: float) -> bool:
        """Note a refusal, and return whether one of the owners that nodes named has the name.

        The nodes were asked at `asked`, and have answered by `now`.
        """
        return any(
            named.count(owner) >= self._quorum
            or asked - self._seen.setdefault(owner, now) >= self._steady
            for owner in named
        )

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()
