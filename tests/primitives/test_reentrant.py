"""The reentrant lock: inner holds cost nothing and end in any order."""

import asyncio

import pytest

import asynclock
from asynclock.testing import lose
from tests.engine.virtual_nodes import KEY, TTL, Nodes, virtual_single
from tests.waiting import go_through, until


@virtual_single
async def test_inner_holds_ask_nobody(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    async with on.connect() as other, lock as outer:
        attempts = on.locks.statistics().attempts
        async with lock as inner, on.locks.reentrant_lock("a").acquire() as third:
            assert inner.fence == outer.fence == third.fence
            assert inner.owner == outer.owner
            assert third.depth == 3
            tried = await lock.try_acquire()
            assert tried is not None
            assert await tried.release()
            assert not tried.held
        assert on.locks.statistics().attempts == attempts
        assert (outer.held, inner.held) == (True, False)
        assert await other.lock("a").try_acquire() is None  # the same name as the plain lock
    assert not outer.held
    assert not await on.nodes[0].command("EXISTS", KEY)


@virtual_single
async def test_the_last_to_end_gives_it_back(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    outer, inner = await lock.acquire(), await lock.acquire()
    for _ in range(2):
        assert await outer.release() is True
    assert inner.held
    assert await on.nodes[0].command("EXISTS", KEY)
    assert await inner.release() is True
    assert not await on.nodes[0].command("EXISTS", KEY)


@virtual_single
async def test_tasks_it_started_may_share_it(on: Nodes) -> None:
    lock, late = on.locks.reentrant_lock("a", inherit=True), asyncio.Event()

    async def child() -> None:
        async with lock as mine:
            assert mine.fence == outer.fence
            await late.wait()
            assert mine.held

    async with lock as outer:
        tasks = [asyncio.create_task(child()) for _ in range(3)]
        await until(lambda: outer.depth == 4, "all children are inside")
    assert await on.nodes[0].command("EXISTS", KEY), "children are still inside"
    late.set()
    await asyncio.gather(*tasks)
    assert not await on.nodes[0].command("EXISTS", KEY)
    # A child that was started inside and comes after the end has to ask like everybody else.
    async with lock as again:
        assert again.fence > outer.fence


@virtual_single
async def test_inheritance_ends_with_the_hold_that_gave_it(on: Nodes) -> None:
    """A child's own hold doesn't let in tasks that only the parent's ended hold let in."""
    lock = on.locks.reentrant_lock("a", inherit=True)
    late, inside = asyncio.Event(), asyncio.Event()
    fences: dict[str, int] = {}

    async def enter(who: str) -> None:
        async with lock as mine:
            fences[who] = mine.fence

    async def child() -> None:
        async with lock:
            inside.set()
            await late.wait()
            await enter("child")  # it is inside by its own hold now
            await asyncio.create_task(enter("grandchild"))

    async def idle() -> asynclock.ReentrantLease | None:
        await late.wait()
        return await lock.try_acquire()

    async with lock as outer:
        inner = await lock.acquire()
        tasks = [asyncio.create_task(child()), asyncio.create_task(idle())]
        await inside.wait()
        await inner.release()
    # The owner, a task started now, and one that was started inside and enters too late.
    assert await lock.try_acquire() is None
    assert await asyncio.create_task(lock.try_acquire()) is None
    owner = asyncio.create_task(enter("later"))
    await until(lambda: on.locks.statistics().waiting == 1, "the owner waits")
    late.set()
    assert await tasks[1] is None
    await tasks[0]
    await owner
    assert fences["child"] == fences["grandchild"] == outer.fence
    assert fences["later"] > outer.fence


@virtual_single
async def test_a_loss_ends_every_body(on: Nodes) -> None:
    lock, ended = on.locks.reentrant_lock("a", inherit=True), list[str]()

    async def child() -> None:
        with pytest.raises(asynclock.LeaseLostError):
            async with lock:
                await asyncio.sleep(30)
        ended.append("child")

    with pytest.raises(asynclock.LeaseLostError):
        async with lock:
            other = asyncio.create_task(child())
            async with on.locks.reentrant_lock("a") as inner:
                await on.nodes[0].command("DEL", KEY)
                try:
                    await asyncio.sleep(30)
                finally:
                    ended.append("inner")
                    assert not inner.held
                    with pytest.raises(asynclock.LeaseLostError):
                        await on.locks.reentrant_lock("a").acquire()
    await other
    assert sorted(ended) == ["child", "inner"]
    await go_through(lock)


# ---- which holds a task has ----------------------------------------------------------------------
@virtual_single
async def test_the_end_of_one_hold_leaves_the_task_its_others(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    holds = [await lock.acquire() for _ in range(4)]
    for ended in (3, 0, 1):
        await holds[ended].release()
        again = await lock.try_acquire()
        assert again is not None
        assert again.fence == holds[2].fence
        await again.release()
    await holds[2].release()
    assert not on.locks.leases()


@virtual_single
async def test_a_dropped_hold_ends_no_other_one(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    outer = await lock.acquire()
    with pytest.warns(ResourceWarning, match="a hold on .* was dropped"):
        await lock.acquire()
        await asyncio.sleep(0)
    await asyncio.sleep(3 * TTL)
    async with lock.acquire(timeout=0) as again:
        assert again.depth == 2
    assert outer.held
    await outer.release()
    await until(lambda: outer.lost_reason is not None, every=1)
    assert "dropped" in str(outer.lost_reason)
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
    with pytest.warns(ResourceWarning, match="the lease on .* was dropped"):
        await lock.acquire()
        await asyncio.sleep(0.1)
    assert not told


@virtual_single
async def test_a_hold_belongs_to_the_task_that_entered_it(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    given, inside, leave = await lock.acquire(), asyncio.Event(), asyncio.Event()

    async def other() -> None:
        async with given, lock as nested:
            assert nested.depth == 2
            inside.set()
            await leave.wait()

    task = asyncio.create_task(other())
    await inside.wait()
    assert await lock.try_acquire() is None, "this task gave it away"
    leave.set()
    await task
    assert await lock.try_acquire() is not None


@virtual_single
async def test_only_what_lets_others_in_is_inherited(on: Nodes) -> None:
    """And only by those who ask to inherit."""
    closed, open_ = on.locks.reentrant_lock("a"), on.locks.reentrant_lock("a", inherit=True)

    async def enter(lock: asynclock.ReentrantLock) -> None:
        await go_through(lock.acquire(timeout=0))

    for outer, inner in ((closed, open_), (open_, closed)):
        async with outer:
            with pytest.raises(asynclock.AcquireTimeoutError):
                await asyncio.create_task(enter(inner))
    async with open_:
        await asyncio.create_task(enter(open_))


@virtual_single
async def test_a_hold_that_has_ended_knows_nothing_of_the_next_lease(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    ended, waiting = await lock.acquire(), asyncio.create_task(lock.acquire())
    await until(lambda: on.locks.statistics().waiting == 1, "it waits")
    await ended.release()
    following = await waiting
    assert (following.owner, following.depth, ended.depth) == (ended.owner, 1, 0)
    lose(following)
    assert following.lost_reason
    assert ended.lost_reason is None


@virtual_single
async def test_a_task_that_has_left_its_block_may_wait_for_the_other_holds(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a", inherit=True)

    async def child() -> None:
        async with lock as mine:
            await mine.release()
        with pytest.raises(asynclock.AcquireTimeoutError):
            await on.locks.lock("a").acquire(timeout=0)

    async with lock:
        await asyncio.create_task(child())
