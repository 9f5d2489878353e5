"""How late a call may be: by its timeout, or by a node timeout or two if that is longer.

All is tried in virtual time, where no busy machine is late.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory import MemoryNode
from tests.engine.kinds import kinds
from tests.engine.virtual_nodes import Nodes, Way, refuse_tracking
from tests.tables.inside import chance, now
from tests.waiting import go_through, in_virtual_time

NODE_TIMEOUT = 0.5
TRIP = 0.35
"""One round trip fits into a node timeout, two do not."""
SLACK = 0.05
"""Seconds that virtual time may add; a further round trip takes far longer."""
KINDS = kinds(
    *("strict", "one of two", "several"),
    semaphore=lambda locks: locks.semaphore("a", 6),
    election=lambda locks: locks.election("a"),
)


def old(n: int) -> list[MemoryNode]:
    """Return nodes in memory that have run for an hour."""
    nodes = [MemoryNode(name) for name in "abc"[:n]]
    for node in nodes:
        node.born_ago(3600)
    return nodes


def ways(nodes: list[MemoryNode]) -> Nodes:
    """The same nodes, with ways of their own to them."""
    return Nodes(nodes, [Way() for _ in nodes])


@contextlib.asynccontextmanager
async def slow(
    nodes: list[MemoryNode], **options: Any
) -> AsyncIterator[tuple[asynclock.LockManager, Nodes]]:
    """A manager that has met its nodes, which then are slow."""
    on = ways(nodes)
    async with on.connect(**{"node_timeout": NODE_TIMEOUT, **options}) as locks:
        await go_through(locks.lock("warm"))
        on.slow(TRIP / 2)
        yield locks, on


async def attempt(wanted: Any, timeout: float) -> tuple[Any, float]:
    """What came of it, and how long it took."""
    began = now()
    get = wanted.campaign if isinstance(wanted, asynclock.Election) else wanted.acquire
    try:
        found = await get(timeout=timeout)
    except asynclock.AsyncLockError as error:
        found = error
    return found, now() - began


async def fill(wanted: Any) -> list[Any]:
    """Take it: five of a semaphore's six places, so that one look is seldom enough."""
    if isinstance(wanted, asynclock.Election):
        return [await wanted.campaign()]
    if isinstance(wanted, asynclock.Semaphore):
        return [await wanted.acquire() for _ in range(5)]
    return [await wanted.acquire()]


@pytest.mark.parametrize("timeout", [0, 0.05, 0.8])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_no_primitive_is_later_than_its_timeout_or_one_node_timeout(
    kind: str, n: int, timeout: float
) -> None:
    if kind == "fair_lock" and n > 1:
        return
    nodes = old(n)
    async with ways(nodes).connect() as others:
        taken = await fill(KINDS["write" if kind == "read" else kind](others))
        async with slow(nodes) as (locks, _):
            found, took = await attempt(KINDS[kind](locks), timeout)
            hop = TRIP if kind == "semaphore" else 0.0  # to the slot that is free
            assert took < max(timeout, NODE_TIMEOUT + hop) + SLACK
            if isinstance(found, asynclock.AsyncLockError):
                assert isinstance(found, asynclock.AcquireTimeoutError)
        assert taken


@pytest.mark.parametrize("timeout", [0, 0.05])
@pytest.mark.parametrize("n", [1, 3])
@in_virtual_time
async def test_going_from_slot_to_slot_ends_with_the_time(n: int, timeout: float) -> None:
    """A refusal tells of 64 slots: to see that all 256 are taken takes four round trips."""
    nodes = old(n)
    async with ways(nodes).connect(ttl=60, max_ttl=60) as others:
        full = others.semaphore("a", 256)
        taken = [await full.acquire() for _ in range(256)]
        async with slow(nodes) as (locks, _):
            found, took = await attempt(locks.semaphore("a", 256), timeout)
            assert isinstance(found, asynclock.AcquireTimeoutError)
            assert took < 4 * NODE_TIMEOUT + SLACK
        for lease in taken:
            await lease.release()


@in_virtual_time
async def test_asking_whether_a_slot_is_free_begins_nothing_late() -> None:
    """`try_acquire` has no deadline: what it has begun within four node timeouts it ends."""
    nodes = old(1)
    async with ways(nodes).connect(ttl=60, max_ttl=60) as others:
        full = others.semaphore("a", 256)
        taken = [await full.acquire() for _ in range(256)]
        async with slow(nodes) as (locks, _):
            before = locks.statistics().attempts
            assert await locks.semaphore("a", 256).try_acquire() is None
            # Six begin within 2 s; to see that all slots are taken takes four.
            assert 4 <= locks.statistics().attempts - before <= 6
        for lease in taken:
            await lease.release()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_a_free_lock_takes_one_round_trip_whatever_the_timeout(kind: str, n: int) -> None:
    if kind == "fair_lock" and n > 1:
        return
    nodes = old(n)
    async with slow(nodes) as (locks, _):
        found, took = await attempt(KINDS[kind](locks), 0)
        assert not isinstance(found, Exception), found
        assert TRIP - 0.001 < took < NODE_TIMEOUT + SLACK


