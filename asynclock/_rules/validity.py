"""Computes when a lease ends and when to renew it. Moments are seconds on the boot-time clock.

The margin is Redlock's: 1 % of the ttl for clocks that run at different rates, and 2 ms because
Redis expires keys with a precision of 1 ms (https://redis.io/docs/latest/develop/clients/patterns/
distributed-locks/). Validity counts from before the first byte was sent, never from a reply.
"""

from __future__ import annotations

from .. import _settings
from ..errors import ConfigurationError

DRIFT = 0.01
GRAIN = 0.002
OUTAGE = 3.0


def valid_until(sent: float, ttl: float) -> float:
    """Return the moment at which a lease that was requested at `sent` counts as lost."""
    return sent + ttl - ttl * DRIFT - GRAIN


def ttl_until(sent: float, moment: float) -> float:
    """Return the shortest ttl with which a lease that is requested at `sent` lasts to `moment`."""
    return (moment - sent + 2 * GRAIN) / (1 - DRIFT)


def renew_at(sent: float, ttl: float) -> float:
    """Return when to renew: after a third of the ttl, so that two rounds may fail before a loss."""
    return sent + ttl / 3


def retry_at(now: float, ttl: float) -> float:
    """Return when to repeat a renewal that did not reach a quorum."""
    return now + max(0.02, ttl / 20)


def quarantine(max_ttl: float) -> float:
    """Return the seconds for which a node that may have forgotten grants must not vote.

    After that, every grant that it may have forgotten has expired.
    """
    return max_ttl * (1 + DRIFT) + GRAIN


def longest_outage(max_ttl: float) -> float:
    """Return the seconds for which a call without a timeout tolerates that too few nodes vote."""
    return quarantine(max_ttl) + OUTAGE


# ---- Computes for how long nodes keep the fence counter of a name that nobody uses ---------------
# A counter may expire once the node's clock shows its value plus the retention. From then on the
# node claims at least its clock minus FLOOR_BEHIND for the next lease. That is above the expired
# counter, unless the clock was set back by the rest of the retention: so an expired counter is as
# good as a kept one (tests/model: C1 to C3; N1 to N3 show what is not enough).


FLOOR_BEHIND = 60.0
"""Seconds that a floor may be behind a node's clock; as in clock.lua."""
LARGEST_STEP = 1000.0
"""Maximum seconds that clocks are set back; a daemon of NTP makes no larger step by itself
(PANICT in RFC 5905)."""


def least_retention(max_ttl: float) -> float:
    """Return the shortest retention: clocks are never set back.

    A lease without renewal still needs its counter for hand-overs.
    """
    return FLOOR_BEHIND + quarantine(max_ttl)


def fence_retention(max_ttl: float) -> float:
    """Return the default retention: clocks are set back by at most LARGEST_STEP."""
    return least_retention(max_ttl) + LARGEST_STEP


def checked_retention(value: object, max_ttl: float) -> float:
    """Return the setting in seconds; None stands for the default. Raises ConfigurationError."""
    if value is None:
        return fence_retention(max_ttl)
    given, least = _settings.seconds(value, "fence_retention"), least_retention(max_ttl)
    if given < least:
        raise ConfigurationError(
            f"fence_retention={given:g} must be at least {least:g} with max_ttl={max_ttl:g}: "
            "a counter must outlive its lease, and the error of the clock that replaces it"
        )
    return given
