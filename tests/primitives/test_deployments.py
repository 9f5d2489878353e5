"""Every primitive where one primary decides: with acknowledged replicas, and on a Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import RedisCluster, Replicated
from asynclock.testing.topology import Topology


@pytest_asyncio.fixture(params=["replicated", "cluster"], scope="module", loop_scope="module")
async def topology(request: pytest.FixtureRequest) -> AsyncIterator[Topology]:
    made = Replicated(2) if request.param == "replicated" else RedisCluster(3, 0)
    async with made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def locks(topology: Topology) -> AsyncIterator[asynclock.LockManager]:
    settings: dict[str, Any] = {"acks": 1} if isinstance(topology, Replicated) else {}
    made = asynclock.connect(*topology.addresses, restart_guard=False, ttl=5, **settings)
    async with made:
        yield made


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_leases(locks: asynclock.LockManager) -> None:
    makers: list[Any] = [
        locks.reentrant_lock("a"),
        locks.rwlock("a").read(),
        locks.rwlock("a").write(),
        locks.semaphore("a", 3),
        locks.multi_lock("a", "b", "c"),
        locks.fair_lock("a"),
    ]
    for lock in makers:
        fences = []
        for _ in range(3):
            lease = await lock.acquire(timeout=10)
            assert lease.held
            await lease.extend()
            fences.append(lease.fence)
            assert await lease.release()
        assert len(set(fences)) == 3 or isinstance(lock, asynclock.Semaphore)


async def test_waiters_are_woken(locks: asynclock.LockManager) -> None:
    peak = inside = 0

    async def work() -> None:
        nonlocal peak, inside
        async with locks.semaphore("pool", 3):
            inside += 1
            peak = max(peak, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    async def serve() -> None:
        async with locks.fair_lock("counter"):
            await asyncio.sleep(0.001)

    async with asyncio.timeout(30):
        await asyncio.gather(*(work() for _ in range(12)), *(serve() for _ in range(8)))
    assert peak <= 3


async def test_election(locks: asynclock.LockManager) -> None:
    async with locks.election("scheduler").campaign("here") as term:
        leader = await locks.election("scheduler").leader()
        assert leader is not None
        assert (leader.term, leader.value) == (term.number, "here")


async def test_shared_state(locks: asynclock.LockManager) -> None:
    waiting = asyncio.create_task(locks.event("go").wait())
    await locks.event("go").set()
    assert await asyncio.wait_for(waiting, 10)
    counts = await asyncio.gather(*(locks.latch("done", 5).count_down() for _ in range(5)))
    assert min(counts) == 0
    places = await asyncio.gather(*(locks.barrier("all", 3).wait(timeout=20) for _ in range(3)))
    assert sorted(places) == [0, 1, 2]


async def test_several_names(locks: asynclock.LockManager, topology: Topology) -> None:
    async with locks.multi_lock("x", "y", "z") as lease:
        assert len(lease.leases) == (3 if isinstance(topology, RedisCluster) else 1)
        assert lease.fences.keys() == {"x", "y", "z"}
        with pytest.raises(asynclock.AlreadyHeldError):
            await locks.multi_lock("y", "w").acquire(timeout=5)
        assert (await locks.multi_lock("x", "w").inspect()).parts[1].owner == lease.owner
