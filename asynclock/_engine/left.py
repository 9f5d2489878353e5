"""Handles the replies to `leave`, which removes a waiter's ticket from the nodes."""

from __future__ import annotations

from typing import Any

from .._nodes.replies import Failure
from .._nodes.wakeup import Wakeups
from .spec import LockSpec


class Left:
    """Wakes local waiters that the removed ticket was blocking."""

    __slots__ = ("_spec", "_wakeups")

    def __init__(self, wakeups: Wakeups, spec: LockSpec) -> None:
        self._spec = spec
        self._wakeups = wakeups

    def on_reply(self, index: int, reply: Any) -> None:
        """Wake waiters: servers send no push for changes by our own connection."""
        if type(reply) is not Failure and reply[0]:
            for key in (*self._spec.watched, *self._spec.neighbours):
                self._wakeups.wake(key, index)
