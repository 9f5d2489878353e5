"""Commands that have nowhere to go just now: none of them has been executed anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import _clock
from ..link import Failure

if TYPE_CHECKING:
    from .route import Route

TRY_AGAIN = 0.02
"""Seconds until the keys of one name, of which some have moved, are together again, perhaps."""


class Waiting:
    """Parked until the next view of the cluster, or until a moment has passed."""

    def __init__(self, why: Callable[[], Failure]) -> None:
        self._why = why
        """Why there is nowhere to go, for those whose time is over."""
        self._parked: list[Route] = []
        self._retried: list[Route] = []

    def park(self, route: Route) -> None:
        """Keep it for the next view, as long as it has time."""
        self._parked.append(route)
        left = max(0.0, route.until - _clock.now())
        asyncio.get_running_loop().call_later(left, self._give_up)

    def retry(self, route: Route) -> None:
        """Send it again in a moment."""
        self._retried.append(route)
        asyncio.get_running_loop().call_later(TRY_AGAIN, self._again, route)

    def forget(self, release: Route) -> bool:
        """Drop what `release` would give back, if it is still here. → whether it was."""
        for waiting in (self._parked, self._retried):
            for route in waiting:
                if route.undone_by(release):
                    waiting.remove(route)
                    never = Failure("given up before it was executed")
                    route.fail(never)
                    release.answer(never)
                    return True
        return False

    def resume(self) -> None:
        """There is a new view: all set out, in their order."""
        parked, self._parked = self._parked, []
        for route in parked:
            route.go()

    def fail(self, failure: Failure) -> None:
        """Nobody will ever get anywhere."""
        waiting = [*self._parked, *self._retried]
        self._parked, self._retried = [], []
        for route in waiting:
            route.fail(failure)

    def _again(self, route: Route) -> None:
        if route in self._retried:
            self._retried.remove(route)
            route.go()

    def _give_up(self) -> None:
        now = _clock.now()
        late = [route for route in self._parked if route.until <= now]
        self._parked = [route for route in self._parked if route.until > now]
        for route in late:
            route.fail(self._why())
