"""Tasks that share and pass on leases: who waits for itself, who may leave, whom a loss ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing import LocalServer
from tests.patient import connect_to as connect
from tests.tables.inside import renew_now
from tests.waiting import PATIENCE, until

LOCKS: dict[str, Callable[[asynclock.LockManager], Any]] = {
    "lock": lambda locks: locks.lock("a"),
    "reentrant": lambda locks: locks.reentrant_lock("a"),
    "multi": lambda locks: locks.multi_lock("a", "b"),
    "semaphore": lambda locks: locks.semaphore("a", 2),
    "read": lambda locks: locks.rwlock("a").read(),
}


# one lock object, several tasks


@pytest.mark.parametrize("kind", ["semaphore", "read"])
async def test_leaving_what_one_has_not_entered_touches_nothing(
    asynclock_nodes: list[LocalServer], kind: str
) -> None:
    async with connect(asynclock_nodes) as locks:
        lock = LOCKS[kind](locks)
        inside, leave = [], asyncio.Event()

        async def work() -> None:
            async with lock as lease:
                inside.append(lease)
                await leave.wait()
                assert lease.held

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(work())
            await until(lambda: len(inside) == 2, "both are inside")
            with pytest.raises(RuntimeError, match="unknown which lease this task"):
                await lock.__aexit__(None, None, None)
            assert all(lease.held for lease in inside)
            leave.set()
        with pytest.raises(RuntimeError, match="not entered"):
            await lock.__aexit__(None, None, None)
        assert locks.leases() == ()


# dispatcher and workers


@pytest.mark.parametrize("kind", ["lock", "multi"])
async def test_one_task_acquires_and_others_release(
    asynclock_nodes: list[LocalServer], kind: str
) -> None:
    async with connect(asynclock_nodes) as locks:
        lock = LOCKS[kind](locks)
        done: list[int] = []

        async def work(number: int, lease: Any) -> None:
            async with lease:
                await asyncio.sleep(0.005)
                done.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(work(number, await lock.acquire(timeout=10)))
        assert done == list(range(5))

        async def release_only(lease: Any) -> None:
            await asyncio.sleep(0.005)
            await lease.release()

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(release_only(await lock.acquire(timeout=10)))
        async with lock:  # but here no other code can end it
            with pytest.raises(asynclock.AlreadyHeldError):
                await lock.acquire(timeout=10)


async def test_a_lease_that_another_task_acquired_is_the_enterers(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with connect(asynclock_nodes) as locks:
        lease = await asyncio.create_task(locks.lock("a").acquire())
        assert lease.task is None
        async with lease:
            assert lease.task is asyncio.current_task()
            with pytest.raises(asynclock.AlreadyHeldError):
                await locks.lock("a").acquire(timeout=10)


async def test_readers_of_one_process_that_want_to_write(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with connect(asynclock_nodes) as locks:
        rwlock = locks.rwlock("a")
        refused = 0
        reading = asyncio.Barrier(2)

        async def upgrade() -> None:
            nonlocal refused
            async with rwlock.read():
                await reading.wait()
                with pytest.raises(asynclock.AlreadyHeldError):
                    await rwlock.write().acquire()
                refused += 1
                await reading.wait()

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(upgrade())
            group.create_task(upgrade())
        assert refused == 2
        async with rwlock.write().acquire(timeout=10):  # no task is locked out
            pass
        async with rwlock.read().acquire(timeout=10):
            pass


# a body that moves to another task


@pytest.mark.parametrize("kind", [*LOCKS, "name by name"])
async def test_a_loss_ends_the_task_that_the_body_has_moved_to(
    asynclock_nodes: list[LocalServer], kind: str
) -> None:
    by_name = kind == "name by name"
    prefix = "asynclock:{" if by_name else "asynclock:"
    async with connect(asynclock_nodes, prefix=prefix) as locks:
        entered = LOCKS["multi" if by_name else kind](locks).acquire()
        lease = await entered.__aenter__()
        moved = asyncio.Event()

        async def body() -> None:
            lease.adopt()
            moved.set()
            try:
                await asyncio.sleep(30)
            except BaseException as error:
                await entered.__aexit__(type(error), error, None)
                raise

        task = asyncio.create_task(body())
        await moved.wait()
        for node in asynclock_nodes:
            await node.command("FLUSHALL")
        renew_now(locks)
        with pytest.raises(asynclock.LeaseLostError):
            await task
        me = asyncio.current_task()
        assert me is not None
        assert me.cancelling() == 0
        await asyncio.sleep(0)
        assert not task.cancelled()


async def test_left_in_another_task_a_later_loss_ends_nobody(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with connect(asynclock_nodes) as locks:
        lease = await locks.lock("a").acquire()
        await lease.__aenter__()
        waiting = asyncio.create_task(lease.wait_lost())
        await asyncio.create_task(lease.__aexit__(None, None, None))
        await waiting
        await asyncio.sleep(0)
        me = asyncio.current_task()
        assert me is not None
        assert me.cancelling() == 0


async def test_only_what_is_entered_and_held_can_be_adopted(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with connect(asynclock_nodes) as locks:
        for lock in (locks.lock("a"), locks.reentrant_lock("a")):
            lease = await lock.acquire()
            with pytest.raises(RuntimeError, match="not entered"):
                lease.adopt()
            await lease.__aenter__()
            lease.adopt()  # to where it is
            await lease.__aexit__(None, None, None)
            with pytest.raises((RuntimeError, asynclock.LeaseLostError)):
                lease.adopt()


async def test_an_adopted_reentrant_hold_may_be_taken_again_there(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with connect(asynclock_nodes) as locks:
        lock = locks.reentrant_lock("a")
        entered = lock.acquire()
        outer = await entered.__aenter__()

        async def body() -> None:
            outer.adopt()
            async with lock.acquire(timeout=5) as inner:
                assert inner.fence == outer.fence

        await asyncio.create_task(body())
        assert await lock.try_acquire() is None  # it is that task's now
        await entered.__aexit__(None, None, None)


# another thread's event loop

Act = Callable[[asynclock.LockManager, asynclock.Lease], Awaitable[object]]
ACTS: dict[str, Act] = {
    "release": lambda _, lease: lease.release(),
    "enter": lambda _, lease: lease.__aenter__(),
    "leave": lambda _, lease: lease.__aexit__(None, None, None),
    "extend": lambda _, lease: lease.extend(),
    "check": lambda _, lease: lease.check(),
    "wait_lost": lambda _, lease: lease.wait_lost(),
    "aclose": lambda locks, _: locks.aclose(),
    "acquire": lambda locks, _: locks.lock("b").acquire(),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
async def test_another_threads_loop_is_refused_at_once(
    asynclock_nodes: list[LocalServer], act: Act
) -> None:
    async with connect(asynclock_nodes) as locks:
        lease = await locks.lock("a").acquire()
        told: list[object] = []

        async def there() -> None:
            try:
                told.append(await asyncio.wait_for(act(locks, lease), PATIENCE))
            except BaseException as error:
                told.append(error)

        thread = threading.Thread(target=lambda: asyncio.run(there()), daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, 2 * PATIENCE)
        assert isinstance(told[0], asynclock.ConfigurationError), told
        assert "another event loop" in str(told[0])
        assert lease.held
        assert await lease.release() is True
        async with locks.lock("b"):
            pass


async def test_another_threads_loop_adopts_no_lease(asynclock_nodes: list[LocalServer]) -> None:
    """A loss could not end a body there."""
    async with connect(asynclock_nodes) as locks, locks.lock("a") as lease:
        here = lease.task

        async def there() -> None:
            with pytest.raises(asynclock.ConfigurationError, match="another event loop"):
                lease.adopt()

        await asyncio.to_thread(lambda: asyncio.run(there()))
        assert lease.task is here


@pytest.mark.parametrize("other", ["reentrant", "multi"])
async def test_and_for_leases_of_other_kinds(
    asynclock_nodes: list[LocalServer], other: str
) -> None:
    async with connect(asynclock_nodes, prefix="a:{") as locks:
        lease = await LOCKS[other](locks).acquire()
        told: list[BaseException] = []

        async def there() -> None:
            for act in (lease.__aenter__, lease.release, lease.extend, lease.wait_lost):
                try:
                    await asyncio.wait_for(act(), PATIENCE)
                except BaseException as error:
                    told.append(error)

        await asyncio.to_thread(lambda: asyncio.run(there()))
        assert [type(error) for error in told] == [asynclock.ConfigurationError] * 4
        assert lease.held
        assert await lease.release() is True


# names that look alike


async def test_a_name_is_not_taken_for_several(asynclock_nodes: list[LocalServer]) -> None:
    async with connect(asynclock_nodes) as locks:
        odd = locks.lock("a\0asynclock:b")
        async with odd as lease:
            async with locks.multi_lock("a", "b").acquire(timeout=5) as both:
                assert both.owner != lease.owner
            waiting = asyncio.create_task(locks.multi_lock("a", "b").acquire(timeout=5))
            both = await waiting
        assert both.held
        await both.release()
        assert locks.statistics().handovers == 0
