"""Readers that become writers and writers that go on as readers, on every deployment."""

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


async def upgraded(lock: asynclock.ReadWriteLock, lease: asynclock.Lease) -> asynclock.Lease:
    """`upgrade` as a coroutine, for create_task."""
    return await lock.upgrade(lease, timeout=PATIENCE)


async def test_an_upgrade_writes_and_then_reads_again(face: Face, pair: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in pair)
    async with here.read().acquire(timeout=PATIENCE) as reading:
        async with here.upgrade(reading, timeout=PATIENCE) as writing:
            assert (writing.part, reading.part) == ("write", "read")
            assert writing.fence > reading.fence
            assert await writing.check()
            assert await reading.check()
            assert await there.read().try_acquire() is None
            assert await there.write().try_acquire() is None
        assert await reading.check(), "the reader never left"
        assert await there.write().try_acquire() is None
        other = await hold(there.read(), timeout=PATIENCE)
        assert other.fence > writing.fence
        assert await other.release()
    await face.empty()


async def test_an_upgrade_waits_for_the_other_readers(face: Face, pair: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in pair)
    mine, other = [await hold(side.read(), timeout=PATIENCE) for side in (here, there)]
    before = pair[0].statistics().refused
    waiting = asyncio.create_task(upgraded(here, mine))
    await until(lambda: pair[0].statistics().refused > before, "the upgrade is refused")
    assert await there.read().try_acquire() is None, "new readers wait for it"
    assert not waiting.done()
    assert await other.release()
    writing = await waiting
    assert await writing.release()
    assert await mine.release()
    await face.empty()


async def test_two_at_once_get_one_upgrade(pair: Pair) -> None:
    """Over a quorum too: a split vote at the gate is tried again."""
    sides = [locks.rwlock("a") for locks in pair]
    readers = [await hold(side.read(), timeout=PATIENCE) for side in sides]

    async def upgrade_or_leave(side: asynclock.ReadWriteLock, lease: asynclock.Lease) -> bool:
        try:
            async with side.upgrade(lease, timeout=PATIENCE):
                return True
        except asynclock.AcquireTimeoutError:
            raise
        except asynclock.NotAcquiredError:
            return False
        finally:
            await lease.release()

    both = map(upgrade_or_leave, sides, readers)
    assert sorted(await asyncio.gather(*both)) == [False, True]


async def test_an_upgrade_that_gives_up_goes_on_reading(face: Face, pair: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in pair)
    mine, other = [await hold(side.read(), timeout=PATIENCE) for side in (here, there)]
    with pytest.raises(asynclock.AcquireTimeoutError):
        await here.upgrade(mine, timeout=0.3)
    assert await mine.check()
    waiting = asyncio.create_task(upgraded(here, mine))
    before = pair[0].statistics().refused
    await until(lambda: pair[0].statistics().refused > before, "the upgrade is refused")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await mine.check()
    assert await mine.release()
    async with there.upgrade(other, timeout=PATIENCE):
        pass  # neither call left the gate closed
    assert await other.release()
    await face.empty()


async def test_an_upgrade_goes_ahead_of_waiting_writers(pair: Pair) -> None:
    """Also of a writer of the same process, which heads its local queue."""
    here, there = (locks.rwlock("a") for locks in pair)
    async with here.read().acquire(timeout=PATIENCE) as reading:
        writers = []
        for locks, side in zip(pair, (here, there), strict=True):
            writers.append(asyncio.create_task(hold(side.write(), timeout=PATIENCE)))
            await until(locks.waiters, "a writer waits")
        async with here.upgrade(reading, timeout=PATIENCE) as writing:
            assert not any(writer.done() for writer in writers)
    for writer in asyncio.as_completed(writers):
        lease = await writer
        assert lease.fence > writing.fence
        assert await lease.release()


async def test_a_downgrade_leaves_no_gap(face: Face, pair: Pair) -> None:
    """Waiting writers, of this process and of another, wait on for the reader."""
    here, there = (locks.rwlock("a") for locks in pair)
    writing = await hold(here.write(), timeout=PATIENCE)
    near = asyncio.create_task(hold(here.write(), timeout=PATIENCE))
    before = pair[1].statistics().refused
    far = asyncio.create_task(hold(there.write(), timeout=PATIENCE))
    await until(lambda: pair[1].statistics().refused > before, "the other writer is refused")
    await until(lambda: pair[0].statistics().waiting > 0, "the writer here waits")
    refused = pair[0].statistics().refused
    reading = await here.downgrade(writing)
    assert not writing.held
    assert writing.lost_reason is None
    assert reading.fence > writing.fence
    await until(
        lambda: pair[0].statistics().refused > refused,
        "the writer here asks the nodes",
        timeout=PATIENCE,
    )
    assert not near.done()
    assert not far.done()
    assert await reading.check()
    assert await reading.release()
    for writer in asyncio.as_completed((near, far)):
        lease = await writer
        assert lease.fence > reading.fence
        assert await lease.release()
    await face.empty()


async def test_a_downgrade_lets_readers_in(pair: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in pair)
    async with here.write().acquire(timeout=PATIENCE) as writing:
        assert await there.read().try_acquire() is None
        async with await here.downgrade(writing):
            other = await hold(there.read(), timeout=PATIENCE)
            assert await other.release()


async def test_a_task_inside_its_read_lease_waits_for_other_readers_only(pair: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in pair)
    other = await hold(there.read(), timeout=PATIENCE)

    async def leave() -> None:
        await until(pair[0].waiters, "the upgrade is refused")
        await other.release()

    async with here.read().acquire(timeout=PATIENCE) as reading:
        leaving = asyncio.create_task(leave())
        async with here.upgrade(reading, timeout=PATIENCE) as writing:
            assert writing.held
        await leaving
