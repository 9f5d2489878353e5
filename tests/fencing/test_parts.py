"""Slots of a semaphore and sides of a read-write lock: each holder gets through, no stale one."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

import asynclock
from asynclock.fencing import (
    FencedRedis,
    FenceStamp,
    FenceStore,
    MemoryFenceStore,
    StaleFenceError,
    check_fence,
    fence_headers,
)
from asynclock.testing.plugin import StartServers
from tests import patient


@pytest.fixture(params=["redis", "memory"])
def store(request: pytest.FixtureRequest, client: Redis) -> FenceStore:
    return FencedRedis(client) if request.param == "redis" else MemoryFenceStore()


@pytest.fixture
async def locks(asynclock_servers: StartServers) -> AsyncIterator[asynclock.LockManager]:
    servers = await asynclock_servers(3)
    urls = [server.url for server in servers]
    async with patient.connect(*urls, restart_guard=False) as locks:
        yield locks


async def test_slots_of_a_semaphore_get_through(
    locks: asynclock.LockManager, store: FenceStore
) -> None:
    semaphore = locks.semaphore("jobs", 3)
    leases = [await semaphore.acquire(timeout=20) for _ in range(3)]
    assert {lease.part for lease in leases} == {"0", "1", "2"}
    for lease in sorted(leases, key=lambda one: -one.fence):  # the one with the lowest fence last
        await store.claim(lease)
        await check_fence(fence_headers(lease), store, "jobs")
    first, *_ = leases
    stale = FenceStamp("jobs", first.fence, first.part)
    await first.release()
    async with locks.semaphore("jobs", 3).acquire(timeout=20) as next_one:
        assert next_one.part == stale.part, "the two others are taken"
        await store.claim(next_one)
        with pytest.raises(StaleFenceError):
            await store.claim(stale)
    for lease in leases[1:]:
        await lease.release()


async def test_readers_hold_together_and_writers_in_turn(
    locks: asynclock.LockManager, store: FenceStore
) -> None:
    both = locks.rwlock("cfg")
    async with both.write().acquire(timeout=20) as old_writer:
        await store.claim(old_writer)
    one = await both.read().acquire(timeout=20)
    two = await both.read().acquire(timeout=20)
    for reader in (max(one, two, key=lambda lease: lease.fence), one, two):
        await store.claim(reader)
        await check_fence(fence_headers(reader), store, "cfg")
    with pytest.raises(StaleFenceError):
        await store.claim(old_writer)  # readers came after it
    await one.release()
    await two.release()
    async with both.write().acquire(timeout=20) as writer:
        await store.claim(writer)
        for stale in (one, two, old_writer):
            with pytest.raises(StaleFenceError):
                await store.claim(stale)
    async with both.read().acquire(timeout=20) as reader:
        await store.claim(reader)


async def test_a_reader_with_a_low_fence_does_not_let_an_old_writer_in(store: FenceStore) -> None:
    await store.claim(FenceStamp("cfg", 9, "read"))
    await store.claim(FenceStamp("cfg", 7, "read"))
    with pytest.raises(StaleFenceError) as caught:
        await store.claim(FenceStamp("cfg", 8, "write"))
    assert caught.value.highest == 9
