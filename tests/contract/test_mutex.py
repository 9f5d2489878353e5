"""What a user may rely on, whatever the deployment: the contract of DESIGN's surface."""

from __future__ import annotations

import asyncio
import logging

import pytest

import asynclock
from tests.contract.conftest import Connect
from tests.contract.faces import Face
from tests.waiting import PATIENCE, until, waits


async def test_one_at_a_time(connect: Connect) -> None:
    here, there = connect(), connect()
    async with here.lock("a") as lease:
        assert lease.held
        assert 0 < lease.remaining() <= 10
        assert await there.lock("a").try_acquire() is None
        assert await here.lock("a").try_acquire() is None
        other = await there.lock("b").try_acquire()
        assert other is not None
        assert await other.release()
    assert not lease.held
    assert lease.remaining() == 0
    again = await there.lock("a").try_acquire()
    assert again is not None


async def test_nothing_is_left_behind(face: Face, locks: asynclock.LockManager) -> None:
    async with locks.lock("a") as lease:
        assert any("a" in key for key in await face.keys())
    assert lease.lost_reason is None
    assert await face.keys() == set()


async def test_fences_rise(connect: Connect) -> None:
    managers = connect(), connect()
    fences = []
    for number in range(8):
        async with managers[number % 2].lock("a") as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))


async def test_awaited_entered_and_tried_are_the_same(locks: asynclock.LockManager) -> None:
    lease = await locks.lock("a").acquire(timeout=PATIENCE)
    assert await lease.release() is True
    assert await lease.release() is True  # idempotent, with the same answer
    async with locks.lock("a").acquire(timeout=PATIENCE) as entered:
        assert entered.held
    tried = await locks.lock("a").try_acquire()
    assert tried is not None
    async with tried:
        assert tried.held
    assert not tried.held


async def test_timeout_says_who_has_it(connect: Connect) -> None:
    here, there = connect(label="billing"), connect()
    async with here.lock("a") as lease:
        with pytest.raises(asynclock.AcquireTimeoutError) as caught:
            await there.lock("a", timeout=0.3).acquire()
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert (error.name, error.owner, error.holder) == ("a", lease.owner, "billing")
    assert error.remaining is not None
    assert 0 < error.remaining <= 10
    assert error.retry_after == error.remaining


async def test_a_waiter_gets_it_when_it_is_released(connect: Connect) -> None:
    here, there = connect(), connect()
    first = await here.lock("a").acquire()
    waiter = asyncio.create_task(_acquire(there, "a"))
    await waits(there)
    assert not waiter.done()
    await first.release()
    second = await waiter
    assert second.fence > first.fence
    await second.release()


async def _acquire(locks: asynclock.LockManager, name: str) -> asynclock.Lease:
    return await locks.lock(name, timeout=20).acquire()


async def test_renewal_keeps_it_beyond_its_ttl(connect: Connect) -> None:
    # A busy machine loses leases with a short ttl (docs/tuning.md).
    locks = connect(ttl=4)
    async with locks.lock("a") as lease:
        await asyncio.sleep(4.5)
        assert lease.held
        assert await connect().lock("a").try_acquire() is None
    assert lease.lost_reason is None


async def test_without_renewal_it_ends_by_itself(connect: Connect) -> None:
    lease = await connect(ttl=1).lock("a", renew=False).acquire()
    await asyncio.wait_for(lease.wait_lost(), PATIENCE)
    assert not lease.held
    assert lease.lost_reason == "its ttl ran out (renew=False)"
    assert await lease.release() is False


async def test_max_hold_ends_it(connect: Connect) -> None:
    lease = await connect(ttl=1).lock("a", max_hold=1.1).acquire()
    await asyncio.wait_for(lease.wait_lost(), PATIENCE)
    assert lease.lost_reason == "its max_hold is over"


