"""Who is woken when a name, or one of several, becomes free; in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asynclock
from asynclock._engine.ticket import PATIENCE
from tests.engine.test_queue import AT_ONCE, line_up
from tests.engine.virtual_nodes import (
    Nodes,
    seconds_until,
    virtual,
)

SOON = 0.1 * PATIENCE
"""Less than any refresh takes."""


async def hold(semaphore: asynclock.Semaphore, *slots: int) -> list[asynclock.Lease]:
    """Hold these slots, and no others."""
    leases = [await semaphore.acquire() for _ in range(semaphore.permits)]
    kept = []
    for lease in leases:
        if int(lease.part) in slots:
            kept.append(lease)
        else:
            await lease.release()
    return kept


@virtual
async def test_slots_that_are_freed_at_once_are_taken_at_once(on: Nodes) -> None:
    """A refusal reports on 64 slots, so nobody sees all of them."""
    permits = 130
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(4)]
        leases = await hold(on.locks.semaphore("a", permits), *range(permits))
        by_slot = {int(lease.part): lease for lease in leases}
        waiting = [await line_up(locks.semaphore("a", permits), locks) for locks in others]
        await asyncio.gather(*(by_slot[slot].release() for slot in (0, 40, 70, 120)))
        for task in waiting:
            assert await seconds_until(task.done) < SOON
        for task in waiting:
            await task.result().release()


@virtual
async def test_users_of_fewer_permits_wake_those_of_more(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        leases = await hold(on.locks.semaphore("a", 3), 0, 1, 2)
        fewer = await line_up(one.semaphore("a", 1), one)
        more = await line_up(two.semaphore("a", 3), two)
        await asyncio.gather(*(lease.release() for lease in leases))
        assert await seconds_until(fewer.done) < SOON
        assert await seconds_until(more.done) < SOON
        await (await fewer).release()
        await (await more).release()


@virtual
async def test_a_user_of_fewer_permits_that_leaves_wakes_the_next(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        leases = await hold(on.locks.semaphore("a", 3), 0, 1, 2)
        fewer = await line_up(one.semaphore("a", 1), one)
        more = await line_up(two.semaphore("a", 3), two)
        await asyncio.gather(*(lease.release() for lease in leases if lease.part != "0"))
        await asyncio.sleep(SOON)
        assert not more.done()  # they go in one order
        fewer.cancel()
        assert await seconds_until(more.done) < SOON
        await (await more).release()


@virtual
async def test_a_release_of_several_names_wakes_a_waiter_of_the_same_process(on: Nodes) -> None:
    """It doesn't know that it is the first: who was before it has left since."""
    async with on.connect() as other:
        several = await on.locks.multi_lock("a", "b").acquire()
        first = await line_up(other.lock("a"), other)
        ours = await line_up(on.locks.lock("a"), on.locks)
        first.cancel()
        await asyncio.sleep(AT_ONCE)
        await several.release()
        assert await seconds_until(ours.done) < 0.01
        await (await ours).release()


@virtual
async def test_a_grant_is_no_reason_for_the_next_waiter_to_ask(on: Nodes) -> None:
    lock = on.locks.fair_lock("a")
    held = await lock.acquire()
    first = await line_up(lock, on.locks)  # type: ignore[arg-type]  # any lock will do
    second = await line_up(lock, on.locks)  # type: ignore[arg-type]
    before = on.locks.statistics().attempts
    await held.release()
    lease = await first
    await asyncio.sleep(AT_ONCE)
    assert on.locks.statistics().attempts == before + 1
    await lease.release()
    await (await second).release()
