"""The fair lock: first come, first served, and dead waiters are skipped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual, virtual_single
from tests.tables.inside import now

QUEUE = "asynclock:a:#waiters"


async def put(on: Nodes, ticket: str, milliseconds: int) -> None:
    """Put a ticket into the queue whose waiter never asks again."""
    await on.nodes[0].command("ZADD", QUEUE, 1, ticket)
    await on.nodes[0].command("SET", f"{QUEUE}:#{ticket}", "1", "PX", milliseconds)


async def queued(on: Nodes, number: int) -> bool:
    await asyncio.sleep(0.01)
    return bool(await on.nodes[0].command("ZCARD", QUEUE) == number)


@asynccontextmanager
async def held_by_another(on: Nodes) -> AsyncIterator[tuple[asynclock.LockManager, Any]]:
    async with on.connect() as others:
        yield others, await others.fair_lock("a").acquire()


@virtual
async def test_first_come_first_served(on: Nodes) -> None:
    """Each asks once when it is woken; at most some ask by themselves, once a second."""
    order: list[int] = []
    fences: list[int] = []

    async def work(locks: asynclock.LockManager, number: int) -> None:
        async with locks.fair_lock("a") as lease:
            order.append(number)
            fences.append(lease.fence)

    async with held_by_another(on) as (there, holder), on.connect() as far:
        tasks = []
        for number in range(12):
            tasks.append(start(work((on.locks, there, far)[number % 3], number)))
            assert await queued(on, number + 1)
        assert await on.locks.fair_lock("a").try_acquire() is None
        await asyncio.sleep(TTL / 2)
        assert await queued(on, 12), "all have said that they are still there"
        await holder.release()
        await asyncio.gather(*tasks)
        assert order == [*range(12)]
        assert fences == sorted(set(fences))
        await asyncio.sleep(0.01)
        assert await on.nodes[0].command("KEYS", "asynclock:a*") == ["asynclock:a:#fair:#fence"]


@virtual_single
async def test_of_a_process_only_the_first_is_woken(on: Nodes) -> None:
    async def work() -> None:
        async with on.locks.fair_lock("a"):
            pass

    async with held_by_another(on) as (_, holder):
        tasks = []
        for number in range(30):
            tasks.append(start(work()))
            assert await queued(on, number + 1)
        before = on.locks.statistics().attempts
        await holder.release()
        await asyncio.gather(*tasks)
        assert on.locks.statistics().attempts - before <= 2 * 30


@virtual_single
async def test_a_newcomer_does_not_overtake(on: Nodes) -> None:
    """Free, but there is a queue: a try_acquire is refused until the ghost is skipped."""
    await put(on, f"{0:032x}:crashed", 2000)
    with pytest.raises(asynclock.AcquireTimeoutError) as caught:
        await on.locks.fair_lock("a").acquire(timeout=0.05)
    assert caught.value.holder == "crashed"
    assert await on.locks.fair_lock("a").try_acquire() is None
    began = now()
    assert (await on.locks.fair_lock("a").acquire()).held
    assert now() - began == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("where", ["this process", "another"])
@virtual_single
async def test_the_next_is_woken_when_the_first_gives_up_a_free_lock(on: Nodes, where: str) -> None:
    """The first waiter no longer asks, and does not know that it is the first."""
    async with on.connect() as others:
        await put(on, "ghost", 600_000)
        late = start(on.locks.fair_lock("a").acquire(timeout=0.5))
        assert await queued(on, 2)
        locks = on.locks if where == "this process" else others
        patient = start(locks.fair_lock("a").acquire())
        assert await queued(on, 3)
        await on.nodes[0].command("ZREM", QUEUE, "ghost")
        with pytest.raises(asynclock.AcquireTimeoutError):
            await late
        await asyncio.sleep(0.01)
        assert patient.done(), "not only when it would ask by itself, a second later"
