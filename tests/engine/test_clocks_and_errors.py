"""What jumps of clocks and errors of nodes mean for requests that are under way."""

import asyncio
from typing import Any

import pytest

from tests.engine.virtual_nodes import NODE_TIMEOUT, VALID, Nodes, start, virtual


@virtual
async def test_a_renewal_counts_less_if_our_clock_stood_still_meanwhile(on: Nodes) -> None:
    """The keys end sooner by our clock, also those that the renewal has prolonged."""
    lease = await on.locks.lock("a").acquire()
    on.slow(0.3)
    extending = start(lease.extend())
    await asyncio.sleep(0.1)
    for node in on.nodes:
        node.jump_clock(3)
    await extending
    assert lease.remaining() == pytest.approx(VALID - 0.6 - 3, abs=0.35)
    on.slow(0.0)


@virtual
async def test_a_node_may_take_as_long_as_the_reply_of_a_busy_process_is_waited_for(
    on: Nodes,
) -> None:
    """That is several node timeouts; a request that comes later is not executed."""
    node, asked = on.nodes[0], []
    answer = node.answer

    def noting(client: Any, words: Any) -> Any:
        if b"acquire" in words:
            asked.append((words, node.wall()))
        return answer(client, words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "answer", noting)
        async with on.locks.semaphore("a", 2).acquire():
            pass
    ((words, wall),) = asked
    not_after = int(words[words.index(b"acquire") + 4]) / 1_000_000
    longest = 8 * NODE_TIMEOUT
    assert not_after - wall == pytest.approx(longest, abs=0.2)
