"""When a quorum votes: how long the guards forbid it, and the wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from .. import _clock
from .multiplexer import Multiplexer
from .node import Node
from .replies import Failure


def barred(size: int, quorum: int, votes_from: Iterable[float], now: float) -> float:
    """Return the seconds until the guards let `quorum` of `size` nodes vote; 0 if they do now.

    `votes_from` has the moments of the nodes that a guard keeps from voting, 0 for any others.
    """
    left = sorted((max(0.0, moment - now) for moment in votes_from), reverse=True)
    spare = size - quorum
    return left[spare] if len(left) > spare else 0.0


def quarantined(node: Node) -> Failure:
    """Return the failure of a request that the node got before a guard took its vote.

    The reply to this very request may be the reason, because it had the node's clock.
    """
    ended = Failure("a guard took its vote for a moment", votes_from=node.trust.votes_from)
    return node.obstacle(_clock.now()) or ended


class Readiness:
    """Waits for the states of a manager's nodes."""

    def __init__(self, nodes: Multiplexer) -> None:
        self._nodes = nodes

    async def connected(self, until: float) -> None:
        """Wait until no node is connecting for the first time, but not beyond `until`."""
        while "connecting" in self._states() and _clock.now() < until:
            await self._change(until)

    async def voting(self, until: float) -> bool:
        """Wait until a quorum votes; return False at `until`, or once that is known to be later."""
        nodes = self._nodes
        while self._states().count("up") < nodes.quorum:
            now = _clock.now()
            if now + self.barred >= until:
                return False
            # A stalled link, or one that is not confirmed, reports no change when it works again.
            limits = [until, now + nodes.nodes[0].settings.node_timeout]
            limits += [node.votes_from for node in nodes.nodes if node.votes_from > now]
            await self._change(min(limits))
        return True

    @property
    def barred(self) -> float:
        """Seconds until the guards let a quorum vote; 0 if they do now."""
        nodes, now = self._nodes, _clock.now()
        # A node that is down is not kept away by its guard.
        up = [node for node in nodes.nodes if node.state(now) != "down"]
        return barred(len(nodes.nodes), nodes.quorum, [node.votes_from for node in up], now)

    def causes(self) -> dict[str, str]:
        """Return why each node that is not up has no vote."""
        now = _clock.now()
        pairs = ((node.address, node.cause(now) or node.state(now)) for node in self._nodes.nodes)
        return {address: cause for address, cause in pairs if cause != "up"}

    def _states(self) -> list[str]:
        now = _clock.now()
        return [node.state(now) for node in self._nodes.nodes]

    async def _change(self, until: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - _clock.now()):
                await self._nodes.state_change()
