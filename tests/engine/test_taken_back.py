"""A call that waits, is cancelled, or is cut off by the close of its manager leaves nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

import asynclock
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests import patient
from tests.engine.kinds import kinds
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual
from tests.leftovers import left
from tests.tables.inside import sleeps
from tests.waiting import HOUR, PATIENCE, call_off, waits

Make = Callable[[asynclock.LockManager], Any]

LOCKS = kinds("strict", "one of two")


async def upgraded(locks: asynclock.LockManager) -> None:
    lock = locks.rwlock("a")
    async with lock.read().acquire() as reader, lock.upgrade(reader):
        pass


def acquired(make: Make, locks: asynclock.LockManager) -> Any:
    return make(locks).acquire()


WAITING: dict[str, Make] = {
    **{kind: partial(acquired, make) for kind, make in LOCKS.items()},
    "election": lambda locks: locks.election("a").campaign("x"),
    "event": lambda locks: locks.event("a").wait(),
    "latch": lambda locks: locks.latch("a", 1).wait(),
    "barrier": lambda locks: locks.barrier("a", 2).wait(),
    "once": lambda locks: locks.once("a").acquire(),
    "upgrade": upgraded,
}
HELD: dict[str, Make] = {
    **WAITING,
    "read": WAITING["write"],
    "upgrade": WAITING["read"],
    "several": lambda locks: locks.semaphore("a", 3).several(3).acquire(),
}
ROUNDS = {1: range(0, 60, 8), 3: range(4, 60, 8)}
"""By the number of nodes: rounds of the loop after which the call ends. The manager connects, asks,
and waits by then."""
both = pytest.mark.parametrize("n", [1, pytest.param(3, marks=pytest.mark.once)])


async def spin(rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def busy(nodes: list[LocalServer], kind: str) -> AsyncIterator[None]:
    """Keep the call of another manager waiting."""
    async with patient.connect_to(nodes, **patient.lasting({})) as others:
        if kind in ("event", "latch", "barrier"):
            yield
        else:
            async with HELD[kind](others):
                yield


async def ended(locks: asynclock.LockManager, call: asyncio.Task[Any], way: str) -> None:
    """End the call and the manager, in one of the ways in which programs end."""
    if way != "closed":
        call.cancel()
    if way == "cancelled, then closed":  # as by a signal: the task itself closes the manager
        await asyncio.wait([call])
    await locks.aclose()
    refused = asynclock.ConfigurationError, asynclock.LeaseLostError
    with contextlib.suppress(asyncio.CancelledError, *refused):
        await call


@both
@pytest.mark.parametrize("way", ["cancelled, then closed", "cancelled and closed", "closed"])
@pytest.mark.parametrize("kind", WAITING)
async def test_a_call_that_waits_leaves_nothing(
    asynclock_nodes: list[LocalServer], kind: str, way: str, n: int
) -> None:
    nodes = asynclock_nodes[:n]
    async with asyncio.timeout(PATIENCE), busy(nodes, kind):
        before = await left(nodes)
        for rounds in (*ROUNDS[n], None):  # None: it has waited for long
            locks = patient.connect_to(nodes, **patient.lasting({}))
            call = asyncio.ensure_future(WAITING[kind](locks))
            await (sleeps(locks) if rounds is None else spin(rounds))
            await ended(locks, call, way)
            assert await left(nodes) == before, f"after {rounds} rounds of the loop"


@both
async def test_a_cancelled_party_counts_no_longer(
    asynclock_nodes: list[LocalServer], n: int
) -> None:
    nodes = asynclock_nodes[:n]
    async with patient.connect_to(nodes, **patient.lasting({})) as locks:
        for rounds in ROUNDS[n]:
            call = asyncio.ensure_future(locks.barrier("a", 2).wait())
            await spin(rounds)
            await call_off(call)
            assert await locks.barrier("a", 2).waiting() == 0
            assert not await left(nodes)


@pytest.mark.parametrize("kind", ["lock", "fair_lock", "write", "semaphore"])
async def test_nor_does_a_call_between_attempts(asynclock_servers: StartServers, kind: str) -> None:
    """Without pushes a call sleeps, and wakes up when all connections are closed."""
    nodes = await asynclock_servers(1, users=["default on nopass ~* &* +@all -client"])
    async with asyncio.timeout(PATIENCE), busy(nodes, kind):
        before = await left(nodes)
        locks = patient.connect_to(nodes, **patient.lasting({}))
        call = asyncio.ensure_future(WAITING[kind](locks))
        await waits(locks)
        await locks.aclose()
        assert await left(nodes) == before
        with pytest.raises(asynclock.ConfigurationError):
            await call


@virtual
async def test_nor_does_an_arrival_that_reached_one_node_only(on: Nodes) -> None:
    """A later call would take it over from that node."""
    async with on.connect(ttl=6 * TTL, max_ttl=6 * TTL) as locks:
        await locks.ready(voting=True)
        on.slow(0.01)
        barrier = locks.barrier("a", 2)
        arriving = start(barrier.wait())
        await asyncio.sleep(0.025)
        for way in on.ways[1:]:  # their promises have come, and the arrival is on its way
            way.go_mute()
        await asyncio.sleep(0.01)
        on.ways[0].seconds = HOUR
        arriving.cancel()
        await asyncio.sleep(TTL)
        on.ways[0].seconds, on.ways[2].seconds = 0.01, HOUR
        await asyncio.sleep(TTL)
        assert await left(on.nodes), "the party is on the first node"
        assert await barrier.waiting() == 0
