"""Watches an open link: reads an idle node's clock, closes a stalled link, polls without pushes.

So a jump of the clock between two locks is found, and a dead connection is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .. import _clock
from .info import read_time
from .node import Node, NodeLink
from .replies import Failure

HALF_OPEN = 4
"""Node timeouts (at least a second) after which a link with an overdue reply is closed."""

TICK = 0.001
"""Minimum seconds between two checks of an open link."""

FIRST_REPLICA_RECHECK, LONGEST_REPLICA_RECHECK = 0.1, 2.0
"""First and maximum seconds until a replica is asked for its role again; doubled each time."""


async def watch(node: Node, link: NodeLink, poll: Callable[[], None]) -> None:
    """Watch the link until it is closed.

    If the node sends no pushes, `poll` is called every third of `max_ttl`.
    """
    patience = max(1.0, HALF_OPEN * node.settings.node_timeout)
    idle = node.settings.max_ttl / 3
    asked, polled = 0.0, _clock.now()
    while not link.closed.done():
        left = max(node.trust.last_reply, asked) + idle - _clock.now()
        pause = patience / 4 if link.stalled_since else min(max(left, TICK), patience)
        await asyncio.wait([link.closed], timeout=pause)
        now = _clock.now()
        if link.stalled_since and now - link.stalled_since >= patience:
            link.close(f"no answer for {now - link.stalled_since:.1f} s")
        elif not link.stalled_since and now - max(node.trust.last_reply, asked) >= idle:
            asked = now
            node.check_clock()
        if now - polled >= idle:
            polled = now
            if not node.tracking:
                poll()


async def leave_replica(node: Node, link: NodeLink, times: int) -> None:
    """Close the link to a replica after a pause; the next handshake asks for its role again.

    `times` is the number of connections in a row on which the server was a replica.
    """
    longest = min(FIRST_REPLICA_RECHECK * 2.0 ** (min(times, 16) - 1), LONGEST_REPLICA_RECHECK)
    await asyncio.sleep(longest * (1 + node.random()) / 2)
    link.close("it was a replica")
    await link.closed


class Reading:
    """Takes the reply to TIME."""

    __slots__ = ("_on_clock", "_sent")

    def __init__(self, on_clock: Callable[[float, float, float], None], sent: float) -> None:
        self._on_clock = on_clock
        self._sent = sent

    def on_reply(self, _index: int, reply: Any) -> None:
        """Pass the clock on to the node; the link itself reports a Failure."""
        clock = read_time(reply)
        if not isinstance(clock, Failure):
            self._on_clock(clock, self._sent, _clock.now())
