"""Commands that no known server can execute at present. None of them has been executed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import _clock
from ..replies import Failure

if TYPE_CHECKING:
    from .route import Route

TRY_AGAIN = 0.02
"""Seconds before a retry after TRYAGAIN: a slot migration has split the keys of one name."""


class Waiting:
    """Keeps commands until the next view of the cluster, or for a moment."""

    def __init__(self, why: Callable[[], Failure]) -> None:
        self._why = why
        """Returns why no server is known, for commands whose time is over."""
        self._parked: list[Route] = []
        self._retried: list[Route] = []

    def park(self, route: Route) -> None:
        """Keep a command for the next view, until its timeout."""
        self._parked.append(route)
        left = max(0.0, route.until - _clock.now())
        asyncio.get_running_loop().call_later(left, self._give_up)

    def retry(self, route: Route) -> None:
        """Send a command again after TRY_AGAIN seconds."""
        self._retried.append(route)
        asyncio.get_running_loop().call_later(TRY_AGAIN, self._again, route)

    @property
    def releases(self) -> bool:
        """Whether any waiting command is a release."""
        return any(route.owed for route in (*self._parked, *self._retried))

    def drop(self, route: Route) -> bool:
        """Remove `route`; return whether it was here."""
        for waiting in (self._parked, self._retried):
            if route in waiting:
                waiting.remove(route)
                return True
        return False

    def resume(self) -> None:
        """Send all parked commands in their order, because there is a new view."""
        parked, self._parked = self._parked, []
        for route in parked:
            route.go()

    def fail(self, failure: Failure) -> None:
        """Fail all commands with `failure`."""
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
