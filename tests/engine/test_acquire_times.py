"""What a call makes of slow nodes, a short timeout and a busy event loop. In virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import asynclock
from asynclock import _clock, events
from asynclock._rules.validity import longest_outage
from tests.engine.virtual_nodes import COUNTER, KEY, NODE_TIMEOUT, TTL, Nodes, start, virtual
from tests.engine.votes import HELD, OUT, answered, ask, error_of
from tests.waiting import until


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_a_free_name_is_given_however_short_the_timeout_is(timeout: float) -> None:
    """The nodes get the time for one answer in any case."""

    @virtual
    async def test(on: Nodes) -> None:
        on.slow(0.1)
        async with on.locks.lock("a").acquire(timeout=timeout) as lease:
            assert lease.held
        on.slow(0.0)

    test()


@pytest.mark.parametrize("node_timeout", [NODE_TIMEOUT, 2.0])
def test_a_second_round_trip_does_not_go_beyond_the_timeout(node_timeout: float) -> None:
    """One node has another counter, so the fence is written back to the others."""

    @virtual
    async def test(on: Nodes) -> None:
        await on.nodes[0].command("SET", COUNTER, int((on.nodes[0].wall() + 1000) * 1_000_000))
        async with on.connect(node_timeout=node_timeout) as locks:
            on.slow(0.45 * node_timeout)
            began = _clock.now()
            with pytest.raises((asynclock.AcquireTimeoutError, asynclock.QuorumUnavailableError)):
                await locks.lock("a").acquire(timeout=1.5 * node_timeout)
            assert _clock.now() - began == pytest.approx(1.5 * node_timeout, abs=0.02)
            on.slow(0.0)

    test()


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
    on.slow(0.0)


@virtual
async def test_an_outage_that_ended_does_not_count_for_the_next_one(on: Nodes) -> None:
    """Each lasts as long as a restart may take before a call without a timeout gives up."""
    with answered(replace(OUT, took=8.0), HELD, OUT):
        found, took = await error_of(ask(on))
    assert found is asynclock.QuorumUnavailableError
    assert took >= 8.0 + longest_outage(TTL)


@virtual
async def test_who_waits_for_a_task_that_was_refused_after_an_outage_learns_of_the_holder(
    on: Nodes,
) -> None:
    for node in on.nodes[:2]:
        node.kill()
    await until(lambda: [one.state for one in on.locks.nodes()][:2] == ["down"] * 2)
    asking = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.5)
    for node in on.nodes[:2]:
        node.restart()
        node.born_ago(3600)
    await on.ghost()
    await until(lambda: on.locks.statistics().refused)
    with pytest.raises(asynclock.AcquireTimeoutError):
        await on.locks.lock("a").acquire(timeout=1)
    asking.cancel()


@virtual
async def test_a_name_that_nobody_here_has_or_wants_is_forgotten(on: Nodes) -> None:
    await on.ghost()
    for _ in range(2):
        with pytest.raises(asynclock.AcquireTimeoutError):
            await on.locks.lock("a").acquire(timeout=0.5)
        assert on.locks._engine.queues == {}


@virtual
async def test_a_turn_in_the_local_queue_is_counted_as_one(on: Nodes) -> None:
    first = await on.locks.lock("a").acquire()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().waiting)
    assert on.locks.statistics().wakeups["turn"] == 0
    await first.release()
    await waiting
    assert on.locks.statistics().wakeups["turn"] == 1


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


@virtual
async def test_what_is_told_of_a_call_in_vain(on: Nodes) -> None:
    """How long it waited, and the label of the holder: with the id anyone could release it."""
    seen: list[Any] = []
    on.locks.observe(seen.append)
    await on.ghost("0123456789abcdef" * 2 + ":worker-1")
    with pytest.raises(asynclock.AcquireTimeoutError):
        await on.locks.lock("a").acquire(timeout=0.5)
    assert {one.holder for one in seen if isinstance(one, events.Contended)} == {"worker-1"}
    (failed,) = (one for one in seen if isinstance(one, events.Failed))
    assert (failed.name, failed.outcome) == ("a", "timeout")
    assert failed.waited == pytest.approx(0.5, abs=0.01)


@virtual
async def test_a_task_may_wait_for_another_permit_although_it_has_one(on: Nodes) -> None:
    """Somebody else has the other one, and will give it back."""
    semaphore = on.locks.semaphore("a", 2)
    async with on.connect() as others, semaphore.acquire():
        other = await others.semaphore("a", 2).acquire()
        for _ in range(3):
            with pytest.raises(asynclock.AcquireTimeoutError):
                await semaphore.acquire(timeout=0.3)
        asyncio.get_running_loop().call_later(0.1, start, other.release())
        async with semaphore.acquire(timeout=5):
            pass