async def test_a_loss_ends_the_body(
    face: Face, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    locks = connect(ttl=0.9)
    with caplog.at_level(logging.ERROR, "asynclock"), pytest.raises(asynclock.LeaseLostError) as e:
        async with locks.lock("a"):
            await face.command("FLUSHALL")
            await asyncio.sleep(30)
    assert e.value.name == "a"
    assert e.value.reason
    losses = [record for record in caplog.records if "lost the lease" in record.message]
    assert len(losses) == 1


async def test_a_loss_without_interrupt_raises_at_the_exit(face: Face, connect: Connect) -> None:
    locks = connect(ttl=0.6)
    finished = False
    with pytest.raises(asynclock.LeaseLostError):
        async with locks.lock("a", interrupt=False) as lease:
            await face.command("FLUSHALL")
            await lease.wait_lost()
            assert not lease.held
            finished = True
    assert finished


async def test_a_bodys_own_error_is_never_replaced(face: Face, connect: Connect) -> None:
    locks = connect(ttl=0.6)
    with pytest.raises(KeyError):
        async with locks.lock("a", interrupt=False) as lease:
            await face.command("FLUSHALL")
            await lease.wait_lost()
            raise KeyError


async def test_release_tells_a_loss_nobody_noticed(
    face: Face, locks: asynclock.LockManager
) -> None:
    with pytest.raises(asynclock.LeaseLostError):
        async with locks.lock("a"):
            await face.command("FLUSHALL")


async def test_extend(face: Face, connect: Connect) -> None:
    locks = connect()
    lease = await locks.lock("a", ttl=5, renew=False).acquire()
    await lease.extend(ttl=9)
    assert lease.remaining() > 7
    await face.command("FLUSHALL")
    with pytest.raises(asynclock.LeaseLostError):
        await lease.extend()
    assert await lease.release() is False


async def test_cancelled_waiting_leaves_nothing(face: Face, connect: Connect) -> None:
    here, there = connect(), connect()
    async with here.lock("a"):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_hold(there, "a")) for _ in range(5)]
            await waits(there, 5)
            for task in tasks:
                task.cancel()
    assert await face.keys() == set()
    assert there.statistics().waiting == 0


async def _hold(locks: asynclock.LockManager, name: str) -> None:
    async with locks.lock(name):
        await asyncio.sleep(0)


@pytest.mark.parametrize("handoff", [True, "strict", False])
async def test_many_tasks_never_overlap(connect: Connect, handoff: bool) -> None:
    managers = connect(), connect()
    inside = 0
    fences: list[int] = []

    async def work(locks: asynclock.LockManager) -> None:
        nonlocal inside
        for _ in range(5):
            async with locks.lock("hot", handoff=handoff) as lease:
                inside += 1
                assert inside == 1
                fences.append(lease.fence)
                await asyncio.sleep(0.001)
                inside -= 1

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(work(managers[number % 2]))
    assert len(fences) == 50
    assert fences == sorted(set(fences))
    handed = sum(locks.statistics().handovers for locks in managers)
    assert (handed > 0) == bool(handoff)


async def test_left_in_another_task_than_entered(locks: asynclock.LockManager) -> None:
    lease = await locks.lock("a").acquire()
    entered = asyncio.create_task(_enter(lease))
    await entered
    assert lease.held
    await lease.__aexit__(None, None, None)
    assert not lease.held


async def _enter(lease: asynclock.Lease) -> None:
    await lease.__aenter__()


async def test_waiting_for_oneself_is_an_error(locks: asynclock.LockManager) -> None:
    async with locks.lock("a"):
        with pytest.raises(asynclock.AlreadyHeldError):
            await locks.lock("a").acquire()
        assert await locks.lock("a").try_acquire() is None


async def test_a_lock_object_is_shared_by_tasks(locks: asynclock.LockManager) -> None:
    lock = locks.lock("a")
    seen = []

    async def work(number: int) -> None:
        async with lock as lease:
            assert lease.held
            seen.append(number)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(work(number))
    assert sorted(seen) == list(range(6))


async def test_inspect(connect: Connect) -> None:
    locks = connect(label="web-1")
    nobody = await locks.inspect("a")
    assert nobody.owner is None
    assert nobody.agreed
    async with locks.lock("a") as lease:
        found = await connect().inspect("a")
        assert (found.owner, found.holder, found.fence) == (lease.owner, "web-1", lease.fence)
        assert found.remaining is not None
        assert 0 < found.remaining <= 10


async def test_a_dead_holders_lock_is_free_after_its_ttl(connect: Connect) -> None:
    # Simulate a holder that vanished: no renewal and no release.
    # The nodes keep its key for a second from some moment after it asked.
    begin = asyncio.get_running_loop().time()
    lease = await connect(ttl=1).lock("a", renew=False).acquire()
    async with connect().lock("a", timeout=20) as next_one:
        assert not lease.held
        assert next_one.fence > lease.fence
        assert asyncio.get_running_loop().time() - begin > 0.95


async def test_closing_ends_what_is_held(face: Face, connect: Connect) -> None:
    locks = connect()
    lease = await locks.lock("a").acquire()
    other = asyncio.create_task(_hold(locks, "a"))
    await until(lambda: locks.statistics().waiting == 1, "the other task waits")
    await locks.aclose()
    await locks.aclose()
    assert not lease.held
    with pytest.raises(asynclock.ConfigurationError):
        await other
    with pytest.raises(asynclock.ConfigurationError):
        await locks.lock("a").acquire()
    assert await face.keys() == set()
