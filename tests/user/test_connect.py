"""Each setting of `connect` reaches what it is for. In virtual time."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import COUNTER, TTL, Nodes, start, virtual
from tests.waiting import until


@virtual
async def test_counters_outlive_their_names_as_long_as_was_said(on: Nodes) -> None:
    async with on.connect(fence_retention=5000.0) as locks:
        async with locks.lock("a"):
            pass
        assert await on.nodes[0].command("PTTL", COUNTER) == pytest.approx(5_000_000, abs=1000)


@virtual
async def test_a_label_is_checked_and_names_the_process(on: Nodes) -> None:
    for wrong in ("x" * 201, 5):
        with pytest.raises(asynclock.ConfigurationError, match="label"):
            on.connect(label=wrong)
    async with on.connect(label="worker-1") as locks:
        lease = await locks.lock("a").acquire()
        assert lease.owner.endswith(":worker-1")


@virtual
async def test_a_process_may_have_no_turn_of_its_own(on: Nodes) -> None:
    async with on.connect(turn=0) as locks, locks.lock("a") as lease:
        assert lease.held
    with pytest.raises(asynclock.ConfigurationError, match="turn"):
        on.connect(turn=-0.1)


@pytest.mark.parametrize("guarded", [True, False])
def test_the_clock_guard_can_be_left_out(*, guarded: bool) -> None:
    @virtual
    async def test(on: Nodes) -> None:
        async with on.connect(clock_guard=guarded) as locks:
            async with locks.lock("a"):
                pass
            on.nodes[0].jump_clock(-5)
            locks._engine.multiplexer.nodes[0].check_clock()
            await asyncio.sleep(0.01)
            state = locks.nodes()[0].state
        assert state == ("quarantined" if guarded else "up")

    test()


@virtual
async def test_leases_that_were_dropped_are_not_listed(on: Nodes) -> None:
    held = await on.locks.lock("a").acquire()
    with pytest.warns(ResourceWarning, match="'b'.*dropped"):
        await on.locks.lock("b").acquire()
        gc.collect()
    assert on.locks.leases() == (held,)


@virtual
async def test_an_observer_that_was_never_added_is_not_missed(on: Nodes) -> None:
    seen: list[Any] = []
    on.locks.unobserve(seen.append)
    on.locks.observe(seen.append)
    on.locks.unobserve(seen.append)
    on.locks.unobserve(seen.append)
    async with on.locks.lock("a"):
        pass
    assert seen == []


@virtual
async def test_a_lock_that_is_not_handed_over_is_asked_for_again(on: Nodes) -> None:
    lock = on.locks.lock("a", handoff=False)
    first = await lock.acquire()
    waiting = start(lock.acquire())
    await until(lambda: on.locks.statistics().waiting)
    await first.release()
    second = await waiting
    assert second.owner != first.owner
    assert on.locks.statistics().handovers == 0


@virtual
async def test_locks_that_may_be_nested_are_known_by_their_name(on: Nodes) -> None:
    """Each function makes its own."""
    async with on.locks.reentrant_lock("a") as outer:
        async with on.locks.reentrant_lock("a").acquire(timeout=TTL / 2) as inner:
            assert inner.fence == outer.fence
            assert inner.depth == 2
