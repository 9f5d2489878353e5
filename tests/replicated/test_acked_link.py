"""A link to a primary answers for each grant it holds back, whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

from asynclock._nodes.acks import AckedLink, Acks
from asynclock._nodes.link import Link
from asynclock._nodes.replies import Answer, Failure
from asynclock._nodes.script import Command
from asynclock.testing import LocalServer


class Nobody:
    """An owner that is told things and does nothing."""

    def on_clock(self, clock: float, sent: float, received: float) -> None: ...

    def on_push(self, push: list[Any]) -> None: ...

    def on_disconnect(self, link: Link, end: Failure, unanswered: list[Command]) -> None: ...


async def test_a_grant_that_was_held_back_when_the_connection_broke_fails(
    asynclock_nodes: list[LocalServer],
) -> None:
    loop, node = asyncio.get_running_loop(), asynclock_nodes[0]
    _, link = await loop.create_connection(lambda: Link(Nobody(), 0.5), node.host, node.port)
    acked = AckedLink(link, Acks(1), 0.5)
    answer = Answer(loop)
    # The WAIT for it would go out in the next round of the loop, where the connection ends first.
    assert link._transport is not None
    link._transport.abort()
    acked.hold(answer, 0, [1, 7, 0])
    reply = await asyncio.wait_for(answer.future, 5)
    assert isinstance(reply, Failure)
    assert "acknowledged" in reply.cause
