"""The waiters of a name in all processes, in order, as the nodes keep them; for people to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from .._nodes.replies import Failure
from .._nodes.script import Command, Script
from .._rules.quorum import majority
from .refusals import label
from .said import places
from .ticket import WOKEN

SCRIPT = Script.load(__package__, "waiters.lua")
LATER: Final = 4e15
"""The number of a reader that waits, less its milliseconds since 1970 (_primitives/phases.lua)."""
CLOCKS: Final = range(10**15, 2**53)
"""Numbers that come from a node's clock, in µs since 1970: others began at 1 or were made up."""
MILLISECONDS: Final = range(10**12, 10**15)
"""Numbers of the waiters of a read-write lock, in ms since 1970."""
MOST_WAITERS: Final = 1000
"""Maximum number of waiters that are read of one queue: at most about a millisecond of a server."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """One place in the queue of a name. Its texts are untrusted: never print them raw.

    Tasks of one process that wait for the same name have one place together; the tasks of a fair
    lock, and readers, have one each.
    """

    ticket: str
    """The id of the place: the owner id with which the waiter asked first."""
    woken: bool
    """Whether a node has told the waiter that its turn has come."""

    since: float | None = None
    """When it began to wait, in seconds since 1970 by the clocks of the nodes; None if they can't
    tell, as for a reader that goes next."""
    shared: bool = False
    """Whether it waits to read, together with others."""

    @property
    def label(self) -> str | None:
        """The waiter's label, for people to read, as `holder` is the owner's."""
        return label(self.ticket)


def question(*keys: str) -> Command:
    """Return the command that asks a node for the waiters in a queue; waiters.lua has the keys."""
    return Command(SCRIPT, keys, ("inspect", MOST_WAITERS))


def in_order(replies: Iterable[Any]) -> tuple[Waiter, ...]:
    """Return the waiters that a majority of the nodes that answered keep, first one first.

    Nodes may have different numbers for a waiter that has just come. It settles on the highest.
    """
    answers = [said for said in map(places, replies) if type(said) is not Failure]
    found: dict[bytes, list[tuple[float, bool, float]]] = {}
    for queue in answers:
        for one in queue:
            found.setdefault(one.ticket, []).append((one.place, one.value == WOKEN, one.number))
    enough = majority(len(answers))
    kept = [(max(on)[0], ticket, on) for ticket, on in found.items() if len(on) >= enough]
    return tuple(
        Waiter(
            ticket.decode("utf-8", "replace"),
            any(woken for _, woken, _ in on),
            min(filter(None, (_moment(number) for *_, number in on)), default=None),
            any(number < 0 or number >= LATER for *_, number in on),
        )
        for _, ticket, on in sorted(kept)
    )


def _moment(number: float) -> float | None:
    """Return the node's time at which a ticket got its number, in seconds since 1970."""
    clock = int(number - LATER if number >= LATER else number)
    if clock in CLOCKS:
        return clock / 1_000_000
    return clock / 1000 if clock in MILLISECONDS else None
