"""A release at the moment in which the next waiter is being cancelled."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from asynclock.testing import LocalServer, until

LONG = 60.0


@pytest.fixture
async def locks(asynclock_nodes: list[LocalServer]):
    urls = [node.url for node in asynclock_nodes]
    async with asynclock.connect(
        *urls, restart_guard=False, ttl=LONG, max_ttl=LONG, node_timeout=5.0
    ) as locks:
        yield locks


async def queue_up(locks: asynclock.LockManager, ttl: float) -> asyncio.Task[asynclock.Lease]:
    before = sum(locks.waiters().values())

    async def wait() -> asynclock.Lease:
        return await locks.lock("a", ttl=ttl).acquire()

    task = asyncio.create_task(wait())
    while sum(locks.waiters().values()) == before:
        await asyncio.sleep(0)
    return task


async def test_nobody_is_left_with_the_key(
    locks: asynclock.LockManager, asynclock_nodes: list[LocalServer]
) -> None:
    lease = await locks.lock("a").acquire()
    waiter = await queue_up(locks, LONG)
    waiter.cancel()
    # No step of the loop in between: the waiter is cancelled and does not know it yet.
    await lease.release()
    with pytest.raises(asyncio.CancelledError):
        await waiter

    async def free() -> bool:
        return not any([await node.command("EXISTS", "asynclock:a") for node in asynclock_nodes])

    await until(free, "the key is gone")


async def test_the_terms_that_count_are_those_of_who_gets_it(
    locks: asynclock.LockManager,
) -> None:
    """The one behind the cancelled one asked for a shorter ttl: it must not inherit the long."""
    lease = await locks.lock("a").acquire()
    waiter, other = await queue_up(locks, LONG), await queue_up(locks, 20.0)
    waiter.cancel()
    await lease.release()
    got = await other
    assert got.ttl == 20.0
    assert got.remaining() <= 20.0
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await got.release()
