"""The local queue, hand-overs and wake-ups: nothing is lost and no task starves."""

import asyncio
from typing import Any

import pytest

import asynclock
from tests.engine.batches import listen
from tests.engine.test_queue import line_up
from tests.engine.virtual_nodes import TTL, Nodes, seconds_until, start, virtual, virtual_single
from tests.tables.inside import now
from tests.waiting import until


@virtual_single
async def test_a_line_is_first_come_first_served(on: Nodes) -> None:
    """Only the first asks the nodes."""
    order, before = list[int](), on.locks.statistics().attempts

    async def work(number: int) -> None:
        async with on.locks.lock("a"):
            order.append(number)
            await asyncio.sleep(0.001)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert order == list(range(20))
    assert on.locks.statistics().attempts == before + 1


@virtual
async def test_a_lease_passes_on_without_a_round_trip(on: Nodes) -> None:
    """Its fence was reserved as soon as somebody waited."""
    first = await on.locks.lock("a").acquire()
    on.slow(0.02)
    waiting = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.06)
    assert await first.release()
    assert await seconds_until(waiting.done) < 0.01
    on.slow(0.0)


@virtual_single
async def test_waiters_cost_memory_not_commands(on: Nodes) -> None:
    async with on.connect() as holder, holder.lock("a"):
        tasks = [start(on.locks.lock("a").acquire()) for _ in range(2000)]
        await until(lambda: on.locks.statistics().waiting == 2000)
        asked = listen(on.nodes[0])
        await asyncio.sleep(1.0)
        assert len(asked) < 10, "one head per process refreshes its ticket"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert on.locks.statistics().waiting == 0


@pytest.mark.parametrize(
    ("one", "other", "extended", "passes"),
    [
        ({}, {"ttl": 5.0}, None, 0),
        ({"ttl": 5.0}, {}, None, 0),
        ({}, {"renew": False}, None, 0),
        ({}, {"handoff": "strict"}, None, 0),
        ({}, {"handoff": False}, None, 0),
        ({"handoff": False}, {"handoff": False}, None, 0),
        ({}, {"max_hold": 60.0}, None, 0),
        ({"max_hold": 60.0}, {}, None, 0),
        ({"max_hold": 60.0}, {"max_hold": 60.0}, None, 0),
        ({}, {"interrupt": False}, None, 1),
        ({"ttl": 5.0}, {"interrupt": False}, 10.0, 1),
        ({"ttl": 5.0}, {"ttl": 5.0}, 10.0, 0),
    ],
)
@virtual
async def test_a_lease_passes_on_only_to_the_same_terms(
    on: Nodes, one: dict[str, Any], other: dict[str, Any], extended: float | None, passes: int
) -> None:
    """And none with a `max_hold`, which is the time of one lease."""
    first = await on.locks.lock("a", **one).acquire()
    if extended:
        await first.extend(extended)
    waiter = start(on.locks.lock("a", **other).acquire())
    await until(lambda: on.locks.statistics().waiting == 1)
    await first.release()
    second = await waiter
    assert (second.owner == first.owner) == passes
    assert second.fence > first.fence
    assert on.locks.statistics().handovers == passes
    await second.release()


@virtual_single
async def test_a_turn_that_cannot_be_used_ends_with_the_timeout(on: Nodes) -> None:
    """Its fence is to come from a node that is silent: not waited for longer than was asked."""
    async with on.connect(node_timeout=2.5) as locks:
        lock = locks.lock("a", handoff="strict")
        lease = await lock.acquire()
        waiting = start(lock.acquire(timeout=1.0))
        await asyncio.sleep(0)
        on.nodes[0].freeze()
        began = now()
        releasing = start(lease.release())
        with pytest.raises(asynclock.AcquireTimeoutError):
            await waiting
        assert now() - began == pytest.approx(1.0)
        on.nodes[0].thaw()
        await releasing


@virtual
async def test_a_lease_that_is_nearly_over_is_extended_before_it_passes_on(on: Nodes) -> None:
    async with on.connect(turn=60.0) as ours, on.connect() as other:
        first, lock = await on.locks.lock("a").acquire(), ours.lock("a", renew=False)
        mine, waiting = await line_up(lock, ours), await line_up(other.lock("a"), other)
        await first.release()
        lease = await mine
        following = start(lock.acquire())
        await asyncio.sleep(0.6 * TTL)
        await lease.release()
        second = await following
        assert second.owner == lease.owner
        assert second.remaining() > 0.9 * TTL
        await second.release()
        await (await waiting).release()


@virtual
async def test_other_processes_get_their_share(on: Nodes) -> None:
    # Three managers stand for three processes; the tasks of each want one name all the time. With
    # two there is nobody else to be let ahead of, and the server wakes them in a fixed order.
    counts = [0, 0, 0]
    stop = False
    on.slow(0.0005)
    async with on.connect() as one, on.connect() as two, on.connect() as three:

        async def work(which: int, locks: asynclock.LockManager) -> None:
            while not stop:
                async with locks.lock("hot"):
                    counts[which] += 1
                    await asyncio.sleep(0.004)

        workers = [
            asyncio.create_task(work(which, locks))
            for which, locks in enumerate((one, two, three))
            for _ in range(10)
        ]
        await asyncio.sleep(3.0)
        stop = True
        await asyncio.gather(*workers)
        assert one.statistics().handovers > 0
    # Thirty turns of 0.1 s in all.
    assert min(counts) > 0.5 * sum(counts) / 3, counts
