"""Blocks of fences: cancelled successors change nothing about the order. In virtual time."""

import asyncio

import pytest

from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import COUNTER, Nodes, Way, start, virtual, virtual_single
from tests.tables.inside import now
from tests.waiting import call_off, in_virtual_time, until

BLOCK = 1024
"""Number of fences that a process reserves at once."""


@virtual_single
async def test_a_cancelled_strict_successor_leaves_no_fence_to_the_next(on: Nodes) -> None:
    lock, fence = on.locks.lock("a", handoff="strict"), 0
    for steps in range(1, 20):
        first = await lock.acquire()
        doomed, waiting = start(lock.acquire()), start(lock.acquire())
        await until(lambda: on.locks.statistics().waiting == 2, every=0)
        await first.release()
        for _ in range(steps):
            await asyncio.sleep(0)  # the doomed one is on its way to take over
        await call_off(doomed)
        if not doomed.cancelled():
            await doomed.result().release()
        lease = await waiting
        assert fence < first.fence < lease.fence
        fence = lease.fence
        assert int(await on.nodes[0].command("GET", COUNTER)) == fence, "asked for just now"
        await lease.release()


@pytest.mark.parametrize("first", [True, False], ids=["at first", "where a fence was given"])
@in_virtual_time
async def test_the_first_fence_asks_no_clock_of_ours(*, first: bool) -> None:
    """Ours is half a minute ahead, as on a machine that has not met its time server yet."""
    behind = [MemoryNode(name, clock=lambda: 1_700_000_000.0 + now() - 30) for name in "abc"]
    on, before = Nodes(behind, [Way() for _ in behind]), 0
    if not first:
        async with on.connect(restart_guard=False) as others, others.lock("a") as lease:
            before = lease.fence
    # There is no connection yet, so no clock is known.
    async with on.connect(restart_guard=False) as locks, locks.lock("a") as lease:
        assert abs(lease.fence / 1_000_000 - behind[0].wall()) < 10
        assert lease.fence > before


@virtual
async def test_hand_overs_go_on_while_the_next_block_is_being_reserved(on: Nodes) -> None:
    """Many tasks in turn have the lock for a moment each, and the nodes answer in 10 ms."""
    waited: list[float] = []
    ends = now()

    async def hold() -> None:
        nonlocal ends
        async with on.locks.lock("a"):
            waited.append(now() - ends)
            await asyncio.sleep(0.00005)
            ends = now()

    on.slow(0.005)
    await asyncio.gather(*(hold() for _ in range(BLOCK + 300)))
    on.slow(0.0)
    assert [number for number, seconds in enumerate(waited) if seconds > 0.001] == [0, 1], (
        "the first acquire and the first block take a round trip"
    )
