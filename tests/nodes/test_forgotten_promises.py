"""A node that restarts forgets which numbers it has promised; a change from before must not reach
it: it would replace a newer value."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.replies import Failure
from asynclock._nodes.script import Command
from asynclock._primitives.register import SCRIPT
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.memory.wire import Route
from tests.waiting import in_virtual_time

KEY = "asynclock:a:#latch"


class Far(Route):
    """Each piece takes 10 ms."""

    def delay(self) -> float:
        return 0.01


class Answer:
    """Keeps the one reply."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_reply(self, _index: int, reply: Any) -> None:
        self.reply.set_result(reply)


def change(op: str, numbered_at: float) -> Command:
    """Prepare or accept 7, numbered at that moment, for a day and without a bound."""
    command = Command(SCRIPT, (KEY,), (op, 7, "me", 86_400_000, 0, "value"))
    command.numbered_at = numbered_at
    return command


@pytest.mark.parametrize("op", ["prepare", "accept"])
@pytest.mark.parametrize("how", ["flushed", "restarted", "still being connected to"])
@in_virtual_time
async def test_a_change_from_before_does_not_reach_a_node_that_forgot(op: str, how: str) -> None:
    """how: what has happened to the node when it is asked."""
    memory = MemoryNode("a")
    guard = how == "flushed"  # it notices a flush; a restart is noticed without it, too
    locks = asynclock.connect(MemoryEndpoint("a", memory), ttl=1, max_ttl=1, restart_guard=guard)
    async with asyncio.timeout(10), locks:
        async with locks.lock("warm"):
            pass
        (node,) = locks._engine.multiplexer.nodes
        before, broken, answer = _clock.now(), node.link, Answer()
        await asyncio.sleep(0.001)
        if how == "flushed":
            memory.flush()
            while node.trust.remembers_from <= before:
                await asyncio.sleep(0.001)
        else:
            memory.restart(keep_data=False)
            while node.link is broken:
                await asyncio.sleep(0)
            while how == "restarted" and node.link is None:
                await asyncio.sleep(0.001)
        assert (node.link is None) is (how == "still being connected to")
        node.ask(change(op, before), answer, 0)
        reply = await answer.reply
        assert isinstance(reply, Failure), reply
        assert memory.keys.get(KEY.encode()) is None

        later = Answer()
        node.ask(change(op, _clock.now()), later, 0)
        assert (await later.reply)[0] == 1


@in_virtual_time
async def test_a_first_change_is_not_too_old_for_the_nodes_that_it_meets() -> None:
    """They have just started, so they may have forgotten anything from before they were met."""
    # The numbers are chosen before the nodes are met, as connecting takes some time.
    ends = [MemoryEndpoint(name, MemoryNode(name), Far()) for name in "abc"]
    locks = asynclock.connect(*ends, restart_guard=False)
    try:
        async with asyncio.timeout(10):
            # No time for a second try if the nodes of the first round count as missing.
            assert await locks.latch("done", 3).count_down(timeout=0) == 2
    finally:
        await locks.aclose()
