"""Asks the nodes whether they still keep a lease, without renewing it."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from .. import _clock
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from ..events import NO_LONGER
from . import refusals
from .grant import Grant
from .keeper import Keeper
from .round import QUARANTINED
from .said import done
from .vote import Vote


async def still_ours(keeper: Keeper, grant: Grant) -> bool:
    """Return whether a quorum keeps `grant` for us; if too few do, the grant is lost.

    Takes at most one node timeout. Raises QuorumUnavailableError if too few nodes answered.
    """
    keeper.ready()
    nodes = keeper.multiplexer
    check = Check(nodes, grant)
    nodes.broadcast(grant.spec.check(grant.owner), check)
    await check.decided
    if check.kept >= nodes.quorum:
        return True
    if not check.gone:
        raise refusals.outage(check)
    if grant.alarm:  # it was not released in the meantime
        keeper.mark_lost(grant, NO_LONGER)
    return False


class Check(Vote):
    """Counts the nodes' replies; decided once a quorum keeps the grant or no quorum can."""

    __slots__ = ("_grant", "_left", "_missing", "_multiplexer", "_sent", "decided", "kept")
    AIM: ClassVar[str] = "check"

    def __init__(self, nodes: Multiplexer, grant: Grant) -> None:
        self._multiplexer = nodes
        self._nodes, self._quorum = nodes.nodes, nodes.quorum
        self._grant = grant
        self._sent = _clock.now()
        self._left = len(self._nodes)
        self._missing = 0
        self.kept: int = 0
        """Number of nodes that keep the grant for us, as far as their votes count."""
        self.failures: dict[int, Failure] = {}
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> str:
        """The name that is locked."""
        return self._grant.spec.name

    @property
    def gone(self) -> bool:
        """Whether the nodes that lack the key leave no quorum that can have it."""
        return len(self._nodes) - self._missing < self._quorum

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        said = done(reply)
        if type(said) is Failure:
            self.failures[index] = said
        elif not said:
            self._missing += 1
        elif self._multiplexer.counts(index, self._sent, self._grant.voters):
            self.kept += 1
        else:
            self.failures[index] = QUARANTINED
        self._left -= 1
        decided = self.kept >= self._quorum or self.gone or not self._left
        if decided and not self.decided.done():
            self.decided.set_result(None)
