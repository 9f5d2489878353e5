"""A limit that counts the time in which our own process ran, and not the time in which it stood.

A process that stood still, because its loop was blocked or the machine busy, finds all its timers
due when it goes on. The node's answer may be in the socket by then, or our next step was never
sent. So the limit is checked several times. A check that comes very late does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from .. import _clock
from .link import LATE_TIMER_FACTOR

NEEDED_CHECKS = 5
"""Number of checks that must come in time until the limit is over."""


class Patience:
    """Calls `over` after `seconds` in which our loop ran; see `cancel`.

    A check that is later than the whole time between two checks does not count. `over` is called
    after at most LATE_TIMER_FACTOR limits' worth of checks, also if all are late.
    """

    __slots__ = ("_counted", "_due", "_left", "_over", "_pause", "_timer")

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self._over = over
        self._pause = seconds / NEEDED_CHECKS
        self._counted = 0
        self._left = LATE_TIMER_FACTOR * NEEDED_CHECKS
        self._arm()

    def cancel(self) -> None:
        """End the limit without calling `over`."""
        self._timer.cancel()

    def _arm(self) -> None:
        self._due = _clock.now() + self._pause
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._pause, self._check, context=Context())

    def _check(self) -> None:
        self._left -= 1
        self._counted += _clock.now() - self._due <= self._pause
        if self._counted == NEEDED_CHECKS or not self._left:
            self._over()
        else:
            self._arm()
