"""Collects the replies of several nodes to one or more requests."""

from __future__ import annotations

import asyncio
from typing import Any

from .replies import Failure


class Gather:
    """Keeps each reply; `complete` once all are here, or `enough` of them without a failure."""

    def __init__(self, size: int, enough: int, patience: float = 0.0) -> None:
        self.found: dict[int, Any] = {}
        """The replies and Failures so far."""
        self._loop = asyncio.get_running_loop()
        self.complete: asyncio.Future[None] = self._loop.create_future()
        self._size = size
        self._missing = enough
        self._patience = patience
        """Seconds that the others get once enough have answered."""

    def on_reply(self, index: int, reply: Any) -> None:
        """Keep reply number `index`."""
        self.found[index] = reply
        self._missing -= not isinstance(reply, Failure)
        if len(self.found) == self._size:
            self._finish()
        elif self._missing <= 0:
            if self._patience:
                self._loop.call_later(self._patience, self._finish)
            else:
                self._finish()

    def _finish(self) -> None:
        if not self.complete.done():
            self.complete.set_result(None)
