"""How late a call may be: by its timeout, or by a node timeout or two if that is longer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing import FaultProxy, LocalServer

NODE_TIMEOUT = 0.5
TRIP = 0.35
"""One round trip fits into a node timeout, two do not."""
SLACK = 0.3
"""Less than a further round trip would take."""

Wanted = Callable[[asynclock.LockManager], Any]
KINDS: dict[str, Wanted] = {
    "lock": lambda locks: locks.lock("a"),
    "reentrant_lock": lambda locks: locks.reentrant_lock("a"),
    "multi_lock": lambda locks: locks.multi_lock("a", "b"),
    "semaphore": lambda locks: locks.semaphore("a", 6),
    "read": lambda locks: locks.rwlock("a").read(),
    "write": lambda locks: locks.rwlock("a").write(),
    "fair_lock": lambda locks: locks.fair_lock("a"),
    "election": lambda locks: locks.election("a"),
}


@contextlib.asynccontextmanager
async def slow(
    servers: list[LocalServer], **options: Any
) -> AsyncIterator[tuple[asynclock.LockManager, list[FaultProxy]]]:
    """A manager that has met its nodes, which then are slow."""
    async with contextlib.AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(server)) for server in servers]
        urls = [proxy.url for proxy in proxies]
        settings = {"node_timeout": NODE_TIMEOUT, "restart_guard": False, **options}
        locks = await stack.enter_async_context(asynclock.connect(*urls, **settings))
        async with locks.lock("warm"):
            pass
        for proxy in proxies:
            proxy.delay(TRIP)
        yield locks, proxies


async def attempt(wanted: Any, timeout: float) -> tuple[Any, float]:
    """What came of it, and how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    get = wanted.campaign if isinstance(wanted, asynclock.Election) else wanted.acquire
    try:
        found = await get(timeout=timeout)
    except asynclock.AsyncLockError as error:
        found = error
    return found, loop.time() - began


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
async def test_no_primitive_is_later_than_its_timeout_or_one_node_timeout(
    asynclock_nodes: list[LocalServer], kind: str, n: int, timeout: float
) -> None:
    if kind == "fair_lock" and n > 1:
        return
    servers = asynclock_nodes[:n]
    urls = [server.url for server in servers]
    async with asynclock.connect(*urls, restart_guard=False) as others:
        taken = await fill(KINDS["write" if kind == "read" else kind](others))
        async with slow(servers) as (locks, _):
            found, took = await attempt(KINDS[kind](locks), timeout)
            assert took < max(timeout, NODE_TIMEOUT) + SLACK
            if isinstance(found, asynclock.AsyncLockError):
                assert isinstance(found, asynclock.AcquireTimeoutError)
        assert taken


@pytest.mark.parametrize("timeout", [0, 0.05])
@pytest.mark.parametrize("n", [1, 3])
async def test_going_from_slot_to_slot_ends_with_the_time(
    asynclock_nodes: list[LocalServer], n: int, timeout: float
) -> None:
    """A refusal tells of 64 slots: to see that all 256 are taken takes four round trips."""
    urls = [server.url for server in asynclock_nodes[:n]]
    async with asynclock.connect(*urls, restart_guard=False, ttl=60, max_ttl=60) as others:
        full = others.semaphore("a", 256)
        taken = [await full.acquire() for _ in range(256)]
        async with slow(asynclock_nodes[:n]) as (locks, _):
            found, took = await attempt(locks.semaphore("a", 256), timeout)
            assert isinstance(found, asynclock.AcquireTimeoutError)
            assert took < NODE_TIMEOUT + SLACK
        for lease in taken:
            await lease.release()


