"""Asks the nodes whether they still keep a lease, without renewing it."""

from __future__ import annotations

import asyncio
from typing import Any

from .. import _clock
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from .._nodes.script import GRANTED
from ..errors import QuorumUnavailableError
from .grant import Grant
from .keeper import Keeper
from .round import NO_LONGER, QUARANTINED


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
        failures = {nodes.nodes[i].address: one.cause for i, one in check.failures.items()}
        raise QuorumUnavailableError(
            f"too few nodes answered to check {grant.spec.name!r}",
            name=grant.spec.name,
            nodes=failures,
        )
    if grant.alarm:  # it was not released in the meantime
        keeper.mark_lost(grant, NO_LONGER)
    return False


class Check:
    """Counts the nodes' replies; decided once a quorum keeps the grant or no quorum can."""

    __slots__ = ("_grant", "_left", "_missing", "_nodes", "_sent", "decided", "failures", "kept")

    def __init__(self, nodes: Multiplexer, grant: Grant) -> None:
        self._nodes = nodes
        self._grant = grant
        self._sent = _clock.now()
        self._left = len(nodes.nodes)
        self._missing = 0
        self.kept: int = 0
        """Number of nodes that keep the grant for us, as far as their votes count."""
        self.failures: dict[int, Failure] = {}
        """Why the other nodes don't count."""
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def gone(self) -> bool:
        """Whether so many nodes lack the key that no quorum can have it."""
        return self._missing > len(self._nodes.nodes) - self._nodes.quorum

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        if type(reply) is Failure:
            self.failures[index] = reply
        elif reply[0] != GRANTED:
            self._missing += 1
        elif self._nodes.counts(index, self._sent, self._grant.voters):
            self.kept += 1
        else:
            self.failures[index] = QUARANTINED
        self._left -= 1
        if not self.decided.done() and (
            self.kept >= self._nodes.quorum or self.gone or not self._left
        ):
            self.decided.set_result(None)
