"""Computes when a lease ends and when to renew it. Moments are seconds on the boot-time clock.

The margin is Redlock's: 1 % of the ttl for clocks that run at different rates, and 2 ms because
Redis expires keys with a precision of 1 ms (https://redis.io/docs/latest/develop/clients/patterns/
distributed-locks/). Validity counts from before the first byte was sent, never from a reply.
"""

from __future__ import annotations

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
