"""The semaphore: never more holders than permits, whatever fails."""

import asyncio

import pytest

import asynclock
from tests.engine.virtual_nodes import Nodes, start, virtual, virtual_single


# ---- which slot is asked for ---------------------------------------------------------------------
@virtual
async def test_a_free_slot_is_found_in_two_attempts(on: Nodes) -> None:
    """One of 200 is free: a refusal tells of 64, and a blind search would need a hundred."""
    for permits, most in ((8, 2), (200, 5)):
        held = [await on.locks.semaphore("s", permits).acquire() for _ in range(permits)]
        assert len({lease.part for lease in held}) == permits
        async with on.connect() as others:
            assert await others.semaphore("s", permits).try_acquire() is None
            for _ in range(2):
                lease = held.pop(permits // 2)
                await lease.release()
                before = others.statistics().attempts
                found = await others.semaphore("s", permits).try_acquire()
                assert found is not None
                assert found.part == lease.part
                assert others.statistics().attempts - before <= most
                held.append(found)
        await on.locks.aclose()
        on.locks = on.connect()


@virtual
async def test_permits_may_change_while_in_use(on: Nodes) -> None:
    """With fewer permits the higher slots end by themselves, and are not granted again."""
    leases = [await on.locks.semaphore("s", 5).acquire() for _ in range(5)]
    held = {lease.part: lease for lease in leases}
    async with on.connect() as others:
        assert await others.semaphore("s", 2).try_acquire() is None
        await held["4"].release()
        assert await others.semaphore("s", 2).try_acquire() is None
        await held["1"].release()
        lease = await others.semaphore("s", 2).acquire()
        assert lease.part == "1"
        raised = await others.semaphore("s", 6).try_acquire()
        assert raised is not None
        assert raised.part in {"4", "5"}


@virtual
async def test_a_task_that_tried_for_one_permit_may_wait_for_another(on: Nodes) -> None:
    """A slot of try_acquire is in no local queue, so it must not count as a held permit there."""
    semaphore = on.locks.semaphore("s", 2)
    theirs = await start(semaphore.acquire())
    mine = await semaphore.try_acquire()
    assert mine is not None
    async with mine:
        asyncio.get_running_loop().call_later(1, lambda: start(theirs.release()))
        assert (await semaphore.acquire(timeout=20)).part == theirs.part


@virtual_single
async def test_a_process_asks_for_no_slot_that_it_holds_itself(on: Nodes) -> None:
    """So it needs one request for each, however many it has."""
    before = on.locks.statistics().attempts
    held = [await on.locks.semaphore("s", 16).acquire() for _ in range(16)]
    assert on.locks.statistics().attempts - before == 16
    assert sorted(int(lease.part) for lease in held) == [*range(16)]
    assert await on.locks.semaphore("s", 16).try_acquire() is None
    await held[5].release()
    found = await on.locks.semaphore("s", 16).try_acquire()
    assert found is not None
    assert found.part == held[5].part


@virtual_single
async def test_those_who_come_first_do_not_all_ask_for_the_same_slot(on: Nodes) -> None:
    found = {(await on.locks.semaphore(f"s{n}", 16).acquire()).part for n in range(40)}
    assert len(found) > 4


@virtual_single
async def test_a_permit_that_others_may_not_have_is_not_handed_to_them(on: Nodes) -> None:
    """In one process, too: users of fewer permits take none of the higher slots."""
    few, many = on.locks.semaphore("s", 1), on.locks.semaphore("s", 2)
    low, high = await few.acquire(), await many.acquire()
    assert (low.part, high.part) == ("0", "1")
    waiting = start(few.acquire(timeout=5))
    await asyncio.sleep(0.1)
    await high.release()
    await asyncio.sleep(2)
    assert not waiting.done()
    await low.release()
    assert (await waiting).part == "0"


@virtual
async def test_several_permits_are_waited_for_as_long_as_the_timeout_says(on: Nodes) -> None:
    """From the call, at the gate and for all permits together."""
    semaphore = on.locks.semaphore("s", 3, timeout=4)
    held = [await semaphore.acquire() for _ in range(3)]
    loop = asyncio.get_running_loop()
    loop.call_later(1.5, lambda: start(held[0].release()))
    loop.call_later(3.0, lambda: start(held[1].release()))
    for lock, timeout in ((semaphore.several(3), {}), (semaphore.several(3), {"timeout": 2.0})):
        began = loop.time()
        with pytest.raises(asynclock.AcquireTimeoutError):
            async with asyncio.timeout(30):
                await lock.acquire(**timeout)
        assert loop.time() - began == pytest.approx(timeout.get("timeout", 4), abs=0.1)
    assert held[2].held


@virtual
async def test_a_try_for_several_permits_waits_for_nothing(on: Nodes) -> None:
    semaphore = on.locks.semaphore("s", 3)
    one = await semaphore.acquire()
    loop = asyncio.get_running_loop()
    assert await semaphore.several(3).try_acquire() is None
    collecting = start(semaphore.several(3).acquire())
    async with on.connect() as others:
        await asyncio.sleep(1)
        began = loop.time()
        assert await others.semaphore("s", 3).several(1).try_acquire() is None
        assert loop.time() - began < 0.1
    await one.release()
    got = await collecting
    assert len(got.fences) == 3
    assert await got.release()
