"""Logs when a node stops voting and when it votes again."""

from __future__ import annotations

import asyncio
import logging

from .. import _clock
from .._rules.trust import Trust

_log = logging.getLogger("asynclock.nodes")


class NodeLog:
    """Logs a WARNING when a node goes down or is quarantined, and an INFO when it votes again.

    Further causes and attempts of a node that is down already are logged as DEBUG.
    """

    __slots__ = ("_address", "_away", "_timer", "_trust")

    def __init__(self, address: str, trust: Trust) -> None:
        self._address = address
        self._trust = trust
        self._away = False
        self._timer: asyncio.TimerHandle | None = None

    def down(self, cause: str) -> None:
        """Log that the node is down."""
        self.close()
        level = logging.DEBUG if self._away else logging.WARNING
        self._away = True
        self._tell(level, "%s is down: %s", self._address, cause)

    def quarantined(self, cause: str, seconds: float) -> None:
        """Log that a guard keeps the node from voting for `seconds`."""
        text = "%s %s: it does not vote for %.1f s"
        self._tell(logging.WARNING, text, self._address, cause, seconds)
        self._away = True
        self.up()

    def up(self) -> None:
        """Log that the node is back, now or when its quarantine has ended."""
        if not self._away:
            return
        self.close()
        left = self._trust.votes_from - _clock.now()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left + 0.001, self.up)
        else:
            self._away = False
            self._tell(logging.INFO, "%s is back and votes", self._address)

    def close(self) -> None:
        """Cancel a log record that is still due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, level: int, text: str, *args: object) -> None:
        _log.log(level, text, *args, extra={"asynclock_node": self._address})