@pytest.mark.parametrize("kind", ["lock", "semaphore"])  # sent in a batch, and alone
@in_virtual_time
async def test_a_turn_that_comes_near_the_end_changes_nothing(kind: str) -> None:
    """The process asks the nodes for the next in line: for as long as that one would wait."""
    nodes = old(3)
    on = ways(nodes)
    async with on.connect(node_timeout=2.0, ttl=20, max_ttl=20) as locks:
        lock: Any = locks.lock("a", handoff=False)
        if kind == "semaphore":
            lock = locks.semaphore("a", 1, handoff=False)
        lease = await lock.acquire()
        on.slow(1.5 / 2)
        waiting = asyncio.create_task(attempt(lock, 2.5))
        await asyncio.sleep(2.3)
        releasing = asyncio.create_task(lease.release())
        found, took = await waiting
        assert isinstance(found, asynclock.AcquireTimeoutError)
        assert took < 2.5 + SLACK
        await releasing


# An event's, a latch' or a barrier's change takes two answers, and a barrier that gives up leaves.
CALLS: dict[str, tuple[float, Callable[[asynclock.LockManager, float], Any]]] = {
    "event.is_set": (2, lambda locks, t: locks.event("a").is_set(timeout=t)),
    "event.set": (2, lambda locks, t: locks.event("a").set(timeout=t)),
    "event.clear": (2, lambda locks, t: locks.event("a").clear(timeout=t)),
    "event.wait": (2, lambda locks, t: locks.event("b").wait(timeout=t)),
    "latch.remaining": (2, lambda locks, t: locks.latch("a", 3).remaining(timeout=t)),
    "latch.count_down": (2, lambda locks, t: locks.latch("a", 3).count_down(timeout=t)),
    "latch.wait": (2, lambda locks, t: locks.latch("a", 3).wait(timeout=t)),
    "barrier.waiting": (2, lambda locks, t: locks.barrier("a", 2).waiting(timeout=t)),
    "barrier.wait": (4, lambda locks, t: locks.barrier("a", 2).wait(timeout=t)),
}


@pytest.mark.parametrize("timeout", [0, 0.8, 1.5])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_no_event_latch_or_barrier_is_later_than_its_timeout_or_two_node_timeouts(
    call: str, n: int, timeout: float
) -> None:
    answers, ask = CALLS[call]
    nodes = old(n)
    async with slow(nodes) as (locks, _):
        began = now()
        # Slow nodes are no outage: whatever the timeout, they get one node timeout.
        with contextlib.suppress(TimeoutError):
            await ask(locks, timeout)
        took = now() - began
    leaves = (answers - 2) * NODE_TIMEOUT
    assert took < max(timeout, 2 * NODE_TIMEOUT) + leaves + SLACK


@pytest.mark.parametrize("timeout", [0, 1.5])
@in_virtual_time
async def test_a_change_that_always_loses_against_others_ends_with_its_time(timeout: float) -> None:
    nodes = old(3)
    near = ways(nodes)
    near.slow(0.001)
    async with near.connect() as others:
        chance(others, random.Random(1).random)

        async def set_again_and_again() -> None:
            while True:
                await others.event("a").set()

        setting = asyncio.create_task(set_again_and_again())
        async with slow(nodes) as (locks, _):
            chance(locks, random.Random(2).random)
            began = now()
            try:
                with pytest.raises(asynclock.QuorumUnavailableError):
                    await locks.event("a").clear(timeout=timeout)
            finally:
                if setting.done():
                    setting.result()  # without a rival nothing is lost: its error says why
            assert now() - began < max(timeout, 2 * NODE_TIMEOUT) + SLACK
        setting.cancel()


@in_virtual_time
async def test_a_wait_that_ends_while_nodes_are_asked_is_no_outage() -> None:
    """They had answered before; where servers push nothing they are asked at intervals."""
    nodes = old(3)
    on = ways(nodes)
    refuse_tracking(nodes)
    async with on.connect(node_timeout=5.0, ttl=60, max_ttl=60) as locks:
        await go_through(locks.lock("warm"))
        on.slow(3.0 / 2)
        began = now()
        assert await locks.event("a").wait(timeout=11) is False
        assert now() - began < 11 + SLACK
