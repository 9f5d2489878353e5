"""Readers that become writers and writers that go on as readers, on every deployment."""

import asyncio

import asynclock
from tests.contract.faces import Face
from tests.contract.matrix import DEPLOYMENTS, faces
from tests.primitives.conftest import hold
from tests.waiting import until

Locks = asynclock.LockManager
Pair = tuple[Locks, Locks]
PATIENCE = 10.0

face = faces(DEPLOYMENTS)


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
    assert (near.done(), far.done()) == (False, False)
    assert await reading.check()
    assert await there.read().try_acquire() is None, "writers wait"
    assert await reading.release()
    for writer in asyncio.as_completed((near, far)):
        lease = await writer
        assert lease.fence > reading.fence
        assert await lease.release()
    await face.empty()
