"""Wakes waiters of this process whose turn comes with the reply to a request of this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _clock
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from .._nodes.wakeup import Wakeups
from .said import released
from .spec import LockSpec
from .ticket import woken


class Left:
    """Wakes local waiters: servers send no push for changes by our own connection."""

    __slots__ = ("_ours", "_spec", "_wakeups")

    def __init__(self, wakeups: Wakeups, spec: LockSpec, ours: str | None = None) -> None:
        self._ours = ours
        """The key of the sender's own ticket, which goes on waiting: see `Watch.count`."""
        self._spec = spec
        self._wakeups = wakeups

    def on_reply(self, index: int, reply: Any) -> None:
        """Wake the waiters whose turn it is."""
        said = released(reply)
        if type(said) is Failure:
            return
        for ticket in woken(self._spec, said):
            if ticket == self._ours:
                self._wakeups.count(ticket, index)
            else:
                self._wakeups.wake(ticket, index)


def leave(
    nodes: Multiplexer, spec: LockSpec, ticket: str, since: float, indices: Iterable[int]
) -> None:
    """Remove a ticket from these nodes, which may have it since the moment `since`.

    Like a release, this is sent again after a disconnect, until the ticket has died by itself.
    """
    command, sink = spec.leave(ticket), Left(nodes.wakeups, spec)
    command.asked_since, command.retry_until = since, _clock.now() + spec.ticket_ttl
    command.unlimited = True
    nodes.deliver(command, sink, tuple(indices))