async def test_who_only_asks_whether_a_slot_is_free_begins_nothing_late(
    asynclock_nodes: list[LocalServer],
) -> None:
    """`try_acquire` has no deadline: what it has begun within a node timeout it ends."""
    urls = [asynclock_nodes[0].url]
    async with asynclock.connect(*urls, restart_guard=False, ttl=60, max_ttl=60) as others:
        full = others.semaphore("a", 256)
        taken = [await full.acquire() for _ in range(256)]
        async with slow(asynclock_nodes[:1]) as (locks, _):
            before = locks.statistics().attempts
            assert await locks.semaphore("a", 256).try_acquire() is None
            # Two begin within 0.5 s, at 0 and at 0.35 s; all slots would take four.
            assert locks.statistics().attempts - before <= 2
        for lease in taken:
            await lease.release()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_free_is_got_in_one_round_trip_whatever_the_timeout(
    asynclock_nodes: list[LocalServer], kind: str, n: int
) -> None:
    if kind == "fair_lock" and n > 1:
        return
    async with slow(asynclock_nodes[:n]) as (locks, _):
        found, took = await attempt(KINDS[kind](locks), 0)
        assert not isinstance(found, Exception), found
        assert took < NODE_TIMEOUT + SLACK


async def test_a_turn_that_comes_near_the_end_changes_nothing(
    asynclock_nodes: list[LocalServer],
) -> None:
    """The process asks the nodes for the next in line: for as long as that one would wait."""
    async with slow(asynclock_nodes[:3], node_timeout=2.0, ttl=20, max_ttl=20) as (locks, proxies):
        lock = locks.lock("a", handoff=False)
        for proxy in proxies:
            proxy.heal()
        lease = await lock.acquire()
        for proxy in proxies:
            proxy.delay(1.5)
        waiting = asyncio.create_task(attempt(lock, 2.5))
        await asyncio.sleep(2.3)
        releasing = asyncio.create_task(give_back(lease))
        found, took = await waiting
        assert isinstance(found, asynclock.AcquireTimeoutError)
        assert took < 2.5 + 2 * SLACK
        await releasing


async def test_nodes_that_are_down_are_an_outage_also_for_the_impatient(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with slow(asynclock_nodes[:3]) as (locks, proxies):
        for proxy in proxies:
            proxy.half_open()
        for timeout in (0, 0.05, 0.8):
            found, took = await attempt(locks.lock("a"), timeout)
            assert isinstance(found, asynclock.QuorumUnavailableError), timeout
            assert took < max(timeout, NODE_TIMEOUT) + SLACK


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
async def test_no_event_latch_or_barrier_is_later_than_its_timeout_or_two_node_timeouts(
    asynclock_nodes: list[LocalServer], call: str, n: int, timeout: float
) -> None:
    answers, ask = CALLS[call]
    async with slow(asynclock_nodes[:n]) as (locks, _):
        loop = asyncio.get_running_loop()
        began = loop.time()
        # Slow nodes are no outage: whatever the timeout, they get one node timeout.
        with contextlib.suppress(TimeoutError):
            await ask(locks, timeout)
        took = loop.time() - began
    leaves = (answers - 2) * NODE_TIMEOUT
    assert took < max(timeout, 2 * NODE_TIMEOUT) + leaves + SLACK


@pytest.mark.parametrize("timeout", [0, 1.5])
async def test_a_change_that_loses_against_others_each_time_ends_with_its_time(
    asynclock_nodes: list[LocalServer], timeout: float
) -> None:
    urls = [server.url for server in asynclock_nodes[:3]]
    async with asynclock.connect(*urls, restart_guard=False) as others:

        async def set_again_and_again() -> None:
            while True:
                await others.event("a").set()

        setting = asyncio.create_task(set_again_and_again())
        async with slow(asynclock_nodes[:3]) as (locks, _):
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(asynclock.QuorumUnavailableError):
                await locks.event("a").clear(timeout=timeout)
            assert loop.time() - began < max(timeout, 2 * NODE_TIMEOUT) + SLACK
        setting.cancel()


async def test_a_wait_that_ends_while_nodes_are_asked_is_no_outage(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had answered before; where servers push nothing they are asked at intervals."""
    async with slow(asynclock_nodes[:3], node_timeout=5.0, ttl=60, max_ttl=60) as (locks, proxies):
        nodes = locks._engine.multiplexer
        monkeypatch.setattr(nodes, "tracks", lambda: False)
        for proxy in proxies:
            proxy.delay(3.0)
        began = asyncio.get_running_loop().time()
        assert await locks.event("a").wait(timeout=11) is False
        assert asyncio.get_running_loop().time() - began < 11 + SLACK


async def give_back(lease: asynclock.Lease) -> None:
    await lease.release()
