"""What a call makes of slow nodes, a short timeout and a busy event loop. In virtual time."""

import asyncio
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import COUNTER, KEY, NODE_TIMEOUT, TTL, Nodes, start, virtual
from tests.tables.inside import names_in_use, now
from tests.waiting import until


@pytest.mark.parametrize("node_timeout", [NODE_TIMEOUT, 2.0])
@virtual
async def test_a_second_round_trip_keeps_to_the_timeout(on: Nodes, node_timeout: float) -> None:
    """One node has another counter, so the fence is written back to the others."""
    await on.nodes[0].command("SET", COUNTER, int((on.nodes[0].wall() + 1000) * 1_000_000))
    async with on.connect(node_timeout=node_timeout) as locks:
        on.slow(0.45 * node_timeout)
        began = now()
        with pytest.raises((asynclock.AcquireTimeoutError, asynclock.QuorumUnavailableError)):
            await locks.lock("a").acquire(timeout=1.5 * node_timeout)
        assert now() - began == pytest.approx(1.5 * node_timeout, abs=0.02)
        on.slow(0.0)


@virtual
async def test_a_lease_that_ended_before_its_call_went_on_is_not_returned(on: Nodes) -> None:
    """The event loop was busy for longer than the ttl, so the nodes are asked again."""
    loop: Any = asyncio.get_running_loop()
    on.slow(0.1)

    def block() -> None:
        loop.now += 2 * TTL

    calling = asyncio.create_task(on.locks.lock("a").acquire(timeout=60))
    loop.call_later(0.15, block)
    lease = await calling
    assert lease.held
    assert lease.remaining() > TTL / 2


@virtual
async def test_a_name_that_nobody_here_has_or_wants_is_forgotten(on: Nodes) -> None:
    await on.ghost()
    for _ in range(2):
        with pytest.raises(asynclock.AcquireTimeoutError):
            await on.locks.lock("a").acquire(timeout=0.5)
        assert names_in_use(on.locks) == []


@virtual
async def test_a_try_never_stands_in_the_queue_of_a_node(on: Nodes) -> None:
    """Others would wait for it."""
    await on.ghost()
    node, queued = on.nodes[0], []
    answer = node.answer

    def watched(client: Any, words: Any) -> Any:
        reply = answer(client, words)
        queued.append(node.keys.get(KEY + b":#queue") is not None)
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "answer", watched)
        assert await on.locks.lock("a").try_acquire() is None
        assert queued
        assert not any(queued)
        waiting = start(on.locks.lock("a").acquire())
        await until(lambda: any(queued))
    waiting.cancel()
