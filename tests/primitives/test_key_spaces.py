"""Locks, counters and records of neighbouring prefixes and names leave each other alone."""

import pytest
from redis.asyncio import Redis

import asynclock
from asynclock.fencing import FencedRedis, FenceStamp
from asynclock.testing import LocalServer
from tests.primitives.conftest import Connect


async def test_a_counter_is_no_lock_of_another_prefix(
    connect_to: Connect, asynclock_nodes: list[LocalServer]
) -> None:
    outer = connect_to(asynclock_nodes, prefix="app:")
    inner = connect_to(asynclock_nodes, prefix="app:x:")
    async with inner.lock("fence", timeout=1) as held:
        async with outer.lock("x", timeout=1):
            assert (await inner.inspect("fence")).owner == held.owner
        assert await inner.lock("fence").try_acquire() is None
    with pytest.raises(asynclock.ConfigurationError, match="must not contain"):
        inner.lock("#fence")  # "app:x:" and "#fence" would be the counter of "app:x"


async def test_a_record_of_fences_is_no_lock(
    connect_to: Connect, asynclock_nodes: list[LocalServer]
) -> None:
    client = Redis.from_url(asynclock_nodes[0].url)
    locks = connect_to(asynclock_nodes[:1])
    fenced = FencedRedis(client)
    try:
        await fenced.claim(FenceStamp("orders:42", 7))
        async with locks.lock("seen:orders:42", timeout=1):  # was blocked for a week
            await fenced.claim(FenceStamp("orders:42", 8))
        with pytest.raises(asynclock.ConfigurationError, match="must not contain"):
            await fenced.claim(FenceStamp("orders:42:#seen", 9))
    finally:
        await client.aclose()
