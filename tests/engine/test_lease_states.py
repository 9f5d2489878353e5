"""What a lease says of itself while it is held, entered, lost and released. In virtual time."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import events
from asynclock.testing import lose
from tests.engine.batches import listen
from tests.engine.virtual_nodes import TTL, UNNOTICED, Nodes, start, virtual
from tests.tables.inside import now
from tests.waiting import cancellations, go_through, until


@virtual
async def test_who_stops_waiting_for_a_loss_disturbs_nobody_else_who_waits(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    others = [start(lease.wait_lost()) for _ in range(2)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lease.wait_lost(), 0.1)
    others[0].cancel()
    await asyncio.sleep(0.1)
    assert not others[1].done()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lease.wait_lost(), 0.1)
    lose(lease)
    await asyncio.wait_for(others[1], 0.1)
    await asyncio.wait_for(lease.wait_lost(), 0.1)


async def end_unnoticed(on: Nodes, **options: Any) -> asynclock.Lease:
    """Return a lease whose time ran out while no timer could tell, as in a busy loop."""
    lease = await on.locks.lock("a", **options).acquire()
    loop: Any = asyncio.get_running_loop()
    loop.now += 2 * TTL
    return lease


@virtual
async def test_no_body_begins_with_a_lease_that_ended_unnoticed(on: Nodes) -> None:
    lease = await end_unnoticed(on)
    entered = False
    with pytest.raises(asynclock.LeaseLostError) as lost:
        async with lease:
            entered = True
    assert not entered
    assert lost.value.reason == lease.lost_reason == UNNOTICED
    assert (lost.value.name, lost.value.owner, lost.value.fence) == ("a", lease.owner, lease.fence)


@virtual
async def test_a_lease_says_what_became_of_it(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=7).acquire()
    assert repr(lease) == f"<Lease 'a' fence={lease.fence} held>"
    await lease.extend(TTL)
    assert lease.ttl == TTL
    assert await lease.release() is True
    assert repr(lease) == f"<Lease 'a' fence={lease.fence} released>"
    assert await lease.release() is True
    assert lease.ttl == TTL
    with pytest.raises(asynclock.LeaseLostError, match="it was released"):
        await lease.extend()
    with pytest.raises(asynclock.LeaseLostError, match="it was released"):
        await go_through(lease)
    other = await on.locks.lock("a").acquire()
    lose(other)
    assert f"fence={other.fence} {other.lost_reason}" in repr(other)
    assert await other.release() is False


@virtual
async def test_a_body_may_end_before_a_loss_and_its_task_goes_on(on: Nodes) -> None:
    """The task has left the block: a later loss or a later block is none of its business."""
    async with on.locks.lock("a") as first:
        assert first.task is asyncio.current_task()
    assert first.task is None
    async with on.locks.lock("a") as second:
        assert second.held
    again = await on.locks.lock("a").acquire()
    lose(again)
    await asyncio.sleep(0.1)


@virtual
async def test_the_cancellation_that_a_loss_caused_is_shown_as_its_cause(on: Nodes) -> None:
    with pytest.raises(asynclock.LeaseLostError) as lost:
        async with on.locks.lock("a") as lease:
            lose(lease)
            await asyncio.sleep(1)
    assert isinstance(lost.value.__cause__, asyncio.CancelledError)
    assert cancellations() == 0


@virtual
async def test_a_release_inside_the_block_interrupts_nothing(on: Nodes) -> None:
    async with on.locks.lock("a") as lease:
        await lease.release()
        await asyncio.sleep(0.1)
    assert lease.lost_reason is None


@virtual
async def test_a_lease_in_whose_block_the_task_is_cannot_be_waited_for(on: Nodes) -> None:
    async with on.locks.rwlock("a").read():
        with pytest.raises(asynclock.AlreadyHeldError):
            await on.locks.rwlock("a").write().acquire()
        other = start(on.locks.rwlock("a").write().acquire(timeout=5))
        reading = await on.locks.rwlock("c").read().acquire()
        asyncio.get_running_loop().call_later(0.1, start, reading.release())
        await go_through(on.locks.rwlock("c").write().acquire(timeout=5))
        await until(lambda: on.locks.statistics().waiting)
        assert not other.done()
    await (await other).release()


@virtual
async def test_a_hold_is_interrupted_although_an_inner_one_has_ended(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    began = now()
    with pytest.raises(asynclock.LeaseLostError):
        async with lock.acquire() as outer:
            async with lock.acquire() as inner:
                assert inner.fence == outer.fence
            asyncio.get_running_loop().call_later(1, lose, outer)
            await asyncio.sleep(100)
    assert now() - began == pytest.approx(1.0, abs=0.05)


@virtual
async def test_a_lease_that_an_observer_releases_is_not_ended_again(on: Nodes) -> None:
    """Both end at one moment, and the loss of one makes an eager task release the other."""
    first, second = [await on.locks.lock(name, renew=False).acquire() for name in "ab"]
    sent = listen(on.nodes[0])

    def release_second(_: events.Event) -> None:
        with pytest.raises(StopIteration):
            second.release().send(None)

    on.locks.observe(release_second)
    await asyncio.sleep(TTL)
    assert all((first.lost_reason, second.lost_reason))
    assert on.locks.statistics().lost == 2
    assert sent.count("release") + 2 * sent.count("batch") == 2


@virtual
async def test_each_renewal_tells_what_is_left(on: Nodes) -> None:
    seen: list[events.Event] = []
    on.locks.observe(seen.append)
    lease = await on.locks.lock("a").acquire()
    on.slow(0.25)
    await lease.extend()
    on.slow(0.0)
    (event,) = [one for one in seen if isinstance(one, events.Renewed)]
    assert (event.name, event.owner, event.fence) == ("a", lease.owner, lease.fence)
    assert event.remaining == pytest.approx(lease.remaining(), abs=0.001)
    assert event.remaining < TTL - 0.5
    assert on.locks.statistics().renewed == 1


@virtual
async def test_a_task_in_the_block_of_several_names_cannot_wait_for_one_of_them(on: Nodes) -> None:
    async with on.locks.multi_lock("a", "b"):
        with pytest.raises(asynclock.AlreadyHeldError):
            await on.locks.lock("b").acquire(timeout=5)


@virtual
async def test_each_task_in_a_block_of_a_reentrant_lock_would_wait_for_itself(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a", inherit=True)
    inside, done = asyncio.Event(), asyncio.Event()

    async def child() -> None:
        async with lock:
            inside.set()
            await done.wait()

    async with lock.acquire():
        other = asyncio.create_task(child())
        await inside.wait()
        with pytest.raises(asynclock.AlreadyHeldError):
            await on.locks.lock("a").acquire(timeout=5)
        done.set()
        await other


@virtual
async def test_a_loss_interrupts_all_bodies_that_need_the_lease(on: Nodes) -> None:
    """That of several names, and one that was entered for one of them alone."""
    inside, ended = asyncio.Event(), []

    async def alone(lease: asynclock.Lease) -> None:
        with pytest.raises(asynclock.LeaseLostError):
            async with lease:
                inside.set()
                await asyncio.sleep(100)
        ended.append("alone")

    began = now()
    with pytest.raises(asynclock.LeaseLostError):
        async with on.locks.multi_lock("a", "b") as several:
            other = asyncio.create_task(alone(several.leases[0]))
            await inside.wait()
            asyncio.get_running_loop().call_later(1, lose, several.leases[0])
            await asyncio.sleep(100)
    await other
    assert ended == ["alone"]
    assert now() - began < 2
