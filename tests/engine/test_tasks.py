"""Tasks that share and pass on leases: who waits for itself, who may leave, whom a loss ends."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import asynclock
from asynclock.testing import lose
from tests.engine.kinds import LOCKS as ALL
from tests.engine.kinds import kinds
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual_single
from tests.waiting import PATIENCE, cancellations, go_through, until

LOCKS = kinds("strict", "fair_lock", "semaphore", "several", "write")
LOCKS["name by name"] = ALL["multi_lock"]


def prefix(kind: str) -> str:
    return "asynclock:{" if kind == "name by name" else "asynclock:"  # as on Cluster


@pytest.mark.parametrize("kind", ALL)
@virtual_single
async def test_a_timeout_counts_from_the_call(on: Nodes, kind: str) -> None:
    call = ALL[kind](on.locks).acquire(timeout=0.1)
    await asyncio.sleep(TTL)
    with pytest.raises(asynclock.AcquireTimeoutError, match=r"the timeout was 0\.1 s"):
        await call


# ---- one lock object, several tasks --------------------------------------------------------------
@pytest.mark.parametrize("kind", ["one of two", "read"])
@virtual_single
async def test_leaving_what_one_has_not_entered_touches_nothing(on: Nodes, kind: str) -> None:
    lock = LOCKS[kind](on.locks)
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
    assert on.locks.leases() == ()


# ---- dispatcher and workers ----------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["lock", "multi_lock"])
@virtual_single
async def test_one_task_acquires_and_others_release(on: Nodes, kind: str) -> None:
    lock = LOCKS[kind](on.locks)
    done: list[int] = []

    async def work(number: int, lease: Any) -> None:
        await asyncio.sleep(0.005)
        done.append(number)
        await lease.release()

    async def enter(number: int, lease: Any) -> None:
        async with lease:
            await asyncio.sleep(0.005)
            done.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            using = (enter if number < 5 else work)(number, await lock.acquire(timeout=10))
            group.create_task(using)
    assert done == list(range(8))
    async with lock:  # but here no other code can end it
        with pytest.raises(asynclock.AlreadyHeldError):
            await lock.acquire(timeout=10)


@virtual_single
async def test_a_lease_that_another_task_acquired_is_the_enterers(on: Nodes) -> None:
    lease = await start(on.locks.lock("a").acquire())
    assert lease.task is None
    async with lease:
        assert lease.task is asyncio.current_task()
        with pytest.raises(asynclock.AlreadyHeldError):
            await on.locks.lock("a").acquire(timeout=10)


@virtual_single
async def test_readers_of_one_process_that_want_to_write(on: Nodes) -> None:
    rwlock = on.locks.rwlock("a")
    reading = asyncio.Barrier(2)

    async def upgrade() -> None:
        async with rwlock.read():
            await reading.wait()
            with pytest.raises(asynclock.AlreadyHeldError):
                await rwlock.write().acquire()
            await reading.wait()

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(upgrade())
    for side in (rwlock.write(), rwlock.read()):
        async with side.acquire(timeout=10):  # no task is locked out
            pass


# ---- a body that moves to another task -----------------------------------------------------------
@pytest.mark.parametrize("kind", LOCKS)
@virtual_single
async def test_a_loss_ends_the_task_that_the_body_has_moved_to(on: Nodes, kind: str) -> None:
    async with on.connect(prefix=prefix(kind)) as locks:
        entered = LOCKS[kind](locks).acquire()
        lease = await entered.__aenter__()

        async def body() -> None:
            lease.adopt()
            try:
                await asyncio.sleep(3 * TTL)
            except BaseException as error:
                await entered.__aexit__(type(error), error, None)
                raise

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        await on.nodes[0].command("FLUSHALL")
        with pytest.raises(asynclock.LeaseLostError):
            await task
        assert cancellations() == 0
        await asyncio.sleep(0)
        assert not task.cancelled()


@virtual_single
async def test_left_in_another_task_a_later_loss_ends_nobody(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await lease.__aenter__()
    waiting = asyncio.create_task(lease.wait_lost())
    await asyncio.create_task(lease.__aexit__(None, None, None))
    await waiting
    await asyncio.sleep(0)
    assert cancellations() == 0


@pytest.mark.parametrize("kind", ["lock", "reentrant_lock", "multi_lock"])
@virtual_single
async def test_only_what_is_entered_and_held_can_be_adopted(on: Nodes, kind: str) -> None:
    lease = await LOCKS[kind](on.locks).acquire()
    with pytest.raises(RuntimeError, match="not entered"):
        lease.adopt()
    await lease.__aenter__()
    lease.adopt()  # to where it is
    with pytest.raises(RuntimeError, match=r"on .* has been entered already"):
        await lease.__aenter__()
    await lease.__aexit__(None, None, None)
    with pytest.raises((RuntimeError, asynclock.LeaseLostError)):
        lease.adopt()
    with pytest.raises(asynclock.LeaseLostError, match="released"):
        await lease.extend()


@pytest.mark.parametrize("kind", ["lock", "reentrant_lock", "multi_lock"])
@virtual_single
async def test_a_lease_that_was_lost_is_not_adopted(on: Nodes, kind: str) -> None:
    lock: Any = LOCKS[kind](on.locks)
    with pytest.raises(asynclock.LeaseLostError, match="took it away"):
        async with lock as lease:
            lose(getattr(lease, "leases", [lease])[0])
            lease.adopt()
            raise AssertionError("it was adopted")


@virtual_single
async def test_only_a_task_can_adopt_a_lease(on: Nodes) -> None:
    refused: list[str] = []

    def adopt() -> None:
        try:
            lease.adopt()
        except RuntimeError as error:
            refused.append(str(error))

    async with on.locks.lock("a") as lease:
        before = lease.task
        asyncio.get_running_loop().call_soon(adopt)
        await asyncio.sleep(0.01)
        assert refused == ["a lease can only be held inside a task"]
        assert lease.task is before


@virtual_single
async def test_an_adopted_reentrant_hold_may_be_taken_again_there(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("a")
    entered = lock.acquire()
    outer = await entered.__aenter__()

    async def body() -> None:
        outer.adopt()
        async with lock.acquire(timeout=5) as inner:
            assert inner.fence == outer.fence

    await asyncio.create_task(body())
    assert await lock.try_acquire() is None  # it is that task's now
    await entered.__aexit__(None, None, None)


# ---- another thread's event loop -----------------------------------------------------------------
@pytest.mark.parametrize("kind", [*LOCKS, "inherited"])
async def test_another_loop_can_do_nothing_with_a_lease(kind: str) -> None:
    """Not even adopt it: a loss could not end a body there. What is refused counts no hold."""
    inherits = kind == "inherited"
    async with asynclock.connect("memory://a", prefix=prefix(kind), ttl=60, max_ttl=60) as locks:
        lock: Any = locks.reentrant_lock("a", inherit=True) if inherits else LOCKS[kind](locks)
        lease, made = await lock.acquire(), locks.lock("b").acquire()
        asks = [
            lambda: made,
            lambda: locks.lock("b").acquire(),
            *[lambda: lock.acquire()] * inherits,
            *[lambda: lock.__aenter__()] * inherits,
            locks.aclose,
            lease.release,
            lease.__aenter__,
            lambda: lease.__aexit__(None, None, None),
            lease.extend,
            lease.check,
            lease.wait_lost,
            *[lambda: lease.on_wanted(print)] * (kind == "lock"),
        ]

        async def refused(act: Any) -> None:
            with pytest.raises(asynclock.ConfigurationError, match="another event loop"):
                await asyncio.wait_for(act(), PATIENCE)

        async def adopt() -> None:
            lease.adopt()

        for act in asks:
            await asyncio.to_thread(asyncio.run, refused(act))
        async with lease:
            await asyncio.to_thread(asyncio.run, refused(adopt))
            await asyncio.to_thread(asyncio.run, refused(lease.release))
            assert lease.task is asyncio.current_task()
            assert lease.held
            assert getattr(lease, "depth", 1) == 1
        await go_through(locks.lock("b"))


async def test_released_in_another_loop_after_one_name_was_lost() -> None:
    """It's refused there, and the other names can still be released here."""
    async with asynclock.connect("memory://a", prefix=prefix("name by name")) as locks:
        lease = await locks.multi_lock("a", "b").acquire()
        lose(lease.leases[0])
        with pytest.raises(asynclock.ConfigurationError):
            await asyncio.to_thread(asyncio.run, lease.release())
        assert lease.leases[1].held
        await lease.release()
        assert locks.leases() == ()
        late = await locks.multi_lock("c", "d", ttl=0.3).acquire()
        time.sleep(0.4)  # noqa: ASYNC251  # nobody notices the end
        with ThreadPoolExecutor() as pool:
            error = pool.submit(asyncio.run, late.release()).exception()
        assert isinstance(error, asynclock.ConfigurationError)


async def test_an_ended_hold_is_known_as_lost_in_any_loop() -> None:
    async with asynclock.connect("memory://a") as locks:
        lease = await locks.reentrant_lock("a").acquire()
        await lease.release()
        await asyncio.to_thread(asyncio.run, lease.wait_lost())


# ---- names that look alike -----------------------------------------------------------------------
@virtual_single
async def test_a_name_is_not_taken_for_several(on: Nodes) -> None:
    locks = on.locks
    async with locks.lock("a\0asynclock:b") as lease:
        async with locks.multi_lock("a", "b").acquire(timeout=5) as both:
            assert both.owner != lease.owner
        both = await start(locks.multi_lock("a", "b").acquire(timeout=5))
    assert both.held
    await both.release()
    assert locks.statistics().handovers == 0
