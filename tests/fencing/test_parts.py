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


async def test_all_slots_of_a_semaphore_get_through(
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


async def test_an_election_and_a_lock_of_one_name_are_two(
    locks: asynclock.LockManager, store: FenceStore
) -> None:
    async with (
        locks.lock("scheduler").acquire(timeout=20) as lease,
        locks.election("scheduler").campaign(timeout=20) as term,
    ):
        await store.claim(term.lease)
        await store.claim(lease)


async def test_all_writes_are_guarded_by_part(client: Redis) -> None:
    fenced = FencedRedis(client)
    reader, writer = FenceStamp("cfg", 5, "read"), FenceStamp("cfg", 6, "write")
    await fenced.set(reader, "a", "1")
    await fenced.hset(writer, "b", {"x": "1", "y": "2"})
    assert await fenced.delete(writer, "a", "b", "c") == 2
    await fenced.set(writer, "a", "2", ttl=600)
    assert 500 < await client.ttl("a") <= 600
    with pytest.raises(StaleFenceError):
        await fenced.set(reader, "a", "3")
    assert await client.get("a") == b"2"
    records = {b"asynclock:seen:cfg:#write:#seen", b"asynclock:seen:cfg:#read:#seen"}
    assert set(await client.keys("asynclock:*")) == records
