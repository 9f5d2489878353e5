"""Computes for how long nodes keep the fence counter of a name that nobody uses.

A counter may expire once the node's clock shows its value plus the retention. From then on the node
claims at least its clock minus FLOOR_BEHIND for the next lease. That is above the expired counter,
unless the clock was set back by the rest of the retention: so an expired counter is as good as a
kept one (tests/model: C1 to C3; N1 to N3 show what is not enough).
"""

from __future__ import annotations

from .. import _settings
from ..errors import ConfigurationError
from .validity import quarantine

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


def checked(value: object, max_ttl: float) -> float:
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
