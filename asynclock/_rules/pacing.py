"""How long to wait before the next attempt. Random numbers come in as arguments, in [0, 1).

A push from a server ends most waits early; these are the bounds that hold without one.
"""

from __future__ import annotations

from collections.abc import Sequence

FIRST = 0.005
"""The first pause without pushes, about ten round trips on a local network."""
LONGEST = 0.25
"""The longest pause without pushes: four questions a second cost nobody anything."""
BLIND = 2.0
"""The longest pause with pushes: for the push that was lost and a key without a ttl."""
GRACE = 0.002
"""A server deletes an expired key up to a millisecond late, and says PTTL rounded down."""
COURTESY = 0.008
"""A process that has just used up its time with a name waits so long after a release."""
FADING = 0.1
"""Half as long after so many seconds, a third after twice as many. Four that take turns of a tenth
of a second ask 2, 2.7, 4 and 8 ms after a release."""
EXPIRY_SPREAD = 0.02
"""Waiters of an expired lease come back over this time, not in the same instant."""


def free_in(remaining: Sequence[float | None], needed: int) -> float | None:
    """Seconds until `needed` of the refusing nodes are free, if nobody renews; None if unknown."""
    known = sorted(one for one in remaining if one is not None)
    return known[needed - 1] if 0 < needed <= len(known) else None


def until_expiry(remaining: float | None, random: float) -> float:
    """How long to rely on a push when the holder has `remaining` seconds left."""
    if remaining is None:
        return BLIND * (0.75 + random / 4)
    return max(remaining, 0.0) + GRACE + EXPIRY_SPREAD * random


def without_push(attempt: int, remaining: float | None, random: float) -> float:
    """The pause after the `attempt`-th refusal (from 0) where no push can be relied on."""
    pause = min(LONGEST, FIRST * 1.6 ** min(attempt, 16)) * (0.5 + random)
    return pause if remaining is None else min(pause, max(remaining, 0.0) + GRACE + FIRST * random)


def courtesy(since: float) -> float:
    """How long a process that let others ahead `since` seconds ago lets them go first again.

    A server wakes those who wait in an order of its own, always the same: without this the first
    two would take turns, and the others starve. Whoever had the name longest ago asks first.
    """
    return COURTESY * FADING / (FADING + since)


class Spread:
    """The width in seconds over which rivals for one quorum draw their next attempt.

    Doubled by a split vote and shortened by a win, as Ethernet and Raft do it: it settles near
    (number of rivals) x (duration of an attempt) without knowing either.
    """

    __slots__ = ("width",)
    NARROW = 0.001
    WIDE = 0.2

    def __init__(self) -> None:
        self.width = self.NARROW

    def split(self) -> None:
        """A vote was split: draw from twice the width."""
        self.width = min(self.WIDE, self.width * 2)

    def won(self) -> None:
        """An attempt succeeded: a little narrower."""
        self.width = max(self.NARROW, self.width * 0.8)
