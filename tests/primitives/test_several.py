"""Several permits of a semaphore at once, on every deployment."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from tests.contract.faces import Face
from tests.contract.matrix import DEPLOYMENTS, faces
from tests.primitives.conftest import hold
from tests.waiting import until

Locks = asynclock.LockManager
Pair = tuple[Locks, Locks]
PATIENCE = 10.0

face = faces(DEPLOYMENTS)


async def test_all_or_nothing(face: Face, pair: Pair) -> None:
    here, there = (locks.semaphore("a", 4) for locks in pair)
    async with here.several(3).acquire(timeout=PATIENCE) as lease:
        assert lease.name == "a"
        assert len(lease.fences) == 3
        assert lease.fences.keys() <= set("0123")
        assert lease.fence == max(lease.fences.values())
        assert await lease.check()
        await lease.extend()
        assert await there.several(2).try_acquire() is None
        with pytest.raises(asynclock.AcquireTimeoutError):
            await there.several(2).acquire(timeout=0.3)
        last = await hold(there, timeout=PATIENCE)
        assert last.part not in lease.fences, "what failed has kept nothing"
        assert await here.try_acquire() is None
        assert await last.release()
    async with there.several(4).acquire(timeout=PATIENCE) as everything:
        assert everything.fences.keys() == set("0123")
        assert all(everything.fences[slot] > fence for slot, fence in lease.fences.items())
    await face.empty()


async def test_a_large_request_is_not_starved_by_small_ones(face: Face, pair: Pair) -> None:
    """All permits are in use all the time, and it gets them one by one."""
    here, there = (locks.semaphore("a", 3) for locks in pair)
    done = False
    turns = 0

    async def small(semaphore: asynclock.Semaphore) -> None:
        nonlocal turns
        while not done:
            async with semaphore.acquire(timeout=PATIENCE):
                turns += 1
                await asyncio.sleep(0.005)

    workers = [asyncio.create_task(small(one)) for one in (here, there) * 3]
    await until(lambda: turns > 10, "the small ones keep all permits busy")
    async with there.several(3).acquire(timeout=PATIENCE):
        done = True
    await asyncio.gather(*workers)
    await face.empty()


async def test_two_large_requests_do_not_wait_for_each_other(face: Face, pair: Pair) -> None:
    """With 4 permits, two that want 3 would wait for ever if each had taken 2."""
    inside = 0

    async def large(semaphore: asynclock.Semaphore) -> None:
        nonlocal inside
        for _ in range(3):
            async with semaphore.several(3).acquire(timeout=PATIENCE):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                inside -= 1

    both = [locks.semaphore("a", 4) for locks in pair]
    await asyncio.gather(*(large(one) for one in both * 2))
    await face.empty()


async def test_a_cancelled_request_holds_nothing(face: Face, pair: Pair) -> None:
    here, there = (locks.semaphore("a", 3) for locks in pair)
    one = await hold(here, timeout=PATIENCE)
    before = pair[1].statistics().refused
    waiting = asyncio.create_task(hold(there.several(3), timeout=PATIENCE))
    await until(lambda: pair[1].statistics().refused > before, "it has all that is free")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await one.release()
    await face.empty()
