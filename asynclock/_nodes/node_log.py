"""Reports when a node stops voting and when it votes again: as log records and as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from math import inf

from .. import _clock
from .._rules.trust import Trust
from ..events import NodeDown, NodeQuarantined, NodeUp, Observers
from .replies import Failure

_log = logging.getLogger("asynclock.nodes")

QUIET = 10.0
"""Minimum seconds between two records of errors that a node gives instead of votes."""
WITHOUT = {
    "CLIENT": "waiters ask again at intervals instead of being woken",
    "CONFIG": "it is assumed to forget everything when it restarts",
    "HELLO": "the connection speaks RESP2; waiters ask again at intervals instead of being woken",
    "HMGET": "nothing notices if other clients use other nodes",
    "INFO": "each new connection is guarded as if it had restarted; its settings are not checked",
    "SCRIPT": "scripts are sent in full when they are first needed",
    "TIME": "its clock is first read from the answer to a script",
}
"""What follows if a server refuses a command (docs/access.md)."""


class NodeLog:
    """Logs a WARNING when a node goes down or is quarantined, and an INFO when it votes again.

    Further causes and attempts of a node that is down already are logged as DEBUG.
    """

    __slots__ = ("_address", "_away", "_lack", "_lack_told", "_observers", "_timer", "_trust")

    def __init__(self, address: str, trust: Trust, observers: Observers) -> None:
        self._address = address
        self._trust = trust
        self._observers = observers
        self._away = False
        self._timer: asyncio.TimerHandle | None = None
        self._lack = ""
        """The code of the error that was logged and has not passed yet."""
        self._lack_told = -inf

    def answered(self, error: Failure | None) -> None:
        """Log an error that the node gives instead of votes, and its end, at most every QUIET s.

        A server at its limit of memory may refuse every other request.
        """
        now = _clock.now()
        if error is None:
            if self._lack:
                self._lack = ""
                self._tell(logging.INFO, "%s votes again", self._address)
        elif error.code != self._lack and now >= self._lack_told + QUIET:
            self._lack, self._lack_told = error.code, now
            self._tell(logging.WARNING, "%s does not vote: %s", self._address, error.cause)

    def down(self, cause: str) -> None:
        """Report that the node is down."""
        self.close()
        level = logging.DEBUG if self._away else logging.WARNING
        self._away = True
        self._tell(level, "%s is down: %s", self._address, cause)
        if self._observers:
            self._observers(NodeDown(self._address, cause))

    def connected(self) -> None:
        """Report that a connection to the node is open."""
        self.up()
        if self._observers:
            self._observers(NodeUp(self._address))

    def refused(self, commands: Iterable[str]) -> None:
        """Log which commands of our handshake the node refused, and what follows."""
        for command in commands:
            _log.warning("%s refuses %s: %s", self._address, command, WITHOUT.get(command, ""))

    def quarantined(self, seconds: float) -> None:
        """Report that a guard keeps the node from voting for `seconds`."""
        cause = self._trust.why(_clock.now())
        text = "%s %s: it does not vote for %.1f s"
        self._tell(logging.WARNING, text, self._address, cause, seconds)
        self._away = True
        self.up()
        if self._observers:
            self._observers(NodeQuarantined(self._address, cause, seconds))

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
