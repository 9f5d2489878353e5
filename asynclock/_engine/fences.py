"""Reserves blocks of fences, from which each hand-over takes one.

By default many fences are reserved at once and ahead of need, so that a hand-over needs no network;
handoff="strict" reserves one at each hand-over (docs/fencing.md, "Handing a lease over").
"""

from __future__ import annotations

import asyncio
from typing import Any

from .. import _clock
from .._nodes.replies import Failure
from .context import Context
from .grant import Grant
from .options import LeaseOptions
from .said import raised

BLOCK = 1024
"""Number of fences reserved at once; fences then run ahead of the clock by that many µs at most."""
SPARE_FENCES = BLOCK // 4
"""Number of remaining fences below which the next block is reserved."""


class Reservation:
    """Reserves fences: raises the counter at a quorum and claims all above its previous values."""

    __slots__ = (
        "_alone",
        "_done",
        "_grant",
        "_left",
        "_m",
        "_nodes",
        "_previous",
        "_quorum",
        "_sent",
    )

    def __init__(self, context: Context, grant: Grant, count: int) -> None:
        self._nodes = nodes = context.multiplexer
        self._sent = _clock.now()
        self._grant = grant
        self._alone = count == 1
        self._previous: list[int] = []
        self._quorum = nodes.quorum
        self._left = len(nodes.nodes)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._m = grant.reserve(count, self._done)
        command = grant.spec.write_back(grant.owner, self._m, context.retention)
        nodes.broadcast(command, self)

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        counts = self._nodes.counts(index, self._sent, self._grant.voters)
        said = raised(reply)
        if counts and type(said) is not Failure and said.done:
            self._previous.append(said.counter)
            if len(self._previous) == self._quorum:
                self._claim(max(self._previous))
        self._left -= 1
        if not self._left:
            self._finish()

    def _claim(self, highest: int) -> None:
        # Don't start at "our fence + 1": a raise that reached other nodes may have given that fence
        # to another owner (tests/model catches the variant that starts there). In strict mode claim
        # only the last number: lower ones may be older than this hand-over.
        first = self._m if self._alone else highest + 1
        grant = self._grant
        if grant.reserving is self._done and first > max(highest, grant.fence):
            grant.reserved(range(first, self._m + 1))
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
        self._grant.reservation_ended(self._done)


def reserve_ahead(context: Context, grant: Grant, options: LeaseOptions) -> None:
    """Reserve a block of fences, if few are left, before a hand-over needs them."""
    few = len(grant.fences) <= SPARE_FENCES
    if options.handoff is True and few and grant.reserving is None:
        Reservation(context, grant, BLOCK)


def reserve_now(
    context: Context, grant: Grant, options: LeaseOptions
) -> asyncio.Future[None] | None:
    """Reserve a fence for the next lease on `grant`, if needed; return the future to await."""
    if options.handoff == "strict":
        # Fences that are left or being reserved were requested before this hand-over: too old.
        grant.drop_fences()
        Reservation(context, grant, 1)
    elif not grant.fences and grant.reserving is None:
        Reservation(context, grant, BLOCK)
    return None if grant.fences else grant.reserving
