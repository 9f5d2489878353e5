"""When a lease ends, and when to renew it. Moments are seconds on the boot-time clock.

The margin is Redlock's: 1 % of the ttl for clocks that run at different rates, and 2 ms because
Redis expires with a precision of 1 ms on either side (https://redis.io/docs/latest/develop/
clients/patterns/distributed-locks/). Validity counts from before the first byte was sent, never
from an answer.
"""

from __future__ import annotations

DRIFT = 0.01
GRAIN = 0.002


def valid_until(sent: float, ttl: float) -> float:
    """The moment from which a lease asked for at `sent` must be taken for lost."""
    return sent + ttl - ttl * DRIFT - GRAIN


def renew_at(sent: float, ttl: float) -> float:
    """When to renew: a third of the ttl in, so that two rounds may fail before it is lost."""
    return sent + ttl / 3


def retry_at(now: float, ttl: float) -> float:
    """When to repeat a renewal that did not reach a quorum."""
    return now + max(0.02, ttl / 20)


def quarantine(max_ttl: float) -> float:
    """How long a node that may have forgotten grants must not vote: until each has expired."""
    return max_ttl * (1 + DRIFT) + GRAIN
