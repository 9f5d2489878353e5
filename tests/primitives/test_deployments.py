"""What each primitive is for, on every deployment: up, with a server dead and with one frozen.

More is tried elsewhere, on one server and on five masters; here it is the essence of each, where
a primary with replicas, Sentinels, a Cluster or masters of which some are missing decide.
"""

import asyncio
from collections.abc import Awaitable

import pytest

import asynclock
from tests.contract.faces import Face
from tests.contract.matrix import DEPLOYMENTS, faces
from tests.primitives.conftest import hold
from tests.waiting import refused, until

Locks = asynclock.LockManager
PATIENCE = 20.0

face = faces(DEPLOYMENTS)


# ---- what one holds and others then don't --------------------------------------------------------
async def test_readers_share(face: Face, pair: tuple[Locks, Locks]) -> None:
    here, there = (locks.rwlock("a") for locks in pair)
    before = await hold(here.write(), timeout=PATIENCE)
    assert await refused(there.read())
    await before.release()
    async with (
        here.read().acquire(timeout=PATIENCE) as one,
        there.read().acquire(timeout=PATIENCE) as two,
    ):
        assert before.fence < min(one.fence, two.fence)
        assert await refused(there.write())
    async with there.write().acquire(timeout=PATIENCE) as after:
        assert after.fence > max(one.fence, two.fence)
    await face.empty()


async def test_semaphore(face: Face, pair: tuple[Locks, Locks]) -> None:
    here, there = (locks.semaphore("a", 2) for locks in pair)
    one = await hold(here, timeout=PATIENCE)
    two = await hold(there, timeout=PATIENCE)
    assert {one.part, two.part} == {"0", "1"}
    assert await refused(here)
    assert await refused(there)
    assert await one.release()
    three = await hold(there, timeout=PATIENCE)
    assert three.part == one.part
    assert three.fence > one.fence
    assert await two.release()
    assert await three.release()
    await face.empty()


async def test_several_permits(face: Face, pair: tuple[Locks, Locks]) -> None:
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


async def test_names_of_several_locks(pair: tuple[Locks, Locks]) -> None:
    here, there = pair
    async with here.multi_lock("x", "y", "z").acquire(timeout=PATIENCE) as lease:
        assert lease.fences.keys() == {"x", "y", "z"}
        assert await refused(there.lock("y"))
        assert await refused(there.multi_lock("w", "z"))
        with pytest.raises(asynclock.AlreadyHeldError):
            await here.multi_lock("y", "w").acquire(timeout=PATIENCE)
        assert (await there.multi_lock("x", "w").inspect()).parts[1].owner == lease.leases[0].owner


async def test_election(face: Face, pair: tuple[Locks, Locks]) -> None:
    here, there = (locks.election("a") for locks in pair)
    async with here.campaign("here", timeout=PATIENCE) as first:
        leader = await there.leader()
        assert leader is not None
        assert (leader.term, leader.value) == (first.number, "here")
        with pytest.raises(asynclock.AcquireTimeoutError):
            await there.campaign(timeout=0.5)
    async with there.campaign("there", timeout=PATIENCE) as second:
        assert second.number > first.number
    await face.empty()


# ---- state without an owner: its first change has no rival (docs/decisions/0014) -----------------
async def test_event(pair: tuple[Locks, Locks]) -> None:
    here, there = (locks.event("a") for locks in pair)
    await here.clear(timeout=PATIENCE)
    waiting = asyncio.create_task(there.wait(timeout=PATIENCE))
    assert not await there.is_set(timeout=PATIENCE)
    await here.set(timeout=PATIENCE)
    assert await waiting
    assert await there.is_set(timeout=PATIENCE)
    await there.clear(timeout=PATIENCE)
    assert not await here.is_set(timeout=PATIENCE)


async def test_latch(pair: tuple[Locks, Locks]) -> None:
    here, there = (locks.latch("a", 5) for locks in pair)
    assert await here.count_down(timeout=PATIENCE) == 4
    waiting = asyncio.create_task(there.wait(timeout=PATIENCE))
    counts: list[Awaitable[int]] = [one.count_down(timeout=PATIENCE) for one in (here, there, here)]
    assert min(await asyncio.gather(*counts)) == 1
    assert not waiting.done()
    assert await there.count_down(timeout=PATIENCE) == 0
    assert await waiting


async def test_barrier(pair: tuple[Locks, Locks]) -> None:
    here, there = (locks.barrier("a", 2) for locks in pair)
    await here.reset(timeout=PATIENCE)
    for _ in range(2):
        both = (one.wait(timeout=PATIENCE) for one in (here, there))
        assert sorted(await asyncio.gather(*both)) == [0, 1]
    waiting = asyncio.create_task(here.wait(timeout=PATIENCE))

    async def waits() -> bool:
        return await there.waiting(timeout=PATIENCE) == 1

    await until(waits, "it waits")
    await there.abort(timeout=PATIENCE)
    with pytest.raises(asynclock.BrokenBarrierError):
        await waiting
    assert await here.broken(timeout=PATIENCE)
    await here.reset(timeout=PATIENCE)
    assert not await there.broken(timeout=PATIENCE)


async def test_once(face: Face, pair: tuple[Locks, Locks]) -> None:
    begun: list[int] = []

    async def work(locks: Locks) -> tuple[object, int]:
        async with locks.once("a", timeout=PATIENCE) as run:
            if not run.done:
                begun.append(run.fence)
                await asyncio.sleep(0.05)
                run.finish({"by": len(begun)})
        return run.result, run.fence

    found = await asyncio.gather(*(work(locks) for locks in pair * 3))
    assert found == [({"by": 1}, begun[0])] * 6
    for locks in pair:
        async with locks.once("failed", timeout=PATIENCE) as run:
            assert not run.done  # the first one ended without a result
    await face.empty(":#once")
