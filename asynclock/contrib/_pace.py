"""Computes the Retry-After for a client that found a lock held."""

from __future__ import annotations

from .. import _settings
from ..errors import NotAcquiredError

UNKNOWN = 1.0
"""Seconds to advise as long as no hold of the route has ended."""
FADE = 0.9
"""Factor by which each shorter hold lowers the longest recent hold."""


class Pace:
    """The advice of one route: a given number of seconds, or the duration of its recent holds.

    The holder's remaining ttl would be bad advice, because a live holder renews it.
    """

    __slots__ = ("_longest", "_said")

    def __init__(self, said: float | None) -> None:
        self._said = _settings.optional_seconds(said, "retry_after", zero=True)
        self._longest: float | None = None

    def held(self, seconds: float) -> None:
        """Note that the route held its lock for `seconds`."""
        self._longest = max(seconds, FADE * (self._longest or 0.0))

    def advise(self, error: NotAcquiredError) -> None:
        """Set `retry_after` of the error from which the client's answer is made."""
        if self._said is not None:
            error.retry_after = self._said
        else:
            typical = UNKNOWN if self._longest is None else self._longest
            error.retry_after = min(error.retry_after, typical)
