"""A waiter's ticket: its place in the queue that the nodes keep for a name.

Each node orders tickets by number, then by id. The nodes may give out different numbers, so the
waiter settles on the highest one and tells them. A later waiter's request meets a node that knows
that number, and gets a higher one: a ticket that is on a quorum before another waiter asks goes
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _clock
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from .._nodes.script import Word
from .._nodes.wakeup import Wakeups
from .said import Released, released
from .spec import LockSpec, ms

STAYING = -1
"""The number of a ticket that has none yet and waits even if another slot is free."""
WOKEN = b"go"
"""Value of the key of a ticket to which a node has left the name."""


class Ticket:
    """The ticket of one task that waits. Its id is the owner of the task's first attempt."""

    __slots__ = ("_spec", "asked", "id", "number", "rank", "since", "ttl", "unsettled")

    def __init__(self, spec: LockSpec, ident: str, since: float, ttl: float) -> None:
        self.id: str = ident
        self.since: float = since
        """The moment before which no node had it."""
        self.number: int = 0
        """The number that the nodes were told; below 1 until enough of them have named one."""
        self.rank: int = 0
        """Number of waiters before us, on the node with the fewest."""
        self.unsettled: bool = False
        """Whether a node has another number than ours."""
        self.asked: set[int] = set()
        """The nodes that may have the ticket."""
        self.ttl: float = ttl
        """Seconds that the nodes keep it. The waiter asks again within half of that."""
        self._spec = spec

    def stay(self) -> None:
        """Wait even if another slot is free."""
        self.number = self.number or STAYING

    def words(self) -> tuple[Word, ...]:
        """Return the arguments for an acquire."""
        return ms(self.ttl), self.id, self.number

    def place(self) -> tuple[Word, ...]:
        """Return the arguments for a release that leaves the ticket in the queue."""
        return 0, self.id, ms(self.ttl), self.number

    @property
    def key(self) -> str:
        """The key that changes when the ticket's turn comes."""
        return self._spec.ticket_key(self.id)

    def settle(self, told: list[int], rank: int, *, enough: bool) -> None:
        """Take the numbers that the nodes gave; if `enough`, each quorum has one of them."""
        self.rank = rank
        if self.number <= 0 and enough and told:
            self.number = max(told)
        self.unsettled = any(number != self.number for number in told) and self.number > 0


def woken(spec: LockSpec, said: Released) -> list[str]:
    """Return the keys of the tickets that a release, leave or pass woke on a node."""
    return [spec.ticket_key(one.decode("utf-8", "replace")) for one in said.woken]


class WakesNext:
    """Wakes the waiters of this process that a node has woken with its reply to a request of ours.

    The node sends no push for changes by our own connection: its reply names the waiters instead.
    """

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


def leave(nodes: Multiplexer, spec: LockSpec, ticket: Ticket, indices: Iterable[int]) -> None:
    """Remove a ticket from these nodes.

    Like a release, this is sent again after a disconnect, until the ticket has died by itself.
    """
    command, sink = spec.leave(ticket.id), WakesNext(nodes.wakeups, spec)
    command.asked_since, command.retry_until = ticket.since, _clock.now() + ticket.ttl
    command.unlimited = True
    nodes.deliver(command, sink, tuple(indices))
