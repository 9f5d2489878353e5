"""Computes the Retry-After for a client that found a lock held."""

from __future__ import annotations

from weakref import WeakSet

from .. import _settings
from ..errors import AsyncLockError, NotAcquiredError
from ..events import Event, Released

UNKNOWN = 1.0
"""Seconds to advise as long as no hold of the route or the name has ended."""
FADE = 0.9
"""Factor by which each shorter hold lowers the longest recent hold."""
MOST_REMEMBERED = 1000
"""Maximum number of names for which recent holds are remembered."""

_advised: WeakSet[NotAcquiredError] = WeakSet()
"""The errors that have the advice of a route already."""


class Pace:
    """The advice of a route or a name: given seconds, or the duration of its recent holds.

    The holder's remaining ttl would be bad advice, because a live holder renews it.
    """

    __slots__ = ("_longest", "_said")

    def __init__(self, said: float | None) -> None:
        self._said = _settings.optional_seconds(said, "retry_after", zero=True)
        self._longest: float | None = None

    def held(self, seconds: float) -> None:
        """Note that a lock was held for `seconds`."""
        self._longest = max(seconds, FADE * (self._longest or 0.0))

    def advise(self, error: NotAcquiredError) -> None:
        """Set `retry_after` of the error from which the client's answer is made."""
        if self._said is not None:
            error.retry_after = self._said
        else:
            typical = UNKNOWN if self._longest is None else self._longest
            error.retry_after = min(error.retry_after, typical)
        _advised.add(error)


class Holds:
    """The advice for locks that no route declares, by name, from the events of a manager."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def note(self, event: Event) -> None:
        """Learn from a release; the observer of the manager."""
        if not isinstance(event, Released):
            return
        pace = self._paces.pop(event.name, None) or Pace(None)
        pace.held(event.held)
        self._paces[event.name] = pace  # names are in order of use: drop the one unused for longest
        if len(self._paces) > MOST_REMEMBERED:
            del self._paces[next(iter(self._paces))]

    def advise(self, error: AsyncLockError) -> None:
        """Set `retry_after` of a refusal, unless the route or its handler has set it."""
        if not isinstance(error, NotAcquiredError):
            return
        as_raised = 1.0 if error.remaining is None else max(error.remaining, 0.0)
        if error not in _advised and error.retry_after == as_raised:
            (self._paces.get(error.name or "") or Pace(None)).advise(error)
