"""What stays in memory of what is over, which only the inside shows."""

import asyncio
import gc
from typing import Any

import pytest

import asynclock
from asynclock._engine.acquire import Work
from asynclock._engine.engine import MOST_QUEUES
from asynclock._engine.lease import endings
from asynclock._engine.outbox import Ask
from asynclock._primitives.reentrant import _inherited, _own
from asynclock.testing import LocalServer
from tests.engine.virtual_nodes import Nodes, start, virtual, virtual_single
from tests.patient import connect_to as connect
from tests.tables.inside import names_in_use
from tests.waiting import PATIENCE, go_through, until


async def test_a_dropped_manager_is_told(asynclock_nodes: list[LocalServer]) -> None:
    locks = connect(asynclock_nodes)
    del locks  # never used: there is nothing to close
    gc.collect()
    locks = connect(asynclock_nodes)
    await go_through(locks.lock("a"))
    engine = locks._engine
    with pytest.warns(ResourceWarning, match="LockManager on .* dropped without being closed"):
        del locks
        gc.collect()
    engine.close()
    for node in engine.multiplexer.nodes:
        await node.finish()
    await engine.background.aclose()


async def test_no_timer_of_a_closed_manager_keeps_its_renewals() -> None:
    async with asynclock.connect("memory://closed") as locks:
        lease = await locks.lock("a").acquire()
    loop: Any = asyncio.get_running_loop()
    timers = [timer._callback for timer in loop._scheduled if not timer.cancelled()]
    assert not lease.held
    assert locks._engine.renewals._on_timer not in timers


async def test_a_wait_for_several_ends_leaves_nothing(asynclock_nodes: list[LocalServer]) -> None:
    async with connect(asynclock_nodes, prefix="a:{") as locks:
        async with locks.multi_lock("a", "b") as lease:
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(lease.wait_lost(), 0.001)
            assert [one._callbacks for one in endings(lease)] == [None, None]
            waiting = asyncio.create_task(lease.wait_lost())
            await asyncio.sleep(0)
        await asyncio.wait_for(waiting, PATIENCE)


@virtual
async def test_a_request_that_is_over_is_freed_without_a_collection(on: Nodes) -> None:
    gc.collect()
    gc.disable()
    try:
        await asyncio.gather(*(on.locks.lock(name).acquire() for name in "abc"))
        await asyncio.sleep(0.1)
        left = [one for one in gc.get_objects() if type(one) is Ask]
    finally:
        gc.enable()
    assert not left


@virtual
async def test_many_leases_that_come_and_go_leave_nothing(on: Nodes) -> None:
    renewals = on.locks._engine.renewals
    kept = await on.locks.lock("kept").acquire()
    for number in range(2 * MOST_QUEUES):
        async with on.locks.lock(f"{number}"):
            await asyncio.sleep(0.001)
    async with on.locks.lock("renewed") as lease:
        await lease.extend()
        assert await lease.publish("a message")
        assert list(renewals._tracked) == ["asynclock:renewed"]
    assert renewals.grants() == [kept._grants[0][0]]
    assert not renewals._tracked
    assert not on.locks._engine.messages
    assert len(renewals._heap) <= 70
    assert names_in_use(on.locks) == ["kept"]
    assert len(on.locks._engine.queues) <= MOST_QUEUES


@virtual
async def test_stopping_work_concerns_no_call_that_has_ended(on: Nodes) -> None:
    work = Work()
    async with on.connect() as other:
        held = await other.lock("a").acquire()
        with work.running():
            waiting = [start(on.locks.lock("a").acquire()) for _ in range(2)]
        await until(lambda: len(work._ends) == 2)
        await held.release()
        for task in waiting:
            await (await task).release()
    assert not work._ends


@pytest.mark.parametrize("inherit", [False, True])
@virtual
async def test_a_dropped_hold_is_forgotten(on: Nodes, *, inherit: bool) -> None:
    with pytest.warns(ResourceWarning, match="was dropped"):
        await on.locks.reentrant_lock("a", inherit=inherit).acquire()
        await asyncio.sleep(0)
        gc.collect()
    await until(lambda: not on.locks.leases())
    assert not any(map(list, _own.values()))


@virtual_single
async def test_a_task_remembers_no_holds_that_have_ended(on: Nodes) -> None:
    async with on.connect() as others:
        for number in range(20):
            for locks in (on.locks, others):
                await go_through(locks.reentrant_lock(str(number), inherit=True))
        async with on.locks.reentrant_lock("a", inherit=True):
            assert len(_inherited.get()) == 1
            async with others.reentrant_lock("b", inherit=True):
                assert len(_inherited.get()) == 2
                assert await start(others.reentrant_lock("a", inherit=True).try_acquire()) is None
