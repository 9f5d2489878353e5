"""How long to wait before the next attempt. Random numbers come in as arguments, in [0, 1).

A push from a server ends most waits early; these bounds hold when no push comes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

FIRST_PAUSE = 0.005
"""Seconds of the first pause without pushes: about ten round trips on a local network."""
LONGEST_PAUSE = 0.25
"""Maximum seconds of a pause without pushes: four requests a second cost next to nothing."""
BLIND = 2.0
"""Maximum seconds of a pause with pushes, in case a push is lost or a key has no ttl."""
EXPIRY_GRACE = 0.002
"""Seconds added to a PTTL: servers delete a key up to 1 ms late, and PTTL is rounded down."""
EXPIRY_SPREAD = 0.02
"""Seconds over which the waiters of an expired lease spread their next requests."""
PUSH_SPREAD = 0.001
"""Seconds over which the rivals without tickets that one release has woken do so."""


def free_in(remaining: Sequence[float | None], needed: int) -> float | None:
    """Return the seconds until `needed` refusing nodes are free without renewal, None if unknown.

    `remaining` has the seconds that the holder has left on each refusing node; `needed` is above 0.
    """
    known = sorted(one for one in remaining if one is not None)
    return known[needed - 1] if needed <= len(known) else None


def until_expiry(remaining: float | None, random: float) -> float:
    """Return the seconds to wait for a push when the holder has `remaining` seconds left."""
    if remaining is None:
        return BLIND * (0.75 + random / 4)
    return max(remaining, 0.0) + EXPIRY_GRACE + EXPIRY_SPREAD * random


def without_push(attempt: int, remaining: float | None, random: float, *, rank: int = 0) -> float:
    """Return the pause in seconds after refusal number `attempt` (from 0) where no push comes.

    `rank` is the number of waiters that go first: the more there are, the longer it is.
    """
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 1.6 ** min(attempt, 16)) * (0.5 + random) * (1 + rank)
    if remaining is None:
        return pause
    return min(pause, max(remaining, 0.0) + EXPIRY_GRACE + FIRST_PAUSE * random)


# ---- When a name that others hold is likely to be free, from what this process has seen of it ----
# The holder's ttl says little, because a live holder renews its lease. What counts is how long
# holds of the name last, how long the present one has lasted, and how many waiters go first. A
# process that never held the name knows this from the replies that refused it.


SHORTEST: Final = 0.01
"""Minimum seconds that a hold is taken to last."""
UNKNOWN: Final = 1.0
"""Seconds that a hold is taken to last as long as no hold of the name has been seen."""
WEIGHT: Final = 0.25
"""Share of the newest hold in the mean: about the last seven holds count."""
MANY: Final = "many"
"""Stands for holders of which there may be several at a time."""
MOST_REMEMBERED: Final = 1000


class Pace:
    """What is known of the holds of one name."""

    __slots__ = ("_holder", "_looked", "_mean", "_moved", "_since", "_ticket", "rank")

    def __init__(self) -> None:
        self.rank: int = 0
        """Number of waiters that went first at the last look."""
        self._mean = 0.0
        """Mean duration of recent holds; 0 if none is known."""
        self._holder: object = None
        """The holder at the last look; MANY if the name may have several."""
        self._since = self._looked = 0.0
        """When that hold began, as far as is known, and the last look."""
        self._ticket = ""
        self._moved = 0.0
        """When the ticket was first seen at its present rank."""

    def held(self, seconds: float) -> None:
        """Note that a hold of this process has ended after `seconds`."""
        if self._holder is MANY:
            self._holder = None  # we had our turn
        self._learn(seconds)

    def _learn(self, seconds: float) -> None:
        self._mean += (seconds - self._mean) * (WEIGHT if self._mean else 1.0)

    def seen(self, holder: object, since: float, now: float) -> None:
        """Note that `holder` alone holds the name, probably since `since`."""
        if holder != self._holder:
            if self._holder not in (None, MANY):  # its hold has ended since the last look
                since = max(since, self._looked)
                self._mean = min(self._mean, now - self._since)
            self._holder, self._since = holder, since
        self._looked = now

    def seen_many(self, now: float) -> None:
        """Note that all permits are taken, or that others share the name.

        Which holder a look finds says nothing here. What counts is the time for which each look has
        found the name taken. It begins anew after a pause of more than twice as long, or of more
        than UNKNOWN if that is longer: `retry_after` is usually shorter.
        """
        pause = now - self._looked
        if self._holder is not MANY or pause > max(UNKNOWN, 2 * (self._looked - self._since)):
            self._holder, self._since = MANY, now
        self._looked = now

    def ranked(self, ticket: str, rank: int, now: float) -> None:
        """Note that `rank` waiters go before `ticket`: each rank that it gains is a hold's end."""
        if ticket == self._ticket and rank < self.rank:
            self._learn((now - self._moved) / (self.rank - rank))
        if ticket != self._ticket or rank != self.rank:
            self._ticket, self.rank, self._moved = ticket, rank, now

    def pause(
        self, ahead: int, random: float, *, permits: int = 1, remaining: float | None = None
    ) -> float:
        """Return the seconds after which to ask again if `ahead` others go first.

        What has lasted for some time is expected to go on for as long again. So repeated calls
        back off by themselves, up to the `remaining` seconds of the holder's ttl.
        """
        lasted, turns = self._looked - self._since, ahead + 1
        if self._holder is None:
            expected = (self._mean or UNKNOWN) * turns / permits
        elif self._holder is MANY:
            expected = max(self._mean * turns / permits, lasted, SHORTEST)
        else:
            expected = max(self._mean, lasted, SHORTEST) * turns
        if remaining is not None:
            expected = min(expected, max(remaining, 0.0))
        return expected * (1.0 - random / 2)


class Paces(dict[Hashable, Pace]):
    """The paces of the names that were refused lately."""

    def of(self, name: Hashable) -> Pace:
        """Return the pace of a name, which is remembered from now on."""
        pace = self.pop(name, None) or Pace()
        self[name] = pace  # names are in order of use: drop the one that was unused for longest
        if len(self) > MOST_REMEMBERED:
            del self[next(iter(self))]
        return pace

    def held(self, name: Hashable, seconds: float) -> None:
        """Note that a hold of a name has ended, if the name is remembered."""
        pace = self.get(name)
        if pace is not None:
            pace.held(seconds)


def age(left: float | None, ttl: float) -> float:
    """Return how long a lease with `left` seconds has been held at least, if its ttl is `ttl`.

    A lease that is renewed has about two thirds of its ttl left at least. With less, its ttl is
    another one, and nothing is known.
    """
    old = 0.0 if left is None else max(0.0, ttl - left)
    return old if old < ttl / 2 else 0.0
