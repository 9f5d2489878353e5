"""Life signs of an open link: an idle one is asked for the clock, a stalled one is given up.

So that a clock that jumped can't hide between two locks, and a dead connection is noticed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .. import _clock
from .link import Link

if TYPE_CHECKING:
    from .node import Node

HALF_OPEN = 4
"""A link whose reply is overdue for so many node timeouts (at least a second) is given up."""


async def watch(node: Node, link: Link) -> None:
    """Until the link is closed."""
    patience = max(1.0, HALF_OPEN * node.settings.node_timeout)
    idle = node.settings.max_ttl / 3
    while not link.closed.done():
        stalled = link.stalled_since
        pause = patience / 4 if stalled else min(idle, patience)
        await asyncio.wait([link.closed], timeout=pause)
        now = _clock.now()
        if link.stalled_since and now - link.stalled_since >= patience:
            link.close(f"no answer for {now - link.stalled_since:.1f} s")
        elif not link.stalled_since and now - node.trust.last_reply >= idle:
            node.check_clock()


class Reading:
    """The sink for a node's clock."""

    __slots__ = ("_node", "_sent")

    def __init__(self, node: Node, sent: float) -> None:
        self._node = node
        self._sent = sent

    def cast(self, _index: int, reply: Any) -> None:
        """Tell the node its clock; a Failure shows on the link."""
        if isinstance(reply, list):
            clock = int(reply[0]) + int(reply[1]) / 1_000_000
            self._node.told(clock, self._sent, _clock.now())
