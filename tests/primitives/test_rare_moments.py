"""Primitives at moments that no real server hits reliably, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._primitives.barrier import _describe
from asynclock.testing import lose
from tests.engine.virtual_nodes import Nodes, start, virtual, virtual_single
from tests.waiting import until

# ---- holds on several leases, or several times on one --------------------------------------------


async def holds(on: Nodes) -> list[Any]:
    return [
        await on.locks.multi_lock("m", "n").acquire(),
        await on.locks.reentrant_lock("r").acquire(),
    ]


@virtual_single
async def test_a_hold_is_entered_once_and_not_used_after_its_end(on: Nodes) -> None:
    for hold in await holds(on):
        async with hold:
            with pytest.raises(RuntimeError, match="entered already"):
                await hold.__aenter__()
            await hold.extend()
        with pytest.raises(asynclock.LeaseLostError, match="released"):
            await hold.extend()


@virtual_single
async def test_a_hold_that_a_stack_only_leaves_is_released(on: Nodes) -> None:
    for hold in await holds(on):
        async with AsyncExitStack() as stack:
            stack.push_async_exit(hold)
            assert hold.held
            assert hold.task is None
        assert not hold.held
        assert await hold.release(), "it was held until the stack left it"
    assert not on.locks.statistics().held


@virtual_single
async def test_a_generator_that_is_closed_ends_only_its_own_nested_hold(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("r")

    async def work() -> AsyncIterator[int]:
        async with lock as inner:
            yield inner.fence

    async with lock as outer:
        inside = work()
        assert await anext(inside) == outer.fence
        await inside.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert await outer.check()
    assert await on.nodes[0].command("EXISTS", "asynclock:r") == 0


# ---- barriers ------------------------------------------------------------------------------------


@virtual
async def test_a_broken_barrier_describes_itself(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 2)
    await barrier.abort()
    value = await barrier._register.read(None)
    assert _describe(value or "", 0)[1] == "broken in round 1, until it is reset"
    await barrier.reset()
    value = await barrier._register.read(None)
    assert _describe(value or "", 0)[1] == "0 of 2 wait for round 1"


@virtual
async def test_a_round_that_is_complete_at_the_deadline_is_no_timeout(on: Nodes) -> None:
    """The news of it is still on its way to the party that gives up."""
    there = on.connect()
    async with there:
        async with there.lock("warm"):
            pass
        early = asyncio.create_task(on.locks.barrier("a", 2).wait(timeout=3.0))
        await asyncio.sleep(2.5)
        late = asyncio.create_task(there.barrier("a", 2).wait(timeout=9.0))
        on.slow(0.2)
        assert [await early, await late] == [0, 1]


@virtual
async def test_a_party_that_leaves_before_it_arrived_leaves_nothing(on: Nodes) -> None:
    on.slow(0.1)
    waiting = asyncio.create_task(on.locks.barrier("a", 2).wait())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(5)
    assert waiting.cancelled()
    assert await on.locks.barrier("a", 2).waiting() == 0


@virtual
async def test_a_party_whose_manager_is_closed_starts_no_more_work(on: Nodes) -> None:
    there = on.connect()
    waiting = asyncio.create_task(there.barrier("a", 2).wait())
    await asyncio.sleep(1)
    closing = asyncio.create_task(there.aclose())
    await until(lambda: there._engine.closed, every=0.0)
    waiting.cancel()
    await asyncio.wait([waiting, closing])
    assert waiting.cancelled()
    assert not there._engine.background._tasks


# ---- sides of a read-write lock ------------------------------------------------------------------


@virtual
async def test_a_downgrade_that_is_cancelled_keeps_neither_side(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    writing = await lock.write().acquire()
    on.slow(0.2)
    changing = start(lock.downgrade(writing))
    await asyncio.sleep(0.5)  # it reads already, and has asked to release the writer
    assert not changing.done()
    changing.cancel()
    await asyncio.wait([changing])
    assert changing.cancelled()
    async with on.connect() as others, others.rwlock("a").write().acquire(timeout=5) as later:
        assert later.fence > writing.fence


@virtual
async def test_a_writer_that_is_lost_during_a_downgrade_does_not_read_on(on: Nodes) -> None:
    """Another may have written in between, so a lease to read would mislead."""
    lock = on.locks.rwlock("a")
    writing = await lock.write().acquire()
    on.slow(0.2)
    changing = start(lock.downgrade(writing))
    await asyncio.sleep(0.3)
    lose(writing)
    with pytest.raises(asynclock.LeaseLostError, match="a test took it away"):
        await changing
    on.slow(0.0)
    async with on.connect() as others, others.rwlock("a").write().acquire(timeout=5) as later:
        assert later.fence > writing.fence


@virtual
async def test_the_last_value_of_a_term_counts_though_a_node_has_an_older_one(on: Nodes) -> None:
    election, key = on.locks.election("e"), "asynclock:e:#value"
    async with election.campaign("later in the alphabet") as term:
        await asyncio.sleep(0.1)
        older = await on.nodes[2].command("GET", key)
        assert await term.publish("early")
        await asyncio.sleep(0.1)
        await on.nodes[2].command("SET", key, older)
        leader = await election.leader()
        assert leader is not None
        assert leader.value == "early"


@virtual
async def test_a_party_that_gets_too_few_answers_leaves(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 2)
    waiting = start(barrier.wait(timeout=3.0))

    async def parties(number: int) -> bool:
        return await barrier.waiting() == number

    await until(lambda: parties(1), "it waits")
    for node in on.nodes[1:]:
        node.freeze()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await waiting
    for node in on.nodes:
        node.thaw()
    await until(lambda: parties(0), "it leaves", timeout=2.0)


@virtual
async def test_a_change_goes_at_once_above_a_number_from_a_clock_that_is_ahead(on: Nodes) -> None:
    event = on.locks.event("e")
    await event.set()
    ahead = int((on.nodes[0].wall() + 5) * 1e6)
    for node in on.nodes:
        await node.command("HSET", "asynclock:e:#event", "promised", ahead, "by", "another")
    began = _clock.now()
    await event.clear()
    assert _clock.now() - began < 1


@virtual_single
async def test_a_reader_removes_those_that_died(on: Nodes) -> None:
    await on.nodes[0].command("ZADD", "asynclock:a:#readers", 1, "dead")
    async with on.locks.rwlock("a").read():
        assert await on.nodes[0].command("ZCARD", "asynclock:a:#readers") == 1


@virtual
async def test_an_open_latch_counts_no_more(on: Nodes) -> None:
    """Its state lists each count, so it would grow with every call."""
    latch = on.locks.latch("a", 2)
    assert await latch.count_down(2) == 0
    before = {view.value for view in (await latch.inspect()).nodes}
    assert await latch.count_down() == 0
    assert {view.value for view in (await latch.inspect()).nodes} == before
