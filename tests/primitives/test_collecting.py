"""Several leases of one call: the gate, who waits at it, tries, and who may leave. Virtual time."""

import asyncio
import warnings
from typing import Any

import pytest

import asynclock
from asynclock.events import Failed
from asynclock.testing import lose
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual, virtual_single
from tests.tables.inside import now
from tests.waiting import call_off, go_through, until


def gates(locks: asynclock.LockManager) -> list[Any]:
    """Return the leases that let this manager collect permits."""
    return [lease for lease in locks.leases() if getattr(lease, "part", "") == "several"]


@virtual
async def test_a_try_takes_as_long_as_the_nodes_need_whatever_the_timeout(on: Nodes) -> None:
    """A timeout is for waiting, and a try waits for nobody: it makes one call after the other."""
    async with on.connect(prefix="x:{") as cluster:
        await go_through(cluster.lock("warm"))
        on.slow(0.2)
        locks: list[Any] = [
            cluster.multi_lock("a", "b", "c", "d", timeout=0),
            on.locks.reentrant_lock("r", timeout=0),
        ]
        for lock in locks:
            lease = await lock.try_acquire()
            assert lease is not None
            assert await lease.release()


@virtual
async def test_a_gate_outlives_the_ttl_though_the_permits_are_not_renewed(on: Nodes) -> None:
    """Else two large requests would collect at once, and wait for each other."""
    semaphore = on.locks.semaphore("s", 3, renew=False)
    async with on.connect() as others:
        kept = await others.semaphore("s", 3).several(3).acquire()
        collecting = start(semaphore.several(1).acquire())
        await asyncio.sleep(0.1)
        (gate,) = gates(on.locks)
        await asyncio.sleep(3 * TTL)
        assert gate.held
        assert gates(on.locks) == [gate]
        assert await others.semaphore("s", 3).several(1).try_acquire() is None
        await call_off(collecting)
        assert await kept.release()


@virtual
async def test_a_lost_gate_is_passed_anew_though_a_loss_interrupts_no_body(on: Nodes) -> None:
    semaphore = on.locks.semaphore("s", 2, interrupt=False)
    one = await semaphore.acquire()
    collecting = start(semaphore.several(2).acquire(timeout=30))
    await asyncio.sleep(0.1)
    (lost,) = gates(on.locks)
    lose(lost)
    await asyncio.sleep(1)
    (gate,) = gates(on.locks)
    assert gate.fence > lost.fence
    assert await one.release()
    assert await (await collecting).release()
    assert gates(on.locks) == [], "the gate is open for the next one"


@virtual_single
async def test_the_error_of_the_body_is_not_replaced_by_the_loss_of_a_term(on: Nodes) -> None:
    with pytest.raises(ZeroDivisionError):
        async with on.locks.election("e", interrupt=False).campaign() as term:
            lose(term.lease)
            raise ZeroDivisionError


@virtual
async def test_a_request_that_begins_again_has_what_is_left_of_its_timeout(on: Nodes) -> None:
    """Though another one was let through the gate meanwhile."""
    async with on.connect() as others:
        kept = await others.semaphore("s", 2).acquire()
        began = now()
        collecting = start(on.locks.semaphore("s", 2).several(2).acquire(timeout=5))
        await asyncio.sleep(0.1)
        rival = start(others.semaphore("s", 2).several(2).acquire())
        await asyncio.sleep(2.9)
        (gate,) = gates(on.locks)
        lose(gate)
        with pytest.raises(asynclock.AcquireTimeoutError):
            await collecting
        assert now() - began == pytest.approx(5, abs=0.1)
        await kept.release()
        assert await (await rival).release()


@virtual
async def test_a_large_request_is_not_starved_by_small_ones(on: Nodes) -> None:
    """All permits are in use all the time, and it gets them one by one."""
    done, turns = False, 0

    async def small(semaphore: asynclock.Semaphore) -> None:
        nonlocal turns
        while not done:
            async with semaphore:
                turns += 1
                await asyncio.sleep(0.005)

    async with on.connect() as others:
        both = [locks.semaphore("s", 3) for locks in (on.locks, others)]
        workers = [asyncio.create_task(small(one)) for one in both * 3]
        await until(lambda: turns > 10)
        async with both[1].several(3).acquire(timeout=5):
            done = True
        await asyncio.gather(*workers)


@virtual
async def test_two_large_requests_do_not_wait_for_each_other(on: Nodes) -> None:
    """With 4 permits, two that want 3 would wait for ever if each had taken 2."""
    inside = 0

    async def large(semaphore: asynclock.Semaphore) -> None:
        nonlocal inside
        for _ in range(3):
            async with semaphore.several(3).acquire(timeout=5):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                inside -= 1

    async with on.connect() as others:
        both = [locks.semaphore("s", 4) for locks in (on.locks, others)]
        await asyncio.gather(*(large(one) for one in both * 2))


@virtual
async def test_permits_that_are_free_take_one_trip_and_so_does_giving_them_back(on: Nodes) -> None:
    three = on.locks.semaphore("pool", 5).several(3)
    on.slow(0.01)
    began = now()
    hold = await three.acquire(timeout=1)
    assert now() - began < 0.03  # a trip takes 0.02
    assert len(hold.fences) == 3
    began = now()
    assert await hold.release()
    assert now() - began < 0.03
    for part in (0.0, 0.005, 0.015):
        asking = start(three.acquire())
        await asyncio.sleep(part)
        await call_off(asking)
        await go_through(on.locks.semaphore("pool", 5).several(5).acquire(timeout=0.1))
    async with on.connect() as others, others.semaphore("one", 1):
        began = now()
        assert await on.locks.semaphore("one", 1).several(1).try_acquire() is None
        with pytest.raises(asynclock.AcquireTimeoutError):
            await on.locks.semaphore("one", 1).several(1).acquire(timeout=0)
        assert now() - began < 0.09, "each: a trip to the gate, and one for the permit"
        told: list[object] = []
        on.locks.observe(told.append)
        waiting = [start(on.locks.semaphore("one", 1).several(1).acquire())]
        await asyncio.sleep(1)
        assert Failed not in map(type, told), "it still waits"
        refused = on.locks.statistics().refused
        await until(lambda: on.locks.statistics().refused > refused)  # and not soon again
        waiting.append(start(on.locks.semaphore("one", 1).several(1).acquire()))
        await asyncio.sleep(0.1)
        assert on.locks.statistics().refused == refused + 1, "it waits behind the other task"
        for one in waiting:
            await call_off(one)


# ---- holds that are dropped ----------------------------------------------------------------------
@virtual_single
async def test_a_hold_on_what_was_lost_is_dropped_without_a_word(on: Nodes) -> None:
    """Its loss was told; nothing is left to be released."""
    lock = on.locks.reentrant_lock("a", interrupt=False)
    outer, inner = await lock.acquire(), await lock.acquire()
    lose(outer)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del inner
        await asyncio.sleep(0.1)
    assert [str(one.message) for one in told] == []
    assert await outer.release() is False
