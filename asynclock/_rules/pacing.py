"""How long to wait before the next attempt. Random numbers come in as arguments, in [0, 1).

A push from a server ends most waits early; these bounds hold when no push comes.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def free_in(remaining: Sequence[float | None], needed: int) -> float | None:
    """Return the seconds until `needed` refusing nodes are free without renewal, None if unknown.

    `remaining` has the seconds that the holder has left on each refusing node.
    """
    known = sorted(one for one in remaining if one is not None)
    return known[needed - 1] if 0 < needed <= len(known) else None


def until_expiry(remaining: float | None, random: float) -> float:
    """Return the seconds to wait for a push when the holder has `remaining` seconds left."""
    if remaining is None:
        return BLIND * (0.75 + random / 4)
    return max(remaining, 0.0) + EXPIRY_GRACE + EXPIRY_SPREAD * random


IN_VAIN = 8
"""Number of calls in vain, more than refreshes, after which a waiter no longer asks for pushes: a
server whose table of tracked keys is full sends them for keys that have not changed."""


def without_push(attempt: int, remaining: float | None, random: float, *, rank: int = 0) -> float:
    """Return the pause in seconds after refusal number `attempt` (from 0) where no push comes.

    `rank` is the number of waiters that go first: the more there are, the longer it is.
    """
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 1.6 ** min(attempt, 16)) * (0.5 + random) * (1 + rank)
    if remaining is None:
        return pause
    return min(pause, max(remaining, 0.0) + EXPIRY_GRACE + FIRST_PAUSE * random)


class Spread:
    """The width in seconds over which rivals for one quorum draw their next attempt.

    A split vote doubles the width and a win shortens it, as in Ethernet and Raft. The width settles
    near (number of rivals) x (duration of an attempt), though neither number is known.
    """

    __slots__ = ("width",)
    NARROW = 0.001
    WIDE = 0.2

    def __init__(self) -> None:
        self.width: float = self.NARROW

    def split(self) -> None:
        """Double the width, up to WIDE, because a vote was split."""
        self.width = min(self.WIDE, self.width * 2)

    def won(self) -> None:
        """Narrow the width by a fifth, down to NARROW, because an attempt won."""
        if self.width > self.NARROW:
            self.width = max(self.NARROW, self.width * 0.8)
