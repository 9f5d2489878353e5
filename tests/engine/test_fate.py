"""What becomes of a lease: handed on, renewed, lost, released, put back. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from tests.engine.virtual_nodes import (
    COUNTER,
    KEY,
    NODE_TIMEOUT,
    TTL,
    Nodes,
    seconds_until,
    start,
    virtual,
)
from tests.tables.inside import now
from tests.waiting import until

AT_ONCE = 0.05


@virtual
async def test_a_lease_is_handed_on_only_where_that_is_wanted(on: Nodes) -> None:
    owners = set()
    for handoff, number in ((False, 2), (True, 1)):
        lock = on.locks.lock("a", handoff=handoff)
        first = await lock.acquire()
        waiting = start(lock.acquire())
        await until(lambda: on.locks.statistics().waiting)
        await first.release()
        second = await waiting
        assert len({first.owner, second.owner}) == number
        owners |= {first.owner, second.owner}
        await second.release()
    assert len(owners) == 3


@virtual
async def test_each_lease_that_is_handed_on_has_a_fence_of_its_own(on: Nodes) -> None:
    fences = []

    async def work() -> None:
        async with on.locks.lock("a") as lease:
            fences.append(lease.fence)

    await asyncio.gather(*(work() for _ in range(20)))
    assert on.locks.statistics().handovers > 10
    assert fences == sorted(set(fences))


@virtual
async def test_a_lease_that_a_quorum_has_dropped_is_lost_and_given_back(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    for node in on.nodes[:2]:
        await node.command("DEL", KEY)
    with pytest.raises(asynclock.LeaseLostError):
        await lease.extend()
    assert await seconds_until(lambda: on.nodes[2].keys.get(KEY) is None) < AT_ONCE


@virtual
async def test_a_node_that_forgot_a_lease_gets_it_back_when_it_votes(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await asyncio.sleep(1)
    on.nodes[0].flush()
    await asyncio.sleep(0.01)  # the news of it
    await until(lambda: on.locks.nodes()[0].votes_in < AT_ONCE / 2)
    assert on.nodes[0].keys.get(KEY) is None
    assert await seconds_until(lambda: on.nodes[0].keys.get(KEY)) < AT_ONCE
    assert int(await on.nodes[0].command("GET", COUNTER)) >= lease.fence
    await on.nodes[0].command("DEL", KEY)  # by hand: so it stays
    await asyncio.sleep(3 * TTL)
    assert on.nodes[0].keys.get(KEY) is None
    assert lease.held


@virtual
async def test_a_key_of_others_need_not_be_text(on: Nodes) -> None:
    for node in on.nodes:
        await node.command("SET", KEY, b"\xff\xfe", "PX", 3000)
    assert await on.locks.lock("a").try_acquire() is None
    with pytest.raises(asynclock.AcquireTimeoutError):
        await on.locks.lock("a").acquire(timeout=1)
    async with on.locks.lock("a"):
        pass


@virtual
async def test_a_last_renewal_ends_with_max_hold_to_the_millisecond(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=4.0, max_hold=6.0).acquire()
    ends = now() + 6.0
    await lease.extend(TTL)
    assert now() + lease.remaining() == pytest.approx(ends, abs=0.0005)
    await lease.wait_lost()
    assert now() == pytest.approx(ends, abs=0.001)


@virtual
async def test_a_node_that_was_away_gets_its_releases_when_it_is_back(on: Nodes) -> None:
    lease = await on.locks.lock("a", renew=False).acquire()
    away = on.nodes[0]
    away.durable = True
    away.kill()
    await until(lambda: on.locks.nodes()[0].state == "down")
    assert await lease.release()
    assert away.keys.get(KEY)
    away.restart()
    assert await seconds_until(lambda: away.keys.get(KEY) is None) < NODE_TIMEOUT + AT_ONCE
